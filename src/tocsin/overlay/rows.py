"""Which rows of which table? What is only handed on is not copied.

Most events that reach a processor go on to the next as they are, and matches are put in order and handed to sinks. So
messages name rows of a table; columns are taken out of it where somebody looks at them, and whole rows where they are
put together with others or written down. What is worked out once about a table holds for all who have rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin.engine import kernels
from tocsin.engine.intake import identities
from tocsin.engine.texts import text_buffers
from tocsin.events.arrow import whole
from tocsin.events.batches import LABEL_COLUMN
from tocsin.events.ids import text_words
from tocsin.events.types import Kind
from tocsin.overlay.timing import Array


class Base:
    """A table, and what is known about all of its rows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._contents: dict[tuple[tuple[str, Kind], ...], tuple[Array, Array]] = {}

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        coded = whole(self.table["type"]).dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy()

    @cached_property
    def ts(self) -> Array:
        return np.array(self.table["ts"].to_numpy())

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """The identities of events with these attributes, of which they may lack some."""
        key = tuple(attributes.items())
        if key not in self._contents:
            names, codes = self.types
            columns = {"type": pa.array(codes.astype(np.int32)), "ts": self.ts, "seq": self.table["seq"]}
            columns[LABEL_COLUMN] = self.table["id"]
            there = {name: kind for name, kind in attributes.items() if name in self.table.column_names}
            columns |= {f"{name}:{kind}": self.table[name] for name, kind in there.items()}
            words = np.array([text_words(name) for name in names], np.uint64).reshape(-1, 2)
            self._contents[key] = identities(pa.table(columns), words, np.arange(self.table.num_rows), {})
        return self._contents[key]

    @cached_property
    def identities(self) -> tuple[Array, Array]:
        offsets, data, _ = text_buffers(whole(self.table["id"]))
        first, second = np.empty(len(offsets) - 1, np.uint64), np.empty(len(offsets) - 1, np.uint64)
        kernels.text_identities(first, second, offsets, data, np.arange(len(first)))
        return first, second


class Rows:
    """Rows of a table by number, or all of them."""

    def __init__(self, base: Base | pa.Table, numbers: Array | None = None) -> None:
        self.base = base if isinstance(base, Base) else Base(base)
        self.numbers = numbers

    @property
    def num_rows(self) -> int:
        return self.base.table.num_rows if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        """As many bytes as these rows have on the average of the table."""
        table = self.base.table
        size: int = self.num_rows * table.nbytes // max(1, table.num_rows)
        return size

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        column = self.base.table[name]
        return column if self.numbers is None else column.take(pa.array(self.numbers))

    def of(self, column: Array) -> Array:
        """What a column over the whole table has for these rows."""
        return column if self.numbers is None else np.asarray(column[self.numbers])

    @cached_property
    def ts(self) -> Array:
        return self.of(self.base.ts)

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        """The names of types, and for each row which of them it has."""
        names, codes = self.base.types
        return names, self.of(codes)

    @property
    def identities(self) -> tuple[Array, Array]:
        """The identities of the rows' ids."""
        first, second = self.base.identities
        return self.of(first), self.of(second)

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """The identities of the rows as events with these attributes."""
        first, second = self.base.contents(attributes)
        return self.of(first), self.of(second)

    def take(self, chosen: Array) -> Rows:
        """Some of these rows, by number or by truth."""
        if self.numbers is not None:
            return Rows(self.base, self.numbers[chosen])
        return Rows(self.base, np.nonzero(chosen)[0] if chosen.dtype == bool else chosen)

    def slice(self, start: int, length: int | None = None) -> Rows:
        """The rows from one on."""
        if self.numbers is None:
            return Rows(self.base.table.slice(start, length))
        return Rows(self.base, self.numbers[start:][:length])

    @property
    def table(self) -> pa.Table:
        """A table of these rows alone."""
        return self.base.table if self.numbers is None else self.base.table.take(pa.array(self.numbers))


def joined(pieces: Sequence[Rows]) -> Rows:
    """One behind the other; rows of one table stay rows of it."""
    base = pieces[0].base
    if len(pieces) == 1:
        return pieces[0]
    if all(piece.base is base for piece in pieces):
        numbers = (piece.numbers for piece in pieces)
        return Rows(base, np.concatenate([np.arange(base.table.num_rows) if one is None else one for one in numbers]))
    return Rows(pa.concat_tables([piece.table for piece in pieces], promote_options="default"))
