"""What the workers are told: the rules, what is known of the events, and where rules run.

A job is sent once as bytes and kept by its digest in each Python worker. What all workers need is built before: the
router that cuts batches into slots. The rules of each slot are bytes of their own, which only those read and bind that
run the slot.
"""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from tocsin.engine import match_table
from tocsin.engine.detector import Detector
from tocsin.engine.plan_cache import Shelf
from tocsin.engine.routing import Router
from tocsin.engine.strings import Lexicon
from tocsin.events.reader import DEFINED, UNNEEDED, Columns, Known
from tocsin.events.types import Kind
from tocsin.language.eps.ast import Statement
from tocsin.plans.assignment import Layout, forwarding, live_forwarding
from tocsin.plans.plan import Plan, column_names, plan
from tocsin.plans.typing import Catalog
from tocsin.process import uncollected

NEVER_LATE_US = 2**60
"""The delay of a detector in a slot: its host alone says how far time has come."""

JOBS_KEPT = 16


@dataclass(frozen=True)
class Job:
    """One detection: rules over events of a known shape, laid out over slots."""

    rules: tuple[Statement, ...]
    """All of them; a worker has those of its slots only, see `rules_of`."""
    catalog: Catalog
    columns: Columns
    layout: Layout
    delay_us: int
    times: bool
    """Whether `ts` are timestamps."""
    tables: Mapping[str, Mapping[str, str]] | None = None
    """With a table for each type: for each type its attributes, and the columns that hold them."""
    select: tuple[str, ...] | None = None
    """The columns that matches have, if not all."""
    kept: tuple[str, ...] | None = None
    """The types that are kept for rules that come and go while it runs; None if there are none such."""
    sifted: tuple[str, ...] = ()
    """The types of which Spark itself lets through only what some filter wants."""

    @cached_property
    def plan(self) -> Plan:
        """All rules, bound."""
        return plan(self.rules, self.catalog)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """What the numbers of types in parcels stand for."""
        return tuple(self.plan.numbers) if self.kept is None else self.kept

    @cached_property
    def router(self) -> Router:
        """What cuts batches into slots."""
        slots = self.layout.slots
        if self.kept is None:
            return Router(self.types, self.plan.columns, forwarding(self.plan, self.layout), slots, self.sifted)
        columns = {type: self._attributes(type) for type in self.kept}
        return Router(self.types, columns, live_forwarding(self.layout, self.kept), slots)

    def _attributes(self, type: str) -> dict[str, Kind | None]:
        exact = self.catalog.types.get(type)
        return dict(exact.attributes) if exact is not None else dict(self.catalog.shared)

    @cached_property
    def known(self) -> Known:
        """What the reader of batches must know."""
        numbers = {type: number for number, type in enumerate(self.types)}
        numbers |= dict.fromkeys(self.plan.defined, DEFINED)
        exact = {name: dict(type.attributes) for name, type in self.catalog.types.items()}
        find = Lexicon(numbers, UNNEEDED, np.int32).find_all
        return Known(numbers, exact, self.catalog.shared, self.catalog.seen, find=find)

    @cached_property
    def labels(self) -> list[int]:
        return labels(self.layout.slots)

    def rules_of(self, slot: int) -> tuple[Statement, ...]:
        """The rules that run in a slot."""
        if self._written is None:
            names = self.layout.rules_of(slot)
            return tuple(rule for rule in self.rules if rule.name in names)
        mine = [pickle.loads(self._written[home]) for home in (None, slot) if home in self._written]
        return tuple(rule for rules in mine for rule in rules)

    @cached_property
    def _written(self) -> dict[int | None, bytes] | None:
        """In a worker, the rules by the slot that runs them, and those that run in all."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """What workers are sent: instead of the plan, what they need of it."""
        homes: dict[int | None, list[Statement]] = {}
        for rule in self.rules:
            homes.setdefault(self.layout.homes[rule.name].slot, []).append(rule)
        written = {home: _written(rules) for home, rules in homes.items()}
        built = {name: getattr(self, name) for name in ("types", "router", "known", "matches")}
        return {**given(self), **built, "rules": (), "_written": written}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @uncollected()
    def detector(self, slot: int) -> Detector:
        """A new detector for a slot."""
        mine = self._plans.get(slot)
        if mine is None:
            rules = self.rules_of(slot)
            mine = self._plans[slot] = self.plan if rules == self.rules else plan(rules, self.catalog)
        detector = Detector(mine, {}, delay_us=NEVER_LATE_US, columns=self.columns, times=self.times)
        detector.select, detector.named = self.made, self.named
        return detector

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        return {}

    def shelf(self, slot: int) -> Shelf:
        """Where the rules of a slot are laid out, for tables: their rules do not change."""
        return self._shelves.setdefault(slot, Shelf())

    @cached_property
    def _shelves(self) -> dict[int, Shelf]:
        return {}

    @cached_property
    def matches(self) -> pa.Schema:
        """The columns of the matches. What rules that come later define beyond them goes into `attributes`."""
        columns = match_table.schema(self.plan, times=self.times, select=self.select, named=self.named)
        return columns if self.kept is None else columns.append(pa.field("attributes", pa.string()))

    @cached_property
    def named(self) -> dict[str, str]:
        """The column of each attribute in matches, the same in all slots."""
        return column_names(self.plan.emitted.kinds)

    @property
    def made(self) -> tuple[str, ...] | None:
        """The columns of matches that a slot makes: it counts them by rule."""
        return None if self.select is None else (*self.select, "rule")


_kept: OrderedDict[str, Any] = OrderedDict()

J = TypeVar("J")


@dataclass(frozen=True)
class Sent(Generic[J]):
    """A job on its way to the workers."""

    data: bytes = field(repr=False)
    digest: str
    _made: J | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "digest": self.digest}

    @property
    def job(self) -> J:
        """The job: where it was made as it is, in workers read once in a process."""
        if self._made is not None:
            return self._made
        job: J | None = _kept.get(self.digest)
        if job is None:
            job = _kept[self.digest] = cast(J, pickle.loads(self.data))
            while len(_kept) > JOBS_KEPT:
                _kept.popitem(last=False)
        else:
            _kept.move_to_end(self.digest)
        return job


def given(job: Any) -> dict[str, Any]:
    """What a job was made of, without what was built from it."""
    return {field.name: getattr(job, field.name) for field in fields(job)}


def bound(job: Job, rules: Plan) -> Job:
    """The job, of which the rules are bound already."""
    job.__dict__["plan"] = rules
    return job


def send(job: J) -> Sent[J]:
    """The job as bytes."""
    data = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    return Sent(data, hashlib.sha256(data).hexdigest(), job)


class _Reducers(dict[type, Callable[[Any], Any]]):
    """How objects of a class are written: those of dataclasses by their fields, which are looked up only once."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if not is_dataclass(kind) or "__setstate__" not in vars(kind):  # which those with slots have
            raise KeyError(kind)
        get = attrgetter(*(field.name for field in fields(kind)), "__class__")  # of one alone it would make no tuple
        self[kind] = lambda one: (copyreg.__newobj__, (kind,), get(one)[:-1])  # type: ignore[attr-defined]
        return self[kind]


def _written(rules: list[Statement]) -> bytes:
    """Rules as bytes."""
    found = io.BytesIO()
    pickler = pickle.Pickler(found, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _Reducers()
    pickler.dump(rules)
    return found.getvalue()


@lru_cache
def labels(slots: int) -> list[int]:
    """The numbers by which Spark knows the slots: its hash sends them to as many partitions, one to each.

    Slot 0 is 0 whatever their number, so that a change of the number is noticed.
    """
    found = [0]
    taken = {_murmur3(0) % slots}
    label = 0
    while len(found) < slots:
        label += 1
        if (home := _murmur3(label) % slots) not in taken:
            taken.add(home)
            found.append(label)
    return found


def _murmur3(word: int, seed: int = 42) -> int:
    """Spark's hash of an integer, signed."""
    mask = 0xFFFFFFFF
    word = word * 0xCC9E2D51 & mask
    word = (word << 15 | word >> 17) & mask
    state = seed ^ (word * 0x1B873593 & mask)
    state = (state << 13 | state >> 19) & mask
    state = (state * 5 + 0xE6546B64) & mask ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
