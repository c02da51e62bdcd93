"""Hypothesis strategies for moving queries: rules and events of `tests.strategies`, with locations, and a city."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from tests.strategies import TYPES, Case, cases
from tocsin.events.types import Event, EventType, Kind
from tocsin.language.mcep.ast import (
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
from tocsin.language.mcep.text import print_interest
from tocsin.language.syntax.ast import Pattern
from tocsin.language.tesla.text import parse
from tocsin.overlay.mobility.consumer import Delivery
from tocsin.plans.moving import DEGREE_M, Grid
from tocsin.reference.ranges import Covering, coverings
from tocsin.simulation.city import City, Simulation

SIDE = 20
SHAPES = [
    Rectangle(10.0, 10.0),
    Rectangle(14.0, 12.0),
    Circle(6.0),
    Circle(9.0),
    Polygon(((-2.0, -6.0), (8.0, 0.0), (0.0, 1.0), (-2.0, 9.0))),
    Rectangle(40.0, 4.0),
    Circle(30.0),
    Rectangle(2.0, 2.0),
]
UPDATES = [Each(), Timed(4), Timed(9), Spatial(4.0), Spatial(9.0)]


@dataclass(frozen=True, repr=False)
class Moving:
    """Queries, a city, and its events."""

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


RULES = [
    "define P() from A() and each B() within 9 us from A",
    "define P() from A() and last B() within 9 us from A",
    "define P() from A() and each B() within 9 us from A and not C() between B and A",
    "define P(n: long) from A() and $n = Count(B() within 9 us from A) where n = $n",
    "define P() from A() and first B() within 9 us from A consuming B",
    "define Q() from A() and each B() within 6 us from A define P() from C() and each Q() within 6 us from C",
    "define Q() from A() and last B() within 6 us from A define P() from Q() and each C() within 6 us from Q",
    "define Q() from A() and first B() within 6 us from A consuming B"
    " define P() from C() and each Q() within 6 us from C",
    "define Q() from A() and not B() within 3 us from A"
    " define P() from C() and last Q() within 9 us from C consuming Q",
]


def dense(seed: int, *, queries: int = 1, same: bool = False, strong: bool | None = None) -> Moving:
    """Many events of few types, and rules with matches among them."""
    rng = Random(seed)
    rules = parse(rng.choice(RULES)).rules
    rows = [Event(rng.choice("ABC"), rng.randint(0, 60)) for _ in range(rng.randint(60, 240))]
    return settled(Case(tuple(rules), tuple(rows)), rng, queries, same, strong)


@st.composite
def moving(draw: st.DrawFn, *, queries: int = 1, same: bool = False, strong: bool | None = None) -> Moving:
    """Generate any rules, which seldom match; the rest is random, from a generated seed."""
    case = draw(cases(events_max=30, ids_shared=False))
    return settled(case, Random(draw(st.integers(0, 2**32))), queries, same, strong)


def settled(case: Case, rng: Random, queries: int, same: bool, strong: bool | None) -> Moving:
    """Rules and events in a city, with queries; `same`: of the same types and shape; `strong`: None chooses at
    random."""
    space = rng.choice([Space.PLANE, Space.PLANE, Space.WGS84])
    scale = 1.0 if space is Space.PLANE else 1 / DEGREE_M
    east, north = space.coordinates
    last = max([event.ts for event in case.events], default=30)

    def place() -> tuple[int, int]:
        return rng.randint(0, SIDE), rng.randint(0, SIDE)

    def located(event: Event, at: tuple[int, int], number: int) -> Event:
        where = {east: at[0] * scale, north: at[1] * scale}
        return replace(event, attributes={**event.attributes, **where}, id=f"e{number:03}")

    events = [located(event, place(), number) for number, event in enumerate(case.events)]
    names = ("Me", "You")[:queries]
    for name in names:
        at = place()
        for ts in sorted(rng.randint(0, last + 2) for _ in range(rng.choice([1, 4, 8, 12]))):
            events.append(located(Event(name, ts), at, len(events)))
            at = (at[0] + rng.randint(-2, 2), at[1] + rng.randint(-2, 2)) if rng.random() < 0.9 else place()
    emitted = sorted({rule.emits.name for rule in case.rules})
    interests = []
    shape = rng.choice(SHAPES)
    for name in names:
        delivers = emitted if same else rng.sample(emitted, rng.randint(1, len(emitted)))
        semantics = rng.choice(list(Semantics)) if strong is None else (Semantics.WEAK, Semantics.STRONG)[strong]
        interests.append(
            Interest(
                f"q{name}",
                tuple(delivers),
                Pattern(name),
                shape if same else rng.choice(SHAPES),
                needed(delivers, case.rules),
                space,
                rng.choice([0, 1, 3, 8, 20]),
                rng.choice(UPDATES),
                semantics,
            )
        )
    side = SIDE * scale
    cells = (rng.choice([1, 2, 4]), rng.choice([1, 2, 4]))
    city = City(
        Grid((0.0, 0.0, side, side), *cells),
        rng.randint(1, cells[0]),
        rng.randint(1, cells[1]),
        history_us=rng.choice([10_000, 10_000, 10_000, 60, 120]),
        delay_us=(0, rng.choice([0, 2, 4, 8, 40])),
        epoch_us=(1, rng.choice([1, 1, 3, 8])),
        incremental=rng.random() < 0.75,
        seed=rng.randint(0, 99),
    )
    return Moving(tuple(interests), Case(case.rules, tuple(events)), city)


def shadowed(case: Moving) -> Moving:
    """The case with the second query at the locations of the first, a little later: their ranges overlap."""
    events = []
    for event in case.case.events:
        if event.type != "You":
            events.append(event)
        if event.type == "Me":
            events.append(Event("You", event.ts + 3, event.attributes, event.seq, f"{event.id}y"))
    return replace(case, case=replace(case.case, events=tuple(events)))


def as_ranges(delivered: list[Delivery]) -> list[list[object]]:
    """Return the deliveries, range by range: number, start and error, then the matches."""
    found: list[list[object]] = []
    for one in delivered:
        if one.match is None:
            found.append([(one.number, one.start, one.error)])
        else:
            found[-1].append((one.number, one.id, whole(one.match)))
    return found


def whole(match: object) -> object:
    """Return a match without its nulls."""
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
