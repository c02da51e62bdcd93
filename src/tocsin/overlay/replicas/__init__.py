"""Replicate processors, so that each composite event reaches its sink exactly once, in order, while replicas fail.

    source ─► replica 0 (leader)   ─► every replica of each neighbouring group ─► … ─► every replica of a sink
          ╰─► replica 1 (follower) ─► its outgoing queue, until the leader reports what all have acknowledged

A *group* consists of f+1 replicas of one processor. All replicas run the processor (active standby), but only leaders
send. A group gets its events from a *source*, a queue whose log survives a crash. It delivers the matches of a sink to
f+1 *sink replicas*. The commands of a host to a processor (to build trees, to advertise, to subscribe) come through the
source, too, so that all replicas execute the same commands.

**One order.** The outputs of a processor depend on the order of its inputs, and messages from several neighbours arrive
at each replica in a different order. So groups work in synchronous *rounds*. In round r, a replica processes what its
neighbours sent in round r - 1, in order of the neighbours' names, and, every few rounds, the next batch of its source.
Everything that a replica sends to one neighbour in round r is one *batch*, which may be empty. So all replicas of a
group see the same inputs in the same order, and batch r of a stream is the same from each sender. (The papers' systems
order events by event time. But a processor may correctly forward an older event after a newer one, and its requests
for events of slaves travel in the other direction. Rounds order these messages, too.)

**Logical time.** A *stream* has the batches from one group to another. Its logical time is the number of the batch,
which follows from released events and never from a clock. A receiver accepts only batch n + 1 after batch n.

**Why the paper's lemmas hold**, if at most f of the f+1 replicas of a group have failed at a time:

5.1 No false ordering. Batches are accepted in order of their numbers. Batches of one stream with equal numbers have
  equal content, by induction over rounds: in the first round with different outputs, the inputs would have differed.
5.2 No duplication. A duplicate batch has a number that was accepted before, so it is dropped. Events need not be
  remembered for this.
5.3 No false negatives.
  *Acknowledgements* are cumulative. A batch is pruned when all receivers that are not decommissioned have acknowledged
  it, so each correct receiver has it in memory. The last such batch of a stream is the *frontier*.

  *Failure of a sender*: a batch that is not pruned is in the queue of each correct replica, or will be there when the
  replica reaches its round, because a replica only drops batches up to the frontier that a leader reported.

  *Failure of a receiver*: the receiver returns with a new *incarnation* (the number of its earlier starts), which voids
  its old acknowledgements, and with the state of a peer. If batches that it lacks have been pruned meanwhile, a sender
  informs it (`Gap`), and it takes a newer state from a peer that acknowledged these batches. It counts as correct again
  when all correct senders know its incarnation. Within an incarnation, restoring a state drops no acknowledged batch.

  *Filter*: only batches whose numbers were accepted before are dropped.

  *Loss on a link*: all batches without an acknowledgement are sent again to a receiver without progress.
5.4 No false positives. Links create no messages, and a replica without state sends no batches until it has the state of
  a peer.
5.5 Completeness. A replica whose leader is silent starts an election, and a replica that hears of no better leader
  becomes one. So at least one correct replica sends eventually. A round needs only the previous round of the
  neighbours, so rounds continue.

If more than f replicas of a group fail and lose their state, a replica that returns gets no answer from a peer. It
waits and reports which batches of which streams are lost (`lost`). The neighbours retain batches up to a limit and then
wait, too. No false match is delivered, and everything continues when a replica returns with its state.

`queues` numbers, retains, filters and sends batches. `catch_up` restores a member of a group from the state of a peer.
`replica` has the elections and the replica of a processor. `state_machine` runs the processor, and has the source
queues and the sink replicas.
"""
