"""Strings as small numbers: equal strings have equal numbers, and numbers that nobody holds any more are used again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.kernels import Array
from tocsin.kernels.ingest import ENTRY_WORDS, NUMBER

FEW, TRIES = 1024, 16
"""Up to how many texts a lexicon is roomy, and how many ways to spread them are tried."""


class Lexicon:
    """Which of some known texts is it? A hash table that never changes; other texts are `missing`."""

    def __init__(self, numbers: Mapping[str, int], missing: int, dtype: type[np.signedinteger] = np.int64) -> None:
        self._names = [*numbers]
        offsets, data, _ = text_buffers(pa.array(self._names, pa.string()))
        size = 1 << max(1, ((16 if len(numbers) <= FEW else 2) * len(numbers)).bit_length())
        self._known = data
        self._table = np.empty((size, ENTRY_WORDS), np.int64)
        self._dtype, self._missing = np.dtype(dtype), dtype(missing)
        codes = np.array([*numbers.values()], np.int64)
        # A text that is not at its place takes a branch that cannot be predicted: as few as possible.
        spreads = (
            np.random.default_rng(0).integers(1 << 63, 1 << 64, TRIES if len(numbers) <= FEW else 1, np.uint64) | 1
        )
        steps = [kernels.enter_texts(offsets, data, codes, spread, self._table) for spread in spreads]
        self._spread = spreads[np.argmin(steps)]
        kernels.enter_texts(offsets, data, codes, self._spread, self._table)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, column: pa.Array) -> Array:
        """The number of each text of a column. What a null becomes has no meaning.

        Linear: a text of up to sixteen bytes is compared as two words.
        """
        return self._find(column, np.zeros(0, np.uint8))

    def find_all(self, column: pa.Array, out: Array | None = None) -> tuple[Array, set[int]]:
        """The number of each text of a column, if wanted in this array, and which of the known numbers there are."""
        seen = np.zeros(len(self._table), np.uint8)
        return self._find(column, seen, out), set(self._table[seen != 0, NUMBER].tolist())

    def numbers_of(self, column: pa.Array) -> Array:
        """Room for the number of each text of a column."""
        return np.empty(len(column), self._dtype)

    def _find(self, column: pa.Array, seen: Array, out: Array | None = None) -> Array:
        if pa.types.is_dictionary(column.type):
            numbers = np.append(self._find(column.dictionary, seen), self._missing)
            indices = column.indices.fill_null(len(column.dictionary)) if column.null_count else column.indices
            return np.asarray(numbers[indices.to_numpy(zero_copy_only=False)])
        offsets, data, _ = text_buffers(column)
        out = self.numbers_of(column) if out is None else out
        table = self._spread, self._table, self._known
        kernels.find_texts(offsets.ctypes.data, data.ctypes.data, len(data), *table, seen, self._missing, out)
        return out


FoundTexts: TypeAlias = tuple[Lexicon, Array]
"""The numbers of a column's texts, and by which lexicon."""


def text_buffers(column: pa.Array) -> tuple[Array, Array, Array]:
    """The offsets, the bytes, and whether there is a value, of a column of strings."""
    column = column.cast(pa.string())
    buffers = column.buffers()
    if not len(column):
        return np.zeros(1, np.int32), np.zeros(1, np.uint8), np.zeros(0, np.uint8)
    offsets = np.frombuffer(buffers[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None and buffers[2].size else np.zeros(1, np.uint8)
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    else:
        present = np.ones(len(column), np.uint8)
    return offsets, data, present


class Texts:
    """A dictionary of strings whose numbers never change while they are in use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str | None] = []
        self._free: list[int] = []
        self._pinned: set[int] = set()
        self._constants: Lexicon | None = None
        self._lexicon: Lexicon | None = None
        """The strings of some time ago."""
        self._kept = 1024
        self._ranks: Array | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def copy(self) -> Texts:
        """The same strings under the same numbers."""
        texts = Texts()
        texts._numbers, texts._texts, texts._free = self._numbers.copy(), self._texts.copy(), self._free.copy()
        texts._pinned, texts._constants = self._pinned.copy(), self.constants
        return texts

    def number(self, text: str) -> int:
        """The number of a string, given out if it is new."""
        number = self._numbers.get(text)
        if number is None:
            number = self._free.pop() if self._free else len(self._texts)
            if number == len(self._texts):
                self._texts.append(text)
            else:
                self._texts[number] = text
            self._numbers[text] = number
            self._ranks = None
        return number

    def text(self, number: int) -> str:
        """The string of a number that is in use."""
        text = self._texts[number]
        assert text is not None
        return text

    def pin(self, text: str) -> int:
        """The number of a string that stays: a constant of a rule."""
        number = self.number(text)
        if number not in self._pinned:
            self._pinned.add(number)
            self._constants = None
        return number

    @property
    def constants(self) -> Lexicon:
        """The strings that stay, by their numbers; others are -1."""
        if self._constants is None:
            self._constants = Lexicon({self.text(number): number for number in self._pinned}, kernels.NONE)
        return self._constants

    def find(self, column: pa.Array) -> FoundTexts | None:
        """What is known of a column for `encode`, without learning anything: another core may do this."""
        lexicon = self._lexicon
        return None if lexicon is None or pa.types.is_dictionary(column.type) else (lexicon, lexicon.find(column))

    def encode(self, column: pa.Array, found: FoundTexts | None = None) -> Array:
        """A column of strings as numbers; what a null becomes has no meaning.

        Linear. Strings that are known for some time are found fast; of others each distinct one is looked up.
        `found` is what `find` said of the column; it counts for nothing if strings were forgotten since then.
        """
        if pa.types.is_dictionary(column.type) or not len(self._numbers):
            return self._learned(column)
        if found is not None and found[0] is self._lexicon:
            numbers = found[1]
        else:
            if self._lexicon is None or len(self._numbers) > 2 * len(self._lexicon):
                self._lexicon = Lexicon(self._numbers, kernels.NONE)
            numbers = self._lexicon.find(column)
        new = numbers < 0
        if column.null_count:
            new &= column.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(new)
        if len(rows):
            numbers[rows] = self._learned(column.take(pa.array(rows)))
        return numbers

    def _learned(self, column: pa.Array) -> Array:
        """The numbers of strings, some of which may be new."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        if len(coded.dictionary) == 0:
            return np.zeros(len(column), np.int64)
        numbers = np.fromiter(
            (0 if text is None else self.number(text) for text in coded.dictionary.to_pylist()), np.int64
        )
        indices = coded.indices.fill_null(0) if coded.indices.null_count else coded.indices
        return np.asarray(numbers[indices.to_numpy(zero_copy_only=False)])

    def decode(self, numbers: Array, known: Array | None = None) -> pa.Array:
        """The strings behind numbers; null where not known."""
        mask = None if known is None else known == 0
        if len(self._texts) <= 2 * len(numbers):
            dictionary, indices = pa.array(self._texts, pa.string()), numbers
        else:
            distinct, indices = np.unique(numbers if mask is None else np.where(mask, 0, numbers), return_inverse=True)
            dictionary = pa.array([self._texts[number] for number in distinct] if self._texts else [None], pa.string())
        return dictionary.take(pa.array(indices, pa.int64(), mask=mask))

    @property
    def ranks(self) -> Array:
        """The place of each number's string in the order of strings."""
        if self._ranks is None:
            order = sorted(self._numbers.items())
            self._ranks = np.zeros(max(1, len(self._texts)), np.int64)
            for rank, (_, number) in enumerate(order):
                self._ranks[number] = rank
        return self._ranks

    @property
    def crowded(self) -> bool:
        """Whether it is worth asking which strings are still in use."""
        return len(self._numbers) > 2 * self._kept

    def keep(self, used: Iterable[Array]) -> None:
        """Forgets every string but the pinned ones and those in use."""
        held = np.zeros(len(self._texts) + 1, bool)
        for numbers in used:
            held[numbers] = True
        for text, number in list(self._numbers.items()):
            if not held[number] and number not in self._pinned:
                del self._numbers[text]
                self._texts[number] = None
                self._free.append(number)
        self._kept = max(1024, len(self._numbers))
        self._ranks = self._lexicon = None
