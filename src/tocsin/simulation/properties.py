"""Does the paper's Definition 1 hold of a run? Five properties of what each sink got, against what it should have got.

1 no false positives, 2 no false negatives, 3 no duplication, 4 no false ordering, 5 completeness. The second is about
what was passed over: something right that is missing although something later has come. The fifth is about the end: a
sink has all that the reference has. (`trials` judges whole runs.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.events.batches import Columns
from tocsin.events.types import EventType
from tocsin.language.rules import Pattern, Rule

PROPERTIES = ("false positive", "false negative", "duplicate", "false order", "incomplete")


@dataclass(frozen=True)
class Violation:
    """A property that does not hold at a sink, and the first composite event that shows it."""

    property: str
    sink: str
    id: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.property} at {self.sink}: {self.id} ({self.count} in all)"


def right(
    rules: Sequence[Rule],
    types: Mapping[str, EventType],
    sinks: Mapping[str, Sequence[Pattern]],
    events: pa.Table,
    upto_us: int,
) -> dict[str, list[str]]:
    """What each sink should get: the rules over all events at one place, without failures."""
    detector = Detector(rules, types, columns=Columns(id="id"))
    found = pa.concat_tables([detector.push(events), detector.advance(upto_us)], promote_options="default")
    pairs = list(zip(found["type"].to_pylist(), found["id"].to_pylist(), strict=True))
    wanted = {sink: {pattern.type for pattern in patterns} for sink, patterns in sinks.items()}
    return {sink: [id for type, id in pairs if type in names] for sink, names in wanted.items()}


def violations(
    got: Mapping[str, Sequence[str]], expected: Mapping[str, Sequence[str]], *, ended: bool = True
) -> list[Violation]:
    """All that is wrong with what sinks got; `ended`: they should have everything by now.

    >>> [str(one) for one in violations({"s": ["a", "c", "c"]}, {"s": ["a", "b", "c"]})]
    ['false negative at s: b (1 in all)', 'duplicate at s: c (1 in all)', 'incomplete at s: b (1 in all)']
    """
    found: list[Violation] = []

    def add(which: int, sink: str, ids: Sequence[str]) -> None:
        if ids:
            found.append(Violation(PROPERTIES[which], sink, ids[0], len(ids)))

    for sink, should in expected.items():
        mine = list(got.get(sink, ()))
        place = {id: number for number, id in enumerate(should)}
        have = set(mine)
        add(0, sink, [id for id in mine if id not in place])
        known = [id for id in mine if id in place]
        latest = max((place[id] for id in known), default=-1)
        add(1, sink, [id for id in should[: max(latest, 0)] if id not in have])
        add(2, sink, [id for id, count in Counter(mine).items() if count > 1])
        first = list(dict.fromkeys(known))
        add(3, sink, [later for before, later in pairwise(first) if place[later] < place[before]])
        if ended:
            add(4, sink, [id for id in should if id not in have])
    return found
