"""Measure the runs of MCEP's figures.

A run simulates a city with the query of a car, or counts the events that predeployed ranges would stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.engine.detector import Detector
from tocsin.events.types import SECOND_US, Event, EventType
from tocsin.language.mcep.ast import Interest, Space
from tocsin.language.mcep.text import parse
from tocsin.overlay.mobility.consumer import Delivery
from tocsin.plans.moving import Coordinates, Grid, coordinates_of
from tocsin.reference.patterns import identified
from tocsin.reference.ranges import Covering, covering, coverings, split_ranges
from tocsin.simulation.car_traces import CALM_RULES, RULES, Trace, fcd_trace, street_trace
from tocsin.simulation.city import City, Simulation
from tocsin.studies.study import Row, Settings

Array = np.ndarray[Any, Any]

WIDTH_M, HEIGHT_M = 1500.0, 2000.0
DEVIATIONS_M = (10, 25, 50, 100, 200, 400)
MODES = {"MCEP": ("each", True), "MCEP w/o optimizations": ("each", False), "MCEP tmp update": ("every 10 s", True)}
LIFETIME_S = 30
"""The lifetime δ, which the paper does not state. docs/studies.md has the effect of a longer lifetime."""
CARS = 3
"""The number of cars that are followed, one at a time."""
SAMPLED = 5
"""The number of ranges of each run that are compared with the reference."""


def measure_moving(settings: Settings) -> list[Row]:
    """Follow `CARS` cars one at a time, and return the means of their measurements and the total of wrong ranges.

    The seed chooses the cars.
    """
    trace = _trace_of(settings)
    rng = np.random.default_rng(int(settings["seed"]))
    found = [_moving(settings, trace, car) for car in rng.choice(sorted(trace.ways), CARS, replace=False).tolist()]
    mean: Row = {name: sum(float(row[name]) for row in found) / CARS for name in found[0]}
    return [{**mean, "wrong": sum(int(row["wrong"]) for row in found)}]


def _moving(settings: Settings, trace: Trace, car: str) -> Row:
    """Run the query of `car`, count streamed events and messages, and compare the deliveries with the reference."""
    update, incremental = MODES[str(settings["mode"])]
    edge = int(settings["edge_m"])
    shape, lifetime = f"rectangle {edge} m by {edge} m", f"{settings['lifetime_s']} s"
    (interest,) = _interests(_rules_of(settings), [car], shape, lifetime, update)
    history_us = (int(settings["lifetime_s"]) + 60) * SECOND_US
    city = City(
        Grid((0.0, 0.0, trace.width_m, trace.height_m), 15, 20),
        3,
        4,
        history_us=history_us,
        slack_us=60 * SECOND_US,
        incremental=incremental,
        seed=int(settings["seed"]),
    )
    events = [*trace.events, *trace.positions(car)]
    simulation = Simulation(city, [interest], _types(), Space.PLANE)
    delivered = simulation.run(events)[interest.name]
    traffic = simulation.traffic
    wrong = _wrong(interest, events, delivered, history_us, sample=int(settings["seed"]))
    return {
        "streamed": traffic.streamed,
        "control": traffic.control,
        "progress": traffic.messages["progress"],
        "delivered": traffic.delivered,
        "ranges": sum(one.match is None for one in delivered),
        "wrong": wrong,
    }


def measure_predeployed(settings: Settings) -> list[Row]:
    """Count the events that are streamed if ranges are deployed all over the city, for each deviation.

    Primary events that go to a range count, and so do composite events between the operators of a range.
    """
    trace = _trace_of(settings)
    edge = float(settings["edge_m"])
    places = {str(event.id): coordinates_of(event.attributes, Space.PLANE) for event in trace.events}
    primary = np.array([[places[str(event.id)]] * 2 for event in trace.events])
    between = _composites(trace.events, places, _rules_of(settings))
    rows: list[Row] = []
    for deviation in DEVIATIONS_M:
        sides = [centres(length, deviation) for length in (trace.width_m, trace.height_m)]
        counts = [int(_ranges_with(boxes, sides, edge).sum()) for boxes in (primary, between)]
        rows.append(
            {
                "deviation_m": deviation,
                "deployed": len(sides[0]) * len(sides[1]),
                "primary": counts[0],
                "streamed": sum(counts),
            }
        )
    return rows


def centres(length_m: float, deviation_m: float) -> Array:
    """Return the centres of predeployed ranges along one side of the city, as far apart as a range may deviate.

    The paper counts ranges in the same way in its introduction: 100 ranges per square kilometre for 100 m.
    """
    return np.arange(deviation_m / 2, length_m + deviation_m / 2, deviation_m)


def _composites(events: Sequence[Event], places: Mapping[str, Coordinates | None], text: str = RULES) -> Array:
    """Return a box around the parts of each composite event of the lower operators, anywhere in the city.

    These operators select with `each` only, so a range finds exactly the composite events whose parts it contains.
    """
    rules = [rule for rule in parse(text).rules if rule.emits.name != "Accident"]
    detector = Detector(rules, _types(), delay_us=2**60)
    found = [detector.push(list(events)), detector.finish()]
    boxes = []
    for row in (row for table in found for row in table["parts"].to_pylist()):
        at = np.array([places[part["id"]] for part in row])
        boxes.append((at.min(0), at.max(0)))
    return np.array(boxes).reshape(-1, 2, 2)


def _ranges_with(boxes: Array, centres: Sequence[Array], edge_m: float) -> Array:
    """Return, for each box, how many of the ranges around `centres` contain it."""
    counts = np.ones(len(boxes))
    for axis, along in enumerate(centres):
        low = np.searchsorted(along, boxes[:, 1, axis] - edge_m / 2, "left")
        high = np.searchsorted(along, boxes[:, 0, axis] + edge_m / 2, "right")
        counts *= np.maximum(high - low, 0)
    return counts


def measure_streams(settings: Settings) -> list[Row]:
    """Measure predeployed and moving ranges with one length of the edge, for figures 7 and 8."""
    predeployed = [{"mode": "predeployment", **row} for row in measure_predeployed(settings)]
    return [*predeployed, *({**row, "mode": "MCEP"} for row in measure_moving({**settings, "mode": "MCEP"}))]


CONSUMING = RULES.replace("each Brake(car!=$c)", "first Brake(car!=$c)") + "consuming Brake\n"
"""The rules in which an accident consumes the braking that it matches, so that weak and strong semantics differ."""


def measure_answers(settings: Settings) -> list[Row]:
    """Run the queries of two cars in a small town.

    Compare each range with the reference, and the two queries with each other.
    """
    seed = int(settings["seed"])
    trace = street_trace(80, int(settings["seconds"]), seed, 300.0, 300.0, accident_every_s=5.0)
    rules = CONSUMING if settings["consuming"] else RULES
    more = f"{settings['update']} semantics {settings['semantics']}"
    interests = _interests(rules, ["c1", "c2"], str(settings["shape"]), "10 s", more)
    history_us = 60 * SECOND_US
    city = City(
        Grid((0.0, 0.0, 300.0, 300.0), 6, 6),
        2,
        3,
        history_us=history_us,
        slack_us=60 * SECOND_US,
        delay_us=(1_000, 400_000),
        epoch_us=(200_000, 1_500_000),
        seed=seed,
    )
    # The second car follows the first by half a second: ranges over one region that begin and end at other times.
    followers = [
        Event("Position", event.ts + SECOND_US // 2, {**event.attributes, "car": "c2"}, id=f"{event.id}b")
        for event in trace.positions("c1")
    ]
    events = [*trace.events, *trace.positions("c1"), *followers]
    delivered = Simulation(city, interests, _types(), Space.PLANE).run(events)
    wrong = ranges = errors = 0
    expected: list[list[Covering]] = []
    for interest in interests:
        expected.append(coverings(interest, events, history_us))
        ranges += len(expected[-1])
        errors += sum(one.error is not None for one in expected[-1])
        wrong += _differing(expected[-1], delivered[interest.name])
    pairs, disagreeing = _overlaps(*expected)
    matches = sum(one.match is not None for list in delivered.values() for one in list)
    row: Row = {
        "ranges": ranges,
        "refused": errors,
        "wrong": wrong,
        "delivered": matches,
        "pairs": pairs,
        "disagreeing": disagreeing,
    }
    return [row]


def _overlaps(one: Sequence[Covering], two: Sequence[Covering]) -> tuple[int, int]:
    """Return how many pairs of ranges of the two queries overlap in time over one region, and how many pairs differ."""
    pairs = disagreeing = 0
    for mine in one:
        for other in two:
            begin, end = max(mine.range.start, other.range.start), min(mine.range.end, other.range.end)
            if mine.range.region != other.range.region or begin > end or mine.error or other.error:
                continue
            pairs += 1
            seen = [[d.match.id for d in c.delivered if begin <= d.match.ts <= end] for c in (mine, other)]
            disagreeing += seen[0] != seen[1]
    return pairs, disagreeing


def _wrong(
    interest: Interest, events: Sequence[Event], delivered: Sequence[Delivery], history_us: int, sample: int
) -> int:
    """Count the ranges in a random sample that differ from the reference, plus one if ranges are out of order.

    `sample` is the seed of the sample.
    """
    west, south, east, north = _surroundings(interest, events)
    near = [
        event
        for event in events
        if (at := coordinates_of(event.attributes, Space.PLANE)) and west <= at[0] <= east and south <= at[1] <= north
    ]
    facts = sorted(identified(near), key=lambda fact: fact.key)
    ranges = split_ranges(interest, facts)
    chosen = np.random.default_rng(sample).choice(len(ranges), min(SAMPLED, len(ranges)), replace=False)
    expected = [covering(interest, ranges[number], facts, history_us) for number in sorted(chosen.tolist())]
    numbers = [one.number for one in delivered]
    markers = [one.number for one in delivered if one.match is None]
    disordered = numbers != sorted(numbers) or markers != [one.number for one in ranges]
    return int(disordered) + _differing(expected, delivered)


def _surroundings(interest: Interest, events: Sequence[Event]) -> tuple[float, float, float, float]:
    """Return a box around all ranges of `interest`, so that events outside the box are in no range."""
    facts = sorted(identified(e for e in events if e.type == interest.focal.type), key=lambda fact: fact.key)
    boxes = [box for one in split_ranges(interest, facts) for box in one.region.boxes]
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _differing(expected: Sequence[Covering], delivered: Sequence[Delivery]) -> int:
    """Count the ranges in `expected` whose deliveries differ from the expected ones or are in another order."""
    found: dict[int, list[object]] = {}
    for one in delivered:
        found.setdefault(one.number, []).append((one.start, one.error) if one.match is None else one.id)
    wrong = 0
    for wanted in expected:
        whole = [(wanted.range.start, wanted.error), *(match.id for match in wanted.delivered)]
        wrong += found.get(wanted.range.number) != whole
    return wrong


def _trace_of(settings: Settings) -> Trace:
    """Return the car trace of a run, which is read from a file or generated from the seed."""
    if "trace" in settings:
        return _read(str(settings["trace"]))
    return _trace(int(settings["cars"]), int(settings["seconds"]), int(settings["seed"]))


def _rules_of(settings: Settings) -> str:
    return CALM_RULES if "trace" in settings else RULES


@lru_cache(maxsize=2)
def _trace(cars: int, seconds: int, seed: int) -> Trace:
    return street_trace(cars, seconds, seed, WIDTH_M, HEIGHT_M)


@lru_cache(maxsize=1)
def _read(path: str) -> Trace:
    return fcd_trace(Path(path))


def _types() -> dict[str, EventType]:
    return {type.name: type for type in parse(RULES).types}


def _interests(rules: str, cars: Sequence[str], shape: str, lifetime: str, update: str) -> tuple[Interest, ...]:
    more = f"range {shape} lifetime {lifetime} update {update}"
    text = "".join(f'interest Near_{car} of Accident around Position(car="{car}") {more}\n' for car in cars)
    return parse(rules + text).interests
