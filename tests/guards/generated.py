"""Generate cases for the recordings from fixed seeds, with the Hypothesis strategies of the other tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.conformance.test_eps import SNOOP
from tests.conformance.test_siddhi import BEHIND, counted, texts
from tests.conformance.test_tesla import KEYED
from tests.guards.cases import RESTORED, STREAM, TABLE, Case
from tests.guards.internals import Event, print_program, with_rules, write_event
from tests.simulation.moving import dense, moving
from tests.simulation.ranges import without_ids
from tests.strategies import TYPES, cases
from tests.strategies_queries import chains, definitions, events, joins
from tests.strategies_requests import crowded_cases, linked_cases, request_cases

EVENTS_MAX = 40
CHUNK = 200
"""Examples of one run of Hypothesis; each run has its own seed."""

Written = tuple[str, Sequence[Event]]
"""Rules as text, and events."""


@dataclass(frozen=True)
class Source:
    """A source of cases of a language, and its percentage of them."""

    share: int
    strategy: st.SearchStrategy[Any]
    written: Callable[[Any], Written]


def _plain(case: Any) -> Written:
    return print_program(with_rules(case.rules, TYPES)), case.events


def _query(case: tuple[str, Sequence[Event]]) -> Written:
    return case[0], case[1]


def _moving(case: Any) -> Written:
    rng = random.Random(len(case.case.events))
    objects = [event for event in case.case.events if event.type in ("Me", "You")]
    others = [event for event in case.case.events if event.type not in ("Me", "You")]
    others = rng.sample(others, min(len(others), EVENTS_MAX))
    written = [replace(event, attributes=_rounded(event.attributes)) for event in objects + others]
    used = [rule for rule in case.case.rules if any(rule in interest.rules for interest in case.interests)]
    return print_program(with_rules(used, case.types.values(), case.interests)), written


def _rounded(attributes: Any) -> dict[str, Any]:
    """Round coordinates, to shorten the files."""
    return {name: round(value, 7) if name in ("lon", "lat") else value for name, value in attributes.items()}


def _joined(query: str, inserted: str, after: str) -> str:
    return f"{definitions()}{query} {inserted} O;{after}\n"


_INSERTED = st.sampled_from(["insert into", "insert all events into", "insert expired events into"])
_SEEDS = st.integers(0, 2**32)
_DENSE = st.builds(dense, _SEEDS, queries=st.sampled_from([1, 2]))

SOURCES: dict[str, tuple[Source, ...]] = {
    "tesla": (
        Source(70, cases(EVENTS_MAX), _plain),
        Source(30, KEYED, _plain),
    ),
    "eps": (
        Source(35, request_cases(), _plain),
        Source(20, request_cases(timers=True, events_max=6), _plain),
        Source(20, request_cases(modes=SNOOP), _plain),
        Source(10, linked_cases(), _plain),
        Source(15, crowded_cases(), _plain),
    ),
    "siddhi": (
        Source(40, st.tuples(texts(), events()), _query),
        Source(30, st.tuples(st.builds(_joined, chains(), _INSERTED, st.sampled_from(BEHIND)), events()), _query),
        Source(20, st.tuples(st.builds(_joined, joins(), _INSERTED, st.just("")), events()), _query),
        Source(10, counted().map(lambda case: (_joined(case[0], "insert into", ""), case[1])), _query),
    ),
    "mcep": (
        Source(40, _DENSE, _moving),
        Source(30, _DENSE.map(without_ids), _moving),
        Source(30, moving(queries=2), _moving),
    ),
}


def examples(strategy: st.SearchStrategy[Any], first_seed: int) -> Iterator[Any]:
    """Yield examples without end, the same for the same seed."""
    while True:
        yield from _some(strategy, first_seed)
        first_seed += 1


def _some(strategy: st.SearchStrategy[Any], from_seed: int) -> list[Any]:
    found: list[Any] = []

    @seed(from_seed)
    @settings(
        max_examples=CHUNK, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(example=strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def generated(language: str, number: int) -> Iterator[Case]:
    """Yield the first cases of a language, without answers; more than needed, as some are unsuitable."""
    shares = [(source, examples(source.strategy, 1000 * at)) for at, source in enumerate(SOURCES[language])]
    rng = random.Random(f"guards {language}")
    seen: Counter[str] = Counter()
    count = 0
    while count < number:
        source, stream = rng.choices(shares, [source.share for source, _ in shares])[0]
        rules, given_events = source.written(next(stream))
        rules = rules.rstrip("\n")
        case = _fed(language, count, rules, given_events, rng)
        key = case.rules + "\n".join(sorted(case.events))
        seen[key] += 1
        if seen[key] == 1 and case.events:
            count += 1
            yield case


def _fed(language: str, number: int, rules: str, given_events: Sequence[Event], rng: random.Random) -> Case:
    """Return the case with an order of arrival, batches and a delay; some events of streams are late."""
    way = (TABLE, STREAM, RESTORED)[number % 3]
    history_us = rng.choice([None, 10_000, 60, 120]) if language == "mcep" else None
    if way == TABLE:
        arrival = rng.sample(list(given_events), len(given_events))
        return Case(language, number, rules, tuple(map(write_event, arrival)), history_us=history_us)
    delay_us = rng.choice([0, 1, 3, 10])
    late_us = 5 if language != "mcep" and rng.random() < 0.15 else 0
    arrival = sorted(given_events, key=lambda event: event.ts + rng.randint(0, delay_us + late_us))
    sizes, left = [], len(arrival)
    while left > 0:
        sizes.append(min(left, rng.choice([1, 2, 3, 5, 8, 20])))
        left -= sizes[-1]
    return Case(language, number, rules, tuple(map(write_event, arrival)), way, delay_us, tuple(sizes), history_us)
