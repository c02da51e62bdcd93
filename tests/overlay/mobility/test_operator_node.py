"""The steps of an operator from range to range, message by message."""

from __future__ import annotations

from dataclasses import replace

from tocsin.events.types import Event, text_words
from tocsin.language.mcep.ast import Rectangle, Space
from tocsin.language.mcep.text import parse
from tocsin.overlay.mobility.brokers import CellBroker, Find, FindReply
from tocsin.overlay.mobility.consumer import Consumer, LocationProgress, LocationUpdate
from tocsin.overlay.mobility.operator_node import (
    Collect,
    CollectCells,
    LocatedEvent,
    Marker,
    OperatorNode,
    StreamedEvents,
)
from tocsin.plans.moving import Grid, Region, tree

OLD, NEW = Region(Rectangle(10, 10), (0, 0)), Region(Rectangle(10, 10), (4, 0))
GRID = Grid((-50.0, -50.0, 50.0, 50.0), 4, 4)


def interest(rule: str = "define P() from A() and each B() within 9 us from A"):
    return parse(f"{rule} interest I of P around Me range rectangle 10 m by 10 m lifetime 5 us").interests[0]


def find(number: int, start: int, region: Region, *, member: bool = True) -> Find:
    points = {"I/P": {"A": start - 6, "B": start - 14}}
    return Find("I", number, start, region, member, points, {"I/P": ("op", ("A", "B"))}, False, True, None, "root")


def at(type: str, ts: int, x: float) -> Event:
    return Event(type, ts, {"x": x, "y": 0.0}, id=f"{type}{ts}")


def sent(machine) -> list[object]:
    taken, machine.outbox = [message for _, message in machine.outbox], []
    return taken


def broker() -> CellBroker:
    cells = CellBroker("b", GRID, Space.PLANE, 1000)
    cells.publish([at("A", 8, 2.0), at("B", 9, -4.0)], 10)
    cells.receive(find(1, 10, OLD), 0)
    return cells


def test_a_broker_answers_when_it_has_all_events_up_to_the_update() -> None:
    cells = CellBroker("b", GRID, Space.PLANE, 1000)
    cells.publish([], 9)
    cells.receive(find(1, 10, OLD), 0)
    assert sent(cells) == []
    cells.publish([], 11)
    *_, answer = sent(cells)
    assert isinstance(answer, FindReply)
    assert answer.affected == {"I/P"}


def test_history_follows_a_marker_then_live_events() -> None:
    cells = broker()
    marker, history, _ = sent(cells)
    assert isinstance(marker, Marker)
    assert isinstance(history, StreamedEvents)
    assert sorted(row.event.id for row in history.rows) == ["A8", "B9"]
    cells.publish([at("A", 12, 1.0), at("A", 13, 30.0)], 15)
    (live,) = sent(cells)
    assert isinstance(live, StreamedEvents)
    assert [row.event.id for row in live.rows] == ["A12"]
    assert live.upto == 15


def test_a_move_that_affects_no_operator_needs_no_collect() -> None:
    cells = broker()
    sent(cells)
    cells.receive(find(2, 10, Region(Rectangle(10, 10), (0.5, 0))), 0)
    (answer,) = sent(cells)
    assert isinstance(answer, FindReply)
    assert answer.affected == frozenset()
    cells.publish([at("A", 12, 5.5), at("A", 13, -4.9)], 15)
    (live,) = sent(cells)
    assert isinstance(live, StreamedEvents)
    assert [row.event.id for row in live.rows] == ["A12"]


def test_only_events_new_to_the_range_or_since_the_reply_are_sent() -> None:
    cells = broker()
    cells.publish([at("A", 14, 8.0)], 15)
    sent(cells)
    cells.receive(find(2, 15, NEW), 0)
    marker, history, answer = sent(cells)
    assert isinstance(answer, FindReply)
    assert answer.affected == {"I/P"}
    assert isinstance(marker, Marker)
    assert isinstance(history, StreamedEvents)
    assert marker.keeps
    assert sorted(row.event.id for row in history.rows) == ["A14"]
    cells.publish([at("B", 16, 3.0)], 20)
    (live,) = sent(cells)
    assert [row.event.id for row in live.rows] == ["B16"]


def test_with_a_quiescent_point_a_broker_waits_for_the_collect() -> None:
    cells = broker()
    cells.publish([at("A", 14, 8.0)], 15)
    sent(cells)
    cells.receive(replace(find(2, 15, NEW), quiescent_us=1), 0)
    (answer,) = sent(cells)
    assert isinstance(answer, FindReply)
    cells.publish([at("B", 16, 3.0)], 20)
    assert sent(cells) == []
    cells.receive(CollectCells("I", "I/P", 2, 15, {"A": 9, "B": 1}, True), 0)
    marker, history = sent(cells)
    assert isinstance(marker, Marker)
    assert sorted(row.event.id for row in history.rows) == ["A14", "B16"]


def row(event: Event) -> LocatedEvent:
    return LocatedEvent(event, text_words(event.id or ""), ((event.attributes["x"], event.attributes["y"]),))


def collect(number: int, start: int, region: Region) -> Collect:
    points = {"I": {"P": start - 6}, "I/P": {"A": start - 6, "B": start - 14}}
    brokers = {"I": frozenset[str](), "I/P": frozenset({"b"})}
    return Collect("I", "I/P", number, start, region, points, brokers, {"I": frozenset(), **brokers}, {})


def test_an_operator_finishes_a_range_before_the_next() -> None:
    (operator,) = tree(interest()).children
    processor = OperatorNode("I", operator, "root", "I", {}, incremental=True)
    processor.receive(collect(1, 10, OLD), 0)
    assert sent(processor) == []
    processor.receive(Marker("I", "I/P", "b", 1, OLD, False), 0)
    processor.receive(StreamedEvents("I", "I/P", "b", (row(at("B", 9, 1.0)),), 10), 0)
    processor.receive(collect(2, 15, NEW), 0)
    processor.receive(StreamedEvents("I", "I/P", "b", (row(at("A", 12, 1.0)),), 14), 0)
    marker, nothing, one = sent(processor)
    assert (marker.number, len(nothing.rows), len(one.rows)) == (1, 0, 1)
    processor.receive(StreamedEvents("I", "I/P", "b", (), 16), 0)
    (done,) = sent(processor)
    assert done.upto == 15
    processor.receive(Marker("I", "I/P", "b", 2, NEW, True), 0)
    processor.receive(StreamedEvents("I", "I/P", "b", (), 20), 0)
    turned, again = sent(processor)
    assert turned.number == 2
    assert (again.rows, again.kept, again.upto) == ((), (), 20)


def test_nothing_is_delivered_before_the_object_is_known_to_have_stayed() -> None:
    consumer = Consumer(
        interest("define P() from A()"), "root", {"I": "root", "I/P": "op"}, GRID, lambda cell: "b", 1000
    )
    consumer.receive(LocationUpdate("I", 1, 10, (0.0, 0.0)), 0)
    (asked,) = sent(consumer)
    assert isinstance(asked, Find)
    consumer.receive(FindReply("I", 1, "b", frozenset({"I/P"}), (), -990), 0)
    (collect,) = sent(consumer)
    assert isinstance(collect, Collect)
    (operator,) = consumer.root.children
    processor = OperatorNode("I", operator, "root", "I", {}, incremental=True)
    processor.receive(collect, 0)
    processor.receive(Marker("I", "I/P", "b", 1, OLD, False), 0)
    processor.receive(StreamedEvents("I", "I/P", "b", (row(at("A", 12, 1.0)),), 20), 0)
    for message in sent(processor):
        if isinstance(message, Marker | StreamedEvents):
            consumer.receive(message, 0)
    assert [one.match for one in consumer.delivered] == [None]
    consumer.receive(LocationProgress("I", 11), 0)
    assert len(consumer.delivered) == 1
    consumer.receive(LocationProgress("I", 12), 0)
    assert [one.match.ts for one in consumer.delivered[1:] if one.match] == [12]


def test_a_history_that_is_too_short_is_reported() -> None:
    consumer = Consumer(interest(), "root", {"I": "root", "I/P": "op"}, GRID, lambda cell: "b", 13)
    consumer.receive(LocationUpdate("I", 1, 10, (0.0, 0.0)), 0)
    consumer.receive(FindReply("I", 1, "b", frozenset({"I/P"}), (), -990), 0)
    assert consumer.delivered[0].error == "the history kept is shorter than the lifetime and the windows"
    pruned = Consumer(interest(), "root", {"I": "root", "I/P": "op"}, GRID, lambda cell: "b", 14)
    pruned.receive(LocationUpdate("I", 1, 10, (0.0, 0.0)), 0)
    pruned.receive(FindReply("I", 1, "b", frozenset({"I/P"}), (), 0), 0)
    assert pruned.delivered[0].error == "a broker no longer holds the history that is needed"
