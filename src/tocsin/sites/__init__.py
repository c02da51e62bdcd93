"""Run processors as applications: each site is a Structured Streaming query; durable channels connect them.

    clock (Spark's offset log) ─► foreachBatch ─► Host.step ─► steps/N   state and outbox, renamed into place
                                                    │             ╰─► channels, sinks
    channels (folders of files, or Kafka topics) ───╯

A site runs one processor as a group of replicas (`overlay.replicas`). The group has one replica unless the plan says
otherwise. All replicas of a group process the same inputs in rounds, so the order of the inputs does not depend on the
channels. Rules are deployed over the channels.

`host` runs a replica in steps. A step passes messages, time and the site's sources to the replica, and then commits the
replica's state and outbox as one folder. Only committed messages are delivered, and a second delivery has no effect.
So a crash is only a pause, and a batch that Spark replays repeats nothing.

`site_plan` describes the sites. `channels` carry messages, `sources` split sources into batches, and `arrivals` reads
live sources. `spark_driver` runs the query of a replica. `fleet` starts and watches the sites of one machine.
"""
