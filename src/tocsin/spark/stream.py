"""Run detection over a stream, micro-batch by micro-batch.

Each slot is a group of Spark's stateful operator, and the state of the group is the state of the slot's detector. In
each micro-batch, a slot receives its events, and a watermark marker (see `blocks`) from every partition of the source,
so that all slots know the same largest ts. The watermark is the largest ts minus the delay. The slot sorts and
processes the events below the watermark.

Spark's own watermark only serves as a clock. It includes rows that filters removed, and it fires the timers of slots
with waiting events when no further batch arrives. Spark never drops late rows here, because shuffle blocks have no
event-time column.

The state is stored as a head and segments (see `engine.checkpointer`), and a batch writes only what is new. After a
batch, the detector stays in the memory of the Python worker, under the token of its last save. If the state store has
another token, the state is read again.

Control rows change a running stream. They reach every slot in one batch, so that they take effect at one event time. A
control row has four columns, each of which may be null:

- `add` is the text of rules to add.
- `remove` has the names of rules to remove.
- `at` is the event time (µs) at which these changes take effect.
- `advance` is a time (µs) before which no further event will arrive.

Control rows come from a stream of their own, so that Spark logs their offsets and replays them like events. Rules can
be added and removed only in a query that was started with `keep`, which assigns rules to slots by type alone. In any
other query, control rows can only advance time.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from tocsin.engine import checkpointer
from tocsin.engine.checkpointer import Checkpointer
from tocsin.engine.detector import Detector
from tocsin.errors import EventError, RuleError, StateError, nearest
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.reorder import BEGINNING
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Rule
from tocsin.language.syntax.expressions import print_rule
from tocsin.plans.assignment import Layout, RuleUnit, check_fit
from tocsin.process import freeze_gc
from tocsin.spark import blocks
from tocsin.spark.batch import SlotReport, push_events
from tocsin.spark.blocks import (
    BLOCK_DDL,
    CONTROL,
    EVENTS,
    INITIAL_STATE,
    REJECTED,
    ShuffleBlock,
    block_packer,
    decode,
    encode,
)
from tocsin.spark.job import Job, SentJob
from tocsin.spark.names import map_in_arrow

if TYPE_CHECKING:
    from tocsin.spark.source import FrameSource

SCHEMA = "add string, remove array<string>, at bigint, advance bigint"
"""The columns of control rows."""


def control_blocks(changes: DataFrame, labels: Sequence[int]) -> DataFrame:
    """Return a shuffle block for each control row in `changes` and each slot in `labels`."""
    known = ("add", "remove", "at", "advance")
    names = [name for name in known if name in changes.columns]
    unknown = [name for name in changes.columns if name not in known]
    if unknown or not names:
        raise EventError(f"control rows have the columns {', '.join(known)}, not {', '.join(unknown) or 'none'}")
    slots = F.explode(F.array(*(F.lit(label).cast("int") for label in labels)))
    none = F.lit(None).cast("bigint")
    payload = F.to_json(F.struct(*names)).cast("binary")
    return changes.select(
        slots.alias("slot"), F.lit(CONTROL).alias("what"), none.alias("least"), none.alias("largest"),
        payload.alias("payload"),
    )  # fmt: skip


def apply_control(
    orders: Sequence[bytes], job: Job, slot: int, detector: Detector, largest: int, slot_report: SlotReport
) -> list[int]:
    """Apply the control rows of one batch to the detector of a slot, and return the times that the rows advance to.

    Every slot receives the same rows. If a row is invalid, only slot 0 reports it, as a dead letter.
    """
    advances = []
    for order in sorted((json.loads(bytes(order)) for order in orders), key=_order):
        if order.get("advance") is not None:
            advances.append(int(order["advance"]))
        if order.get("add") or order.get("remove"):
            at = max(largest + 1, int(order["at"]) if order.get("at") is not None else largest + 1)
            try:
                change_rules(job, detector, order, at)
            except RuleError as error:
                if slot == 0:
                    slot_report.reject(
                        dead_letter_table([(f"the rules were not changed: {error}", None, at, json.dumps(order))])
                    )
    return advances


def _order(order: Mapping[str, Any]) -> tuple[int, str]:
    return order.get("at") or 0, json.dumps(order, sort_keys=True)


def change_rules(job: Job, detector: Detector, order: Mapping[str, Any], at: int) -> None:
    """Add and remove the rules that a control row names, from the event time `at` (µs)."""
    if job.retained_types is None:
        raise RuleError("this query was not started for rules that come and go", hint="Start it with keep=….")
    add = added_rules(order)
    unknown = {type for rule in add for type in types_of(rule)} - {*job.retained_types}
    unknown -= {rule.emits.name for rule in (*detector.coming_rules, *add)}
    if unknown:
        raise RuleError(
            f"events of type {min(unknown)} are not kept by this query", hint=nearest(min(unknown), job.retained_types)
        )
    detector.change(add=add, remove=order.get("remove") or (), at=at, check=lambda plan: check_fit(plan, job.layout))


def added_rules(order: Mapping[str, Any]) -> tuple[Statement, ...]:
    """Return the rules that a control row adds."""
    program = parse(order.get("add") or "")
    remedy = "interests do not come and go while a stream runs; start a stream of its own with it"
    check_supported("a change of the rules", program, Rule, Request, Query, remedy=remedy, verb="add")
    return program.rules


def types_of(rule: Statement) -> set[str]:
    """Return the event types that a rule uses."""
    return set(rule.uses)


def rules_in(head: bytes, segments: Mapping[int, bytes], job: Job, slot: int) -> tuple[Statement, ...]:
    """Return the rules of a slot whose state is stored in `head` and `segments`.

    If rules can change, they are read from the stored state; otherwise they are the job's rules for `slot`.
    """
    mine = job.rules_of(slot)
    if job.retained_types is None:
        return mine
    rules_by_text = {print_rule(rule): rule for rule in mine}
    texts = checkpointer.rules_of(head, segments).values()
    return tuple(rules_by_text[text] if text in rules_by_text else parse(text).rules[0] for text in texts)


OBSERVED = "tocsin"
"""The name under which a query's progress has the metrics of its slots."""

SLOTS_DIFFER = (
    "the checkpoint keeps its state in {slots} slots, not in {now}: "
    "run with as many as before, or move the state with 'tocsin rekey'"
)

SLOTS_CACHED = 256
MS = 1_000


@dataclass
class Slot:
    """A slot that a Python worker keeps in memory between batches."""

    detector: Detector
    state_writer: Checkpointer
    largest: int = BEGINNING
    """The largest ts (µs) that any slot has received."""
    token: str = ""
    timer: int | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    """The size in bytes of each stored segment, by its number."""


_cached: OrderedDict[tuple[str, int], Slot] = OrderedDict()


class SlotProcessor(StatefulProcessor):  # type: ignore[misc]
    """The stateful operator, which processes the slots of one partition."""

    def __init__(self, sent: SentJob[Job]) -> None:
        self._sent = sent

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._head = handle.getValueState("head", "token string, largest bigint, timer bigint, head binary")
        self._segments = handle.getMapState("segments", "number bigint", "segment binary")
        self._layout = handle.getValueState("layout", "layout string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        shuffle_blocks = blocks_in(int(key[0]), rows)
        yield from self._process(int(key[0]), shuffle_blocks, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield from self._process(int(key[0]), [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        freeze_gc()

    # ---- one batch

    def _process(self, label: int, shuffle_blocks: list[ShuffleBlock], clock_ms: int) -> Iterator[pd.DataFrame]:
        started_s = perf_counter()
        job = self._sent.job
        if label not in job.labels:
            raise StateError(SLOTS_DIFFER.format(slots="another number of", now=job.layout.slots))
        number = job.labels.index(label)
        if shuffle_blocks and shuffle_blocks[0].what == INITIAL_STATE:
            self._load_initial_state(job, number, shuffle_blocks[0])
            return
        slot = self._open(job, number)
        detector, slot_report = slot.detector, SlotReport(job.matches, number)
        before = detector.counts
        for block in shuffle_blocks:
            if block.what == EVENTS:
                push_events(detector, block, slot_report)
            elif block.what == REJECTED:
                slot_report.reject(decode(block.payload or b""))
        largest_ts = [block.largest for block in shuffle_blocks if block.largest is not None]
        largest = max([slot.largest, *largest_ts, *([clock_ms * MS] if clock_ms > 0 else [])])
        advances = [largest - job.delay_us] if largest > BEGINNING else []
        orders = [block.payload for block in shuffle_blocks if block.what == CONTROL and block.payload is not None]
        advances += apply_control(orders, job, number, detector, largest, slot_report)
        advanced = bool(advances) and max(advances) > (detector.watermark or BEGINNING)
        if advanced:
            slot_report.add_matches(detector.advance(max(advances)))
        slot_report.reject(detector.dead_letters())
        has_grown, slot.largest = max(largest, *advances, BEGINNING) > slot.largest, max(largest, *advances, BEGINNING)
        detector.note(slot.largest)
        events = any(block.what == EVENTS for block in shuffle_blocks)
        if advanced or has_grown or events or orders or not slot.token:
            self._save(job, slot)
        elif not shuffle_blocks:
            return
        counts = {name: count - before[name] for name, count in detector.counts.items()}
        counted = {
            **counts,
            "parcels": len(shuffle_blocks),
            "watermark": detector.watermark,
            "state_bytes": sum(slot.sizes.values()),
            "seconds": round(perf_counter() - started_s, 6),
        }
        yield pd.DataFrame({"payload": [encode(slot_report.finish(counted)).to_pybytes()]})

    # ---- state

    def _open(self, job: Job, number: int) -> Slot:
        """Return the slot with the state that Spark has stored, from memory if its token is still the stored token."""
        key = self._sent.digest, number
        stored = self._head.get()
        slot = _cached.get(key)
        if stored is None:
            slot = self._begin(job, number)
        elif slot is None or slot.token != stored[0]:
            slot = self._read(job, number, *stored)
        _cached[key] = slot
        _cached.move_to_end(key)
        while len(_cached) > SLOTS_CACHED:
            _cached.popitem(last=False)
        return slot

    def _begin(self, job: Job, number: int) -> Slot:
        detector = job.detector(number)
        self._layout.update((json.dumps(job.layout.as_data()),))
        return Slot(detector, Checkpointer(detector))

    def _load_initial_state(self, job: Job, number: int, initial_state: ShuffleBlock) -> None:
        """Start the slot `number` with the state in the block `initial_state`, which is from another checkpoint."""
        self._layout.update((json.dumps(job.layout.as_data()),))
        detector = Detector.restore(initial_state.payload or b"", job.rules_of(number), {})
        self._save(
            job,
            Slot(
                detector, Checkpointer(detector), BEGINNING if initial_state.largest is None else initial_state.largest
            ),
        )

    def _read(self, job: Job, number: int, token: str, largest: int, timer: int | None, head: bytes) -> Slot:
        written = self._layout.get()
        check_layout(Layout.from_data(json.loads(written[0])), job.layout, number)
        head = bytes(head)
        segments = {n: bytes(self._segments.getValue((n,))[0]) for n in checkpointer.live_segments(head)}
        detector, state_writer = checkpointer.restore(head, segments, rules_in(head, segments, job, number), {})
        detector.select, detector.named = job.produced, job.named
        if written[0] != (now := json.dumps(job.layout.as_data())):
            self._layout.update((now,))
        return Slot(detector, state_writer, largest, token, timer, {n: len(segment) for n, segment in segments.items()})

    def _save(self, job: Job, slot: Slot) -> None:
        changes = slot.state_writer.delta()
        for n, segment in changes.put.items():
            self._segments.updateValue((n,), (segment,))
            slot.sizes[n] = len(segment)
        for n in changes.drop:
            if slot.sizes.pop(n, None) is not None and n not in changes.put:
                self._segments.removeKey((n,))
        next_ts = slot.detector.next_ts
        timer = None if next_ts is None else (next_ts + job.delay_us) // MS + 1
        if timer != slot.timer:
            if timer is not None:
                self._handle.registerTimer(timer)
            slot.timer = timer
        slot.token = uuid.uuid4().hex
        self._head.update((slot.token, slot.largest, slot.timer, changes.manifest))


def check_layout(old: Layout, new: Layout, slot: int) -> None:
    """Raise `StateError` if the state of some rule of `slot` is in another slot.

    `old` is the layout that the state was written with, and `new` is the layout of the job.
    """
    if old.slots != new.slots:
        raise StateError(SLOTS_DIFFER.format(slots=old.slots, now=new.slots))
    for name, unit in new.units_by_rule.items():
        was = old.units_by_rule.get(name)
        if was is not None and _moved(was, unit) and slot in (slot if was.slot is None else was.slot, unit.slot):
            raise StateError(f"the state of rule {name} is elsewhere: move it with 'tocsin rekey'")


def _moved(was: RuleUnit, now: RuleUnit) -> bool:
    """Return whether the state of a unit is now in another slot.

    A key to which types were added is still the same key.
    """
    if was.key is None or now.key is None:
        return (was.key, was.slot) != (now.key, now.slot)
    return any(now.key.get(type, attribute) != attribute for type, attribute in was.key.items())


def detect_stream(source: FrameSource, sent: SentJob[Job], changes: DataFrame | None) -> DataFrame:
    """Return the report of a stream of events as a streaming DataFrame. `changes` are its control rows."""
    from tocsin.spark.source import report_schema

    job = sent.job
    shuffled = map_in_arrow(source.with_watermark(sent.job.types), block_packer(sent, watermarks=True), BLOCK_DDL)
    if changes is not None:
        shuffled = shuffled.unionByName(control_blocks(changes, job.labels))
    payloads = shuffled.groupBy("slot").transformWithStateInPandas(
        SlotProcessor(sent), blocks.PAYLOADS_DDL, "Append", "EventTime"
    )
    report = payloads.mapInArrow(blocks.report_unpacker(sent), report_schema(job))
    return blocks.with_kind(report).observe(OBSERVED, F.collect_list("_metrics").alias("slots"))


def blocks_in(label: int, rows: Iterator[pd.DataFrame]) -> list[ShuffleBlock]:
    """Convert the rows that Spark passes for the slot `label` to shuffle blocks."""
    return [
        ShuffleBlock(label, what, _whole(least), _whole(largest), payload)
        for frame in rows
        for what, least, largest, payload in zip(
            frame["what"], frame["least"], frame["largest"], frame["payload"], strict=True
        )
    ]


def _whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
