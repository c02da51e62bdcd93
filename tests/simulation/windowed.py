"""Moving queries with operators of the window model: the cases of `moving` with other operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from tests.simulation.moving import Moving, dense
from tocsin.events.types import Kind, Value
from tocsin.language.mcep.ast import (
    Consumption,
    Edge,
    Selection,
    SelectionWindow,
    Shift,
    WindowOperator,
    WindowUnit,
    needed,
)
from tocsin.language.tesla.text import parse

COUNTING, TEMPORAL = WindowUnit.COUNTING, WindowUnit.TEMPORAL


def name_events(selection: Selection) -> Iterable[Mapping[str, Value]]:
    """Name the selected events; of more than two also their number."""
    chosen = [event.id for stream in sorted(selection) for event in selection[stream]]
    yield {"of": " ".join(id or "" for id in chosen), "n": len(chosen)}
    if len(chosen) > 2:
        yield {"n": len(chosen)}


def operator(name: str, restriction_us: int, *windows: SelectionWindow) -> WindowOperator:
    return WindowOperator(
        name, windows, restriction_us, name_events, attributes=(("of", Kind.STRING), ("n", Kind.LONG))
    )


def generate(rng: Random) -> tuple[str, tuple[WindowOperator, ...], str]:
    """Generate rules as text, operators, and the delivered type."""
    edge, consumption = rng.choice(list(Edge)), rng.choice(list(Consumption))
    other, shift = rng.choice(list(Consumption)), rng.choice(list(Shift))
    count, reach = rng.randint(1, 3), rng.choice([3, 6, 9])

    def sequence(name: str, one: str, two: str) -> WindowOperator:
        """One before the other, as in the paper's Fig. 4."""
        return operator(
            name,
            reach,
            SelectionWindow(one, COUNTING, 1, edge, shift, before=two, consumption=consumption),
            SelectionWindow(two, COUNTING, 1, edge, consumption=other),
        )

    match rng.randint(0, 5):
        case 0:
            return "", (sequence("P", "A", "B"),), "P"
        case 1:
            return (
                "",
                (operator("P", reach, SelectionWindow("A", COUNTING, count, edge, shift, 1, None, consumption)),),
                "P",
            )
        case 2:
            windows = (
                SelectionWindow("A", COUNTING, count, edge, consumption=consumption),
                SelectionWindow("B", TEMPORAL, rng.randint(1, reach)),
            )
            return "", (operator("P", reach, *windows),), "P"
        case 3:
            pairs = operator("P", reach, SelectionWindow("Q", COUNTING, count, edge, shift, 1, None, consumption))
            return "define Q() from A() and each B() within 6 us from A", (pairs,), "P"
        case 4:
            return "define P() from C() and each Q() within 6 us from C", (sequence("Q", "A", "B"),), "P"
        case _:
            return "", (sequence("Q", "A", "B"), sequence("P", "Q", "C")), "P"


def windowed(seed: int, *, queries: int = 1, same: bool = False, strong: bool | None = None) -> Moving:
    """Return a case in which some operators are of the window model."""
    case = dense(seed, queries=queries, same=same, strong=strong)
    text, operators, delivered = generate(Random(f"windows {seed}"))
    rules = parse(text).rules if text else ()
    chosen = needed([delivered], rules, operators=operators)
    interests = tuple(replace(one, delivers=(delivered,), rules=chosen, operators=operators) for one in case.interests)
    return replace(case, interests=interests, case=replace(case.case, rules=chosen))
