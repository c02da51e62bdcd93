"""Describe a detection to Spark workers: the rules, the event types, and the slots that the rules run in.

A *slot* is a unit of parallel work (see `plans.assignment`). A job is sent to the workers once as bytes, and each
Python worker caches it by its digest. The driver builds what all workers need, such as the router that splits batches
by slot. The rules of each slot are pickled separately, so that a worker loads and binds only the rules of its own
slots.
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
from tocsin.engine.plan_cache import PlanCache
from tocsin.engine.routing import Router
from tocsin.engine.strings import StringIndex
from tocsin.events.reader import DEFINED, UNNEEDED, Columns, TypeInfo
from tocsin.events.types import Kind
from tocsin.language.eps.ast import Statement
from tocsin.plans.assignment import Layout, forwarding, live_forwarding
from tocsin.plans.plan import Plan, column_names, plan
from tocsin.plans.typing import Catalog
from tocsin.process import gc_paused

NEVER_LATE_US = 2**60
"""The delay (µs) of a detector in a slot, so large that only its caller advances the watermark."""

JOBS_CACHED_MAX = 16


@dataclass(frozen=True)
class Job:
    """A detection with rules that are bound to event types and assigned to slots."""

    rules: tuple[Statement, ...]
    """All rules on the driver; empty in a worker, which has the rules of its slots (see `rules_of`)."""
    catalog: Catalog
    columns: Columns
    layout: Layout
    delay_us: int
    times: bool
    """Whether the column `ts` of matches has timestamps instead of integers."""
    tables: Mapping[str, Mapping[str, str]] | None = None
    """The column of each attribute, by type and attribute, if each type has its own table; otherwise None."""
    select: tuple[str, ...] | None = None
    """The columns of matches to return; None for all."""
    retained_types: tuple[str, ...] | None = None
    """The types whose events are kept because rules may be added while the query runs; None if rules cannot change."""
    filtered_types: tuple[str, ...] = ()
    """The types whose rows Spark filters, so that only rows that pass a filter of some rule reach the workers."""

    @cached_property
    def plan(self) -> Plan:
        """The plan of all rules."""
        return plan(self.rules, self.catalog)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The event types; the position of a type is its number in shuffle blocks."""
        return tuple(self.plan.numbers) if self.retained_types is None else self.retained_types

    @cached_property
    def router(self) -> Router:
        """The router that splits batches of events by slot."""
        slots = self.layout.slots
        if self.retained_types is None:
            return Router(self.types, self.plan.columns, forwarding(self.plan, self.layout), slots, self.filtered_types)
        columns = {type: self._attributes(type) for type in self.retained_types}
        return Router(self.types, columns, live_forwarding(self.layout, self.retained_types), slots)

    def _attributes(self, type: str) -> dict[str, Kind | None]:
        exact = self.catalog.types.get(type)
        return dict(exact.attributes) if exact is not None else dict(self.catalog.shared)

    @cached_property
    def known(self) -> TypeInfo:
        """What the reader of batches needs to know about types and attributes."""
        numbers = {type: number for number, type in enumerate(self.types)}
        numbers |= dict.fromkeys(self.plan.defined, DEFINED)
        exact = {name: dict(type.attributes) for name, type in self.catalog.types.items()}
        find = StringIndex(numbers, UNNEEDED, np.int32).find_all
        return TypeInfo(numbers, exact, self.catalog.shared, self.catalog.seen, find=find)

    @cached_property
    def labels(self) -> list[int]:
        """The keys by which Spark knows the slots."""
        return labels(self.layout.slots)

    def rules_of(self, slot: int) -> tuple[Statement, ...]:
        """Return the rules that run in `slot`."""
        if self._rules_by_slot is None:
            names = self.layout.rules_of(slot)
            return tuple(rule for rule in self.rules if rule.name in names)
        pickled = [self._rules_by_slot[key] for key in (None, slot) if key in self._rules_by_slot]
        return tuple(rule for rules in map(pickle.loads, pickled) for rule in rules)

    @cached_property
    def _rules_by_slot(self) -> dict[int | None, bytes] | None:
        """The pickled rules of a worker by slot, where the key None has the rules that run in all slots.

        On the driver this is None; `__setstate__` sets it in a worker.
        """
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers need, which is not the plan, but what the driver has built from the plan."""
        by_slot: dict[int | None, list[Statement]] = {}
        for rule in self.rules:
            by_slot.setdefault(self.layout.units_by_rule[rule.name].slot, []).append(rule)
        pickled = {slot: _pickled(rules) for slot, rules in by_slot.items()}
        built = {name: getattr(self, name) for name in ("types", "router", "known", "matches")}
        return {**job_fields(self), **built, "rules": (), "_rules_by_slot": pickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @gc_paused()
    def detector(self, slot: int) -> Detector:
        """Return a new detector with the rules of `slot`."""
        mine = self._plans.get(slot)
        if mine is None:
            rules = self.rules_of(slot)
            mine = self._plans[slot] = self.plan if rules == self.rules else plan(rules, self.catalog)
        detector = Detector(mine, {}, delay_us=NEVER_LATE_US, columns=self.columns, times=self.times)
        detector.select, detector.named = self.produced, self.named
        return detector

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        return {}

    def plan_cache(self, slot: int) -> PlanCache:
        """Return the cache of compiled rules of `slot`. It is for tables only, because their rules do not change."""
        return self._plan_caches.setdefault(slot, PlanCache())

    @cached_property
    def _plan_caches(self) -> dict[int, PlanCache]:
        return {}

    @cached_property
    def matches(self) -> pa.Schema:
        """The columns of matches.

        If rules can change, the last column, `attributes`, has a JSON object of the attributes that later rules add.
        """
        columns = match_table.schema(self.plan, times=self.times, select=self.select, named=self.named)
        return columns if self.retained_types is None else columns.append(pa.field("attributes", pa.string()))

    @cached_property
    def named(self) -> dict[str, str]:
        """The name of the column that each attribute has in the matches of all slots."""
        return column_names(self.plan.emitted.kinds)

    @property
    def produced(self) -> tuple[str, ...] | None:
        """The columns of matches that a slot produces: `select`, and `rule`, by which matches are counted."""
        return None if self.select is None else (*self.select, "rule")


_jobs: OrderedDict[str, Any] = OrderedDict()

J = TypeVar("J")


@dataclass(frozen=True)
class SentJob(Generic[J]):
    """A job as bytes that Spark sends to workers, and the digest by which workers cache the job."""

    data: bytes = field(repr=False)
    digest: str
    _job: J | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "digest": self.digest}

    @property
    def job(self) -> J:
        """The job. The driver has the original, and each worker process unpickles the job once."""
        if self._job is not None:
            return self._job
        job: J | None = _jobs.get(self.digest)
        if job is None:
            job = _jobs[self.digest] = cast(J, pickle.loads(self.data))
            while len(_jobs) > JOBS_CACHED_MAX:
                _jobs.popitem(last=False)
        else:
            _jobs.move_to_end(self.digest)
        return job


def job_fields(job: Any) -> dict[str, Any]:
    """Return the values of the dataclass fields of `job` by name, without its cached properties."""
    return {field.name: getattr(job, field.name) for field in fields(job)}


def with_plan(job: Job, rules: Plan) -> Job:
    """Set the plan of `job` to `rules`, which are already bound to the job's catalog, and return `job`."""
    job.__dict__["plan"] = rules
    return job


def send(job: J) -> SentJob[J]:
    """Serialize a job."""
    data = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    return SentJob(data, hashlib.sha256(data).hexdigest(), job)


class _Reducers(dict[type, Callable[[Any], Any]]):
    """A pickle dispatch table that reduces dataclasses to their fields, which are looked up once for each class."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if not is_dataclass(kind) or "__setstate__" not in vars(kind):  # defined for frozen classes with slots
            raise KeyError(kind)
        # With a single name, attrgetter would not return a tuple.
        get = attrgetter(*(field.name for field in fields(kind)), "__class__")
        self[kind] = lambda one: (copyreg.__newobj__, (kind,), get(one)[:-1])  # type: ignore[attr-defined]
        return self[kind]


def _pickled(rules: list[Statement]) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _Reducers()
    pickler.dump(rules)
    return buffer.getvalue()


@lru_cache
def labels(slots: int) -> list[int]:
    """Return the keys by which Spark knows the slots.

    The keys are chosen so that Spark's hash sends each key to a different partition. The key of slot 0 is 0 for any
    number of slots, so that a change of that number is detected.
    """
    labels = [0]
    partitions = {_murmur3(0) % slots}
    label = 0
    while len(labels) < slots:
        label += 1
        if (partition := _murmur3(label) % slots) not in partitions:
            partitions.add(partition)
            labels.append(label)
    return labels


def _murmur3(word: int, seed: int = 42) -> int:
    """Return Spark's hash of an integer, signed."""
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
