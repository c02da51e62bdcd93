"""`tocsin check --events`: do the rules fit the events of a file?

What a run would refuse is an error: an attribute that no column holds, a comparison of the wrong kinds. What a run
would accept, but never match, is a warning: a type that no event has, an attribute that no event of the type has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tocsin.cli import console, run
from tocsin.errors import RuleError

if TYPE_CHECKING:
    from tocsin.events.files import EventFiles
    from tocsin.events.types import EventType, Kind
    from tocsin.language.eps.ast import Statement
    from tocsin.ruleset import RuleSet


def check_events(ruleset: RuleSet, path: Path, events: str, names: dict[str, Any], ts_unit: str | None) -> str:
    """Fails where the rules do not fit the events; prints warnings; returns what was checked, in a few words."""
    from tocsin.events.columns import kind_of
    from tocsin.events.files import open_events
    from tocsin.plans.plan import plan
    from tocsin.plans.typing import Catalog

    source = open_events(events, declared=run.declared_kinds(ruleset), ts_unit=ts_unit, **names)
    present, rows, bad = _present(source)
    kinds = {field.name: kind_of(field.type) for field in source.schema if field.name not in source.names.values()}
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    empty = frozenset(name for name, kind in kinds.items() if kind is None)
    used = dict.fromkeys(type for rule in ruleset.rules for type in rule.uses)
    defined = {rule.emits.name for rule in ruleset.rules}
    outside = [type for type in used if type not in defined]
    columns = {type: _typed(ruleset, type, known) for type in outside}
    with run.named(path):
        try:
            plan(ruleset.rules, Catalog(types=columns, empty=empty))
        except RuleError as error:
            hint = f"{error.hint} " if error.hint else ""
            told = f"{hint}These rules were checked against {events}."
            raise RuleError(error.message, source=error.source, span=error.span, hint=told) from None
    there = {
        type: _typed(ruleset, type, {name: kind for name, kind in known.items() if present[type][name]})
        for type in rows
        if type not in defined
    }
    for rule in ruleset.rules:
        _warn(ruleset, rule, there, empty, path, events)
    told = f"{console.count(rows.total(), 'event')} of {console.count(len(rows), 'type')} in {events}"
    return told + (f", {bad:,} rejected" if bad else "")


def _warn(
    ruleset: RuleSet, rule: Statement, there: dict[str, EventType], empty: frozenset[str], path: Path, events: str
) -> None:
    """Warns of the first type or attribute of a rule that no event has."""
    from tocsin.plans.plan import plan
    from tocsin.plans.typing import Catalog

    others = {other.emits.name: other.emits for other in ruleset.rules if other.emits.name != rule.emits.name}
    try:
        plan([rule], Catalog(types={**there, **others}, empty=empty, closed=True))
    except RuleError as error:
        message = f"no event of {events} can be used here: {error.message}"
        found = RuleError(message, source=error.source, span=error.span, hint=error.hint)
        console.say(f"warning: {path}: {found}\n{rule.name} may never match.", err=True)


def _typed(ruleset: RuleSet, type: str, columns: dict[str, Kind]) -> EventType:
    """A type with the attributes that columns hold, of the kinds that the rules declare, if they do."""
    from tocsin.events.types import EventType

    declared = ruleset.types.get(type)
    said = dict(declared.attributes) if declared is not None else {}
    return EventType(type, tuple((name, said.get(name, kind)) for name, kind in columns.items()))


def _present(source: EventFiles) -> tuple[dict[str, Counter[str]], Counter[str], int]:
    """How many values the events of each type have in each column, how many events that is, and the bad lines."""
    present: dict[str, Counter[str]] = defaultdict(Counter)
    rows: Counter[str] = Counter()
    bad, name = 0, source.names["type"]
    for chunk in source.chunks():
        table = chunk.table
        bad += len(chunk.bad)
        names = [column for column in table.column_names if column != name]
        counted = table.group_by(name).aggregate([([], "count_all"), *((column, "count") for column in names)])
        for row in counted.to_pylist():
            if row[name] is not None:
                rows[row[name]] += row["count_all"]
                present[row[name]].update({column: row[f"{column}_count"] for column in names})
    return present, rows, bad
