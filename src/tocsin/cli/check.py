"""Check rules against the events of a file, for `tocsin check --events`.

A problem that a run would refuse is an error, for example an attribute without a column, or a comparison of
incompatible kinds. If a run would accept the rules but never match, there is a warning, for example for a type without
events, or for an attribute that no event of its type has.
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
    """Check the rules of the file `path` against `events`, and return a summary of the events.

    Raise if the rules do not fit the events, and print a warning for each rule that may never match.
    """
    from tocsin.events.columns import kind_of
    from tocsin.events.files import open_events
    from tocsin.plans.plan import plan
    from tocsin.plans.typing import Catalog

    source = open_events(events, declared=run.declared_kinds(ruleset), ts_unit=ts_unit, **names)
    counts, rows, bad = _count_values(source)
    kinds = {field.name: kind_of(field.type) for field in source.schema if field.name not in source.names.values()}
    column_kinds = {name: kind for name, kind in kinds.items() if kind is not None}
    empty = frozenset(name for name, kind in kinds.items() if kind is None)
    used = dict.fromkeys(type for rule in ruleset.rules for type in rule.uses)
    defined = {rule.emits.name for rule in ruleset.rules}
    outside = [type for type in used if type not in defined]
    columns = {type: _typed(ruleset, type, column_kinds) for type in outside}
    with run.errors_in(path):
        try:
            plan(ruleset.rules, Catalog(types=columns, empty=empty))
        except RuleError as error:
            hint = f"{error.hint} " if error.hint else ""
            hint_text = f"{hint}These rules were checked against {events}."
            raise RuleError(error.message, source=error.source, span=error.span, hint=hint_text) from None
    seen = {
        type: _typed(ruleset, type, {name: kind for name, kind in column_kinds.items() if counts[type][name]})
        for type in rows
        if type not in defined
    }
    for rule in ruleset.rules:
        _warn(ruleset, rule, seen, empty, path, events)
    summary = f"{console.count(rows.total(), 'event')} of {console.count(len(rows), 'type')} in {events}"
    return summary + (f", {bad:,} rejected" if bad else "")


def _warn(
    ruleset: RuleSet, rule: Statement, seen: dict[str, EventType], empty: frozenset[str], path: Path, events: str
) -> None:
    """Print a warning if `rule` uses a type or an attribute that no event has. The warning names the first of them."""
    from tocsin.plans.plan import plan
    from tocsin.plans.typing import Catalog

    others = {other.emits.name: other.emits for other in ruleset.rules if other.emits.name != rule.emits.name}
    try:
        plan([rule], Catalog(types={**seen, **others}, empty=empty, closed=True))
    except RuleError as error:
        message = f"no event of {events} matches this: {error.message}"
        warning = RuleError(message, source=error.source, span=error.span, hint=error.hint)
        console.say(f"warning: {path}: {warning}\n{rule.name} may never match.", err=True)


def _typed(ruleset: RuleSet, type: str, columns: dict[str, Kind]) -> EventType:
    """Return the event type `type` with `columns` as its attributes.

    If the rules declare the kind of an attribute, this kind takes precedence over the kind of the column.
    """
    from tocsin.events.types import EventType

    declared = ruleset.types.get(type)
    kinds = dict(declared.attributes) if declared is not None else {}
    return EventType(type, tuple((name, kinds.get(name, kind)) for name, kind in columns.items()))


def _count_values(source: EventFiles) -> tuple[dict[str, Counter[str]], Counter[str], int]:
    """Count the values by type and column, the events by type, and the lines that cannot be read."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
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
                counts[row[name]].update({column: row[f"{column}_count"] for column in names})
    return counts, rows, bad
