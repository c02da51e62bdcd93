"""Queues, acknowledgements and elections of replicas, one by one."""

from __future__ import annotations

import pyarrow as pa

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.replicas.messages import (
    Bundle,
    Delivered,
    Elected,
    Election,
    Gap,
    Heartbeat,
    LeaderDead,
    Publication,
    Rejoin,
    Replicated,
    Vote,
)
from tocsin.overlay.replicas.queues import Incoming, Outgoing, Settings
from tocsin.overlay.replicas.replica import Elections, Place, Replica
from tocsin.overlay.replicas.state_machine import Feed, Inputs, Outputs

STREAM = ("a", "b")


def outgoing(count: int) -> Outgoing:
    queue = Outgoing(STREAM, ("b#0", "b#1"))
    for number in range(count):
        queue.enqueue(Bundle(STREAM, number))
    return queue


def test_only_what_all_have_is_pruned() -> None:
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
    assert [bundle.number for bundle in queue.due("b#0")] == [2, 3, 4]


def test_one_that_failed_for_ever_is_not_waited_for_but_the_last_is() -> None:
    queue = outgoing(5)
    queue.acknowledged("b#0", 0, 3)
    queue.leave_out("b#1", back=False)
    assert queue.floor == 3
    queue.leave_out("b#0", back=False)
    assert queue.floor == 3
    assert list(queue.kept) == [4]


def test_a_lagging_follower_keeps_nothing_below_the_frontier() -> None:
    queue = outgoing(2)
    queue.prune(4)
    for number in range(2, 7):
        queue.enqueue(Bundle(STREAM, number))
    assert list(queue.kept) == [5, 6]
    assert [bundle.number for bundle in queue.due("b#0")] == [5, 6]
    assert queue.due("b#0") == []


def test_bundles_are_taken_once_in_order_and_within_the_limit() -> None:
    incoming = Incoming(STREAM, 2)
    numbers = [0, 0, 2, 1, 0, 2, 1]
    assert [incoming.accept(Bundle(STREAM, number)) for number in numbers] == [True, False, False, True] + [False] * 3
    assert incoming.duplicates == 3
    incoming.take()
    assert incoming.accept(Bundle(STREAM, 2))
    assert incoming.upto == 2


def test_a_feed_says_when_it_is_full_and_what_cannot_be_sent_any_more() -> None:
    feed = Feed("a", ("a#0",), Settings(queue_max=2))
    batch = pa.table({"ts": pa.array([], pa.int64())})
    assert [feed.publish((Publication(batch, upto),), 0) for upto in range(3)] == [True, True, False]
    feed.receive("a#0", Delivered(("feed:a", "a"), 1, 0), 5)
    assert feed.publish((Publication(batch, 2),), 6)
    feed.outbox.clear()
    feed.receive("a#0", Delivered(("feed:a", "a"), -1, 1, anew=True), 7)
    assert feed.outbox == [("a#0", Gap(("feed:a", "a"), 1, 1))], "it cannot take what comes after a gap"
    feed.outbox.clear()
    feed.receive("a#0", Delivered(("feed:a", "a"), 1, 1, anew=True), 8)
    assert feed.outbox == [("a#0", feed.queue.kept[2])]


def test_one_that_answers_but_gets_no_further_is_sent_again_what_it_lacks() -> None:
    """A link that was cut has lost a bundle; the receiver drops all that comes after it, and says so each time."""
    feed = Feed("a", ("a#0",), Settings(resend_us=50))
    for now in range(0, 100, 10):
        feed.publish((), now)
        feed.outbox.clear()
        feed.receive("a#0", Delivered(("feed:a", "a"), 0, 0), now)
        feed.tick(now)
        if feed.outbox:
            break
    assert now == 70
    assert [(to, bundle.number) for to, bundle in feed.outbox] == [("a#0", number) for number in range(1, 8)]
    assert not any(isinstance(message, LeaderDead) for _, message in feed.outbox)


class Silent:
    """A processor that says nothing."""

    def step(self, inputs: Inputs) -> Outputs:
        return {}

    def snapshot(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        pass


def test_a_state_that_is_further_takes_nothing_away_that_was_acknowledged() -> None:
    """Found by a random schedule: a replica had acknowledged bundles, lacked others, and took the state of a peer that
    was further by its rounds but had not got those bundles; they were pruned, and nobody had them."""
    place = Place("a", ("a#0", "a#1"), {"b": ("b#0",), "c": ("c#0",)})
    behind, ahead = (Replica(name, place, Silent(), Settings(rounds=8)) for name in place.replicas)
    for replica, upto in ((behind, {"b": 5, "c": 0}), (ahead, {"b": 3, "c": 4})):
        replica.receive("feed:a", Bundle(("feed:a", "a"), 0), 0)
        for group, last in upto.items():
            for number in range(last + 1):
                replica.receive(f"{group}#0", Bundle((group, "a"), number), 0)
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


def test_the_least_latency_then_the_least_name_leads() -> None:
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


def test_the_election_of_the_lesser_name_goes_on() -> None:
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


def test_anybody_may_say_that_the_leader_is_dead() -> None:
    said: list[tuple[str, Replicated]] = []
    one = elections("a#1", said)
    one.accused(LeaderDead("a#2"), 1)
    assert not said
    one.accused(LeaderDead("a#0"), 1)
    assert [type(what) for _, what in said] == [Election, Election]


def test_messages_of_replicas_are_written_and_read() -> None:
    for message in (Bundle(STREAM, 3), Delivered(STREAM, 3, 1), Heartbeat(1, True, 4, 5, (("b", 2),)), Elected("a#1")):
        assert decode(encode(message)) == message
