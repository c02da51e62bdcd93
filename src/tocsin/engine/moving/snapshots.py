"""The state of queries that move as bytes, and back.

    settings and counts │ where the ranges are │ the events that are kept │ those that wait

No operator has state of its own between pieces (`following`), so that this is all. The encoding is that of detectors,
with another mark in front.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.snapshots import MAGIC as RULES
from tocsin.engine.snapshots import pack, unpack
from tocsin.errors import StateError
from tocsin.language.interests import Interest
from tocsin.language.printing import print_rule
from tocsin.language.printing_interests import print_interest

MAGIC = b"TOCMOV"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is written down. Types in tables are numbers that `settings["types"]` names."""

    settings: Mapping[str, Any]
    follower: str
    """As `Follower.as_data` has it."""
    events: pa.Table | None
    waiting: pa.Table | None
    """Events and location updates that came early, or before the delay was over."""


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot as bytes."""
    tables = {name: table for name in ("events", "waiting") if (table := getattr(snapshot, name)) is not None}
    header = {"settings": snapshot.settings, "follower": json.loads(snapshot.follower), "tables": list(tables)}
    return pack(MAGIC, header, tables.values())


def decode(data: bytes) -> Snapshot:
    """The snapshot behind the bytes, or a `StateError` that says what is wrong with them."""
    if data[: len(RULES)] == RULES:
        raise StateError("this is a snapshot of rules, not of queries that move")
    header, tables = unpack(MAGIC, data, "snapshot")
    found = {name: next(tables) for name in header["tables"]}
    return Snapshot(header["settings"], json.dumps(header["follower"]), found.get("events"), found.get("waiting"))


def text_of(interest: Interest) -> str:
    """A query as text, with its rules: two are the same query if this is."""
    return "\n\n".join([*(print_rule(rule) for rule in interest.rules), print_interest(interest)])


def renumbered(part: pa.Table, types: Sequence[str], now: Sequence[str]) -> pa.Table:
    """Stored events, for queries that may look at other types than those that stored them."""
    if tuple(types) == tuple(now):
        return part
    numbers = np.array([now.index(type) if type in now else -1 for type in types], np.int32)[part["type"].to_numpy()]
    return part.set_column(0, "type", pa.array(numbers)).filter(pa.array(numbers >= 0))
