"""What does an operator of a moving query do with events? It runs its rule, or its windows, over those of a range.

Rows are events with their identity and with the places of all that they are made of. Within a range they come in the
order of time; each range begins with an operator that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.engine.reference import Match, Part
from tocsin.engine.window_model import Correlated, Evaluation, produced_words
from tocsin.events.ids import Words, hexadecimal, match_words
from tocsin.events.types import Event, EventType
from tocsin.language.rules import Rule
from tocsin.language.window_model import WindowOperator
from tocsin.plans.catalog import Catalog
from tocsin.plans.operators import Operator
from tocsin.plans.plan import Plan, plan
from tocsin.plans.regions import Place


@dataclass(frozen=True, slots=True)
class Row:
    """An event between operators: with its identity, and the places of the primary events that it is made of."""

    event: Event
    words: Words
    places: tuple[Place, ...]
    match: Match | None = None

    @property
    def name(self) -> tuple[str, str]:
        return self.event.type, self.event.id or ""


class Correlation(Protocol):
    """An operator at work in one range: rows in, composite rows out."""

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""


def beginning(operator: Operator, types: Mapping[str, EventType]) -> Callable[[], Correlation]:
    """What an operator begins each of its ranges with."""
    rule = operator.rule
    if isinstance(rule, WindowOperator):
        return partial(Windowing, rule)
    assert rule is not None
    return partial(Detection, plan([rule], Catalog(types=types, closed=bool(types))), rule)


@dataclass
class Detection:
    """A rule at work."""

    plan: Plan
    rule: Rule
    detector: Detector | None = None
    known: dict[tuple[str, str], Row] = field(default_factory=dict)

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""
        if not rows:
            return []
        if self.detector is None:
            self.detector = Detector(self.plan, {}, times=False)
        self.known.update((row.name, row) for row in rows)
        tables = [self.detector.push([row.event for row in rows]), self.detector.advance(upto + 1)]
        return [self._composite(found) for table in tables for found in _plain(table).to_pylist()]

    def _composite(self, found: Mapping[str, object]) -> Row:
        rule = self.rule
        parts = []
        for part in found["parts"]:  # type: ignore[attr-defined]
            row = self.known[part["type"], part["id"]]
            parts.append((Part(part["role"], part["type"], part["ts"], row.event.seq, part["id"]), row))
        anchor = parts[0][1].event
        words = match_words(rule.name, (row.words for _, row in parts))
        attributes = {name: found[name] for name, _ in rule.emits.attributes}
        id = hexadecimal(words)
        match = Match(
            rule.name,
            rule.emits.name,
            anchor.ts,
            anchor.seq,
            id,
            attributes,  # type: ignore[arg-type]
            tuple(part for part, _ in parts),
        )
        present = {name: value for name, value in match.attributes.items() if value is not None}
        places = tuple(dict.fromkeys(place for _, row in parts for place in row.places))
        return Row(Event(match.type, match.ts, present, match.seq, id), words, places, match)


@dataclass
class Windowing:
    """An operator of the window model at work."""

    operator: WindowOperator
    evaluation: Evaluation = field(init=False)
    known: dict[tuple[str, str], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.operator)

    def found(self, rows: Sequence[Row], upto: int) -> list[Row]:
        """What the next rows, all up to a time, complete."""
        self.known.update((row.name, row) for row in rows)
        return [self._composite(one) for one in self.evaluation.push([row.event for row in rows])]

    def _composite(self, one: Correlated) -> Row:
        rows = [self.known[event.type, event.id or ""] for event in one.parts]
        words = produced_words(self.operator.name, [row.words for row in rows], one.number)
        event = replace(one.event, id=hexadecimal(words))
        parts = tuple(Part(part.type, part.type, part.ts, part.seq, part.id or "") for part in one.parts)
        match = Match(event.type, event.type, event.ts, event.seq, event.id or "", event.attributes, parts)
        places = tuple(dict.fromkeys(place for row in rows for place in row.places))
        return Row(event, words, places, match)


def _plain(table: pa.Table) -> pa.Table:
    """A table of matches with times as integers."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(number, column.name, table[column.name].cast(pa.int64()))
    return table
