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
from tocsin.overlay import participation
from tocsin.overlay.deployment import Item
from tocsin.overlay.evaluation import Evaluator, Types, meeting
from tocsin.overlay.participation import NOBODY, Instants, Participants
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import BEGINNING, Array
from tocsin.plans.splitting import FOREVER_US, Partial

PART = "partial "
"""How names of partial rules begin in detectors; no rule's name has a space."""


def evaluators(items: Iterable[Item | None], declared: Types) -> list[Evaluator]:
    """Evaluators for items; a partial rule goes by its number in them, None is left out."""
    groups: dict[object, list[tuple[int, Item]]] = {True: [], False: []}
    for number, item in enumerate(items):
        if item is None:
            continue
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


def first_heads(rows: Array, heads: Array) -> tuple[Array, Array]:
    """Each row once, with its earliest head; heads are in order."""
    rows, firsts = np.unique(rows, return_index=True)
    return rows, heads[firsts]


def participants(part: Partial, found: pa.Table, history: Rows) -> Participants:
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


def quick(part: Partial, instants: Instants, since: int, upto: int) -> Participants:
    """As `participants`, for a plain partial rule with heads from `since` on, each row once with its earliest head."""
    known = participation.participants(part, instants, since, upto)
    if known is not None:
        return known
    history, types = instants.history, instants.types
    item = Item(part, (part.rule,), (), ordered=False, pullable=False)
    (evaluator,) = evaluators([item], types)
    found = evaluator.detect(history, history, since, upto)
    if not found.num_rows:
        return NOBODY
    rows, heads, every = participants(part, found, history)
    return *first_heads(rows, heads), every


def blockers(part: Partial, fresh: Rows, heads: Array, types: Types) -> Array:
    """The new events that stand in front of a head that was found: heads within the window after one."""
    rows: Array = np.nonzero(meeting(part.rule.anchor, fresh, types))[0]
    if part.blocks_us < FOREVER_US and len(rows):
        ts = fresh.ts[rows]
        known = np.concatenate([[BEGINNING], heads])
        rows = rows[ts - known[np.searchsorted(known, ts, "right") - 1] < part.blocks_us]
    return rows
