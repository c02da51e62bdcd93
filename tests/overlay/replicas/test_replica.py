"""Queues, acknowledgements and elections of replicas, one by one."""

from __future__ import annotations

import pyarrow as pa

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas.messages import (
    Acknowledgement,
    Elected,
    Election,
    Gap,
    Heartbeat,
    LeaderDead,
    Publication,
    Rejoin,
    Replicated,
    RoundBatch,
    Vote,
)
from tocsin.overlay.replicas.queues import Incoming, Outgoing, Settings
from tocsin.overlay.replicas.replica import Elections, GroupTopology, Replica
from tocsin.overlay.replicas.state_machine import Inputs, Outputs, SourceQueue

STREAM = ("a", "b")


def outgoing(count: int) -> Outgoing:
    queue = Outgoing(STREAM, ("b#0", "b#1"))
    for number in range(count):
        queue.enqueue(RoundBatch(STREAM, number))
    return queue


def test_only_batches_acknowledged_by_all_are_pruned() -> None:
    queue = outgoing(5)
    queue.acknowledged("b#0", 0, 4)
    assert queue.floor == -1
    queue.acknowledged("b#1", 0, 2)
    assert queue.floor == 2
    assert list(queue.kept) == [3, 4]


def test_a_new_incarnation_voids_acknowledgements() -> None:
    queue = outgoing(5)
    queue.acknowledged("b#0", 0, 4)
    assert queue.acknowledged("b#0", 1, 1)
    queue.acknowledged("b#0", 0, 4)
    queue.acknowledged("b#1", 0, 4)
    assert queue.floor == 1
    assert [batch.number for batch in queue.due("b#0")] == [2, 3, 4]


def test_a_decommissioned_receiver_is_ignored_unless_it_is_the_last() -> None:
    queue = outgoing(5)
    queue.acknowledged("b#0", 0, 3)
    queue.leave_out("b#1", back=False)
    assert queue.floor == 3
    queue.leave_out("b#0", back=False)
    assert queue.floor == 3
    assert list(queue.kept) == [4]


def test_a_lagging_follower_retains_nothing_below_the_frontier() -> None:
    queue = outgoing(2)
    queue.prune(4)
    for number in range(2, 7):
        queue.enqueue(RoundBatch(STREAM, number))
    assert list(queue.kept) == [5, 6]
    assert [batch.number for batch in queue.due("b#0")] == [5, 6]
    assert queue.due("b#0") == []


def test_batches_are_accepted_once_in_order_and_within_the_limit() -> None:
    incoming = Incoming(STREAM, 2)
    numbers = [0, 0, 2, 1, 0, 2, 1]
    assert [incoming.accept(RoundBatch(STREAM, number)) for number in numbers] == [True, False, False, True] + [
        False
    ] * 3
    assert incoming.duplicates == 3
    incoming.take()
    assert incoming.accept(RoundBatch(STREAM, 2))
    assert incoming.upto == 2


def test_a_source_reports_when_it_is_full_and_what_was_pruned() -> None:
    feed = SourceQueue("a", ("a#0",), Settings(queue_max=2))
    batch = pa.table({"ts": pa.array([], pa.int64())})
    assert [feed.publish((Publication(batch, upto),), 0) for upto in range(3)] == [True, True, False]
    feed.receive("a#0", Acknowledgement(("feed:a", "a"), 1, 0), 5)
    assert feed.publish((Publication(batch, 2),), 6)
    feed.outbox.clear()
    feed.receive("a#0", Acknowledgement(("feed:a", "a"), -1, 1, restarted=True), 7)
    assert feed.outbox == [("a#0", Gap(("feed:a", "a"), 1, 1))], "it cannot take what comes after a gap"
    feed.outbox.clear()
    feed.receive("a#0", Acknowledgement(("feed:a", "a"), 1, 1, restarted=True), 8)
    assert feed.outbox == [("a#0", feed.queue.kept[2])]


def test_a_receiver_without_progress_is_sent_batches_again() -> None:
    """A link that was cut has lost a batch; the receiver drops all later ones, and reports its position each time."""
    feed = SourceQueue("a", ("a#0",), Settings(resend_us=50))
    for now in range(0, 100, 10):
        feed.publish((), now)
        feed.outbox.clear()
        feed.receive("a#0", Acknowledgement(("feed:a", "a"), 0, 0), now)
        feed.tick(now)
        if feed.outbox:
            break
    assert now == 70
    assert [(to, batch.number) for to, batch in feed.outbox] == [("a#0", number) for number in range(1, 8)]
    assert not any(isinstance(message, LeaderDead) for _, message in feed.outbox)


class Silent:
    """A processor that sends nothing."""

    def step(self, inputs: Inputs) -> Outputs:
        return {}

    def snapshot(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        pass


def test_restoring_a_later_state_keeps_acknowledged_batches() -> None:
    """Found by a random schedule: a replica had acknowledged batches, lacked others, and took the state of a peer that
    was further by its rounds but did not have those batches; they were pruned, and no replica had them."""
    topology = GroupTopology("a", ("a#0", "a#1"), {"b": ("b#0",), "c": ("c#0",)})
    behind, ahead = (Replica(name, topology, Silent(), Settings(rounds=8)) for name in topology.replicas)
    for replica, upto in ((behind, {"b": 5, "c": 0}), (ahead, {"b": 3, "c": 4})):
        replica.receive("feed:a", RoundBatch(("feed:a", "a"), 0), 0)
        for group, last in upto.items():
            for number in range(last + 1):
                replica.receive(f"{group}#0", RoundBatch((group, "a"), number), 0)
    assert (behind.round, ahead.round) == (2, 5)
    behind.receive("c#0", Gap(("c", "a"), 3), 1)
    behind.tick(2)
    (asked,) = [message for to, message in behind.outbox if isinstance(message, Rejoin)]
    ahead.outbox.clear()
    ahead.receive("a#0", asked, 3)
    ((_, state),) = ahead.outbox
    behind.receive("a#1", state, 4)
    assert behind.round == 6
    assert {group: one.upto for group, one in behind.incoming.items()} == {"feed:a": 0, "b": 5, "c": 4}


def elections(name: str, said: list[tuple[str, Replicated]], latency_us: int = 0) -> Elections:
    peers = [peer for peer in ("a#0", "a#1", "a#2") if peer != name]
    return Elections(name, peers, lambda to, what: said.append((to, what)), 40, 10, "a#0", latency_us)


def test_the_lowest_latency_then_the_lowest_name_leads() -> None:
    for votes, best in (({"a#2": 3}, "a#2"), ({"a#2": 5}, "a#1"), ({"a#2": 5, "a#0": 1}, "a#1")):
        said: list[tuple[str, Replicated]] = []
        one = elections("a#1", said, 5)
        one.tick(41)
        assert said == [("a#0", Election(1)), ("a#2", Election(1))]
        for name, latency_us in votes.items():
            one.voted(name, Vote(1, latency_us))
        one.tick(51)
        assert one.leader == best, "the one who is thought dead is not elected"
        assert said[-1] == ("a#2", Elected(best))


def test_the_election_of_the_lower_name_continues() -> None:
    said: list[tuple[str, Replicated]] = []
    one = elections("a#1", said)
    one.start(5, None)
    one.asked("a#2", Election(1))
    assert not any(isinstance(what, Vote) for _, what in said)
    one.asked("a#0", Election(1))
    assert said[-1] == ("a#0", Vote(1, 0))
    one.tick(100)
    assert sum(isinstance(what, Election) for _, what in said) == 4, "the leader is silent still"


def test_of_two_leaders_one_stops() -> None:
    good, bad = elections("a#0", [], 3), elections("a#1", [], 5)
    bad.elected("a#1", 0)
    good.beat("a#1", Heartbeat(0, True, 0, 5), 1)
    bad.beat("a#0", Heartbeat(0, True, 0, 3), 1)
    assert (good.leading, bad.leading) == (True, False)


def test_any_replica_may_suspect_the_leader() -> None:
    said: list[tuple[str, Replicated]] = []
    one = elections("a#1", said)
    one.accused(LeaderDead("a#2"), 1)
    assert not said
    one.accused(LeaderDead("a#0"), 1)
    assert [type(what) for _, what in said] == [Election, Election]


def test_messages_of_replicas_are_encoded_and_decoded() -> None:
    for message in (
        RoundBatch(STREAM, 3),
        Acknowledgement(STREAM, 3, 1),
        Heartbeat(1, True, 4, 5, (("b", 2),)),
        Elected("a#1"),
    ):
        assert decode(encode(message)) == message
