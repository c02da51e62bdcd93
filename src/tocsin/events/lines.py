"""Parse lines of text into columns, in blocks of complete lines.

Text has no column types, and the first lines of a file can be misleading. So each file is read twice. First,
`count_kinds` counts the kinds of the cells in each column, and `decide` selects the kind of the column in all files.
Then, `parse` reads the cells as this kind.

Each block is read by Arrow. If Arrow rejects a block, or counts another number of lines, the block is halved until the
part that fails is small. This part is read line by line in Python, which finds the bad lines and the reasons.
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
from tocsin.events.columns import ARROW, one_array
from tocsin.events.formats import LONGS, WORDS, ColumnKinds, Format, LineCells, Microseconds
from tocsin.events.times import micros
from tocsin.events.types import Kind

BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 64 << 20
SMALL_BYTES = 64 << 10
SAMPLE = 1_000
CERTAIN = 0.9
"""The fraction of the cells of a column that must have the same kind. Then the column has this kind, and lines with
other cells are bad. Otherwise, the column is text."""

NAMES = {
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.BOOL: "true or false",
    Kind.TIMESTAMP: "a time",
}

KindCounts = dict[str, Counter[Kind]]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a file that is no event. `line` is its number in the file, from 1."""

    path: Path
    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block of complete lines of a file.

    `line` is the number of the first line, and `end` is the offset in the file after the last line.
    """

    path: Path
    line: int
    data: bytes
    end: int


def blocks(path: Path, format: Format) -> Iterator[Block]:
    """Yield the content of the file `path` in blocks of complete lines."""
    line, end, rest = 1, 0, b""
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            complete_lines, newline, tail = data.rpartition(b"\n")
            if not newline:
                rest += data
                if len(rest) > LINE_BYTES_MAX:
                    raise EventError(f"{path}, line {line}: longer than {LINE_BYTES_MAX >> 20} MB")
                continue
            complete, rest = rest + complete_lines + newline, tail
            yield _block(path, format, line, complete, end)
            line += complete.count(b"\n")
            end += len(complete)
    if rest:
        yield _block(path, format, line, rest, end)


def count_kinds(block: Block, format: Format, counts: KindCounts) -> BadLine | None:
    """Add the number of cells in `block` by column and kind to `counts`. Return the first bad line, if any."""
    if (table := _arrow(block, format.infer)) is not None:
        for name in table.column_names:
            _count_column(table[name], format, counts.setdefault(name, Counter()))
        return None
    if halves := _halves(block):
        first, second = (count_kinds(half, format, counts) for half in halves)
        return first or second
    rows, bad = _rows(block, format)
    for _, _, cells in rows:
        for name, value in cells.items():
            counter = counts.setdefault(name, Counter())
            if (kind := format.kind(value)) is not None:
                counter[kind] += 1
    return bad[0] if bad else None


def decide(counts: Counter[Kind]) -> Kind | None:
    """Return the kind of a column from the counts of its cells by kind; None if it has no values.

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
    """Return the kind of the column of times, from the counts of its cells by kind.

    If some cells are times, the column holds times; else if some cells are numbers, it holds numbers. The other cells
    are bad.

    >>> decide_ts(Counter({Kind.TIMESTAMP: 1, Kind.STRING: 9}))
    <Kind.TIMESTAMP: 'timestamp'>
    """
    return next((kind for kind in (Kind.TIMESTAMP, Kind.DOUBLE, Kind.LONG) if counts[kind]), decide(counts))


def parse(block: Block, format: Format, kinds: ColumnKinds) -> tuple[pa.Table, list[BadLine]]:
    """Return the events of `block` as a table with a column for each of `kinds`, and the bad lines of the block."""
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
    """Return the table that Arrow reads from `block`; None if Arrow rejects the block.

    Also return None if the number of rows is not the number of lines, for example because of an open quote.
    """
    data = block.data.strip(b"\r\n")
    try:
        if not data.isascii():
            data.decode()
        table = read(data) if data else None
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table is not None and table.num_rows == data.count(b"\n") + 1 else None


def _rows(block: Block, format: Format) -> tuple[list[tuple[int, str, LineCells]], list[BadLine]]:
    """Read a block in Python. Return the events with the numbers and texts of their lines, and the bad lines."""
    rows: list[tuple[int, str, LineCells]] = []
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


def _count_column(column: pa.ChunkedArray[Any], format: Format, counter: Counter[Kind]) -> None:
    """Add the cells of a column to `counter` by kind. If the column is text, estimate the counts from a sample."""
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
        ts_us, failed = micros(one_array(column))
        if failed:
            raise pa.ArrowInvalid("not a time")
        return ts_us.cast(ARROW[kind])
    return column.cast(ARROW[kind])


def _array(values: list[Any], kind: Kind | None) -> pa.Array[Any]:
    if kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(ARROW[kind])
    return pa.array(values, pa.null() if kind is None else ARROW[kind])


def _cell(name: str, value: Any, kind: Kind | None) -> Any:
    """Convert the cell `value` of column `name` to `kind`; a time becomes microseconds.

    If this is not possible, raise a ValueError with the reason.
    """
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


def _bool(value: Any) -> bool:
    return value if isinstance(value, bool) else WORDS[value.strip().lower()]


def _time(value: Any) -> int:
    if isinstance(value, Microseconds):
        return value
    if isinstance(value, int):
        return _whole(value)
    ts_us, failed = micros(pa.array([value], pa.string()))
    if failed:
        raise ValueError
    return int(ts_us[0].as_py())


_READ: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.LONG: _whole,
    Kind.DOUBLE: _number,
    Kind.BOOL: _bool,
    Kind.TIMESTAMP: _time,
}
