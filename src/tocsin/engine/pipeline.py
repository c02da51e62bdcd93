"""One partition's detection: batches of events in order go in, matches come out, and what is needed later is kept.

For each batch: take in the events, then, level by level, take in the composite events that the next rules use, run
the rules over their new anchors and compute the attributes of what they found. A composite event is handed on only
when its instant is closed, so that composites of one instant are seen in canonical order however the input is cut.
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
from tocsin.engine.compile import FOREVER, Loaded, Tables
from tocsin.engine.families.projections import Plain
from tocsin.engine.families.requests import Context, Requests, consumed, ranks_of
from tocsin.engine.families.window_tables import is_plain
from tocsin.engine.families.windows import Windows
from tocsin.engine.forwarding import Clocks
from tocsin.engine.ingest import Intake, Sifted
from tocsin.engine.match_columns import Composites, Found, Moments, Roles, joined, moments_of, some, taken, together
from tocsin.engine.predicates import Passed
from tocsin.engine.prefetch import Ahead, at_its_turn, through
from tocsin.engine.store import Store
from tocsin.engine.strings import Texts
from tocsin.errors import StateError
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import EventType, Kind
from tocsin.kernels import Array
from tocsin.plans.plan import Plan
from tocsin.plans.rules import RulePlan
from tocsin.process import uncollected

MATCHES_PER_ANCHOR = 4_000_000
"""How many matches one anchor may have; a product of `each` beyond that is an error."""

CHUNK = 1 << 18
"""How many events are taken in at once."""

Instant = tuple[int, int]
"""(ts, seq)."""


class Consumed(NamedTuple):
    """Rows that a role, as (rule, place), consumed: their type, numbers and times."""

    owner: tuple[str, int]
    type: str
    born: Array
    ts: Array


@dataclass(slots=True)
class Journal:
    """What cannot be seen in the state afterwards, since it was last written down."""

    consumed: list[Consumed] = field(default_factory=list)
    arrived: list[pa.Table] = field(default_factory=list)
    """Events that had to wait, with their types by name."""


class Laid(NamedTuple):
    """Rules that are laid out already: their tables, and plain queries that have seen nothing yet."""

    tables: Tables
    plain: Plain


class Machine:
    """The tables of the rules and the state that they need."""

    def __init__(self, plan: Plan, since: Mapping[str, int], *, ordered: bool, laid: Laid | None = None) -> None:
        self.texts = Texts() if laid is None else laid.tables.texts.copy()
        self.tables = Tables(self.texts) if laid is None else laid.tables
        self.store = Store()
        self.buffers = Buffers()
        self.requests = Requests()
        self.intake = Intake(self.tables, self.texts, self.store, ordered=ordered)
        self.pending: dict[str, Composites] = {}
        self.ahead: Ahead = at_its_turn
        """How the events that come next are sifted, while those before them are still at work."""
        self.journal: Journal | None = None
        """Kept only where the state is written down piece by piece."""
        self.emits: dict[str, EventType] = {}
        self._handed: dict[int, list[str]] = {}
        """The composite types that rules use, by the level at which they are complete."""
        self._clocks = Clocks(self)
        self.contexts: dict[str, Context] = {}
        """The requests in one of Snoop's contexts."""
        self.windows = Windows(self)
        self.plain = Plain(self.tables) if laid is None else laid.plain.copy()
        self.rows_told = 0
        """How many rows of queries were handed on."""
        self.levels = 0
        self.add(plan, plan.rules if laid is None else (), since)

    @property
    def laid(self) -> Laid:
        """What it has before the first event, for others like it."""
        return Laid(self.tables, self.plain)

    @uncollected()
    def add(self, plan: Plan, rules: Iterable[RulePlan], since: Mapping[str, int]) -> None:
        """Loads rules of the plan that are not loaded yet; the levels of the others are what they were."""
        self.emits |= {rule.emits.name: rule.emits for rule in plan.rules}
        for rule in rules:
            begin = since.get(rule.rule.name, FOREVER)
            self.tables.load(rule, plan.level(rule), begin)
            self._clocks.add(rule, begin)
            if rule.context is not None:
                self.contexts[rule.user] = Context(self.tables.contexts[-1])
            if rule.windowed is not None and is_plain(rule):
                self.plain.add(self.tables.plain[-1])
            elif rule.windowed is not None:
                self.windows.add(self.tables.windows[-1])
        self.windows.widen()
        queries = [loaded.rule for loaded in self.tables.windows] + [loaded.rule for loaded in self.tables.plain]
        names = sorted({rule.plan.rule.name for rule in queries})
        self._ranks = {name: rank for rank, name in enumerate(names)}
        self._handed = defaultdict(list)
        for name in self.emits.keys() & self.tables.types.keys():
            self._handed[plan.complete[name]].append(name)
        self.levels = max(plan.complete.values(), default=0)

    def can_silence(self, names: Collection[str]) -> bool:
        """Whether nothing comes of these rules any more if they see no more events, and nothing of it is written."""
        mine = [loaded.plan for loaded in self.tables.rules if loaded.plan.rule.name in names]
        waits = any(plan.clock is not None or plan.clocks or plan.context or plan.windowed for plan in mine)
        return self.journal is None and not waits

    def silence(self, names: Collection[str]) -> None:
        """Lets rules see no more events."""
        for loaded in self.tables.rules:
            if loaded.plan.rule.name in names:
                self.tables.silence(loaded)

    # ---- one batch

    def process(self, batch: pa.Table, closed: Instant) -> Iterator[tuple[Found, list[int]]]:
        """Takes a batch in order; no event before `closed` will come any more.

        Yields matches piece by piece, each valid until the next, with the events that were late among their equals.
        """
        if not batch.num_rows:
            yield self._step(None, closed)
            self._age(closed[0])
            return
        starts = _starts(batch)
        pieces = [batch.slice(at, end - at) for at, end in pairwise(starts)] if len(starts) > 2 else [batch]
        self.intake.lay_out()
        ahead = self.ahead if len(pieces) > 1 and self.intake.can_sift_ahead else at_its_turn
        for sifted, (at, end) in zip(through(self.intake.sift, pieces, ahead), pairwise(starts), strict=True):
            last = end == batch.num_rows
            bound = closed if last else (batch["ts"][end].as_py(), batch["seq"][end].as_py())
            found, late = self._step(sifted, bound)
            yield found, [at + row for row in late]
            self._age(bound[0])

    def _step(self, sifted: Sifted | None, bound: Instant) -> tuple[Found, list[int]]:
        jobs: dict[int, list[tuple[Loaded, int, int]]] = defaultdict(list)
        anchors: list[Array] = []
        late: list[int] = []
        found: list[Found] = []
        entered: list[Passed] = []
        if sifted is not None:
            if sifted.direct is not None:
                found += self.plain.direct(self, sifted.direct)
            passed, late = self.intake.batch(sifted)
            self._enter(passed, jobs, anchors)
            entered.append(passed)
        for level in range(self.levels):
            for name in self._handed.get(level, ()):
                self._clocks.tick(name, entered, bound[0])
                handed = self._hand_on(name, bound)
                if handed is not None:
                    self._enter(handed, jobs, anchors)
                    entered.append(handed)
            if level in self.tables.arriving:
                found += self._notify(entered, level)
            for context in self.contexts.values():
                if context.loaded.rule.level == level:
                    found += self._combine(context, entered)
            if self.plain:
                found += self.plain.stored(self, level, entered)
            if self.windows:
                found += self._windowed(level, entered, bound)
            if jobs.get(level):
                joined = anchors[0] if len(anchors) == 1 else np.concatenate(anchors)
                pieces = self._detect(jobs[level], joined)
                if self.journal is not None:
                    self.journal.consumed += self._consumed(pieces)
                self.hold(pieces)
                found += pieces
        return together(found, self.tables, self.store), late

    def _enter(self, passed: Passed, jobs: dict[int, list[tuple[Loaded, int, int]]], anchors: list[Array]) -> None:
        """Puts new rows into buffers, and notes for which rules they are anchors."""
        tables = self.tables
        self.buffers.add(tables, self.store, passed.filters, passed.rows)
        if not len(passed.filters):
            return
        if self.journal is not None:
            held = (tables.buffer_chains[0][passed.filters] > 0) | (tables.is_held[passed.filters] > 0)
            self.store.number(passed.rows[held])
        count = len(tables.is_anchor)
        mine = tables.is_anchor[passed.filters] != 0
        filters, rows = (passed.filters, passed.rows) if mine.all() else (passed.filters[mine], passed.rows[mine])
        order = np.argsort(filters.astype(np.uint16) if count < 65536 else filters, kind="stable")
        filters, rows = filters[order], rows[order]
        base = sum(map(len, anchors))
        changes = np.nonzero(filters[1:] != filters[:-1])[0] + 1
        bounds = [0, *changes.tolist(), len(filters)]
        for start, end in pairwise(bounds if len(filters) else []):
            for rule in tables.anchored[int(filters[start])]:
                jobs[rule.level].append((rule, base + start, base + end))
        anchors.append(rows)

    def _notify(self, entered: list[Passed], level: int) -> list[Found]:
        """The notifications of the requests of a level; what starts a timer is none."""
        notified = self.requests.notify(self, entered, level)
        if notified is None or not len(notified[0]):
            return []
        if self.journal is not None:
            for owner, type, rows in consumed(self, notified):
                self.journal.consumed.append(Consumed(owner, type, self.store.born[rows], self.store.ts[rows]))
        numbers, rows, anchors = notified
        counts = self.tables.role_counts[numbers]
        order = self._in_order(numbers, rows, counts, anchors)
        nothing = np.zeros((len(numbers), self.tables.computed), np.int64)
        known = nothing.astype(np.uint8)
        return self._told(self._project(numbers[order], rows[order], nothing, known, anchors[order]))

    def _combine(self, context: Context, entered: list[Passed]) -> list[Found]:
        """The notifications of a request in one of Snoop's contexts."""
        combined = context.arrive(self, entered)
        if combined is None:
            return []
        numbers = np.full(len(combined.counts), context.loaded.rule.number)
        order = self._in_order(numbers, combined.rows, combined.counts, combined.anchors)
        nothing = np.zeros((len(numbers), self.tables.computed), np.int64)
        known = nothing.astype(np.uint8)
        roles = Roles(combined.counts[order], combined.leaves[order])
        return self._told(self._project(numbers, combined.rows[order], nothing, known, combined.anchors[order], roles))

    def _windowed(self, level: int, entered: list[Passed], bound: Instant) -> list[Found]:
        """The rows of the queries of a level."""
        # What is due at the very time of the bound may still come behind events before it, unless these are all there.
        fire_to = bound[0] if bound[1] > BEGINNING else bound[0] - 1
        found: list[Found] = []
        for rows in self.windows.run(level, entered, fire_to):
            nothing = np.zeros((len(rows.rules), self.tables.places), np.int64)
            found.append(
                Found(
                    rows.rules,
                    nothing,
                    nothing[:, 0],
                    rows.words,
                    rows.known,
                    rows.first,
                    rows.second,
                    Moments(rows.ts, rows.seq),
                    rows.expired,
                )
            )
        self.hold(found)
        return found

    def _told(self, piece: Found) -> list[Found]:
        """Notifications as matches; what starts a timer is none."""
        self.hold([piece])
        matches = np.array([rule.plan.clock is None for rule in self.tables.rules])[piece.rules]
        return [piece if matches.all() else some(piece, matches)]

    def _in_order(self, numbers: Array, rows: Array, counts: Array, anchors: Array) -> Array:
        """Notifications as matches stand: those of one request and instant by their parts."""
        store = self.store
        ts, seq = store.ts[anchors], store.seq[anchors]
        if not ((ts[1:] == ts[:-1]) & (seq[1:] == seq[:-1])).any():
            return np.arange(len(numbers))
        there = np.arange(rows.shape[1]) < counts[:, None]
        used, place = np.unique(rows[there], return_inverse=True)
        canonical = np.lexsort((used, ranks_of(self.tables.types)[store.type[used]], store.seq[used], store.ts[used]))
        rank = np.empty(len(used), np.int64)
        rank[canonical] = np.arange(len(used))
        parts = np.full(rows.shape, -1)
        parts[there] = rank[place]
        return np.lexsort((*parts.T[::-1], self.tables.labels.ranks[numbers], seq, ts))

    def _detect(self, jobs: list[tuple[Loaded, int, int]], anchors: Array) -> list[Found]:
        tables, places = self.tables, self.tables.places
        table = np.array([(rule.offset, start, end) for rule, start, end in jobs], np.int64)
        numbers = np.array([rule.number for rule, _, _ in jobs], np.int64)
        room = max(1024, int((table[:, 2] - table[:, 1]).sum()))
        job, anchor = 0, int(table[0, 1])
        found: list[Found] = []
        while job < len(jobs):
            out = (
                np.empty(room, np.int64),
                np.empty((room, places), np.int64),
                np.empty((room, places), np.int64),
                np.zeros((room, tables.computed), np.int64),
                np.zeros((room, tables.computed), np.uint8),
            )
            env = self.intake.environment(self.buffers.lists)
            job, anchor, count = kernels.detect(env.ctypes.data, table, anchors, job, anchor, *out)
            if count:
                rules, parts, computed, known = numbers[out[0][:count]], out[1][:count], out[3][:count], out[4][:count]
                if (order := self._in_time(rules, parts[:, 0])) is not None:
                    rules, parts, computed, known = rules[order], parts[order], computed[order], known[order]
                found.append(self._project(rules, parts, computed, known, parts[:, 0]))
            elif job < len(jobs):
                if room >= MATCHES_PER_ANCHOR:
                    name = jobs[job][0].plan.rule.name
                    message = f"rule {name}: one anchor has more than {MATCHES_PER_ANCHOR:,} matches"
                    raise StateError(f"{message}; bound it with last, first or a shorter window")
                room *= 4
        return found

    def _in_time(self, rules: Array, anchors: Array) -> Array | None:
        """How to put matches that stand rule by rule into the order of instants, then of rules; None if they are."""
        labels, store, order = self.tables.labels, self.store, np.empty(len(rules), np.int64)
        if (rules == rules[0]).all():
            return None
        given = np.ascontiguousarray(anchors), labels.ranks[rules], len(labels)
        return order if kernels.ordering.order_matches(*given, store.ts, store.seq, order) else None

    def _project(
        self, rules: Array, parts: Array, computed: Array, known: Array, anchors: Array, roles: Roles | None = None
    ) -> Found:
        tables, count = self.tables, len(rules)
        words = np.zeros((tables.outputs, count), np.int64)
        words_known = np.zeros((tables.outputs, count), np.uint8)
        env = self.intake.environment(None)
        kernels.project(
            env.ctypes.data, rules, *tables.programs, tables.role_counts, parts, computed, known, words, words_known
        )
        first, second = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        if not self.intake.nameless:
            counts = tables.role_counts[rules] if roles is None else roles.counts
            kernels.match_identities(
                tables.rule_words, rules, parts, counts, self.store.first, self.store.second, first, second
            )
        return Found(rules, parts, anchors, words, words_known, first, second, roles=roles)

    def _consumed(self, pieces: list[Found]) -> Iterator[Consumed]:
        """What the matches took away from their rules."""
        for found in pieces:
            for number in np.unique(found.rules):
                for place, step in enumerate(self.tables.rules[number].plan.steps, 1):
                    buffer = step.lookup.buffer
                    if step.consumed and buffer.owner is not None:
                        rows = np.unique(found.parts[found.rules == number, place])
                        yield Consumed(buffer.owner, buffer.filter.type, self.store.born[rows], self.store.ts[rows])

    # ---- composite events for other rules

    def hold(self, pieces: list[Found]) -> None:
        """Keeps the composite events that other rules use until their turn."""
        used = {name for names in self._handed.values() for name in names}
        if not used or not pieces:
            return
        types = [rule.plan.emits.name for rule in self.tables.rules]
        for found in pieces:
            for name in used:
                mine = np.isin(found.rules, [number for number, type in enumerate(types) if type == name])
                if not mine.any():
                    continue
                moments = moments_of(found, self.store)
                ts = moments.ts[mine]
                if self._clocks.start(name, ts):
                    continue
                width = len(self.emits[name].attributes)
                new = Composites(
                    ts,
                    moments.seq[mine],
                    found.first[mine],
                    found.second[mine],
                    found.words[:width, mine],
                    found.known[:width, mine],
                    self._order(found, mine),
                )
                self.keep(name, new)

    def _order(self, found: Found, mine: Array) -> Array:
        """The place of rows of queries among those of an instant: by the name of the query, then as they came out."""
        count = int(mine.sum())
        if found.moments is None:
            return np.zeros(count, np.int64)
        numbers = found.rules[mine]
        names = [self.tables.rules[number].plan.rule.name for number in np.unique(numbers)]
        ranks = np.array([self._ranks[name] for name in names], np.int64)[np.unique(numbers, return_inverse=True)[1]]
        self.rows_told += count
        return (ranks << 40) + np.arange(self.rows_told - count, self.rows_told)

    def keep(self, name: str, new: Composites) -> None:
        """Keeps composite events until their turn."""
        old = self.pending.get(name)
        self.pending[name] = new if old is None else joined(old, new)

    def _hand_on(self, name: str, closed: Instant) -> Passed | None:
        """Takes in the held composite events of a type whose instants are closed."""
        held = self.pending.pop(name, None)
        if held is None:
            return None
        order = np.lexsort((held.second, held.first, held.order, held.seq, held.ts))
        ready = ((held.ts < closed[0]) | ((held.ts == closed[0]) & (held.seq < closed[1])))[order]
        if not ready.all():
            self.pending[name] = taken(held, order[~ready])
        if not ready.any():
            return None
        now = taken(held, order[ready])
        slots = self.tables.slots[name]
        columns = {
            slots[attribute][0]: (now.words[k], now.known[k])
            for k, (attribute, _) in enumerate(self.emits[name].attributes)
            if attribute in slots
        }
        given = np.full(len(now.ts), kernels.NONE, np.int64)
        type = self.tables.types[name]
        if name in self._clocks:
            now = self._clocks.identified(name, now)
        return self.intake.identified(type, now.ts, now.seq, now.first, now.second, given, columns)[0]

    # ---- forgetting

    def _age(self, now: int) -> None:
        """Forgets what is out of reach, when there is enough of it."""
        room = self.buffers.kept + (1 << 16)
        rows = max(self.store.size, len(self.store.names))
        if rows > room + self.buffers.kept or self.buffers.fresh > room or self.texts.crowded:
            self.trim(now)

    def trim(self, now: int) -> None:
        """Forgets everything that no rule can reach from `now` on."""
        held = self.windows.rows
        live, number = self.buffers.trim(self.tables, self.store, now, held)
        self.windows.renumber(number)
        self.requests.renumber(live, number)
        for context in self.contexts.values():
            context.renumber(live, number)
        if self.texts.crowded:
            self.texts.keep(self._texts_in_use())

    def _texts_in_use(self) -> Iterator[Array]:
        store, size = self.store, self.store.size
        for type, number in self.tables.types.items():
            rows = np.nonzero(store.type[:size] == number)[0]
            for slot, kind in self.tables.slots[type].values():
                if kind == Kind.STRING and slot < store.width:
                    yield store.words[slot, rows][store.present[slot, rows] != 0]
        yield from self.windows.texts()
        for name, held in self.pending.items():
            for k, (_, kind) in enumerate(self.emits[name].attributes):
                if kind == Kind.STRING:
                    yield held.words[k][held.known[k] != 0]


def _starts(batch: pa.Table) -> list[int]:
    """Where a batch is cut so that an instant stays together, and its end."""
    ts, seq = batch["ts"].to_numpy(), batch["seq"].to_numpy()
    starts, size = [0], batch.num_rows
    while starts[-1] < size:
        end = min(starts[-1] + CHUNK, size)
        while end < size and ts[end] == ts[end - 1] and seq[end] == seq[end - 1]:
            end += 1
        starts.append(end)
    return starts
