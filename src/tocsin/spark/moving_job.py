"""Describe moving queries to Spark workers: the interests, the event types, and the number of slots.

An *interest* is a moving query. It applies rules to the events near a *focal object*, which moves. A *range* is the
region of interest while the focal object is at one position. An *emission* is the part of a range that can be delivered
now (see `engine.moving.ranges`).

A query runs in the slot of its focal object, so that queries that share ranges run together. Events are partitioned by
*cells*. A cell is as large as the largest range, and a range touches the cells that its bounding box overlaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.moving.detector import query_text
from tocsin.engine.moving.gather import DeadLetter, GatheredEvents, Gatherer
from tocsin.engine.moving.matcher import Matcher
from tocsin.engine.moving.ranges import CELL_MAX, RangeParameters, boxes
from tocsin.events.reader import Columns, TypeInfo
from tocsin.events.types import hexadecimal, text_words
from tocsin.language.mcep.ast import Interest, Shape, Space
from tocsin.plans.moving import DEGREE_M, Region
from tocsin.plans.typing import Catalog
from tocsin.spark.batch import SlotReport
from tocsin.spark.job import job_fields, labels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MovingJob:
    """A detection of moving queries over events whose types are known."""

    interests: tuple[Interest, ...]
    catalog: Catalog
    columns: Columns
    slots: int
    times: bool
    """Whether the column `ts` of matches has timestamps instead of integers."""
    tables: Mapping[str, Mapping[str, str]] | None = None
    """The column of each attribute, by type and attribute, if each type has its own table; otherwise None."""
    delay_us: int = 0
    history_us: int | None = None
    select: tuple[str, ...] | None = None
    """The columns of matches and markers to return; None for all."""
    emissions: tuple[tuple[Array, ...], ...] = ()
    """The emissions of each slot in chunks that run together (see `moving_batch`). It is empty for a stream."""
    rejected: tuple[DeadLetter, ...] = field(default=(), repr=False)
    """The location updates of a table that were rejected."""

    def __getstate__(self) -> dict[str, Any]:
        return job_fields(self)

    @cached_property
    def range_parameters(self) -> RangeParameters:
        return RangeParameters(self.interests, self.history_us)

    @cached_property
    def gatherer(self) -> Gatherer:
        return Gatherer(self.interests, self.catalog)

    @cached_property
    def matcher(self) -> Matcher:
        return Matcher(self.range_parameters, self.gatherer, times=self.times, select=self.select)

    @property
    def matches(self) -> pa.Schema:
        """The columns of matches and of markers, which are rows that end a range."""
        return self.matcher.schema

    @cached_property
    def known(self) -> TypeInfo:
        """What the reader of batches needs to know about types and attributes."""
        return self.gatherer.known

    @cached_property
    def labels(self) -> list[int]:
        """The keys by which Spark knows the slots."""
        return labels(self.slots)

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each query's text, by the name of the query. It changes if the query changes."""
        return {one.name: hexadecimal(text_words(query_text(one))) for one in self.interests}

    @cached_property
    def slot_of_query(self) -> Array:
        """The slot in which each query runs, in the order of `interests`."""
        slots: Array = self.gatherer.focals.of_query % self.slots
        return slots

    # ---- cells

    @cached_property
    def cell_size(self) -> dict[Space, tuple[float, float]]:
        """The width and height of the cells of each space."""
        found: dict[Space, tuple[float, float]] = {}
        for one in self.interests:
            west, south, east, north = Region(one.shape, (0.0, 0.0)).boxes[0]
            unit = 1.0 if one.space is Space.PLANE else DEGREE_M / 2
            before = found.get(one.space, (0.0, 0.0))
            found[one.space] = max(before[0], (east - west) / unit), max(before[1], (north - south) / unit)
        return found

    def cells_of(self, east: Array, north: Array, space: Space) -> Array:
        """Return the key of the cell in which each position lies."""
        width, height = self.cell_size[space]
        return _cell_keys(_steps(east, width), _steps(north, height))

    def cells_touched(self, emissions: Array, space: Space) -> Array:
        """Return the keys of the distinct cells that `emissions` of queries in `space` touch."""
        width, height = self.cell_size[space]
        found = [np.zeros(0, np.int64)]
        for (shape, where), number in self._shapes.items():
            if where is not space:
                continue
            mine = emissions[self._shape_of_query[emissions["query"]] == number]
            box = boxes(shape, space, mine["east"], mine["north"])
            west, south = _steps(box[:, 1], width), _steps(box[:, 2], height)
            across, up = _steps(box[:, 3], width) - west + 1, _steps(box[:, 4], height) - south + 1
            counts = across * up
            row = np.repeat(np.arange(len(box)), counts)
            number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append(np.unique(_cell_keys(west[row] + number // up[row], south[row] + number % up[row])))
        return np.unique(np.concatenate(found))

    @cached_property
    def _shapes(self) -> dict[tuple[Shape, Space], int]:
        return {key: n for n, key in enumerate(dict.fromkeys((one.shape, one.space) for one in self.interests))}

    @cached_property
    def _shape_of_query(self) -> Array:
        return np.array([self._shapes[one.shape, one.space] for one in self.interests], np.int64)

    def near(self, events: GatheredEvents, emissions: Array) -> Array:
        """Return for each event whether it may lie in the range of one of `emissions`."""
        near = np.zeros(len(events), bool)
        if not len(emissions) or not len(events):
            return near
        in_time = (events.ts > emissions["begin"].min()) & (events.ts <= emissions["hi"].max())
        for space in self.gatherer.spaces:
            east, north = events.positions(space)
            located = in_time & ~np.isnan(east)
            near[located] |= np.isin(
                self.cells_of(east[located], north[located], space), self.cells_touched(emissions, space)
            )
        return near


def _steps(along: Array, step: float) -> Array:
    found: Array = np.clip(np.floor(along / step), -CELL_MAX, CELL_MAX).astype(np.int64)
    return found


def _cell_keys(column: Array, row: Array) -> Array:
    found: Array = (column << 32) + (row & 0xFFFFFFFF)
    return found


def run_ranges(job: MovingJob, slot_report: SlotReport, emissions: Array, parts: Sequence[pa.Table]) -> None:
    """Run `emissions` over `parts`, which are the events near them, and add the matches to `slot_report`."""
    slot_report.add_matches(job.matcher.run(emissions, GatheredEvents(parts, job.gatherer.types)))
