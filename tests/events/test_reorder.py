"""Events are released in order, and an event is late exactly if it arrives after the watermark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.budget import examples
from tocsin.events.reorder import BEGINNING, Scheduler

Row = tuple[int, int]
"""(ts, seq)"""


def batch(rows: Sequence[Row], start: int = 0, types: Sequence[int] | None = None) -> pa.Table:
    """Rows as a batch; `number` tells them apart."""
    return pa.table(
        {
            "type": pa.array(types if types is not None else [0] * len(rows), pa.int32()),
            "ts": pa.array([ts for ts, _ in rows], pa.int64()),
            "seq": pa.array([seq for _, seq in rows], pa.int64()),
            "number:long": pa.array(range(start, start + len(rows)), pa.int64()),
        }
    )


def numbers(table: pa.Table | None) -> list[int]:
    return [] if table is None or not table.num_rows else table["number:long"].to_pylist()


def run(scheduler: Scheduler, rows: Sequence[Row], cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """What is released and what is late, by number, if the rows come in batches that end at the cuts."""
    released: list[int] = []
    late: list[int] = []
    ends = sorted({*(cut for cut in cuts if cut < len(rows)), len(rows)})
    for start, end in zip([0, *ends], ends, strict=False):
        out, behind = scheduler.push(batch(rows[start:end], start))
        released += numbers(out)
        late += [start + row for row in behind.tolist()]
    return released + numbers(scheduler.finish()), late


def model(rows: Sequence[Row], delay_us: int) -> tuple[list[int], list[int]]:
    """The definition: late is what is below the largest ts so far minus the delay."""
    late = [
        number
        for number, (ts, _) in enumerate(rows)
        if ts < max((ts for ts, _ in rows[:number]), default=BEGINNING) - delay_us
    ]
    return sorted((number for number in range(len(rows)) if number not in late), key=rows.__getitem__), late


ROWS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0, 0, 0, 1, -1])), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=20)


@settings(max_examples=examples(300))
@given(rows=ROWS, cuts=CUTS, delay_us=st.sampled_from([0, 1, 3, 10, 2**60]))
@example(rows=[(5, 0), (3, 0), (9, 0), (4, 0)], cuts=[1, 2, 3], delay_us=3)
def test_any_split_is_as_one_batch_and_as_the_definition(rows: list[Row], cuts: list[int], delay_us: int) -> None:
    right = model(rows, delay_us)
    assert run(Scheduler(delay_us), rows, []) == right
    assert run(Scheduler(delay_us), rows, cuts) == right
    assert run(Scheduler(delay_us), rows, range(1, 60)) == right


@settings(max_examples=examples(200))
@given(rows=ROWS, cuts=CUTS)
def test_an_ordered_source_any_split(rows: list[Row], cuts: list[int]) -> None:
    kept: list[int] = []
    for number, row in enumerate(rows):
        if not kept or row >= rows[kept[-1]]:
            kept.append(number)
    late = [number for number in range(len(rows)) if number not in kept]
    for ends in ([], cuts, range(1, 60)):
        assert run(Scheduler(ordered=True), rows, ends) == (kept, late)


@settings(max_examples=examples(100))
@given(rows=ROWS, delay_us=st.sampled_from([0, 2, 7]), times=st.lists(st.integers(0, 40), max_size=8))
def test_advance_is_as_an_event_that_nobody_needs(rows: list[Row], delay_us: int, times: list[int]) -> None:
    """Time that has reached ts: the watermark is at least ts, whatever the delay."""
    scheduler = Scheduler(delay_us)
    watermark = largest = BEGINNING
    released: list[int] = []
    late: list[int] = []
    wrong: list[int] = []
    for number, row in enumerate(rows):
        if number < len(times):
            released += numbers(scheduler.advance(times[number]))
            watermark, largest = max(watermark, times[number]), max(largest, times[number])
        out, behind = scheduler.push(batch([row], number))
        released += numbers(out)
        late += [number for _ in behind]
        wrong += [number] if row[0] < max(watermark, largest - delay_us) else []
        largest = max(largest, row[0])
    released += numbers(scheduler.finish())
    assert late == wrong
    assert released == sorted((number for number in range(len(rows)) if number not in late), key=rows.__getitem__)


def test_the_watermark_is_the_largest_time_minus_the_delay() -> None:
    scheduler = Scheduler(10)
    assert scheduler.watermark == BEGINNING
    assert numbers(scheduler.push(batch([(100, 0), (95, 0)]))[0]) == []
    assert (scheduler.watermark, scheduler.largest) == (90, 100)
    released, late = scheduler.push(batch([(90, 0), (89, 0), (106, 0)], 2))
    assert late.tolist() == [1]
    assert numbers(released) == [2, 1]  # 95 and 90, not 96 and above
    assert numbers(scheduler.waiting) == [0, 4]


def test_what_is_at_the_watermark_waits() -> None:
    scheduler = Scheduler(0)
    assert numbers(scheduler.push(batch([(5, 0)]))[0]) == []
    released, late = scheduler.push(batch([(5, -1), (6, 0)], 1))
    assert (numbers(released), late.tolist()) == ([1, 0], [])


def test_advance_releases_what_is_before_and_never_goes_back() -> None:
    scheduler = Scheduler(10)
    scheduler.push(batch([(7, 0), (8, 0), (9, 0)]))
    assert numbers(scheduler.advance(8)) == [0]
    assert numbers(scheduler.advance(3)) == []
    assert scheduler.watermark == 8
    assert scheduler.push(batch([(7, 0)], 3))[1].tolist() == [0]
    assert numbers(scheduler.finish()) == [1, 2]


def test_finish_of_nothing_is_nothing() -> None:
    scheduler = Scheduler(5)
    assert scheduler.finish() is None
    assert scheduler.watermark == BEGINNING


def test_what_comes_after_the_finish_is_late_up_to_its_end() -> None:
    scheduler = Scheduler(5)
    scheduler.push(batch([(10, 0)]))
    assert numbers(scheduler.finish()) == [0]
    released, late = scheduler.push(batch([(10, 0), (11, 0)], 1))
    assert late.tolist() == [0]
    assert numbers(scheduler.finish()) == [2]
    assert numbers(released) == []


def test_an_empty_batch_changes_nothing() -> None:
    for scheduler in (Scheduler(5), Scheduler(ordered=True)):
        released, late = scheduler.push(batch([]))
        assert (released.num_rows, len(late), scheduler.watermark) == (0, 0, BEGINNING)


def test_an_ordered_source_waits_for_nothing() -> None:
    scheduler = Scheduler(ordered=True)
    assert numbers(scheduler.push(batch([(5, 0), (5, 0), (5, 1)]))[0]) == [0, 1, 2]
    assert (scheduler.watermark, scheduler.last_seq) == (5, 1)
    released, late = scheduler.push(batch([(5, 0), (5, 1), (5, 2)], 3))
    assert (numbers(released), late.tolist()) == ([4, 5], [0])
    scheduler.advance(9)
    released, late = scheduler.push(batch([(8, 7), (9, -5)], 6))
    assert (numbers(released), late.tolist()) == ([7], [0])


def test_events_that_nobody_needs_move_the_watermark_and_do_not_wait() -> None:
    scheduler = Scheduler(10)
    scheduler.push(batch([(100, 0), (200, 0), (101, 0)], types=[-1, 0, -1]))
    assert scheduler.watermark == 190
    assert numbers(scheduler.waiting) == [1]
    scheduler.push(batch([(500, 0)], 3, types=[-1]))
    assert scheduler.waiting is None or scheduler.waiting.num_rows == 0


def test_columns_that_a_batch_lacks_are_null_in_it() -> None:
    scheduler = Scheduler(10)
    scheduler.push(batch([(1, 0)]))
    scheduler.push(batch([(2, 0)], 1).append_column("extra:long", pa.array([7])))
    released = scheduler.finish()
    assert released is not None
    assert released["extra:long"].to_pylist() == [None, 7]


def test_waiting_events_are_renumbered() -> None:
    scheduler = Scheduler(10)
    scheduler.push(batch([(1, 0), (2, 0), (3, 0)], types=[0, 1, 2]))
    waiting = scheduler.waiting
    assert waiting is not None
    scheduler.renumber(waiting, [5, -1, 0])
    released = scheduler.finish()
    assert released is not None
    assert released["type"].to_pylist() == [5, 0]
    assert numbers(released) == [0, 2]


def test_a_long_stream_waits_in_few_runs() -> None:
    scheduler = Scheduler(1_000)
    chance = np.random.default_rng(1)
    times = np.arange(20_000) + chance.integers(0, 900, 20_000)
    most = 0
    for start in range(0, len(times), 7):
        scheduler.push(batch([(int(ts), 0) for ts in times[start : start + 7]], start))
        most = max(most, len(scheduler._runs))
    assert most < 20
