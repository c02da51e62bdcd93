"""Moving queries on the engine agree with the reference, over tables and over streams."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.simulation.moving import dense, shadowed
from tests.simulation.ranges import by_range, rows_of
from tocsin.engine.detector import Detector
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.moving.matcher import quiescent_point
from tocsin.engine.moving.ranges import GridIndex, cell_size, inside
from tocsin.errors import StateError
from tocsin.events.types import Event
from tocsin.language.mcep.ast import Circle, Polygon, Rectangle, Space
from tocsin.language.mcep.text import parse
from tocsin.plans.moving import DEGREE_M, Region
from tocsin.reference.ranges import quiescent_point as reference_quiet_point

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
NEVER_LATE_US = 2**60


def test_a_snapshot_grows_with_the_state_and_damage_is_reported() -> None:
    case = dense(41, queries=2)
    detector = MovingDetector(case.interests, case.types, delay_us=NEVER_LATE_US, history_us=case.city.history_us)
    empty = detector.snapshot()
    detector.push(list(case.case.events))
    full = detector.snapshot()
    assert len(full) > len(empty)
    again = MovingDetector.restore(full, case.interests, case.types)
    assert again.snapshot() == full
    assert again.counts == detector.counts
    with pytest.raises(StateError, match="damaged"):
        MovingDetector.restore(full[:-1] + bytes([full[-1] ^ 1]), case.interests, case.types)
    with pytest.raises(StateError, match="not a snapshot"):
        MovingDetector.restore(b"what", case.interests, case.types)
    rules = Detector(case.interests[0].rules, {}).snapshot()
    with pytest.raises(StateError, match="a snapshot of rules"):
        MovingDetector.restore(rules, case.interests, case.types)


def test_a_changed_query_starts_over_and_others_resume() -> None:
    where = "of P around Me range circle"
    text = f"define P() from A() interest One {where} 9 m interest Two {where} {{r}} m"
    one, two = (parse(text.format(r=radius)).interests for radius in (9, 8))
    detector = MovingDetector(one, {})
    actual = [detector.push([Event(type, ts, {"x": 0.0, "y": 0.0})]) for type, ts in (("Me", 1), ("A", 2))]
    detector = MovingDetector.restore(detector.snapshot(), two, {})
    actual.append(detector.push([Event("A", 3, {"x": 0.0, "y": 0.0})]))
    actual.append(detector.push([Event("Me", 4, {"x": 0.0, "y": 0.0})]))
    actual.append(detector.push([Event("A", 6, {"x": 0.0, "y": 0.0})]))
    rows = [(row["query"], row["range"], row["rule"], row["ts"]) for row in rows_of([*actual, detector.finish()])]
    assert [row[1:] for row in rows if row[0] == "One"] == [
        (1, None, 1), (1, "P", 2), (1, "P", 3), (2, None, 4), (2, "P", 6)
    ]  # fmt: skip
    assert [row[1:] for row in rows if row[0] == "Two"] == [(1, None, 1), (1, None, 4), (1, "P", 6)]


def test_strong_queries_agree_where_they_overlap() -> None:
    pairs = 0
    for seed in range(20):
        case = shadowed(dense(seed, queries=2, same=True, strong=True))
        detector = MovingDetector(case.interests, case.types, delay_us=NEVER_LATE_US, history_us=case.city.history_us)
        actual = by_range(rows_of([detector.push(list(case.case.events)), detector.finish()]))
        ranges = {name: [covering.range for covering in coverings] for name, coverings in case.expected().items()}
        for (one, mine), (two, other) in product(*(enumerate(ranges[f"q{name}"]) for name in ("Me", "You"))):
            begin, end = max(mine.start, other.start), min(mine.end, other.end)
            (marker, *matches), (another, *others) = actual["qMe"][one], actual["qYou"][two]
            if mine.region == other.region and begin <= end and not marker[2] and not another[2]:
                seen = [[match[1:] for match in some if begin <= match[3] <= end] for some in (matches, others)]
                assert seen[0] == seen[1]
                pairs += len(seen[0])
    assert pairs > 50


def test_queries_over_the_same_ranges_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    push = Detector.push_batch

    def counting(self, batch, types):
        given.append(batch.num_rows)
        return push(self, batch, types)

    monkeypatch.setattr(Detector, "push_batch", counting)
    text = "define P() from A() and each B() within 9 us from A "
    where = "around Me range circle 9 m lifetime 8 us"
    events = [event for event in dense(1).case.events if event.type != "C"]
    actual = {}
    for count in (1, 5):
        given.clear()
        interests = parse(text + "".join(f"interest I{n} of P {where} " for n in range(count))).interests
        detector = MovingDetector(interests, {}, delay_us=NEVER_LATE_US)
        detector.push(events)
        rows = detector.finish()
        actual[count] = sum(given), rows
    assert actual[5][0] == actual[1][0] > 0
    assert actual[5][1].num_rows == 5 * actual[1][1].num_rows > 100
    assert len(set(actual[5][1]["id"].to_pylist())) == actual[5][1].num_rows


@given(st.lists(st.integers(0, 60)), st.integers(0, 60), st.integers(1, 9))
def test_quiescent_points(times: list[int], latest: int, windows: int) -> None:
    ordered = sorted(times)
    assert quiescent_point(np.array(ordered, np.int64), latest, windows) == reference_quiet_point(
        ordered, latest, windows
    )


SHAPES = st.sampled_from(
    [
        Rectangle(10, 4),
        Rectangle(3, 30),
        Circle(5),
        Circle(0.5),
        Polygon(((0.0, 0.0), (8.0, 0.0), (8.0, 4.0), (0.0, 9.0))),
    ]
)
PLACES = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=30)


@given(SHAPES, st.sampled_from(list(Space)), PLACES, PLACES, st.sampled_from([0.0, 179.99995]), st.data())
def test_the_grid_join_agrees_with_regions(shape, space, centres, places, where, data) -> None:
    scale, shift = (1.0, 0.0) if space is Space.PLANE else (1 / DEGREE_M, where)

    def at(points):
        actual = np.array(points, np.float64).reshape(-1, 2) * scale
        actual[:, 0] += shift
        if space is Space.WGS84:
            actual[:, 0] = np.where(actual[:, 0] > 180, actual[:, 0] - 360, actual[:, 0])
        return actual[:, 0].copy(), actual[:, 1].copy()

    (cx, cy), (x, y) = at(centres), at(places)
    low = np.array([data.draw(st.integers(0, len(x))) for _ in cx], np.int64)
    high = np.array([data.draw(st.integers(0, len(x))) for _ in cx], np.int64)
    cells = GridIndex(x, y, *cell_size(shape, space, cy))
    centre, event = cells.pairs(shape, space, (cx, cy), cells.near(shape, space, (cx, cy), low, high))
    regions = [Region(shape, place, space) for place in zip(cx.tolist(), cy.tolist(), strict=True)]
    expected_rows = {
        (c, e)
        for c, region in enumerate(regions)
        for e in range(low[c], high[c])
        if region.contains((float(x[e]), float(y[e])))
    }
    assert sorted(zip(centre.tolist(), event.tolist(), strict=True)) == sorted(expected_rows)


@given(SHAPES, st.sampled_from(list(Space)), PLACES)
def test_vectorised_tests_agree_with_scalar_ones(shape, space, places) -> None:
    scale = 1.0 if space is Space.PLANE else 1 / DEGREE_M
    x, y = (np.array([place[axis] for place in places], np.float64) * scale for axis in (0, 1))
    actual = inside(shape, space, (np.zeros(len(x)), np.zeros(len(x))), (x, y))
    region = Region(shape, (0.0, 0.0), space)
    assert actual.tolist() == [region.contains(place) for place in zip(x.tolist(), y.tolist(), strict=True)]
