"""Write the files of events, each once, from a seed, in a folder that is reused between runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workloads import START_US, filter_events, fire_chunks, sequence_events

ROW_GROUPS = 20
FILES = 10
FILE_ROWS_MAX = 1_000_000
EMPTY_FILES = 14
EMPTY_FULL_FILES = 2
"""The number of full files before those of one row, to build up state."""
STATE_BATCHES = 40
STATE_BATCH_US = 150_000_000
STATE_LAG_US = 60_000_000


class Sources:
    """The files of a run over so many events."""

    def __init__(self, folder: Path, events: int) -> None:
        self.folder = folder / f"events-{events}"
        self.events = events
        self.folder.mkdir(parents=True, exist_ok=True)

    # ---- tables

    def fire(self) -> Path:
        """W1 in one file."""
        rows = self.events // ROW_GROUPS

        def groups() -> Iterator[pa.Table]:
            chunks = fire_chunks(self.events, rows=min(rows, 100_000))
            while some := list(islice(chunks, max(1, rows // 100_000))):
                yield pa.concat_tables(some).combine_chunks()

        return self._file("fire", groups)

    def fire_part(self, share: int, keys: int = 1) -> Path:
        """The first of so many parts of W1, with so many times the areas."""

        def groups() -> Iterator[pa.Table]:
            for number, table in enumerate(islice(_row_groups(self.fire()), ROW_GROUPS // share)):
                random = np.random.default_rng(number)
                which = pa.array([f"{n}" for n in range(keys)]).take(random.integers(0, keys, table.num_rows))
                area = pc.binary_join_element_wise(table["area"], which, ".") if keys > 1 else table["area"]
                yield table.set_column(table.column_names.index("area"), "area", area)

        return self._file(f"fire-part-{share}-{keys}", groups)

    def sequences(self) -> Path:
        """W2, a fifth of the events."""
        return self._file("sequences", lambda: _cut(sequence_events(self.events // 5), 8))

    def filters(self) -> Path:
        """W3, a fifth of the events."""
        return self._file("filters", lambda: _cut(filter_events(self.events // 5), 8))

    # ---- streams: a folder is read file by file, in the order of the times at which they changed

    def fire_files(self) -> Path:
        """W1 in files of up to a million rows."""
        return self._files("fire-files", lambda: islice(self._fire_rows(), FILES))

    def fire_empty(self) -> Path:
        """Full files of W1, then files of a single row."""

        def files() -> Iterator[pa.Table]:
            rows = self._fire_rows()
            yield from islice(rows, EMPTY_FULL_FILES)
            after = next(rows)
            for number in range(EMPTY_FILES):
                yield after.slice(number, 1)

        return self._files("fire-empty", files)

    def ever_new_keys(self) -> Path:
        """Pairs of a B and, a minute later, an A, half as many pairs as events, each with a key of its own."""

        def files() -> Iterator[pa.Table]:
            keys = self.events // 2 // STATE_BATCHES
            step = STATE_BATCH_US / keys
            lag = round(STATE_LAG_US / step)
            for number in range(STATE_BATCHES):
                b = np.arange(number * keys, (number + 1) * keys)
                a = b[b >= lag] - lag
                at = np.concatenate([b * step, (a + lag + 0.5) * step]).astype(np.int64)
                order = np.argsort(at, kind="stable")
                types = pa.array(["B", "A"]).take(np.repeat([0, 1], [len(b), len(a)])[order])
                ts = pa.array(START_US + at[order]).cast(pa.timestamp("us", "UTC"))
                yield pa.table({"type": types, "ts": ts, "k": np.concatenate([b, a])[order]})

        return self._files("ever-new-keys", files)

    def ever_new_matches(self) -> int:
        """Return the number of reported pairs; the last one is not, as its A is the last event."""
        keys = self.events // 2 // STATE_BATCHES
        return STATE_BATCHES * keys - round(STATE_LAG_US / (STATE_BATCH_US / keys)) - 1

    def _fire_rows(self) -> Iterator[pa.Table]:
        """W1 in tables of the rows of a file."""
        rows = min(FILE_ROWS_MAX, self.events // FILES)
        held: list[pa.Table] = []
        for table in _row_groups(self.fire()):
            held.append(table)
            while (count := sum(part.num_rows for part in held)) >= rows:
                together = pa.concat_tables(held)
                yield together.slice(0, rows)
                held = [together.slice(rows)] if count > rows else []

    # ---- files

    def _file(self, name: str, groups: Callable[[], Iterator[pa.Table]]) -> Path:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            begun = path.with_suffix(".begun")
            _write(begun, groups())
            begun.rename(path)
        return path

    def _files(self, name: str, tables: Callable[[], Iterator[pa.Table]]) -> Path:
        path = self.folder / name
        if not path.exists():
            begun = path.with_suffix(".begun")
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            for number, table in enumerate(tables()):
                file = begun / f"{number:03}.parquet"
                _write(file, _cut(table, 8))
                os.utime(file, (1_700_000_000 + number,) * 2)
            begun.rename(path)
        return path


def _write(path: Path, groups: Iterator[pa.Table]) -> None:
    first = next(groups)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first, row_group_size=first.num_rows)
        for table in groups:
            writer.write_table(table, row_group_size=table.num_rows)


def _cut(table: pa.Table, parts: int) -> Iterator[pa.Table]:
    """Row groups, so that several tasks can read one file."""
    rows = max(1, -(-table.num_rows // parts))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def _row_groups(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


def tables(path: Path) -> Iterator[pa.Table]:
    """The rows of a file or of a folder of files, in order."""
    for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
        yield from _row_groups(file)
