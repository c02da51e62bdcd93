"""Save and restore the rules, settings and counters of a detector, and schedule changes of its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tocsin.engine.detector_state import DetectorSnapshot
from tocsin.errors import StateError
from tocsin.events.reader import UNNEEDED, Columns
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import EventType, Kind
from tocsin.language import parse
from tocsin.language.eps.ast import Statement
from tocsin.language.syntax.expressions import print_rule
from tocsin.plans.typing import Catalog

if TYPE_CHECKING:
    from tocsin.engine.detector import Detector


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of the rules at the time `at` (µs), which removes rules by name and adds others."""

    at: int
    remove: frozenset[str]
    add: tuple[Statement, ...]

    def apply(self, rules: Iterable[Statement]) -> tuple[Statement, ...]:
        """Return `rules` after the change."""
        return (*(rule for rule in rules if rule.name not in self.remove), *self.add)


def counters(detector: Detector) -> dict[str, int]:
    """Return the progress of a detector in time (µs), and its event counts."""
    scheduler = detector._scheduler
    return {
        "watermark": scheduler.watermark,
        "last_seq": scheduler.last_seq,
        "largest": scheduler.largest,
        **detector._counts,
    }


def settings(detector: Detector) -> dict[str, Any]:
    """Return the rules, settings and catalog of a detector as JSON data.

    After the first events are read, they change only with the plan.
    """
    catalog = detector._plan.catalog
    return {
        "rules": {bound.rule.name: print_rule(bound.rule) for bound in detector._plan.rules},
        "since": detector._since,
        "coming": [
            [change.at, sorted(change.remove), [print_rule(rule) for rule in change.add]]
            for change in detector._future_changes
        ],
        "delay_us": detector._scheduler.delay_us,
        "ordered": detector._ordered,
        "columns": asdict(detector._columns),
        "times": detector._times,
        "shared": dict(catalog.shared),
        "complete": catalog.complete,
        "empty": sorted(catalog.empty),
        "exact": {name: dict(type.attributes) for name, type in catalog.types.items()},
        "seen": {name: dict(kinds) for name, kinds in catalog.seen.items()},
        "closed": catalog.closed,
        "by_kind": catalog.by_kind,
    }


def resume(
    cls: type[Detector], snapshot: DetectorSnapshot, rules: Sequence[Statement], types: Mapping[str, EventType]
) -> Detector:
    """Return a detector that resumes from `snapshot` with `rules`.

    A rule that is new or has changed sees only events later than the snapshot.
    """
    header, counted = snapshot.header, snapshot.numbers
    exact = {
        name: EventType(name, tuple((attribute, Kind(kind)) for attribute, kind in attributes.items()))
        for name, attributes in header["exact"].items()
    }
    for name, type in types.items():
        if name in exact and exact[name] != type:
            raise StateError(f"the snapshot has {exact[name]}, the rules declare {type}")
    catalog = Catalog(
        types={**exact, **types},
        shared={name: Kind(kind) for name, kind in header["shared"].items()},
        seen={
            name: {attribute: Kind(kind) for attribute, kind in kinds.items()} for name, kinds in header["seen"].items()
        },
        complete=header["complete"],
        empty=frozenset(header["empty"]),
        closed=bool(types),
        by_kind=header.get("by_kind", False),
    )
    columns, ordered = Columns(**header["columns"]), header["ordered"]
    detector = cls([], {}, delay_us=header["delay_us"], ordered=ordered, columns=columns)
    scheduler = detector._scheduler
    scheduler.watermark, scheduler.last_seq = counted["watermark"], counted["last_seq"]
    scheduler.largest = counted["largest"]
    detector._counts = {name: counted[name] for name in detector._counts}
    detector._times = header["times"]
    known = {rule.name for rule in rules if header["rules"].get(rule.name) == print_rule(rule)}
    start = scheduler.largest + 1 if scheduler.largest > BEGINNING else BEGINNING
    detector._since = {rule.name: start for rule in rules if rule.name not in known and start > BEGINNING}
    detector._since |= {name: since for name, since in header["since"].items() if name in known}
    detector._future_changes = tuple(
        RuleChange(at, frozenset(remove), tuple(rule for text in strings for rule in parse(text).rules))
        for at, remove, strings in header.get("coming", ())
    )
    detector._rebuild(rules, catalog, snapshot.state.known_to(known))
    if snapshot.waiting is not None:
        reading = detector._type_codes
        codes = [reading.get(name, UNNEEDED) for name in snapshot.waiting["type"].to_pylist()]
        waiting = snapshot.waiting.set_column(0, "type", pa.array(codes, pa.int32()))
        scheduler.wait(waiting.filter(pa.array(np.array(codes) >= 0)))
    return detector
