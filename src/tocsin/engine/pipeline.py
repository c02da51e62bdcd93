"""Process the ordered events of one partition, and keep the state of the rules.

Rules are divided into *strata*: a rule reads only composite events that rules of earlier strata define. The *anchor* of
a rule is the event that completes a match, and a *role* is a named part of a match. For each batch, the pipeline stores
the events that rules need. Then it runs the strata in order: it stores the composite events that the stratum reads,
runs the rules on their new anchors and computes the attributes of matches.

An *instant* is a pair (ts, seq). A composite event is forwarded to other rules only when its instant is closed, because
no further event of the instant can occur. Therefore rules see the composite events of an instant in canonical order,
however the input is split into batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.buffers import Buffers
from tocsin.engine.compile import BEFORE_ALL, LoadedRule, RuleTables
from tocsin.engine.families.projections import Projections
from tocsin.engine.families.requests import ContextState, Requests, consumed, ranks_of
from tocsin.engine.families.window_tables import is_projection
from tocsin.engine.families.windows import Windows
from tocsin.engine.forwarding import Timers
from tocsin.engine.ingest import EventIngest, SelectedEvents
from tocsin.engine.match_columns import (
    Composites,
    MatchColumns,
    MatchTimes,
    PartRoles,
    concat_composites,
    concat_matches,
    match_times,
    select_composites,
    select_matches,
)
from tocsin.engine.predicates import SelectedRows
from tocsin.engine.prefetch import Prefetch, inline, map_chunks
from tocsin.engine.store import EventStore
from tocsin.engine.strings import StringDictionary
from tocsin.errors import StateError
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import EventType, Kind
from tocsin.kernels import Array
from tocsin.plans.plan import Plan
from tocsin.plans.rules import RulePlan
from tocsin.process import gc_paused

MATCHES_PER_ANCHOR = 4_000_000
"""The largest number of matches per anchor. If several `each` roles combine to more matches, an error is raised."""

CHUNK = 1 << 18
"""The largest number of events that are stored at once."""

Instant = tuple[int, int]
"""The time (ts, seq) of an event."""


class Consumed(NamedTuple):
    """The rows of one type that a role consumed, with their row ids and times.

    `owner` is the role, as (name of the rule, index of the role).
    """

    owner: tuple[str, int]
    type: str
    row_ids: Array
    ts: Array


@dataclass(slots=True)
class Changelog:
    """Records the changes since the last checkpoint that the state itself does not show."""

    consumed: list[Consumed] = field(default_factory=list)
    arrived: list[pa.Table] = field(default_factory=list)
    """The events that had to wait for the watermark, with the names of their types."""


class CompiledRules(NamedTuple):
    """Compiled rules without state, as tables and empty projections."""

    tables: RuleTables
    projections: Projections


class Pipeline:
    """Runs compiled rules on batches of events, and holds their state."""

    def __init__(
        self, plan: Plan, since: Mapping[str, int], *, ordered: bool, compiled: CompiledRules | None = None
    ) -> None:
        self.strings = StringDictionary() if compiled is None else compiled.tables.strings.copy()
        self.tables = RuleTables(self.strings) if compiled is None else compiled.tables
        self.store = EventStore()
        self.buffers = Buffers()
        self.requests = Requests()
        self.ingest = EventIngest(self.tables, self.strings, self.store, ordered=ordered)
        self.buffered: dict[str, Composites] = {}
        self.prefetch: Prefetch = inline
        """The function that starts the selection of events in the next chunks while one chunk is processed."""
        self.changelog: Changelog | None = None
        """The changes since the last incremental checkpoint. None if there are no incremental checkpoints."""
        self.emits: dict[str, EventType] = {}
        self._forwarded: dict[int, list[str]] = {}
        """The composite types that rules read, by the stratum at whose start all of their events are known."""
        self._timers = Timers(self)
        self.contexts: dict[str, ContextState] = {}
        """The state of each request that has one of Snoop's contexts, by name of the request."""
        self.windows = Windows(self)
        self.projections = Projections(self.tables) if compiled is None else compiled.projections.copy()
        self.rows_emitted = 0
        """The number of output rows of queries that were buffered for other rules so far."""
        self.strata = 0
        self.add(plan, plan.rules if compiled is None else (), since)

    @property
    def compiled(self) -> CompiledRules:
        """The compiled rules, from which equal pipelines can be created. Valid only before the first event."""
        return CompiledRules(self.tables, self.projections)

    @gc_paused()
    def add(self, plan: Plan, rules: Iterable[RulePlan], since: Mapping[str, int]) -> None:
        """Load further rules of `plan`. They must not change the strata of rules that are loaded already."""
        self.emits |= {rule.emits.name: rule.emits for rule in plan.rules}
        for rule in rules:
            begin = since.get(rule.rule.name, BEFORE_ALL)
            self.tables.load(rule, plan.stratum(rule), begin)
            self._timers.add(rule, begin)
            if rule.context is not None:
                self.contexts[rule.consumer] = ContextState(self.tables.contexts[-1])
            if rule.windowed is not None and is_projection(rule):
                self.projections.add(self.tables.projections[-1])
            elif rule.windowed is not None:
                self.windows.add(self.tables.windows[-1])
        self.windows.grow_queues()
        queries = [loaded.rule for loaded in self.tables.windows] + [loaded.rule for loaded in self.tables.projections]
        names = sorted({rule.plan.rule.name for rule in queries})
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._forwarded = defaultdict(list)
        for name in self.emits.keys() & self.tables.types.keys():
            self._forwarded[plan.complete[name]].append(name)
        self.strata = max(plan.complete.values(), default=0)

    def can_disable(self, names: Collection[str]) -> bool:
        """Return whether the rules with these names can be disabled without rebuilding the pipeline.

        They cannot if one of them has timers, a context or windows, or if the pipeline has a changelog.
        """
        plans = [loaded.plan for loaded in self.tables.rules if loaded.plan.rule.name in names]
        waits = any(plan.timer is not None or plan.timers or plan.context or plan.windowed for plan in plans)
        return self.changelog is None and not waits

    def disable(self, names: Collection[str]) -> None:
        """Stop delivering events to the rules with these names."""
        for loaded in self.tables.rules:
            if loaded.plan.rule.name in names:
                self.tables.disable(loaded)

    # ---- one batch

    def process(self, batch: pa.Table, closed: Instant) -> Iterator[tuple[MatchColumns, list[int]]]:
        """Process an ordered batch, after which no event before the instant `closed` will arrive.

        For each chunk of the batch, yield the matches and the row numbers of events that are late within their instant.
        The matches are valid until the next chunk is processed.
        """
        if not batch.num_rows:
            yield self._step(None, closed)
            self._evict_if_due(closed[0])
            return
        starts = _starts(batch)
        chunks = [batch.slice(at, end - at) for at, end in pairwise(starts)] if len(starts) > 2 else [batch]
        self.ingest.build_index()
        prefetch = self.prefetch if len(chunks) > 1 and self.ingest.can_prefetch else inline
        for chunk, (at, end) in zip(map_chunks(self.ingest.select, chunks, prefetch), pairwise(starts), strict=True):
            last = end == batch.num_rows
            bound = closed if last else (batch["ts"][end].as_py(), batch["seq"][end].as_py())
            matches, late = self._step(chunk, bound)
            yield matches, [at + row for row in late]
            self._evict_if_due(bound[0])

    def _step(self, chunk: SelectedEvents | None, bound: Instant) -> tuple[MatchColumns, list[int]]:
        jobs: dict[int, list[tuple[LoadedRule, int, int]]] = defaultdict(list)
        anchors: list[Array] = []
        late: list[int] = []
        matches: list[MatchColumns] = []
        selections: list[SelectedRows] = []
        if chunk is not None:
            if chunk.unstored is not None:
                matches += self.projections.run_unstored(self, chunk.unstored)
            selected, late = self.ingest.store_batch(chunk)
            self._fan_out(selected, jobs, anchors)
            selections.append(selected)
        for stratum in range(self.strata):
            for name in self._forwarded.get(stratum, ()):
                self._timers.schedule(name, selections, bound[0])
                forwarded = self._forward(name, bound)
                if forwarded is not None:
                    self._fan_out(forwarded, jobs, anchors)
                    selections.append(forwarded)
            if stratum in self.tables.completions:
                matches += self._run_requests(selections, stratum)
            for context in self.contexts.values():
                if context.loaded.rule.stratum == stratum:
                    matches += self._run_context(context, selections)
            if self.projections:
                matches += self.projections.run_stored(self, stratum, selections)
            if self.windows:
                matches += self._run_windows(stratum, selections, bound)
            if jobs.get(stratum):
                joined = anchors[0] if len(anchors) == 1 else np.concatenate(anchors)
                pattern_matches = self._run_patterns(jobs[stratum], joined)
                if self.changelog is not None:
                    self.changelog.consumed += self._consumed(pattern_matches)
                self.buffer_composites(pattern_matches)
                matches += pattern_matches
        return concat_matches(matches, self.tables, self.store), late

    def _fan_out(
        self, selected: SelectedRows, jobs: dict[int, list[tuple[LoadedRule, int, int]]], anchors: list[Array]
    ) -> None:
        """Add selected rows to the buffers. If a row is the anchor of a rule, add a job for this rule to `jobs`.

        A job is (rule, start, end). The rows of its anchors are in [start, end) of the concatenated `anchors`.
        """
        tables = self.tables
        self.buffers.add(tables, self.store, selected.filters, selected.rows)
        if not len(selected.filters):
            return
        if self.changelog is not None:
            retained = (tables.buffer_chains[0][selected.filters] > 0) | (tables.is_windowed[selected.filters] > 0)
            self.store.assign_row_ids(selected.rows[retained])
        count = len(tables.is_anchor)
        is_anchor = tables.is_anchor[selected.filters] != 0
        filters, rows = (
            (selected.filters, selected.rows)
            if is_anchor.all()
            else (selected.filters[is_anchor], selected.rows[is_anchor])
        )
        order = np.argsort(filters.astype(np.uint16) if count < 65536 else filters, kind="stable")
        filters, rows = filters[order], rows[order]
        base = sum(map(len, anchors))
        changes = np.nonzero(filters[1:] != filters[:-1])[0] + 1
        bounds = [0, *changes.tolist(), len(filters)]
        for start, end in pairwise(bounds if len(filters) else []):
            for rule in tables.anchored[int(filters[start])]:
                jobs[rule.stratum].append((rule, base + start, base + end))
        anchors.append(rows)

    def _run_requests(self, selections: list[SelectedRows], stratum: int) -> list[MatchColumns]:
        """Run the requests of a stratum on the selected rows, and return their matches."""
        notified = self.requests.run(self, selections, stratum)
        if notified is None or not len(notified[0]):
            return []
        if self.changelog is not None:
            for owner, type, rows in consumed(self, notified):
                self.changelog.consumed.append(Consumed(owner, type, self.store.row_ids[rows], self.store.ts[rows]))
        numbers, rows, anchors = notified
        counts = self.tables.role_counts[numbers]
        order = self._canonical_order(numbers, rows, counts, anchors)
        nothing = np.zeros((len(numbers), self.tables.computed), np.int64)
        valid = nothing.astype(np.uint8)
        return self._without_timers(self._project(numbers[order], rows[order], nothing, valid, anchors[order]))

    def _run_context(self, context: ContextState, selections: list[SelectedRows]) -> list[MatchColumns]:
        """Run a request that has one of Snoop's contexts on the selected rows, and return its matches."""
        combined = context.run(self, selections)
        if combined is None:
            return []
        numbers = np.full(len(combined.counts), context.loaded.rule.number)
        order = self._canonical_order(numbers, combined.rows, combined.counts, combined.anchors)
        nothing = np.zeros((len(numbers), self.tables.computed), np.int64)
        valid = nothing.astype(np.uint8)
        roles = PartRoles(combined.counts[order], combined.leaves[order])
        return self._without_timers(
            self._project(numbers, combined.rows[order], nothing, valid, combined.anchors[order], roles)
        )

    def _run_windows(self, stratum: int, selections: list[SelectedRows], bound: Instant) -> list[MatchColumns]:
        """Run the window queries of a stratum on the selected rows, and return their output rows."""
        # Timers that are due at the time of the bound wait until the earlier events of that time are complete.
        fire_to = bound[0] if bound[1] > BEGINNING else bound[0] - 1
        matches: list[MatchColumns] = []
        for rows in self.windows.run(stratum, selections, fire_to):
            nothing = np.zeros((len(rows.rules), self.tables.roles_max), np.int64)
            matches.append(
                MatchColumns(
                    rows.rules,
                    nothing,
                    nothing[:, 0],
                    rows.values,
                    rows.valid,
                    rows.id_high,
                    rows.id_low,
                    MatchTimes(rows.ts, rows.seq),
                    rows.expired,
                )
            )
        self.buffer_composites(matches)
        return matches

    def _without_timers(self, matches: MatchColumns) -> list[MatchColumns]:
        """Buffer the composite events of matches. Return the matches that do not merely start a timer."""
        self.buffer_composites([matches])
        is_match = np.array([rule.plan.timer is None for rule in self.tables.rules])[matches.rules]
        return [matches if is_match.all() else select_matches(matches, is_match)]

    def _canonical_order(self, numbers: Array, rows: Array, counts: Array, anchors: Array) -> Array:
        """Return the permutation that sorts notifications by instant, request and parts."""
        store = self.store
        ts, seq = store.ts[anchors], store.seq[anchors]
        if not ((ts[1:] == ts[:-1]) & (seq[1:] == seq[:-1])).any():
            return np.arange(len(numbers))
        in_match = np.arange(rows.shape[1]) < counts[:, None]
        used, positions = np.unique(rows[in_match], return_inverse=True)
        canonical = np.lexsort((used, ranks_of(self.tables.types)[store.type[used]], store.seq[used], store.ts[used]))
        rank = np.empty(len(used), np.int64)
        rank[canonical] = np.arange(len(used))
        parts = np.full(rows.shape, -1)
        parts[in_match] = rank[positions]
        return np.lexsort((*parts.T[::-1], self.tables.labels.ranks[numbers], seq, ts))

    def _run_patterns(self, jobs: list[tuple[LoadedRule, int, int]], anchors: Array) -> list[MatchColumns]:
        tables, width = self.tables, self.tables.roles_max
        table = np.array([(rule.offset, start, end) for rule, start, end in jobs], np.int64)
        numbers = np.array([rule.number for rule, _, _ in jobs], np.int64)
        room = max(1024, int((table[:, 2] - table[:, 1]).sum()))
        job, anchor = 0, int(table[0, 1])
        matches: list[MatchColumns] = []
        while job < len(jobs):
            out = (
                np.empty(room, np.int64),
                np.empty((room, width), np.int64),
                np.empty((room, width), np.int64),
                np.zeros((room, tables.computed), np.int64),
                np.zeros((room, tables.computed), np.uint8),
            )
            env = self.ingest.environment(self.buffers.lists)
            job, anchor, count = kernels.detect(env.ctypes.data, table, anchors, job, anchor, *out)
            if count:
                rules, parts, computed, valid = numbers[out[0][:count]], out[1][:count], out[3][:count], out[4][:count]
                if (order := self._time_order(rules, parts[:, 0])) is not None:
                    rules, parts, computed, valid = rules[order], parts[order], computed[order], valid[order]
                matches.append(self._project(rules, parts, computed, valid, parts[:, 0]))
            elif job < len(jobs):
                if room >= MATCHES_PER_ANCHOR:
                    name = jobs[job][0].plan.rule.name
                    message = f"rule {name}: one anchor has more than {MATCHES_PER_ANCHOR:,} matches"
                    raise StateError(f"{message}; bound it with last, first or a shorter window")
                room *= 4
        return matches

    def _time_order(self, rules: Array, anchors: Array) -> Array | None:
        """Return the permutation that sorts matches by instant and rule, or None if they are sorted.

        The matches of each rule are adjacent.
        """
        labels, store, order = self.tables.labels, self.store, np.empty(len(rules), np.int64)
        if (rules == rules[0]).all():
            return None
        given = np.ascontiguousarray(anchors), labels.ranks[rules], len(labels)
        return order if kernels.ordering.order_matches(*given, store.ts, store.seq, order) else None

    def _project(
        self, rules: Array, parts: Array, computed: Array, valid: Array, anchors: Array, roles: PartRoles | None = None
    ) -> MatchColumns:
        tables, count = self.tables, len(rules)
        values = np.zeros((tables.outputs, count), np.int64)
        values_valid = np.zeros((tables.outputs, count), np.uint8)
        env = self.ingest.environment(None)
        kernels.project(
            env.ctypes.data, rules, *tables.programs, tables.role_counts, parts, computed, valid, values, values_valid
        )
        id_high, id_low = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        if not self.ingest.without_ids:
            counts = tables.role_counts[rules] if roles is None else roles.counts
            kernels.match_identities(
                tables.rule_words, rules, parts, counts, self.store.id_high, self.store.id_low, id_high, id_low
            )
        return MatchColumns(rules, parts, anchors, values, values_valid, id_high, id_low, roles=roles)

    def _consumed(self, pieces: list[MatchColumns]) -> Iterator[Consumed]:
        """Yield the rows that matches consumed, by rule and role."""
        for matches in pieces:
            for number in np.unique(matches.rules):
                for role_index, step in enumerate(self.tables.rules[number].plan.steps, 1):
                    buffer = step.lookup.buffer
                    if step.consumed and buffer.owner is not None:
                        rows = np.unique(matches.parts[matches.rules == number, role_index])
                        yield Consumed(buffer.owner, buffer.filter.type, self.store.row_ids[rows], self.store.ts[rows])

    # ---- composite events for other rules

    def buffer_composites(self, pieces: list[MatchColumns]) -> None:
        """Buffer the composite events in `pieces` that other rules read, until their instants are closed."""
        used = {name for names in self._forwarded.values() for name in names}
        if not used or not pieces:
            return
        types = [rule.plan.emits.name for rule in self.tables.rules]
        for matches in pieces:
            for name in used:
                mask = np.isin(matches.rules, [number for number, type in enumerate(types) if type == name])
                if not mask.any():
                    continue
                times = match_times(matches, self.store)
                ts = times.ts[mask]
                if self._timers.start(name, ts):
                    continue
                width = len(self.emits[name].attributes)
                new = Composites(
                    ts,
                    times.seq[mask],
                    matches.id_high[mask],
                    matches.id_low[mask],
                    matches.values[:width, mask],
                    matches.valid[:width, mask],
                    self._query_order(matches, mask),
                )
                self.buffer(name, new)

    def _query_order(self, matches: MatchColumns, mask: Array) -> Array:
        """Return ranks that sort the rows of an instant by name of the query, then in order of output."""
        count = int(mask.sum())
        if matches.times is None:
            return np.zeros(count, np.int64)
        numbers = matches.rules[mask]
        names = [self.tables.rules[number].plan.rule.name for number in np.unique(numbers)]
        ranks = np.array([self._ranks[name] for name in names], np.int64)[np.unique(numbers, return_inverse=True)[1]]
        self.rows_emitted += count
        return (ranks << 40) + np.arange(self.rows_emitted - count, self.rows_emitted)

    def buffer(self, name: str, new: Composites) -> None:
        """Add composite events to the buffer of their type `name`."""
        old = self.buffered.get(name)
        self.buffered[name] = new if old is None else concat_composites(old, new)

    def _forward(self, name: str, closed: Instant) -> SelectedRows | None:
        """Store the buffered composite events of the type `name` that are earlier than the instant `closed`.

        Return the selected rows, or None if there are no such events.
        """
        composites = self.buffered.pop(name, None)
        if composites is None:
            return None
        order = np.lexsort((composites.id_low, composites.id_high, composites.order, composites.seq, composites.ts))
        ready = ((composites.ts < closed[0]) | ((composites.ts == closed[0]) & (composites.seq < closed[1])))[order]
        if not ready.all():
            self.buffered[name] = select_composites(composites, order[~ready])
        if not ready.any():
            return None
        now = select_composites(composites, order[ready])
        slots = self.tables.slots[name]
        columns = {
            slots[attribute][0]: (now.values[k], now.valid[k])
            for k, (attribute, _) in enumerate(self.emits[name].attributes)
            if attribute in slots
        }
        given = np.full(len(now.ts), kernels.NONE, np.int64)
        type = self.tables.types[name]
        if name in self._timers:
            now = self._timers.with_ids(name, now)
        return self.ingest.store_identified(type, now.ts, now.seq, now.id_high, now.id_low, given, columns)[0]

    # ---- eviction

    def _evict_if_due(self, now: int) -> None:
        """Evict expired events if there are so many of them that it pays off."""
        room = self.buffers.retained + (1 << 16)
        rows = max(self.store.size, len(self.store.source_ids))
        if rows > room + self.buffers.retained or self.buffers.appended > room or self.strings.needs_cleanup:
            self.evict(now)

    def evict(self, now: int) -> None:
        """Remove all events and strings that no rule can read any more when the watermark is `now` (µs)."""
        pinned = self.windows.rows
        live, number = self.buffers.evict(self.tables, self.store, now, pinned)
        self.windows.remap(number)
        self.requests.remap(live, number)
        for context in self.contexts.values():
            context.remap(live, number)
        if self.strings.needs_cleanup:
            self.strings.retain(self._strings_in_use())

    def _strings_in_use(self) -> Iterator[Array]:
        store, size = self.store, self.store.size
        for type, number in self.tables.types.items():
            rows = np.nonzero(store.type[:size] == number)[0]
            for slot, kind in self.tables.slots[type].values():
                if kind == Kind.STRING and slot < store.width:
                    yield store.values[slot, rows][store.valid[slot, rows] != 0]
        yield from self.windows.strings()
        for name, composites in self.buffered.items():
            for k, (_, kind) in enumerate(self.emits[name].attributes):
                if kind == Kind.STRING:
                    yield composites.values[k][composites.valid[k] != 0]


def _starts(batch: pa.Table) -> list[int]:
    """Return the first row of each chunk of a batch, and the end of the batch. No instant is split."""
    ts, seq = batch["ts"].to_numpy(), batch["seq"].to_numpy()
    starts, size = [0], batch.num_rows
    while starts[-1] < size:
        end = min(starts[-1] + CHUNK, size)
        while end < size and ts[end] == ts[end - 1] and seq[end] == seq[end - 1]:
            end += 1
        starts.append(end)
    return starts
