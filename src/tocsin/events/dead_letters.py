"""Describe and count dead letters. A *dead letter* is the text of an event that could not be used, with the reason."""

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
    """Return an event as text: in the event notation if possible, else as JSON."""
    try:
        if type is not None and ts is not None:
            return write_event(Event(type, ts, attributes, seq, id))
    except EventError:
        pass
    return json.dumps({"type": type, "ts": ts, **attributes}, default=str, ensure_ascii=False)


def describe_row(batch: pa.Table, row: int, type: str) -> str:
    """Return the event in row `row` of a batch as text."""
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
"""The details of a reason, such as positions and values, and the texts that replace them in counts by reason."""


def rejected_text(count: int, reasons: Counter[str], first: str) -> str:
    """Return a message about rejected events, with their number, the `first` event, and the most common reasons.

    >>> rejected_text(3, Counter({"ts is null": 2, "type is null": 1}), "ts is null: {}")
    '3 events could not be used; the first: ts is null: {} (of all: ts is null 2, type is null 1)'
    """
    several = ", ".join(f"{reason} {number:,}" for reason, number in reasons.most_common(REASONS_SHOWN))
    return f"{count:,} events could not be used; the first: {first}" + (
        f" (of all: {several})" if len(reasons) > 1 else ""
    )


def count_reasons(dead: pa.Table) -> Counter[str]:
    """Count dead letters by reason. Reasons that differ only in positions and values are counted together.

    >>> count_reasons(dead_letter_table([('e.csv, line 7: value is "x", which is not a number', None, None, "…")]))
    Counter({'value is not a number': 1})
    """
    counted: Counter[str] = Counter()
    for count in dead["reason"].value_counts().to_pylist():
        reason = count["values"]
        for detail, instead in _DETAILS:
            reason = detail.sub(instead, reason)
        counted[reason] += count["counts"]
    return counted


def dead_letter_table(rows: Sequence[tuple[str, str | None, int | None, str]]) -> pa.Table:
    """Return a table of dead letters from rows of reason, type, time and text."""
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return pa.table(
        [pa.array(column, type.type) for column, type in zip(columns, DEAD_LETTERS, strict=True)], DEAD_LETTERS
    )
