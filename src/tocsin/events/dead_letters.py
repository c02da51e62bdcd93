"""What becomes of an event that cannot be used? A dead letter: why, and the event as it can still be told."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tocsin.errors import EventError
from tocsin.events.columns import ARROW
from tocsin.events.formats import write_event
from tocsin.events.types import LABEL, Event, Kind, Value

REASONS_SHOWN = 5
DEAD_LETTERS = pa.schema([("reason", pa.string()), ("type", pa.string()), ("ts", pa.int64()), ("event", pa.string())])


def describe(
    type: str | None, ts: int | None, attributes: Mapping[str, Value], seq: int = 0, id: str | None = None
) -> str:
    """An event in its notation, or as JSON where it is too broken for that."""
    try:
        if type is not None and ts is not None:
            return write_event(Event(type, ts, attributes, seq, id))
    except EventError:
        pass
    return json.dumps({"type": type, "ts": ts, **attributes}, default=str, ensure_ascii=False)


def describe_row(batch: pa.Table, row: int, type: str) -> str:
    """An event of a batch in its notation."""
    attributes: dict[str, Any] = {}
    id = batch[f"{LABEL}:{Kind.STRING}"][row].as_py() if f"{LABEL}:{Kind.STRING}" in batch.column_names else None
    for name in batch.column_names:
        attribute, value = name.rpartition(":")[0], batch[name][row]
        if attribute and attribute != LABEL and value.is_valid:
            time = value.type == ARROW[Kind.TIMESTAMP]
            attributes[attribute] = (value.cast(pa.int64()) if time else value).as_py()
    return describe(type, batch["ts"][row].as_py(), attributes, batch["seq"][row].as_py(), id)


_DETAILS = (
    (re.compile(r"^.*, line \d+: "), ""),
    (re.compile(r"^column \d+: "), ""),
    (re.compile(r" is .*, which is not ", re.DOTALL), " is not "),
    (re.compile(r"(, it is |: ['\"]).*$", re.DOTALL), ""),
    (re.compile(r", column \d+$"), ""),
)
"""What differs between rows that are rejected for the same reason: where they are, and what they hold."""


def rejected_text(count: int, reasons: Counter[str], first: str) -> str:
    """What to say of rejected events: how many there are, one of them, and why.

    >>> rejected_text(3, Counter({"ts is null": 2, "type is null": 1}), "ts is null: {}")
    '3 events could not be used; the first: ts is null: {} (of all: ts is null 2, type is null 1)'
    """
    several = ", ".join(f"{reason} {number:,}" for reason, number in reasons.most_common(REASONS_SHOWN))
    return f"{count:,} events could not be used; the first: {first}" + (
        f" (of all: {several})" if len(reasons) > 1 else ""
    )


def count_reasons(dead: pa.Table) -> Counter[str]:
    """How many dead letters there are for each reason, whatever the rows hold.

    >>> count_reasons(letters([('e.csv, line 7: value is "x", which is not a number', None, None, "…")]))
    Counter({'value is not a number': 1})
    """
    counted: Counter[str] = Counter()
    for found in dead["reason"].value_counts().to_pylist():
        reason = found["values"]
        for detail, instead in _DETAILS:
            reason = detail.sub(instead, reason)
        counted[reason] += found["counts"]
    return counted


def letters(rows: Sequence[tuple[str, str | None, int | None, str]]) -> pa.Table:
    """Dead letters as a table."""
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return pa.table(
        [pa.array(column, type.type) for column, type in zip(columns, DEAD_LETTERS, strict=True)], DEAD_LETTERS
    )
