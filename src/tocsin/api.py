"""What a user calls: rules from text, then detection on a table or on a stream."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from tocsin.engine.detector import Detector
from tocsin.errors import EventError, RuleError
from tocsin.events.batches import Columns, Data
from tocsin.events.types import UNITS_US, EventType
from tocsin.language import parse
from tocsin.language.rules import Program, Rule
from tocsin.plans.catalog import Catalog
from tocsin.plans.explain import explain
from tocsin.plans.picture import picture
from tocsin.plans.plan import Plan, plan

Duration = int | str | timedelta


class DeadLetterWarning(UserWarning):
    """Some events could not be used."""


class RuleSet:
    """Rules that are deployed together."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._plan = plan(program.rules, Catalog(types=self.types, closed=bool(self.types)))

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.program.rules

    @property
    def types(self) -> dict[str, EventType]:
        """The event types that the text declares."""
        return {type.name: type for type in self.program.types}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __repr__(self) -> str:
        names = ", ".join(rule.name for rule in self.rules[:8]) + (", …" if len(self) > 8 else "")
        return f"<RuleSet of {len(self)}: {names}>"

    @property
    def plan(self) -> Plan:
        """What the rules mean, as far as it is known before any event."""
        return self._plan

    def detect(
        self,
        events: Data,
        *,
        type: str = "type",
        ts: str = "ts",
        seq: str = "seq",
        id: str = "id",
        ts_unit: str | None = None,
    ) -> pa.Table:
        """All matches in a table of events (or a mapping of type to table, or Event objects), in any order.

        Rows that cannot be used are left out with a `DeadLetterWarning`; take a `detector` to get hold of them.
        """
        detector = self.detector(delay=2**60, type=type, ts=ts, seq=seq, id=id, ts_unit=ts_unit)
        detector.push(events)
        found = detector.finish()
        dead = detector.dead_letters()
        if dead.num_rows:
            first = f"{dead['reason'][0].as_py()}: {dead['event'][0].as_py()}"
            warnings.warn(
                f"{dead.num_rows} events could not be used; the first: {first}", DeadLetterWarning, stacklevel=2
            )
        return found

    def detector(
        self,
        *,
        delay: Duration = 0,
        ordered: bool = False,
        type: str = "type",
        ts: str = "ts",
        seq: str = "seq",
        id: str = "id",
        ts_unit: str | None = None,
    ) -> Detector:
        """A detector for a stream.

        `delay`: how much later than the newest an event may come (µs, "5 s" or a timedelta).
        `ordered`: events come in canonical order (ts, seq, type, id), so that nothing waits.
        """
        delay_us = duration_us(delay)
        if ordered and delay_us:
            raise EventError("an ordered source has no delay: say ordered=True or delay=…, not both")
        columns = Columns(type, ts, seq, id, ts_unit)
        return Detector(self._plan, self.types, delay_us=delay_us, ordered=ordered, columns=columns)

    def restore(self, snapshot: bytes) -> Detector:
        """A detector that goes on where the snapshot was taken. New and changed rules see events from there on."""
        return Detector.restore(snapshot, self.rules, self.types)

    def explain(self) -> str:
        """What will be done for these rules, as text: types and columns, filters, buffers, keys, state, cost."""
        return explain(self._plan)

    def explain_svg(self) -> str:
        """The shared operator graph, as a picture."""
        return picture(self._plan)


def rules(source: str | Path | Iterable[Rule], language: str | None = None) -> RuleSet:
    """Rules from their text or from a file (a `Path`, or a string that names a file), or from rules made by the
    builder.

    >>> len(rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"))
    1
    """
    if isinstance(source, str | Path):
        text = _text(source)
        program = parse(text, language)
        if not program.rules:
            raise RuleError("there is no rule here", hint="A rule starts with: define Name(…) from …")
        return RuleSet(replace(program, rules=tuple(replace(rule, source=text) for rule in program.rules)))
    given = tuple(source) if isinstance(source, Iterable) else (source,)
    for rule in given:
        if not isinstance(rule, Rule):
            message = f"rules come as text, a file, or Rule objects, not as {type(rule).__name__}"
            raise RuleError(message, hint="The builder's rules end with .build().")
    return RuleSet(Program((), given))


def duration_us(duration: Duration) -> int:
    """A duration in microseconds.

    >>> duration_us("1.5 s"), duration_us(timedelta(minutes=5))
    (1500000, 300000000)
    """
    if isinstance(duration, timedelta):
        micros = round(duration / timedelta(microseconds=1))
    elif isinstance(duration, str):
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\.?\s*", duration.lower())
        if match is None or (match[2] or "us") not in UNITS_US:
            raise EventError(f"'{duration}' is not a duration; write 500 ms, 5 s, 2 min, 1 h or 1 d")
        micros = round(float(match[1]) * UNITS_US[match[2] or "us"])
    elif isinstance(duration, int):
        micros = duration
    else:
        raise EventError(f"{duration!r} is not a duration; write 500 ms, 5 s, 2 min, 1 h or 1 d")
    if micros < 0:
        raise EventError("a delay cannot be negative")
    return micros


def _text(source: str | Path) -> str:
    looks_like_path = isinstance(source, Path) or ("\n" not in source and "(" not in source and source.strip() != "")
    if not looks_like_path:
        return str(source)
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RuleError(f"cannot read the rules in {source}: {reason}") from error
