"""What do the items of a membership find, and which events are that?

Rules whose events come in order share a detector, the others share one too. Each rule that consumes has its own, as
what it remembers may move to another processor (`versions`), and each whose aggregates are worked out on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.deployment import Item
from tocsin.overlay.evaluation import Evaluator, Types, meeting
from tocsin.overlay.timing import BEGINNING, Array
from tocsin.plans.splitting import FOREVER_US, Partial

PART = "partial "
"""How names of partial rules begin in detectors; no rule's name has a space."""


def evaluators(items: Iterable[Item], declared: Types) -> list[Evaluator]:
    """Evaluators for items; a partial rule goes by its number."""
    groups: dict[object, list[tuple[int, Item]]] = {True: [], False: []}
    for number, item in enumerate(items):
        groups.setdefault(item.key if item.consuming or item.tallies else item.ordered, []).append((number, item))
    found = []
    for group in groups.values():
        rules: dict[str, Rule] = {}
        for number, item in group:
            for rule in item.rules:
                name = f"{PART}{number}" if isinstance(item.key, Partial) else rule.name
                rules[name] = replace(rule, name=name)
        if rules:
            types = declared
            wanted = frozenset(item.key for _, item in group if isinstance(item.key, str))
            horizon_us = max(item.horizon_us for _, item in group)
            first = group[0][1]
            if first.tallies:
                anchor = types[first.rules[-1].anchor.type]
                more = tuple((tally.column, tally.kind) for tally in first.tallies)
                types = {**types, anchor.name: EventType(anchor.name, anchor.attributes + more)}
            found.append(
                Evaluator(
                    rules.values(), types, horizon_us, ordered=first.ordered, wanted=wanted, tallies=first.tallies
                )
            )
    return found


def seqs(found: pa.Table, history: pa.Table, depth: int) -> Array:
    """The `seq` of matches: their anchors', which may be matches themselves, `depth` times at most."""
    parts = found["parts"].combine_chunks()
    anchors = parts.flatten().field("id").take(parts.offsets[:-1])
    rows = pc.index_in(anchors, value_set=history["id"].combine_chunks())
    seq: Array = history["seq"].take(rows).combine_chunks().fill_null(0).to_numpy().copy()
    inner = pc.index_in(anchors, value_set=found["id"].combine_chunks()).fill_null(-1).to_numpy()
    unknown = rows.is_null().to_numpy(zero_copy_only=False)
    for _ in range(depth):
        seq[unknown] = seq[inner[unknown]]
    return seq


def participants(part: Partial, found: pa.Table, history: pa.Table) -> tuple[Array, Array, Array]:
    """The events of the history that fill the roles which a partial rule sends, with the times of their heads, and the
    times of all heads."""
    parts = found["parts"].combine_chunks()
    flat = parts.flatten()
    heads = np.repeat(found["ts"].to_numpy(), np.diff(parts.offsets.to_numpy()))
    chosen = np.ones(len(flat), bool)
    if len(part.sends) < len(part.rule.roles):
        chosen = np.isin(flat.field("role").to_pylist(), part.sends)
    ids = flat.field("id").filter(pa.array(chosen))
    rows = pc.index_in(ids, value_set=history["id"].combine_chunks()).to_numpy(zero_copy_only=False)
    return rows.astype(np.int64), heads[chosen], np.unique(heads)


def blockers(part: Partial, fresh: pa.Table, heads: Array, types: Types) -> Array:
    """The new events that stand in front of a head that was found: heads within the window after one."""
    rows: Array = np.nonzero(meeting(part.rule.anchor, fresh, types))[0]
    if part.blocks_us < FOREVER_US and len(rows):
        ts = fresh["ts"].to_numpy()[rows]
        known = np.concatenate([[BEGINNING], heads])
        rows = rows[ts - known[np.searchsorted(known, ts, "right") - 1] < part.blocks_us]
    return rows
