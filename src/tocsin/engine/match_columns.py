"""Hold matches in columns, and the composite events that other rules read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tocsin.engine.compile import RuleTables
from tocsin.engine.store import EventStore
from tocsin.kernels import Array


class PartRoles(NamedTuple):
    """The number of parts of each match, and the index of the role of each part."""

    counts: Array
    numbers: Array


class MatchTimes(NamedTuple):
    """The time (ts, seq) of each match, in columns."""

    ts: Array
    seq: Array


@dataclass(slots=True)
class MatchColumns:
    """Matches in columns.

    `rules` has the number of each match's rule, `parts` the rows of its parts, and `anchors` the row of its last event.
    """

    rules: Array
    parts: Array
    anchors: Array
    values: Array
    valid: Array
    id_high: Array
    id_low: Array
    times: MatchTimes | None = None
    """The times of matches that may have no parts. If None, the time of a match is the time of its last event."""
    expired: Array | None = None
    """Whether the event of each query's row left its window. None if no event left a window."""
    roles: PartRoles | None = None
    """The roles of parts, if a role may have any number of parts. If None, each role has one part, in their order."""


class Composites(NamedTuple):
    """Composite events of one type in columns, with the attributes in the order in which the type has them."""

    ts: Array
    seq: Array
    id_high: Array
    id_low: Array
    values: Array
    valid: Array
    order: Array
    """The rank of a query's output row within its instant. It is 0 for other rules, whose events are sorted by id."""


def concat_matches(pieces: list[MatchColumns], tables: RuleTables, store: EventStore) -> MatchColumns:
    """Concatenate the matches in `pieces`, which may be of different families of rules."""
    if len(pieces) == 1:
        return pieces[0]
    none = MatchColumns(
        np.zeros(0, np.int64),
        np.zeros((0, tables.roles_max), np.int64),
        np.zeros(0, np.int64),
        np.zeros((tables.outputs, 0), np.int64),
        np.zeros((tables.outputs, 0), np.uint8),
        np.zeros(0, np.uint64),
        np.zeros(0, np.uint64),
    )
    pieces = [none, *pieces]
    width = max(piece.parts.shape[1] for piece in pieces)
    roles = None
    if any(piece.roles is not None for piece in pieces):
        each = [piece.roles or default_roles(piece, tables.role_counts) for piece in pieces]
        numbers = np.concatenate([_padded(one.numbers, width) for one in each])
        roles = PartRoles(np.concatenate([one.counts for one in each]), numbers)
    times = expired = None
    if any(piece.times is not None for piece in pieces):
        each_times = [match_times(piece, store) for piece in pieces]
        times = MatchTimes(
            np.concatenate([one.ts for one in each_times]), np.concatenate([one.seq for one in each_times])
        )
        none_left = [np.zeros(len(piece.rules), np.uint8) for piece in pieces]
        left = zip(pieces, none_left, strict=True)
        expired = np.concatenate([none if piece.expired is None else piece.expired for piece, none in left])
    return MatchColumns(
        np.concatenate([piece.rules for piece in pieces]),
        np.concatenate([_padded(piece.parts, width) for piece in pieces]),
        np.concatenate([piece.anchors for piece in pieces]),
        np.concatenate([piece.values for piece in pieces], axis=1),
        np.concatenate([piece.valid for piece in pieces], axis=1),
        np.concatenate([piece.id_high for piece in pieces]),
        np.concatenate([piece.id_low for piece in pieces]),
        times,
        expired,
        roles,
    )


def _padded(rows: Array, width: int) -> Array:
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def default_roles(matches: MatchColumns, role_counts: Array) -> PartRoles:
    """Return the roles of matches that have one part per role, in the order of roles."""
    numbers = np.broadcast_to(np.arange(matches.parts.shape[1]), matches.parts.shape)
    return PartRoles(role_counts[matches.rules], numbers)


def select_matches(matches: MatchColumns, which: Array) -> MatchColumns:
    """Return the matches at the indices, or in the mask, `which`."""
    return MatchColumns(
        matches.rules[which], matches.parts[which], matches.anchors[which],
        matches.values[:, which], matches.valid[:, which], matches.id_high[which], matches.id_low[which],
        matches.times and MatchTimes(matches.times.ts[which], matches.times.seq[which]),
        None if matches.expired is None else matches.expired[which],
        matches.roles and PartRoles(matches.roles.counts[which], matches.roles.numbers[which]),
    )  # fmt: skip


def concat_composites(one: Composites, other: Composites) -> Composites:
    """Concatenate two sets of composite events of the same type."""
    return Composites(*(np.concatenate(pair, axis=-1) for pair in zip(one, other, strict=True)))


def select_composites(composites: Composites, order: Array) -> Composites:
    """Return the composite events at the indices, or in the mask, `order`."""
    return Composites(*(column[..., order] for column in composites))


def match_times(matches: MatchColumns, store: EventStore) -> MatchTimes:
    """Return the times of matches, which are those of their last events unless `matches.times` is set."""
    return matches.times or MatchTimes(store.ts[matches.anchors], store.seq[matches.anchors])
