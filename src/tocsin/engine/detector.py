"""Detect the composite events of rules in a stream.

A detector accepts events in any order and format, and returns matches as soon as they are certain. It reads events,
learns the kinds of undeclared attributes, sorts the events by time and passes them to its pipeline. Events that it
cannot use become *dead letters*, which are returned separately with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine import detector_state, match_table
from tocsin.engine.detector_state import PipelineState, extract, restore_state
from tocsin.engine.pipeline import CHUNK, Instant, Pipeline
from tocsin.engine.plan_cache import PlanCache
from tocsin.engine.prefetch import Prefetch, inline
from tocsin.engine.rule_changes import RuleChange, counters, resume, settings
from tocsin.engine.strings import StringIndex
from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.dead_letters import dead_letter_table, describe_row
from tocsin.events.reader import DEFINED, TS_LIMIT, UNNEEDED, Columns, Data, ReadResult, TypeInfo, read
from tocsin.events.reorder import BEGINNING, Scheduler
from tocsin.events.times import HostClock
from tocsin.events.types import ID, EventType, Kind
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Rule
from tocsin.plans.plan import Plan, column_names, plan
from tocsin.plans.typing import Catalog

NO_INTERESTS = "a detector of rules does not follow objects; use rules(…).detector()"
"""The remedy in the error message if a program has an interest (a moving query), which only another detector runs."""
DEAD_LETTERS_MAX = 100_000
"""The largest number of dead letters that are kept until they are fetched. Further dead letters are only counted."""


class Detector:
    """Detects the composite events of rules in a stream. Create a detector with `RuleSet.detector`."""

    def __init__(
        self,
        rules: Sequence[Statement] | Plan,
        types: Mapping[str, EventType],
        *,
        delay_us: int = 0,
        ordered: bool = False,
        columns: Columns | None = None,
        times: bool | None = None,
    ) -> None:
        self._columns = columns or Columns()
        self.select: Collection[str] | None = None
        """The names of the columns that matches have, or None for all columns."""
        self.named: Mapping[str, str] | None = None
        """The column names of attributes, if the rules are part of a larger set; see `column_names`."""
        self.without_ids = False
        """Whether events need no ids; see `needs_ids`."""
        self.canonical = False
        """Whether pushed batches already have ids and are in canonical order; see `EventIngest`."""
        self.shows_ids = True
        """Whether the parts of matches show the ids that the source gave; see `EventIngest`."""
        self.prefetch: Prefetch = inline
        """The function that starts work on the next chunks of a batch ahead of time; see `Pipeline`."""
        self.plan_cache: PlanCache | None = None
        """The cache of compiled rules, if the rules never change."""
        self._plan = rules if isinstance(rules, Plan) else plan(rules, Catalog(types=types, closed=bool(types)))
        self._check_order(self._plan, ordered)
        self._since: dict[str, int] = {}
        self._disabled: frozenset[str] = frozenset()
        """The names of removed rules whose tables the pipeline still has."""
        self._future_changes: tuple[RuleChange, ...] = ()
        """The scheduled changes of rules that are not due yet, by time."""
        self._ordered = ordered
        self._scheduler = Scheduler(delay_us, ordered=ordered)
        self._times = times
        """Whether the `ts` of events are timestamps rather than integers. None until the first events are read."""
        self._known_types: tuple[tuple[Plan, tuple[RuleChange, ...]], TypeInfo] | None = None
        self._dead_letters: list[tuple[str, str | None, int | None, str]] = []
        self._counts = {"events": 0, "late": 0, "dead": 0, "matches": 0}

    @staticmethod
    def _check_order(plan: Plan, ordered: bool) -> None:
        """Raise an error if a rule would have to merge composite events or timers into an ordered source."""
        for rule in plan.rules if ordered else ():
            requested = rule.request_join is not None or rule.context is not None
            timed = bool(rule.timers) or (rule.windowed is not None and rule.windowed.is_timed)
            if (requested or rule.windowed is not None) and (timed or plan.stratum(rule)):
                what = "request" if requested else "query"
                message = f"{what} {rule.rule.name} has timers or uses composite events"
                hint = "Leave `ordered` out: without a delay, events wait only for the next instant."
                raise RuleError(f"{message}, which cannot be merged into an ordered source", hint=hint)

    @cached_property
    def _pipeline(self) -> Pipeline:
        """The pipeline. It is created on first use, because the first events may determine the kinds of attributes."""
        compiled = self.plan_cache.compiled(self._plan) if self.plan_cache is not None and not self._since else None
        pipeline = Pipeline(self._plan, self._since, ordered=self._ordered, compiled=compiled)
        pipeline.ingest.without_ids, pipeline.ingest.canonical, pipeline.prefetch = (
            self.without_ids,
            self.canonical,
            self.prefetch,
        )
        pipeline.ingest.shows_ids = self.shows_ids
        return pipeline

    # ---- events and matches

    def push(self, data: Data, clock: HostClock | None = None) -> pa.Table:
        """Process events in order of arrival, and return the matches that became certain.

        Events that are too far ahead of `clock`, the clock of the host, become dead letters.
        """
        seen = read(data, self._columns, self.known)
        self._learn(seen)
        self._counts["events"] += seen.rows - seen.batch.num_rows
        self._reject(seen.rejected)
        return self._push(seen.batch if clock is None else self._reject_future(seen.batch, clock))

    def learn(self, kinds: Mapping[str, Mapping[str, Kind]]) -> None:
        """Add attributes of event types to the catalog, before `push_batch`. The types may have further attributes."""
        by_type = {type: dict(named) for type, named in kinds.items()}
        self._learn(ReadResult(pa.table({}), [], {}, by_type, times=True, rows=0, complete=False))

    def declare(self, types: Iterable[EventType]) -> None:
        """Declare event types, each with all of its attributes."""
        catalog = self._plan.catalog.declaring(types)
        if catalog is not self._plan.catalog:
            self._rebuild(self._plan.sources, catalog)

    def know(self, catalog: Catalog) -> None:
        """Bind the rules to `catalog`, which was learned elsewhere."""
        if catalog != self._plan.catalog:
            self._rebuild(self._plan.sources, catalog)

    def begin(self, watermark: int, largest: int) -> None:
        """Start in the middle of a stream, at `watermark` (µs). The rules see only events later than `largest` (µs)."""
        self._scheduler.watermark, self._scheduler.largest = watermark, largest
        self._since = {rule.name: largest + 1 for rule in self._plan.sources}

    def note(self, ts: int) -> None:
        """Note that an event at `ts` (µs) was seen elsewhere. Rules that are added afterwards see only later events."""
        self._scheduler.largest = max(self._scheduler.largest, ts)

    def push_batch(self, batch: pa.Table, types: Sequence[str]) -> pa.Table:
        """Process a batch of events, and return the matches that became certain.

        `types` has the name of each type number in the batch. The kinds of attributes must be those of the plan.
        """
        reading = self._type_codes
        numbers = np.array([*(reading.get(name, UNNEEDED) for name in types), UNNEEDED], np.int32)
        if (numbers[:-1] != np.arange(len(types))).any():
            batch = batch.set_column(0, "type", pa.array(numbers[batch["type"].to_numpy()]))
        return self._push(batch)

    def _push(self, batch: pa.Table) -> pa.Table:
        self._counts["events"] += batch.num_rows
        released, late = self._scheduler.push(batch)
        if (changelog := self._pipeline.changelog) is not None and batch.num_rows and not self._ordered:
            waits = (batch["ts"].to_numpy() >= self._scheduler.watermark) & (batch["type"].to_numpy() >= 0)
            changelog.arrived.append(self._with_type_names(batch.filter(pa.array(waits))))
        for row in late.tolist():
            self._reject_late(batch, row, "late")
        return self._process(released)

    def advance(self, ts: int) -> pa.Table:
        """Advance the watermark to `ts` (µs), because no earlier event will arrive. Return the new matches."""
        return self._process(self._scheduler.advance(_checked_ts(ts)))

    def finish(self) -> pa.Table:
        """Return the remaining matches, because no further event will arrive."""
        return self._process(self._scheduler.finish())

    def dead_letters(self) -> pa.Table:
        """Return and clear the dead letters, a table with the reason, type, ts and text of each event."""
        rejected, self._dead_letters = self._dead_letters, []
        return dead_letter_table(rejected)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of events, late events, dead letters (for any reason) and matches."""
        return dict(self._counts)

    @property
    def watermark(self) -> int | None:
        """The watermark (µs), the time before which events are late. None before the first event."""
        return None if self._scheduler.watermark == BEGINNING else self._scheduler.watermark

    @property
    def next_ts(self) -> int | None:
        """The time (µs) of the earliest event that waits for the watermark, or None."""
        return self._scheduler.next_ts

    @property
    def plan(self) -> Plan:
        """The plan of the rules, bound to the attribute kinds that are known so far."""
        return self._plan

    @property
    def attributes(self) -> dict[str, str]:
        """The attribute of each column of matches, by column name."""
        return match_table.attributes_of(self._plan, self.named)

    # ---- changes of rules

    def add(self, rules: Iterable[Statement] | str, *, at: int | None = None) -> int:
        """Add rules, as statements or as text, and return the time (µs) of the first events that they see.

        This time is `at`, by default just after the latest event. Only the new rules are bound. The state of the others
        does not change.
        """
        if isinstance(rules, str):
            program = parse(text := rules)
            check_supported("`Detector.add`", program, Rule, Request, Query, remedy=NO_INTERESTS)
            self.declare(program.types)
            rules = tuple(replace(rule, source=text) for rule in program.rules)
        rules = tuple(rules)
        check_supported("`Detector.add`", rules, Rule, Request, Query, remedy=NO_INTERESTS)
        if not self._disabled.isdisjoint(rule.name for rule in rules):
            self._drop_disabled()
        earliest = self._scheduler.largest + 1 if self._scheduler.largest > BEGINNING else BEGINNING
        since = earliest if at is None else _checked_ts(at)
        if since < earliest:
            raise RuleError(f"a rule cannot be added at {since}: events up to {earliest - 1} have been seen")
        old, new = self._plan, self._plan.extended(rules)
        self._check_order(new, self._ordered)
        self._since.update((rule.name, since) for rule in rules)
        feeds = any(rule.emits.name in old.numbers for rule in rules)
        if feeds and any(new.strata[name] != level for name, level in old.strata.items()):
            self._rebuild((*old.sources, *rules), old.catalog)
            return since
        reading = self._type_codes
        self._plan = new
        self._renumber(reading)
        if "_pipeline" in self.__dict__:
            self._pipeline.add(new, new.rules[len(old.rules) :], self._since)
        return since

    def remove(self, names: Iterable[str] | str) -> None:
        """Remove rules by name, together with the state that no other rule needs.

        A rule is only disabled, at constant cost, if no other rule uses its events and it has no timers, context or
        windows. The tables and the state are rebuilt later, in time proportional to the state, when a snapshot is taken
        or half of the rules are disabled. For any other rule, this happens at once.
        """
        removed = {names} if isinstance(names, str) else set(names)
        known = {rule.name for rule in self._plan.sources}
        if removed - known:
            unknown = min(removed - known)
            raise RuleError(f"there is no rule {unknown}", hint=nearest(unknown, known))
        started = "_pipeline" in self.__dict__
        remaining = self._plan.without(removed) if started and self._pipeline.can_disable(removed) else None
        disabled = self._disabled | removed
        if remaining is None or len(disabled) > len(remaining.sources):
            self._rebuild([rule for rule in self._plan.sources if rule.name not in removed], self._plan.catalog)
        else:
            self._pipeline.disable(removed)
            self._plan, self._disabled = remaining, disabled
        self._since = {name: since for name, since in self._since.items() if name not in removed}

    def _drop_disabled(self) -> None:
        """Rebuild the pipeline without the disabled rules."""
        if self._disabled:
            self._rebuild(self._plan.sources, self._plan.catalog)

    def change(
        self,
        *,
        add: Iterable[Statement] = (),
        remove: Iterable[str] = (),
        at: int,
        check: Callable[[Plan], None] | None = None,
    ) -> None:
        """Schedule a change of the rules at time `at` (µs), which must be later than the latest event.

        Up to `at`, matches are those of the old rules. After `at`, they are those of the new rules. An added rule
        replaces a rule of the same name. `check` may raise an error to reject the resulting plan.
        """
        add, removed = tuple(add), set(remove)
        latest = self._scheduler.largest
        if _checked_ts(at) <= latest:
            raise RuleError(f"rules cannot be changed at {at}: events up to {latest} have been seen")
        after = self.coming_rules
        known = {rule.name for rule in after}
        for name in sorted(removed - known):
            raise RuleError(f"there is no rule {name}", hint=nearest(name, known))
        scheduled = RuleChange(at, frozenset(removed | (known & {rule.name for rule in add})), add)
        bound = plan(scheduled.apply(after), self._plan.catalog)
        self._check_order(bound, self._ordered)
        if check is not None:
            check(bound)
        self._future_changes = tuple(sorted((*self._future_changes, scheduled), key=lambda change: change.at))

    @property
    def coming_rules(self) -> tuple[Statement, ...]:
        """The rules that will be in use after all scheduled changes."""
        rules = tuple(self._plan.sources)
        for change in self._future_changes:
            rules = change.apply(rules)
        return rules

    @property
    def _type_codes(self) -> Mapping[str, int]:
        """The number of each event type that is needed now or after scheduled changes, by name."""
        numbers = self._plan.numbers
        if not self._future_changes:
            return numbers
        extended = dict(numbers)
        for change in self._future_changes:
            for rule in change.add:
                for type in rule.uses:
                    if type not in self._plan.defined:
                        extended.setdefault(type, len(extended))
        return extended

    # ---- state

    @property
    def state_bytes(self) -> int:
        """The size (bytes) of a snapshot of the current state."""
        return len(self.snapshot())

    def snapshot(self) -> bytes:
        """Return the state as bytes in a versioned format, from which `RuleSet.restore` resumes."""
        self._drop_disabled()
        state = extract(self._pipeline, self._scheduler.watermark)
        waiting = self._scheduler.waiting
        if waiting is not None:
            waiting = self._with_type_names(waiting)
        return detector_state.encode(detector_state.DetectorSnapshot(settings(self), counters(self), state, waiting))

    def _with_type_names(self, waiting: pa.Table) -> pa.Table:
        """Return the events of `waiting` with the names of their types instead of type numbers."""
        names = pa.array([*self._type_codes], pa.string())
        return waiting.set_column(0, "type", names.take(waiting["type"].combine_chunks()))

    @classmethod
    def restore(cls, data: bytes, rules: Sequence[Statement], types: Mapping[str, EventType]) -> Detector:
        """Return a detector that resumes from the snapshot `data`.

        A rule that is new or has changed sees only events later than the snapshot.
        """
        return resume(cls, detector_state.decode(data), rules, types)

    # ---- internals

    def _process(self, released: pa.Table | None) -> pa.Table:
        """Detect matches in released events, and apply the rule changes that become due."""
        scheduler = self._scheduler
        tables: list[pa.Table] = []
        while self._future_changes and self._future_changes[0].at <= scheduler.watermark:
            change, *rest = self._future_changes
            if released is not None and released.num_rows:
                count = int(np.searchsorted(released["ts"].to_numpy(), change.at, "left"))
                scheduler.wait(released.slice(count))
                released = released.slice(0, count)
            tables.append(self._detect(released, (change.at, BEGINNING)))
            self._apply_change(change, tuple(rest))
            released = scheduler.release()
        closed: Instant = (scheduler.watermark, scheduler.last_seq if self._ordered else BEGINNING)
        tables.append(self._detect(released, closed))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")

    def _apply_change(self, change: RuleChange, rest: tuple[RuleChange, ...]) -> None:
        """Apply `change`, which is due. `rest` are the changes that remain scheduled."""
        reading = self._type_codes
        self._future_changes = rest
        self._since = {name: since for name, since in self._since.items() if name not in change.remove}
        self._since |= {rule.name: change.at for rule in change.add}
        unchanged = {rule.name for rule in self._plan.sources} - change.remove
        self._rebuild(
            change.apply(self._plan.sources), self._plan.catalog, reading=reading, now=change.at, unchanged=unchanged
        )

    def _detect(self, released: pa.Table | None, closed: Instant) -> pa.Table:
        columns = match_table.schema(self._plan, times=bool(self._times), select=self.select, named=self.named)
        attributes = {column: key for key, column in column_names(self._plan.emitted.kinds, self.named).items()}
        tables: list[pa.Table] = []
        if released is None or not released.num_rows:
            released = pa.table({})
        elif self._future_changes:
            types = released["type"].to_numpy()
            types = np.where(types < len(self._plan.numbers), types, UNNEEDED).astype(np.int32)
            released = released.set_column(0, "type", pa.array(types))
        for matches, late in self._pipeline.process(released, closed):
            for row in late:
                self._reject_late(released, row, "late among events of its instant: give them a seq, or ids in order")
            tables.append(match_table.table(matches, self._pipeline, columns, attributes))
        table = pa.concat_tables(tables) if len(tables) != 1 else tables[0]
        self._counts["matches"] += table.num_rows
        return table

    @property
    def known(self) -> TypeInfo:
        """The information about types that the reader of events needs. It is cached until the plan changes."""
        key = self._plan, self._future_changes
        if self._known_types is not None and self._known_types[0][0] is key[0] and self._known_types[0][1] is key[1]:
            return self._known_types[1]
        catalog = self._plan.catalog
        numbers = {**self._type_codes, **dict.fromkeys(self._plan.defined, DEFINED)}
        if self._disabled:
            still = {type for change in self._future_changes for rule in change.add for type in rule.uses}
            still |= self._plan.columns.keys() | self._plan.defined.keys()
            numbers = {type: number for type, number in numbers.items() if type in still}
        exact = {name: dict(type.attributes) for name, type in catalog.types.items()}
        find = partial(self._find_types, StringIndex(numbers, UNNEEDED, np.int32))
        self._known_types = key, TypeInfo(numbers, exact, catalog.shared, catalog.seen, find=find)
        return self._known_types[1]

    def _find_types(self, names: StringIndex, column: pa.Array) -> tuple[np.ndarray[Any, Any], set[int]]:
        """Return the type number of each row of `column`, and the set of numbers that occur.

        A large column is searched in two halves, one of which may run on another core.
        """
        half = len(column) // 2
        if half < CHUNK or pa.types.is_dictionary(column.type):
            return names.find_all(column)
        numbers = names.allocate(column)
        other = self.prefetch(partial(names.find_all, column.slice(half), numbers[half:]))
        present = names.find_all(column.slice(0, half), numbers[:half])[1]
        return numbers, present | other.result()[1]

    def _learn(self, seen: ReadResult) -> None:
        """Add the attributes and kinds in `seen` to the catalog, and bind the rules again if the catalog changes."""
        if self._times is None and seen.rows:
            self._times = seen.times
        by_type = {name: kinds for name, kinds in seen.by_type.items() if name not in self._plan.defined}
        complete = seen.complete and bool(seen.shared or by_type)
        catalog = self._plan.catalog.learned(seen.shared, by_type, seen.empty, complete=complete)
        if catalog is not self._plan.catalog:
            self._rebuild(self._plan.sources, catalog)

    def _rebuild(
        self,
        rules: Sequence[Statement],
        catalog: Catalog,
        state: PipelineState | None = None,
        reading: Mapping[str, int] | None = None,
        now: int | None = None,
        unchanged: Collection[str] | None = None,
    ) -> None:
        """Replace the pipeline by a new pipeline for `rules`, which continues with the old state or with `state`.

        `reading` has the type numbers so far. `now` is the time (µs) up to which events were processed, by default the
        watermark. `unchanged` has the names of the rules that keep their state, by default all rules that existed.
        """
        same = not self._disabled and rules == self._plan.sources
        bound = self._plan.bound_to(catalog) if same else plan(rules, catalog)
        started = "_pipeline" in self.__dict__
        names = self._type_codes if reading is None else reading
        if started and state is None:
            if bound.rules == self._plan.rules and not self._disabled:
                self._plan = bound
                return
            state = extract(self._pipeline, self._scheduler.watermark if now is None else now)
            state = state if unchanged is None else state.known_to(unchanged)
        self._plan, self._disabled = bound, frozenset()
        if started:
            del self._pipeline
        if state is not None:
            restore_state(self._pipeline, state)
        self._renumber(names)

    def _renumber(self, before: Mapping[str, int]) -> None:
        """Assign the current type numbers to waiting events, which have those of `before`."""
        numbers = self._type_codes
        if any(numbers.get(name) != number for name, number in before.items()):
            waiting = self._scheduler.waiting
            if waiting is not None:
                self._scheduler.renumber(waiting, [numbers.get(name, UNNEEDED) for name in before])

    def _reject_late(self, batch: pa.Table, row: int, reason: str) -> None:
        """Add the late event at `row` to the dead letters, unless no rule needs its type."""
        number = batch["type"][row].as_py()
        if number < 0:
            return
        self._counts["late"] += 1
        if len(self._dead_letters) >= DEAD_LETTERS_MAX:
            self._counts["dead"] += 1
            return
        type = [*self._type_codes][number]
        self._reject([(reason, type, batch["ts"][row].as_py(), describe_row(batch, row, type))])

    def _reject_future(self, batch: pa.Table, clock: HostClock) -> pa.Table:
        """Return the events that are not too far ahead of the clock, and reject the other events.

        Events of types that no rule needs are rejected, too.
        """
        ts = batch["ts"].to_numpy()
        ahead = ts > clock.latest_us
        if not ahead.any():
            return batch
        names = [*self._type_codes]
        count = int(ahead.sum())
        self._counts["events"] += count
        room = max(0, DEAD_LETTERS_MAX - len(self._dead_letters))
        self._counts["dead"] += max(0, count - room)
        for row in np.flatnonzero(ahead)[:room].tolist():
            number = batch["type"][row].as_py()
            type = names[number] if number >= 0 else None
            self._reject([(clock.reason(int(ts[row])), type, int(ts[row]), describe_row(batch, row, type or "?"))])
        return batch.filter(pa.array(~ahead))

    def _reject(self, dead: list[tuple[str, str | None, int | None, str]]) -> None:
        self._counts["dead"] += len(dead)
        self._dead_letters += dead[: max(0, DEAD_LETTERS_MAX - len(self._dead_letters))]


def needs_ids(plan: Plan, select: Collection[str] | None) -> bool:
    """Return whether events need ids, given the selected columns of matches.

    The columns `id` and `parts`, composite events that rules read, and rules that read `id` need event ids.
    """
    if select is None or not {"id", "parts"}.isdisjoint(select):
        return True
    return any(type in plan.numbers for type in plan.defined) or any(ID in read for read in plan.columns.values())


def _checked_ts(ts: object) -> int:
    if not isinstance(ts, int | np.integer) or abs(int(ts)) >= TS_LIMIT:
        raise EventError(f"{ts!r} is not a time in microseconds since 1970")
    return int(ts)
