"""How does each composite event reach its sink exactly once, in order, while replicas fail? (Strong reliability)

    feed ─► replica 0 (leader)   ─► every replica of each neighbouring group ─► … ─► every drain of a sink
        ╰─► replica 1 (follower) ─► its outgoing queue, until the leader says what has been delivered by all

A *group* is f+1 replicas of one processor. All of them run it (active standby), only leaders send. A group is fed by
its sources through a *feed*, whose log outlives it, and hands what a sink gets to the f+1 *drains* that stand for it.
What a host asks of a processor (trees, advertisements, subscriptions) comes through the feed too, so that deployment
is replicated like all that follows.

**One order.** A processor's answers follow from the order of its inputs, and links between different replicas
interleave differently. So groups work in *rounds*: in round r a replica takes what its neighbours sent in round r - 1,
by the name of the neighbour, and, every few rounds, the next batch of its sources. What it sends to a neighbour in
round r is one *bundle*, empty if there is nothing. Every replica of a group thus sees the same inputs in the same
order, whatever the processor does with them, and bundle r of a stream is the same whoever sends it. (The papers'
systems order by event time. A processor may rightly forward an older event after a newer one, and pulls events by
awakenings that go the other way; rounds give those a place too.)

**Logical time.** A stream goes from one group to another. Its logical time is the number of the bundle, which follows
from what was released and never from a clock. A receiver takes bundle n + 1 after bundle n and nothing else.

**Why the paper's lemmas hold** (f+1 replicas, at most f of a group failed at a time):
5.1 No false ordering: bundles are taken in order of their number, and equal numbers have equal content by induction
  over rounds: the first round in which two replicas of a group differ would have had different inputs.
5.2 No duplication: a duplicate has a number that was taken already, so it is dropped. This needs no memory of events.
5.3 No false negatives. *Acknowledgements*: they are cumulative, and a bundle is pruned when all receivers have it in
  memory, save those that are gone for ever; each correct one has it. *Failure of a sender*: what is not pruned is in
  the queue of each correct replica, or will be once it gets to that round, as a replica drops only what is at or
  below the frontier that a leader told. *Failure of a receiver*: it comes back with a new incarnation, which voids
  its old acknowledgements, and with the state of a peer. If what it then lacks has been pruned in between, it is told
  so and takes a newer state; a peer that acknowledged has it. It counts as correct again when all correct senders
  know its incarnation. Within an incarnation nothing that was acknowledged is given up, whatever state is taken over.
  *Filter*: only numbers that were taken are dropped. *Loss on a link*: who gets no further is sent it again.
5.4 No false positives: links create nothing, and a replica without state says nothing until it has a peer's.
5.5 Completeness: a replica whose leader is silent starts an election, and one that hears of no better leader leads;
  so at least one correct replica sends in the end. Rounds need only the neighbours' last round, so they go on.

If more than f of a group fail and forget, no peer answers the one that returns: it waits, says which bundles of which
streams are lost (`lost`), its neighbours keep their queues up to their limit and then wait too. Nothing false is
delivered, and when one returns with its state all goes on.

`queues` numbers, keeps and filters bundles, `sending` sends them, `members` catch up, `elections` suspects and votes,
`replica` joins them, `machines` runs the processor, `ends` are feeds and drains.
"""
