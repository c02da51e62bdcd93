"""Hypothesis strategies for queries that move: rules and events of `tests.strategies`, with places, and a city."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.strategies import TYPES, Case, cases
from tocsin.engine.reference_ranges import Covering, coverings
from tocsin.events.types import Event, EventType, Kind
from tocsin.language.interests import (
    Circle,
    Each,
    Interest,
    Polygon,
    Rectangle,
    Semantics,
    Space,
    Spatial,
    Timed,
    needed,
)
from tocsin.language.printing_interests import print_interest
from tocsin.language.rules import Pattern
from tocsin.overlay.delivery import Delivery
from tocsin.plans.regions import DEGREE_M, Grid
from tocsin.simulation.mobility import City, Simulation

SIDE = 20
SHAPES = [
    Rectangle(10.0, 10.0),
    Circle(6.0),
    Polygon(((-2.0, -6.0), (8.0, 0.0), (0.0, 1.0), (-2.0, 9.0))),
    Rectangle(40.0, 4.0),
    Circle(30.0),
    Rectangle(2.0, 2.0),
]
UPDATES = [Each(), Timed(4), Timed(9), Spatial(4.0), Spatial(9.0)]


@dataclass(frozen=True, repr=False)
class Moving:
    """Queries, a city, and what happens in it."""

    interests: tuple[Interest, ...]
    case: Case
    city: City

    def __repr__(self) -> str:
        return f"{self.case!r}\n" + "\n".join(print_interest(one) for one in self.interests) + f"\n{self.city}"

    @property
    def types(self) -> dict[str, EventType]:
        places = tuple((name, Kind.DOUBLE) for name in self.interests[0].space.coordinates)
        known = {type.name: replace(type, attributes=type.attributes + places) for type in TYPES}
        return known | {name: EventType(name, places) for name in ("Me", "You")}

    def expected(self) -> dict[str, list[Covering]]:
        return {one.name: coverings(one, self.case.events, self.city.history_us) for one in self.interests}

    def simulation(self) -> Simulation:
        return Simulation(self.city, self.interests, self.types, self.interests[0].space)


@st.composite
def moving(draw: st.DrawFn, *, queries: int = 1, same: bool = False, strong: bool | None = None) -> Moving:
    """A case; `same`: all queries have the same rules and shape; `strong`: whether they are (None: drawn)."""
    case = draw(cases(events_max=30))
    space = draw(st.sampled_from([Space.PLANE, Space.PLANE, Space.WGS84]))
    scale = 1.0 if space is Space.PLANE else 1 / DEGREE_M
    east, north = space.coordinates
    place = st.tuples(st.integers(0, SIDE), st.integers(0, SIDE))

    def located(event: Event, at: tuple[int, int], number: int) -> Event:
        where = {east: at[0] * scale, north: at[1] * scale}
        return replace(event, attributes={**event.attributes, **where}, id=f"e{number:03}")

    places = draw(st.lists(place, min_size=len(case.events), max_size=len(case.events)))
    events = [located(event, at, number) for number, (event, at) in enumerate(zip(case.events, places, strict=True))]
    names = ("Me", "You")[:queries]
    for name in names:
        steps = draw(st.lists(st.tuples(st.integers(0, 32), place), min_size=1, max_size=7))
        events += [located(Event(name, ts), at, len(events) + number) for number, (ts, at) in enumerate(steps)]
    emitted = sorted({rule.emits.name for rule in case.rules})
    interests = []
    shape = draw(st.sampled_from(SHAPES))
    for name in names:
        delivers = emitted if same else draw(st.lists(st.sampled_from(emitted), unique=True, min_size=1))
        semantics = (
            draw(st.sampled_from(Semantics)) if strong is None else Semantics.STRONG if strong else Semantics.WEAK
        )
        interests.append(
            Interest(
                f"q{name}",
                tuple(delivers),
                Pattern(name),
                shape if same else draw(st.sampled_from(SHAPES)),
                needed(delivers, case.rules),
                space,
                draw(st.sampled_from([0, 1, 3, 8, 20])),
                draw(st.sampled_from(UPDATES)),
                semantics,
            )
        )
    side = SIDE * scale
    cells = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    city = City(
        Grid((0.0, 0.0, side, side), *cells),
        draw(st.integers(1, cells[0])),
        draw(st.integers(1, cells[1])),
        history_us=draw(st.sampled_from([10_000, 10_000, 10_000, 60, 120])),
        delay_us=(0, draw(st.sampled_from([0, 3, 40]))),
        epoch_us=(1, draw(st.sampled_from([1, 4, 15]))),
        incremental=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
    return Moving(tuple(interests), Case(case.rules, tuple(events)), city)


def as_ranges(delivered: list[Delivery]) -> list[list[object]]:
    """What was delivered, range by range: number, start and error, then the matches."""
    found: list[list[object]] = []
    for one in delivered:
        if one.match is None:
            found.append([(one.number, one.start, one.error)])
        else:
            found[-1].append((one.number, one.id, whole(one.match)))
    return found


def whole(match: object) -> object:
    """A match with its nulls left out."""
    attributes = {name: value for name, value in match.attributes.items() if value is not None}  # type: ignore[attr-defined]
    return replace(match, attributes=attributes)  # type: ignore[type-var]


def as_expected(expected: list[Covering]) -> list[list[object]]:
    return [
        [
            (covering.range.number, covering.range.start, covering.error),
            *((covering.range.number, one.id, whole(one.match)) for one in covering.delivered),
        ]
        for covering in expected
    ]
