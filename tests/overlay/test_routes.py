"""No event is missed and none is sent twice when the parent changes what is pushed and what is pulled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin.events.types import EventType, Kind
from tocsin.language import parse_pattern
from tocsin.overlay.messages import RequestedPartial, Rows, WindowRequest
from tocsin.overlay.routes import Uplink
from tocsin.plans.splitting import Partial, partial

TYPES = {"E": EventType("E", (("n", Kind.INT),))}
ALL, SOME = (partial(parse_pattern(text), ()) for text in ("E()", "E(n>1)"))


def table(*events: tuple[int, int]) -> Rows:
    """Events of one type, as (ts, n)."""
    ts, n = zip(*events, strict=True)
    columns = {"type": ["E"] * len(ts), "ts": ts, "seq": [0] * len(ts), "id": [f"{at}" for at in ts]}
    return Rows(pa.table({**columns, "n": pa.array(n, pa.int32())}))


def order(uplink: Uplink, pushed: dict[Partial, bool], waiting: Rows, upto: int) -> list[str]:
    """Return the events that are sent with a new order."""
    candidates = [(waiting, np.zeros(waiting.num_rows, np.int64))]
    requested = tuple(RequestedPartial(part, mode, 0 if mode else 100) for part, mode in pushed.items())
    found = uplink.take_over(requested, (), candidates, upto, TYPES)
    return [id for events, _ in found if events is not None for id in events["id"].to_pylist()]


def passed(uplink: Uplink, events: Rows) -> None:
    """Released events, of both partial rules."""
    rows = events["n"].to_numpy() > 1
    for part, mine in ((ALL, events), (SOME, events.take(rows))):
        uplink.select_simple(part, mine, np.zeros(mine.num_rows, np.int64), TYPES)


def test_two_that_start_together_do_not_wait_for_each_other() -> None:
    uplink = Uplink(simple=(ALL, SOME))
    assert order(uplink, {ALL: True, SOME: False}, table((1, 2)), 0) == []
    assert order(uplink, {ALL: False, SOME: False}, table((1, 2), (3, 0)), 2) == [], "both went up as they came"
    assert len(uplink.sent) == 2
    assert uplink.unsent(table((1, 2), (3, 0)), np.zeros(2, np.int64), TYPES)[0] is None
    passed(uplink, table((3, 0), (5, 2), (6, 0)))
    assert order(uplink, {ALL: True, SOME: True}, table((8, 2), (9, 0)), 7) == ["5", "6", "8", "9"]


def test_events_sent_by_a_rule_that_stays_are_not_sent_again() -> None:
    uplink = Uplink(simple=(ALL, SOME))
    order(uplink, {ALL: False, SOME: True}, table((0, 0)).slice(0, 0), 0)
    uplink.select_simple(ALL, table((1, 2), (2, 0)), np.zeros(2, np.int64), TYPES)
    assert order(uplink, {ALL: True, SOME: True}, table((4, 2), (5, 1)), 3) == ["2", "5"]


def test_requested_events_are_not_sent_again() -> None:
    uplink = Uplink(simple=(ALL,))
    order(uplink, {ALL: False}, table((0, 0)).slice(0, 0), 0)
    uplink.select_simple(ALL, table((1, 2), (2, 0)), np.zeros(2, np.int64), TYPES)
    answer, _ = uplink.answer_requests(ALL, [WindowRequest(0, 2)], np.zeros(1, np.int64), TYPES)
    assert answer is not None
    assert answer["id"].to_pylist() == ["1"]
    assert order(uplink, {ALL: True}, table((4, 2)), 3) == ["2", "4"]
