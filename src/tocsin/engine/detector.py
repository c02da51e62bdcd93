"""Rules at work on a stream: events in any order and any form in, matches out as soon as they are certain.

A detector reads what it is given, learns the kinds of attributes from it where they were not declared, puts events in
order, and lets the machine find the matches. What cannot be used is set aside with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine import detector_state, match_table
from tocsin.engine.detector_state import State, extract, load
from tocsin.engine.pipeline import CHUNK, Instant, Machine
from tocsin.engine.plan_cache import Shelf
from tocsin.engine.prefetch import Ahead, at_its_turn
from tocsin.engine.rule_changes import Change, numbers, resume, settings
from tocsin.engine.strings import Lexicon
from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.dead_letters import describe_row, letters
from tocsin.events.reader import DEFINED, TS_LIMIT, UNNEEDED, Columns, Data, Known, Seen, read
from tocsin.events.reorder import BEGINNING, Scheduler
from tocsin.events.times import Clock
from tocsin.events.types import ID, EventType, Kind
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Rule
from tocsin.plans.plan import Plan, column_names, plan
from tocsin.plans.typing import Catalog

NO_INTERESTS = "a detector of rules does not follow objects; use rules(…).detector()"
"""What to do with an interest."""
LETTERS_KEPT = 100_000
"""How many dead letters are kept until somebody takes them; beyond that they are only counted."""


class Detector:
    """Detects the rules' composite events. Make one with `RuleSet.detector`."""

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
        """The columns that matches have, if not all."""
        self.named: Mapping[str, str] | None = None
        """What the columns of attributes are called, where these rules are some of many; see `column_names`."""
        self.nameless = False
        """Whether events need no identity; see `identifies`."""
        self.settled = False
        """Whether batches are identified and in canonical order; see `Intake`."""
        self.shows_ids = True
        """Whether parts have the ids that the source gave; see `Intake`."""
        self.ahead: Ahead = at_its_turn
        """How the next events are sifted; see `Machine`."""
        self.shelf: Shelf | None = None
        """Where the rules may be laid out already, if they are not going to change."""
        self._plan = rules if isinstance(rules, Plan) else plan(rules, Catalog(types=types, closed=bool(types)))
        self._check_order(self._plan, ordered)
        self._since: dict[str, int] = {}
        self._silenced: frozenset[str] = frozenset()
        """Rules that are gone, of which the machine still has the tables."""
        self._coming: tuple[Change, ...] = ()
        """Changes of the rules whose time has not come yet."""
        self._ordered = ordered
        self._scheduler = Scheduler(delay_us, ordered=ordered)
        self._times = times
        """Whether `ts` are timestamps; None as long as that is not known."""
        self._knowing: tuple[tuple[Plan, tuple[Change, ...]], Known] | None = None
        self._letters: list[tuple[str, str | None, int | None, str]] = []
        self._counts = {"events": 0, "late": 0, "dead": 0, "matches": 0}

    @staticmethod
    def _check_order(plan: Plan, ordered: bool) -> None:
        """Fails if events that come by themselves would have to be put in order with those of an ordered source."""
        for rule in plan.rules if ordered else ():
            requested = rule.combining is not None or rule.context is not None
            timed = bool(rule.clocks) or (rule.windowed is not None and rule.windowed.is_timed)
            if (requested or rule.windowed is not None) and (timed or plan.level(rule)):
                what = "request" if requested else "query"
                message = f"{what} {rule.rule.name} has timers or uses composite events"
                hint = "Leave `ordered` out: without a delay, events wait only for the next instant."
                raise RuleError(f"{message}, which an ordered source cannot be put in order with", hint=hint)

    @cached_property
    def _machine(self) -> Machine:
        """What runs; not made before it is needed, as the first events may tell more about their types."""
        laid = self.shelf.laid(self._plan) if self.shelf is not None and not self._since else None
        machine = Machine(self._plan, self._since, ordered=self._ordered, laid=laid)
        machine.intake.nameless, machine.intake.settled, machine.ahead = self.nameless, self.settled, self.ahead
        machine.intake.shows_ids = self.shows_ids
        return machine

    # ---- what goes in and comes out

    def push(self, data: Data, clock: Clock | None = None) -> pa.Table:
        """Takes events in the order of their arrival; returns the matches that became certain.

        `clock`: that of the host, if it has one; events that are too far ahead of it are dead letters.
        """
        seen = read(data, self._columns, self.known)
        self._learn(seen)
        self._counts["events"] += seen.rows - seen.batch.num_rows
        self._bury(seen.dead)
        return self._take(seen.batch if clock is None else self._not_ahead(seen.batch, clock))

    def learn(self, kinds: Mapping[str, Mapping[str, Kind]]) -> None:
        """Notes which attributes events of these types have; they may have others besides. For `push_batch`."""
        by_type = {type: dict(named) for type, named in kinds.items()}
        self._learn(Seen(pa.table({}), [], {}, by_type, times=True, rows=0, complete=False))

    def declare(self, types: Iterable[EventType]) -> None:
        """Says what all the attributes of some types are."""
        catalog = self._plan.given.declaring(types)
        if catalog is not self._plan.given:
            self._rebuild(self._plan.sources, catalog)

    def know(self, catalog: Catalog) -> None:
        """Binds the rules to what somebody else has learned of the events."""
        if catalog != self._plan.given:
            self._rebuild(self._plan.sources, catalog)

    def begin(self, watermark: int, largest: int) -> None:
        """Starts in the middle of a stream: time has come so far, and the rules see events behind the largest ts."""
        self._scheduler.watermark, self._scheduler.largest = watermark, largest
        self._since = {rule.name: largest + 1 for rule in self._plan.sources}

    def note(self, ts: int) -> None:
        """Says that there was an event of this time (µs) elsewhere; rules that are added see events behind it."""
        self._scheduler.largest = max(self._scheduler.largest, ts)

    def push_batch(self, batch: pa.Table, types: Sequence[str]) -> pa.Table:
        """Takes events that are a batch already: of these types, by number, and of the kinds that the plan has."""
        reading = self._reading
        numbers = np.array([*(reading.get(name, UNNEEDED) for name in types), UNNEEDED], np.int32)
        if (numbers[:-1] != np.arange(len(types))).any():
            batch = batch.set_column(0, "type", pa.array(numbers[batch["type"].to_numpy()]))
        return self._take(batch)

    def _take(self, batch: pa.Table) -> pa.Table:
        self._counts["events"] += batch.num_rows
        released, late = self._scheduler.push(batch)
        if (journal := self._machine.journal) is not None and batch.num_rows and not self._ordered:
            waits = (batch["ts"].to_numpy() >= self._scheduler.watermark) & (batch["type"].to_numpy() >= 0)
            journal.arrived.append(self._named(batch.filter(pa.array(waits))))
        for row in late.tolist():
            self._late(batch, row, "late")
        return self._process(released)

    def advance(self, ts: int) -> pa.Table:
        """Says that time has reached `ts` (µs): no event before it will come any more."""
        return self._process(self._scheduler.advance(_moment(ts)))

    def finish(self) -> pa.Table:
        """Says that no event will come any more; returns the last matches."""
        return self._process(self._scheduler.finish())

    def dead_letters(self) -> pa.Table:
        """Takes what could not be used: reason, type, ts, and the event in its notation."""
        taken, self._letters = self._letters, []
        return letters(taken)

    @property
    def counts(self) -> dict[str, int]:
        """How many events came, were late, were dead-lettered for any reason, and how many matches were found."""
        return dict(self._counts)

    @property
    def watermark(self) -> int | None:
        """No event before this time (µs) is accepted any more; None before the first event."""
        return None if self._scheduler.watermark == BEGINNING else self._scheduler.watermark

    @property
    def next_ts(self) -> int | None:
        """The time (µs) of the first event that waits for its turn."""
        return self._scheduler.next_ts

    @property
    def plan(self) -> Plan:
        """What runs, bound to the kinds known so far."""
        return self._plan

    @property
    def attributes(self) -> dict[str, str]:
        """Which attribute each column of matches holds."""
        return match_table.attributes_of(self._plan, self.named)

    # ---- rules that come and go

    def add(self, rules: Iterable[Statement] | str, *, at: int | None = None) -> int:
        """Adds rules, or their text, that see events from time `at` on (µs; default: just behind the latest event).
        Returns that time.

        Binds only the new rules; nothing of the state is touched.
        """
        if isinstance(rules, str):
            program = parse(text := rules)
            check_supported("`Detector.add`", program, Rule, Request, Query, remedy=NO_INTERESTS)
            self.declare(program.types)
            rules = tuple(replace(rule, source=text) for rule in program.rules)
        rules = tuple(rules)
        check_supported("`Detector.add`", rules, Rule, Request, Query, remedy=NO_INTERESTS)
        if not self._silenced.isdisjoint(rule.name for rule in rules):
            self._forget()
        earliest = self._scheduler.largest + 1 if self._scheduler.largest > BEGINNING else BEGINNING
        since = earliest if at is None else _moment(at)
        if since < earliest:
            raise RuleError(f"a rule cannot be added at {since}: events up to {earliest - 1} have been seen")
        old, new = self._plan, self._plan.extended(rules)
        self._check_order(new, self._ordered)
        self._since.update((rule.name, since) for rule in rules)
        feeds = any(rule.emits.name in old.numbers for rule in rules)
        if feeds and any(new.levels[name] != level for name, level in old.levels.items()):
            self._rebuild((*old.sources, *rules), old.given)
            return since
        reading = self._reading
        self._plan = new
        self._renumber(reading)
        if "_machine" in self.__dict__:
            self._machine.add(new, new.rules[len(old.rules) :], self._since)
        return since

    def remove(self, names: Iterable[str] | str) -> None:
        """Removes rules by name; what only they needed is forgotten.

        A rule or request that is by itself is only silenced: the others go on as they are. When the state is written
        down, or half of the rules are gone, the rest is laid out anew, in time in proportion to the state.
        """
        gone = {names} if isinstance(names, str) else set(names)
        known = {rule.name for rule in self._plan.sources}
        if gone - known:
            unknown = min(gone - known)
            raise RuleError(f"there is no rule {unknown}", hint=nearest(unknown, known))
        started = "_machine" in self.__dict__
        rest = self._plan.without(gone) if started and self._machine.can_silence(gone) else None
        silenced = self._silenced | gone
        if rest is None or len(silenced) > len(rest.sources):
            self._rebuild([rule for rule in self._plan.sources if rule.name not in gone], self._plan.given)
        else:
            self._machine.silence(gone)
            self._plan, self._silenced = rest, silenced
        self._since = {name: since for name, since in self._since.items() if name not in gone}

    def _forget(self) -> None:
        """Lets go of what rules needed that are gone."""
        if self._silenced:
            self._rebuild(self._plan.sources, self._plan.given)

    def change(
        self,
        *,
        add: Iterable[Statement] = (),
        remove: Iterable[str] = (),
        at: int,
        check: Callable[[Plan], None] | None = None,
    ) -> None:
        """Changes the rules from time `at` (µs) on: up to it matches are those of the old rules, then those of the new.

        `at` must be behind the latest event. A rule that is added replaces one of the same name. `check` may refuse
        the rules that come out.
        """
        add, gone = tuple(add), set(remove)
        latest = self._scheduler.largest
        if _moment(at) <= latest:
            raise RuleError(f"rules cannot be changed at {at}: events up to {latest} have been seen")
        after = self.coming_rules
        known = {rule.name for rule in after}
        for name in sorted(gone - known):
            raise RuleError(f"there is no rule {name}", hint=nearest(name, known))
        coming = Change(at, frozenset(gone | (known & {rule.name for rule in add})), add)
        bound = plan(coming.applied(after), self._plan.given)
        self._check_order(bound, self._ordered)
        if check is not None:
            check(bound)
        self._coming = tuple(sorted((*self._coming, coming), key=lambda change: change.at))

    @property
    def coming_rules(self) -> tuple[Statement, ...]:
        """The rules after all changes that are to come."""
        rules = tuple(self._plan.sources)
        for change in self._coming:
            rules = change.applied(rules)
        return rules

    @property
    def _reading(self) -> Mapping[str, int]:
        """The numbers of the types that are needed, now or after the changes to come."""
        numbers = self._plan.numbers
        if not self._coming:
            return numbers
        extended = dict(numbers)
        for change in self._coming:
            for rule in change.add:
                for type in rule.uses:
                    if type not in self._plan.defined:
                        extended.setdefault(type, len(extended))
        return extended

    # ---- state

    @property
    def state_bytes(self) -> int:
        """How many bytes a snapshot has now."""
        return len(self.snapshot())

    def snapshot(self) -> bytes:
        """All that is remembered, in a versioned encoding; `RuleSet.restore` goes on from it."""
        self._forget()
        state = extract(self._machine, self._scheduler.watermark)
        waiting = self._scheduler.waiting
        if waiting is not None:
            waiting = self._named(waiting)
        return detector_state.encode(detector_state.Snapshot(settings(self), numbers(self), state, waiting))

    def _named(self, waiting: pa.Table) -> pa.Table:
        """Events that wait, with their types by name."""
        names = pa.array([*self._reading], pa.string())
        return waiting.set_column(0, "type", names.take(waiting["type"].combine_chunks()))

    @classmethod
    def restore(cls, data: bytes, rules: Sequence[Statement], types: Mapping[str, EventType]) -> Detector:
        """A detector that goes on where the snapshot was taken.

        A rule that is new or changed sees events from there on.
        """
        return resume(cls, detector_state.decode(data), rules, types)

    # ---- within

    def _process(self, released: pa.Table | None) -> pa.Table:
        """Detects in what is released, changing the rules where their time comes."""
        scheduler = self._scheduler
        pieces: list[pa.Table] = []
        while self._coming and self._coming[0].at <= scheduler.watermark:
            change, *rest = self._coming
            if released is not None and released.num_rows:
                count = int(np.searchsorted(released["ts"].to_numpy(), change.at, "left"))
                scheduler.wait(released.slice(count))
                released = released.slice(0, count)
            pieces.append(self._detected(released, (change.at, BEGINNING)))
            self._apply(change, tuple(rest))
            released = scheduler.release()
        closed: Instant = (scheduler.watermark, scheduler.last_seq if self._ordered else BEGINNING)
        pieces.append(self._detected(released, closed))
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces, promote_options="default")

    def _apply(self, change: Change, rest: tuple[Change, ...]) -> None:
        """The time of a change has come."""
        reading = self._reading
        self._coming = rest
        self._since = {name: since for name, since in self._since.items() if name not in change.remove}
        self._since |= {rule.name: change.at for rule in change.add}
        kept = {rule.name for rule in self._plan.sources} - change.remove
        self._rebuild(change.applied(self._plan.sources), self._plan.given, reading=reading, now=change.at, kept=kept)

    def _detected(self, released: pa.Table | None, closed: Instant) -> pa.Table:
        columns = match_table.schema(self._plan, times=bool(self._times), select=self.select, named=self.named)
        attributes = {column: key for key, column in column_names(self._plan.emitted.kinds, self.named).items()}
        pieces: list[pa.Table] = []
        if released is None or not released.num_rows:
            released = pa.table({})
        elif self._coming:
            types = released["type"].to_numpy()
            types = np.where(types < len(self._plan.numbers), types, UNNEEDED).astype(np.int32)
            released = released.set_column(0, "type", pa.array(types))
        for found, late in self._machine.process(released, closed):
            for row in late:
                self._late(released, row, "late among events of its instant: give them a seq, or ids in order")
            pieces.append(match_table.table(found, self._machine, columns, attributes))
        table = pa.concat_tables(pieces) if len(pieces) != 1 else pieces[0]
        self._counts["matches"] += table.num_rows
        return table

    @property
    def known(self) -> Known:
        """What the reader of events must know; the same as long as the plan is."""
        key = self._plan, self._coming
        if self._knowing is not None and self._knowing[0][0] is key[0] and self._knowing[0][1] is key[1]:
            return self._knowing[1]
        given = self._plan.given
        numbers = {**self._reading, **dict.fromkeys(self._plan.defined, DEFINED)}
        if self._silenced:
            still = {type for change in self._coming for rule in change.add for type in rule.uses}
            still |= self._plan.columns.keys() | self._plan.defined.keys()
            numbers = {type: number for type, number in numbers.items() if type in still}
        exact = {name: dict(type.attributes) for name, type in given.types.items()}
        find = partial(self._find, Lexicon(numbers, UNNEEDED, np.int32))
        self._knowing = key, Known(numbers, exact, given.shared, given.seen, find=find)
        return self._knowing[1]

    def _find(self, names: Lexicon, column: pa.Array) -> tuple[np.ndarray[Any, Any], set[int]]:
        """The numbers of types, and which there are; a large column is searched in two halves."""
        half = len(column) // 2
        if half < CHUNK or pa.types.is_dictionary(column.type):
            return names.find_all(column)
        numbers = names.numbers_of(column)
        other = self.ahead(partial(names.find_all, column.slice(half), numbers[half:]))
        there = names.find_all(column.slice(0, half), numbers[:half])[1]
        return numbers, there | other.result()[1]

    def _learn(self, seen: Seen) -> None:
        """Notes what the events say about types, and binds the rules again if that is news to them."""
        if self._times is None and seen.rows:
            self._times = seen.times
        by_type = {name: kinds for name, kinds in seen.by_type.items() if name not in self._plan.defined}
        complete = seen.complete and bool(seen.shared or by_type)
        catalog = self._plan.given.learned(seen.shared, by_type, seen.empty, complete=complete)
        if catalog is not self._plan.given:
            self._rebuild(self._plan.sources, catalog)

    def _rebuild(
        self,
        rules: Sequence[Statement],
        catalog: Catalog,
        state: State | None = None,
        reading: Mapping[str, int] | None = None,
        now: int | None = None,
        kept: Collection[str] | None = None,
    ) -> None:
        """Starts a machine for these rules with the state of the old one.

        `reading`: how types were numbered so far. `now`: up to where events were detected (default: the watermark).
        `kept`: the rules that are still the same (default: all of a known name).
        """
        same = not self._silenced and rules == self._plan.sources
        bound = self._plan.bound_to(catalog) if same else plan(rules, catalog)
        started = "_machine" in self.__dict__
        names = self._reading if reading is None else reading
        if started and state is None:
            if bound.rules == self._plan.rules and not self._silenced:
                self._plan = bound
                return
            state = extract(self._machine, self._scheduler.watermark if now is None else now)
            state = state if kept is None else state.known_to(kept)
        self._plan, self._silenced = bound, frozenset()
        if started:
            del self._machine
        if state is not None:
            load(self._machine, state)
        self._renumber(names)

    def _renumber(self, before: Mapping[str, int]) -> None:
        """Gives the types of what waits their new numbers."""
        numbers = self._reading
        if any(numbers.get(name) != number for name, number in before.items()):
            waiting = self._scheduler.waiting
            if waiting is not None:
                self._scheduler.renumber(waiting, [numbers.get(name, UNNEEDED) for name in before])

    def _late(self, batch: pa.Table, row: int, reason: str) -> None:
        """Sets a late event aside; one that no rule needs is nobody's loss."""
        number = batch["type"][row].as_py()
        if number < 0:
            return
        self._counts["late"] += 1
        if len(self._letters) >= LETTERS_KEPT:
            self._counts["dead"] += 1
            return
        type = [*self._reading][number]
        self._bury([(reason, type, batch["ts"][row].as_py(), describe_row(batch, row, type))])

    def _not_ahead(self, batch: pa.Table, clock: Clock) -> pa.Table:
        """The events that are not too far ahead of the clock; the others, also of unneeded types, are dead letters."""
        ts = batch["ts"].to_numpy()
        ahead = ts > clock.latest_us
        if not ahead.any():
            return batch
        names = [*self._reading]
        count = int(ahead.sum())
        self._counts["events"] += count
        room = max(0, LETTERS_KEPT - len(self._letters))
        self._counts["dead"] += max(0, count - room)
        for row in np.flatnonzero(ahead)[:room].tolist():
            number = batch["type"][row].as_py()
            type = names[number] if number >= 0 else None
            self._bury([(clock.reason(int(ts[row])), type, int(ts[row]), describe_row(batch, row, type or "?"))])
        return batch.filter(pa.array(~ahead))

    def _bury(self, dead: list[tuple[str, str | None, int | None, str]]) -> None:
        self._counts["dead"] += len(dead)
        self._letters += dead[: max(0, LETTERS_KEPT - len(self._letters))]


def identifies(plan: Plan, select: Collection[str] | None) -> bool:
    """Whether anything depends on who an event is: ids and parts of matches, composite events, rules that read ids."""
    if select is None or not {"id", "parts"}.isdisjoint(select):
        return True
    return any(type in plan.numbers for type in plan.defined) or any(ID in read for read in plan.columns.values())


def _moment(ts: object) -> int:
    if not isinstance(ts, int | np.integer) or abs(int(ts)) >= TS_LIMIT:
        raise EventError(f"{ts!r} is not a time in microseconds since 1970")
    return int(ts)
