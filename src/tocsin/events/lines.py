"""How do lines of text become columns? In blocks of whole lines, with no line lost.

Text does not say what a column holds, and the first lines may mislead, so a file is read twice: `tally` counts what the
cells of each column are, `decide` makes that one kind for the column over all files, and `parse` reads the cells as
that kind. A block goes through Arrow's readers. One that they refuse, or count differently, is halved again and again,
and what is small is read line by line in Python, which finds the bad lines and why they are bad.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.errors import EventError
from tocsin.events.columns import ARROW, whole
from tocsin.events.formats import LONGS, WORDS, Cells, Format, Kinds, Microseconds
from tocsin.events.times import micros
from tocsin.events.types import Kind

BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 64 << 20
SMALL_BYTES = 64 << 10
SAMPLE = 1_000
CERTAIN = 0.9
"""From this share of its cells on, a column is of a kind, and the other cells are bad. Below, it is text."""

NAMES = {
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.BOOL: "true or false",
    Kind.TIMESTAMP: "a time",
}

Counts = dict[str, Counter[Kind]]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no event, with its number from 1."""

    path: Path
    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file. `line` is the number of the first, `end` the offset in the file after the last."""

    path: Path
    line: int
    data: bytes
    end: int


def blocks(path: Path, format: Format) -> Iterator[Block]:
    """The events of a file in blocks of whole lines."""
    line, end, rest = 1, 0, b""
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                rest += data
                if len(rest) > LINE_BYTES_MAX:
                    raise EventError(f"{path}, line {line}: longer than {LINE_BYTES_MAX >> 20} MB")
                continue
            whole, rest = rest + head + newline, tail
            yield _block(path, format, line, whole, end)
            line += whole.count(b"\n")
            end += len(whole)
    if rest:
        yield _block(path, format, line, rest, end)


def tally(block: Block, format: Format, counts: Counts) -> BadLine | None:
    """Adds what the cells of a block are to `counts`; the first bad line, if there is one."""
    if (table := _arrow(block, format.infer)) is not None:
        for name in table.column_names:
            _tally_column(table[name], format, counts.setdefault(name, Counter()))
        return None
    if halves := _halves(block):
        first, second = (tally(half, format, counts) for half in halves)
        return first or second
    rows, bad = _rows(block, format)
    for _, _, cells in rows:
        for name, value in cells.items():
            counter = counts.setdefault(name, Counter())
            if (kind := format.kind(value)) is not None:
                counter[kind] += 1
    return bad[0] if bad else None


def decide(counts: Counter[Kind]) -> Kind | None:
    """The one kind of a column; None if it holds nothing.

    >>> decide(Counter({Kind.LONG: 70, Kind.DOUBLE: 29, Kind.STRING: 1}))
    <Kind.DOUBLE: 'double'>
    >>> decide(Counter({Kind.LONG: 70, Kind.STRING: 30}))
    <Kind.STRING: 'string'>
    """
    if not counts.total():
        return None
    joined = Counter(counts)
    if joined[Kind.DOUBLE]:
        joined[Kind.DOUBLE] += joined.pop(Kind.LONG, 0)
    kind, cells = joined.most_common(1)[0]
    return kind if cells >= CERTAIN * counts.total() else Kind.STRING


def decide_ts(counts: Counter[Kind]) -> Kind | None:
    """The kind of the column of times: times if there are any, then numbers; the other cells are bad.

    >>> decide_ts(Counter({Kind.TIMESTAMP: 1, Kind.STRING: 9}))
    <Kind.TIMESTAMP: 'timestamp'>
    """
    return next((kind for kind in (Kind.TIMESTAMP, Kind.DOUBLE, Kind.LONG) if counts[kind]), decide(counts))


def parse(block: Block, format: Format, kinds: Kinds) -> tuple[pa.Table, list[BadLine]]:
    """The events of a block, with a column for each of `kinds`, and its bad lines."""
    table = _arrow(block, lambda data: format.table(data, kinds))
    if table is not None:
        try:
            return pa.table({name: _cast(table, name, kind) for name, kind in kinds.items()}), []
        except pa.ArrowInvalid:
            pass
    if halves := _halves(block):
        (first, first_bad), (second, second_bad) = (parse(half, format, kinds) for half in halves)
        return pa.concat_tables([first, second]), first_bad + second_bad
    rows, bad = _rows(block, format)
    columns: dict[str, list[Any]] = {name: [] for name in kinds}
    for number, text, cells in rows:
        try:
            values = [_cell(name, cells.get(name), kind) for name, kind in kinds.items()]
        except ValueError as error:
            bad.append(BadLine(block.path, number, str(error), text))
            continue
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    bad.sort(key=lambda line: line.line)
    return pa.table({name: _array(columns[name], kind) for name, kind in kinds.items()}), bad


def _block(path: Path, format: Format, line: int, data: bytes, start: int) -> Block:
    end = start + len(data)
    skipped = 0
    if start == 0:
        skipped, data = format.begin(path, data)
    return Block(path, line + skipped, data, end)


def _halves(block: Block) -> tuple[Block, Block] | None:
    data = block.data
    middle = data.find(b"\n", len(data) // 2) + 1
    if len(data) <= SMALL_BYTES or middle in (0, len(data)):
        return None
    rest = replace(block, line=block.line + data.count(b"\n", 0, middle), data=data[middle:])
    return replace(block, data=data[:middle]), rest


def _arrow(block: Block, read: Callable[[bytes], pa.Table | None]) -> pa.Table | None:
    """What Arrow reads in a block, unless it finds fault, or not as many events as lines (a quote was left open)."""
    data = block.data.strip(b"\r\n")
    try:
        if not data.isascii():
            data.decode()
        table = read(data) if data else None
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table is not None and table.num_rows == data.count(b"\n") + 1 else None


def _rows(block: Block, format: Format) -> tuple[list[tuple[int, str, Cells]], list[BadLine]]:
    """The events of a block line by line, each with the number and the text of its line, and the lines that are bad."""
    rows: list[tuple[int, str, Cells]] = []
    bad: list[BadLine] = []
    for number, line in enumerate(block.data.split(b"\n"), start=block.line):
        if not line.strip():
            continue
        text = line.decode(errors="backslashreplace").rstrip("\r")
        try:
            line.decode()
            rows.extend((number, text, cells) for cells in format.rows(text))
        except UnicodeDecodeError:
            bad.append(BadLine(block.path, number, "not UTF-8", text))
        except ValueError as error:
            bad.append(BadLine(block.path, number, str(error), text))
    return rows, bad


def _tally_column(column: pa.ChunkedArray[Any], format: Format, counter: Counter[Kind]) -> None:
    """Typed columns are counted as they are, text by a sample of its cells."""
    cells = len(column) - column.null_count
    if pa.types.is_integer(column.type):
        counter[Kind.LONG] += cells
    elif pa.types.is_floating(column.type):
        counter[Kind.DOUBLE] += cells
    elif pa.types.is_boolean(column.type):
        counter[Kind.BOOL] += cells
    elif pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        counter[Kind.TIMESTAMP] += cells
    elif not pa.types.is_string(column.type):
        counter[Kind.STRING] += cells
    elif cells:
        chosen = np.unique(np.linspace(0, cells - 1, SAMPLE).astype(np.int64))
        for value in column.drop_null().take(chosen).to_pylist():
            if (kind := format.kind(value)) is not None:
                counter[kind] += max(1, cells // len(chosen))


def _cast(table: pa.Table, name: str, kind: Kind | None) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    if kind is None or name not in table.column_names:
        return _array([None] * table.num_rows, kind)
    column = table[name]
    if kind is Kind.TIMESTAMP:
        words, failed = micros(whole(column))
        if failed:
            raise pa.ArrowInvalid("not a time")
        return words.cast(ARROW[kind])
    return column.cast(ARROW[kind])


def _array(values: list[Any], kind: Kind | None) -> pa.Array[Any]:
    if kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(ARROW[kind])
    return pa.array(values, pa.null() if kind is None else ARROW[kind])


def _cell(name: str, value: Any, kind: Kind | None) -> Any:
    """A cell as what its column holds, times in microseconds; a ValueError says why it cannot be."""
    if value is None or kind is None:
        return None
    if isinstance(value, dict | list):
        raise ValueError(f"{name} holds {'an object' if isinstance(value, dict) else 'a list'}")
    if kind is Kind.STRING:
        return value if isinstance(value, str) else json.dumps(value)
    try:
        return _READ[kind](value)
    except (ValueError, TypeError, KeyError, AttributeError):
        shown = json.dumps(value, ensure_ascii=False)
        raise ValueError(f"{name} is {shown[:80]}, which is not {NAMES[kind]}") from None


def _whole(value: Any) -> int:
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, bool | float) or number not in LONGS:
        raise ValueError
    return int(number)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _word(value: Any) -> bool:
    return value if isinstance(value, bool) else WORDS[value.strip().lower()]


def _time(value: Any) -> int:
    if isinstance(value, Microseconds):
        return value
    if isinstance(value, int):
        return _whole(value)
    words, failed = micros(pa.array([value], pa.string()))
    if failed:
        raise ValueError
    return int(words[0].as_py())


_READ: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.LONG: _whole,
    Kind.DOUBLE: _number,
    Kind.BOOL: _word,
    Kind.TIMESTAMP: _time,
}
