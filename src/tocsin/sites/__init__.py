"""How do processors run for real? Each site is a Structured Streaming application; durable channels join them.

    clock (Spark's offset log) ─► foreachBatch ─► Host.step ─► steps/N   state and outbox, renamed into place
                                                    │             ╰─► channels, sinks
    channels (folders of files, or Kafka topics) ───╯

A site is the replica of a processor (`overlay.replicas`), a group of one unless the plan says otherwise: rounds give
its inputs one order, whatever the channels do, and deployment goes over the channels like all else. `hosts` makes a
step: what came in, the time and the site's sources go into the replica, and what it remembers and has to say is
committed as one folder, renamed into place. Only what is committed is delivered, and delivering it twice changes
nothing. So a crash between any two moments is no more than a pause, and a batch that Spark replays repeats nothing.

`plans` says who is where, `channels` and `topics` (through `broker`) carry parcels, `feeding` cuts sources into
batches, `live` those that others write to (`arrivals`), `pieces` writes down what a processor remembers, `application`
is the query, `fleet` starts and watches the sites of one machine.
"""
