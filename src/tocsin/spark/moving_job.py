"""What the workers are told of queries that move: the interests, what is known of the events, and how many slots.

A query runs in the slot of its focal object, so that queries that share ranges are together. Events go by *blocks*,
cells as large as the largest range: a piece lies on the blocks that its box touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.moving.detector import text_of
from tocsin.engine.moving.gather import Gathered, Letter, Sieve
from tocsin.engine.moving.matcher import Matcher
from tocsin.engine.moving.ranges import FAR, Followed, boxes
from tocsin.events.reader import Columns, Known
from tocsin.events.types import hexadecimal, text_words
from tocsin.language.mcep.ast import Interest, Shape, Space
from tocsin.plans.moving import DEGREE_M, Region
from tocsin.plans.typing import Catalog
from tocsin.spark.batch import Tally
from tocsin.spark.job import given, labels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MovingJob:
    """Queries that move over events of a known shape."""

    interests: tuple[Interest, ...]
    catalog: Catalog
    columns: Columns
    slots: int
    times: bool
    """Whether `ts` are timestamps."""
    tables: Mapping[str, Mapping[str, str]] | None = None
    """With a table for each type: for each type its attributes, and the columns that hold them."""
    delay_us: int = 0
    history_us: int | None = None
    select: tuple[str, ...] | None = None
    """The columns that rows have, if not all."""
    pieces: tuple[tuple[Array, ...], ...] = ()
    """Over a table: for each slot what is to be run, in chunks."""
    letters: tuple[Letter, ...] = field(default=(), repr=False)
    """Location updates that could not be used."""

    def __getstate__(self) -> dict[str, Any]:
        return given(self)

    @cached_property
    def followed(self) -> Followed:
        return Followed(self.interests, self.history_us)

    @cached_property
    def sieve(self) -> Sieve:
        return Sieve(self.interests, self.catalog)

    @cached_property
    def matcher(self) -> Matcher:
        return Matcher(self.followed, self.sieve, times=self.times, select=self.select)

    @property
    def matches(self) -> pa.Schema:
        """The columns of markers and matches."""
        return self.matcher.schema

    @cached_property
    def known(self) -> Known:
        """What the reader of batches must know."""
        return self.sieve.known

    @cached_property
    def labels(self) -> list[int]:
        return labels(self.slots)

    @cached_property
    def digests(self) -> dict[str, str]:
        """What tells whether a query is still the same, by its name."""
        return {one.name: hexadecimal(text_words(text_of(one))) for one in self.interests}

    @cached_property
    def slot_of_query(self) -> Array:
        """The slot in which each query runs."""
        found: Array = self.sieve.focals.of_query % self.slots
        return found

    # ---- blocks

    @cached_property
    def block(self) -> dict[Space, tuple[float, float]]:
        """How wide and high blocks are."""
        found: dict[Space, tuple[float, float]] = {}
        for one in self.interests:
            west, south, east, north = Region(one.shape, (0.0, 0.0)).boxes[0]
            unit = 1.0 if one.space is Space.PLANE else DEGREE_M / 2
            before = found.get(one.space, (0.0, 0.0))
            found[one.space] = max(before[0], (east - west) / unit), max(before[1], (north - south) / unit)
        return found

    def blocks(self, east: Array, north: Array, space: Space) -> Array:
        """The block of each place."""
        width, height = self.block[space]
        return _keys(_steps(east, width), _steps(north, height))

    def touched(self, pieces: Array, space: Space) -> Array:
        """The blocks that pieces of queries in a space touch, each once."""
        width, height = self.block[space]
        found = [np.zeros(0, np.int64)]
        for (shape, where), number in self._shaped.items():
            if where is not space:
                continue
            mine = pieces[self._shaped_of[pieces["query"]] == number]
            box = boxes(shape, space, mine["east"], mine["north"])
            west, south = _steps(box[:, 1], width), _steps(box[:, 2], height)
            across, up = _steps(box[:, 3], width) - west + 1, _steps(box[:, 4], height) - south + 1
            counts = across * up
            row = np.repeat(np.arange(len(box)), counts)
            number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append(np.unique(_keys(west[row] + number // up[row], south[row] + number % up[row])))
        return np.unique(np.concatenate(found))

    @cached_property
    def _shaped(self) -> dict[tuple[Shape, Space], int]:
        return {key: n for n, key in enumerate(dict.fromkeys((one.shape, one.space) for one in self.interests))}

    @cached_property
    def _shaped_of(self) -> Array:
        return np.array([self._shaped[one.shape, one.space] for one in self.interests], np.int64)

    def near(self, events: Gathered, pieces: Array) -> Array:
        """Whether each event can lie in one of the pieces."""
        wanted = np.zeros(len(events), bool)
        if not len(pieces) or not len(events):
            return wanted
        in_time = (events.ts > pieces["begin"].min()) & (events.ts <= pieces["hi"].max())
        for space in self.sieve.spaces:
            east, north = events.places(space)
            there = in_time & ~np.isnan(east)
            wanted[there] |= np.isin(self.blocks(east[there], north[there], space), self.touched(pieces, space))
        return wanted


def _steps(along: Array, step: float) -> Array:
    found: Array = np.clip(np.floor(along / step), -FAR, FAR).astype(np.int64)
    return found


def _keys(column: Array, row: Array) -> Array:
    found: Array = (column << 32) + (row & 0xFFFFFFFF)
    return found


def tell(job: MovingJob, tally: Tally, pieces: Array, parts: Sequence[pa.Table]) -> None:
    """Runs pieces over the events near them."""
    tally.take(job.matcher.run(pieces, Gathered(parts, job.sieve.types)))
