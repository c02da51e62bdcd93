"""Strings as small numbers: equal strings have equal numbers, and numbers that nobody holds any more are used again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tocsin.engine.kernels import Array


class Texts:
    """A dictionary of strings whose numbers never change while they are in use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str | None] = []
        self._free: list[int] = []
        self._pinned: set[int] = set()
        self._kept = 1024
        self._ranks: Array | None = None

    def __len__(self) -> int:
        return len(self._numbers)

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
        self._pinned.add(number)
        return number

    def encode(self, column: pa.Array) -> Array:
        """A column of strings as numbers; what a null becomes has no meaning.

        Linear, with a look-up for each distinct string.
        """
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
        self._ranks = None
