"""What a machine finds, in columns: matches, and the composite events that they are for other rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tocsin.engine.compile import Tables
from tocsin.engine.store import Store
from tocsin.kernels import Array


class Roles(NamedTuple):
    """How many parts each match has, and the role of each part."""

    counts: Array
    numbers: Array


class Moments(NamedTuple):
    """When matches are."""

    ts: Array
    seq: Array


@dataclass(slots=True)
class Found:
    """Matches in columns: rule number, the rows at the roles and that of the last event, the words of the attributes,
    the identity.
    """

    rules: Array
    parts: Array
    anchors: Array
    words: Array
    known: Array
    first: Array
    second: Array
    moments: Moments | None = None
    """Where time alone can bring a match, or it has no parts; else it is at the time of its last event."""
    expired: Array | None = None
    """Whether a row of a query is of an event that left its window; None: there are none."""
    roles: Roles | None = None
    """Where a role can have any number of parts; else they stand in the order of the roles."""


class Composites(NamedTuple):
    """Composite events of one type: time, identity, and the words of their attributes in the type's order."""

    ts: Array
    seq: Array
    first: Array
    second: Array
    words: Array
    known: Array
    order: Array
    """Of rows of queries, the place among those of an instant; else 0, and identities decide."""


def together(pieces: list[Found], tables: Tables, store: Store) -> Found:
    """Matches of several kinds as one."""
    if len(pieces) == 1:
        return pieces[0]
    none = Found(
        np.zeros(0, np.int64),
        np.zeros((0, tables.places), np.int64),
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
        each = [piece.roles or usual_roles(piece, tables.role_counts) for piece in pieces]
        numbers = np.concatenate([_wide(one.numbers, width) for one in each])
        roles = Roles(np.concatenate([one.counts for one in each]), numbers)
    moments = expired = None
    if any(piece.moments is not None for piece in pieces):
        times = [moments_of(piece, store) for piece in pieces]
        moments = Moments(np.concatenate([one.ts for one in times]), np.concatenate([one.seq for one in times]))
        none_left = [np.zeros(len(piece.rules), np.uint8) for piece in pieces]
        left = zip(pieces, none_left, strict=True)
        expired = np.concatenate([none if piece.expired is None else piece.expired for piece, none in left])
    return Found(
        np.concatenate([piece.rules for piece in pieces]),
        np.concatenate([_wide(piece.parts, width) for piece in pieces]),
        np.concatenate([piece.anchors for piece in pieces]),
        np.concatenate([piece.words for piece in pieces], axis=1),
        np.concatenate([piece.known for piece in pieces], axis=1),
        np.concatenate([piece.first for piece in pieces]),
        np.concatenate([piece.second for piece in pieces]),
        moments,
        expired,
        roles,
    )


def _wide(rows: Array, width: int) -> Array:
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def usual_roles(found: Found, role_counts: Array) -> Roles:
    """One part for each role, in their order."""
    numbers = np.broadcast_to(np.arange(found.parts.shape[1]), found.parts.shape)
    return Roles(role_counts[found.rules], numbers)


def some(found: Found, which: Array) -> Found:
    """Some of the matches, by number or by truth."""
    return Found(
        found.rules[which], found.parts[which], found.anchors[which], found.words[:, which], found.known[:, which],
        found.first[which], found.second[which],
        found.moments and Moments(found.moments.ts[which], found.moments.seq[which]),
        None if found.expired is None else found.expired[which],
        found.roles and Roles(found.roles.counts[which], found.roles.numbers[which]),
    )  # fmt: skip


def joined(one: Composites, other: Composites) -> Composites:
    """One behind the other."""
    return Composites(*(np.concatenate(pair, axis=-1) for pair in zip(one, other, strict=True)))


def taken(composites: Composites, order: Array) -> Composites:
    """Some of them, or all in another order."""
    return Composites(*(column[..., order] for column in composites))


def moments_of(found: Found, store: Store) -> Moments:
    """When matches are: at the times of their last events, if not said otherwise."""
    return found.moments or Moments(store.ts[found.anchors], store.seq[found.anchors])
