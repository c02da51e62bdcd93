"""A slot of a stream: a group of Spark's stateful operator, whose state is the detector's.

A micro-batch brings a slot its events, and a tick from every partition of the source, so that all slots know the same
largest ts. The watermark is that minus the delay; what is below it is put in order and detected. Spark's own watermark
is used as a clock only: it has seen the rows that the filters kept away, and fires a timer in a slot that waits when no
further batch brings anything. Its late-row filter never applies, since parcels have no event-time column.

The state is a head and segments (`engine.segments`): a batch writes what is new. A detector stays in the memory of the
Python worker under the token of its last commit; if the state store has another token, it is read again from there.

Changes while a stream runs: control rows, that reach every slot in one batch and so take effect at one event time.

A control row has `add` (the text of rules), `remove` (names of rules), `at` (the event time, µs, from which on that is
so) and `advance` (no event before this time, µs, will come any more); each may be null. They come from a stream of
their own, so that they are in Spark's offset log and are replayed like events. Rules come and go only in a query that
was started for it, with `keep`: that lays it out by type alone. In any other, control rows can advance time.
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
from tocsin.engine.checkpointer import Ledger
from tocsin.engine.detector import Detector
from tocsin.errors import EventError, RuleError, StateError, nearest
from tocsin.events.dead_letters import letters
from tocsin.events.reorder import BEGINNING
from tocsin.language import parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Rule
from tocsin.language.syntax.expressions import print_rule
from tocsin.plans.assignment import Layout, RuleUnit, check_fit
from tocsin.process import settle
from tocsin.spark import blocks
from tocsin.spark.batch import Tally, take_events
from tocsin.spark.blocks import CONTROL, EVENTS, LETTERS, PARCELS_DDL, SEED, Parcel, decode, encode, packer
from tocsin.spark.job import Job, Sent
from tocsin.spark.names import map_in_arrow

if TYPE_CHECKING:
    from tocsin.spark.source import Source

SCHEMA = "add string, remove array<string>, at bigint, advance bigint"
"""The columns of control rows."""


def parcels(changes: DataFrame, labels: Sequence[int]) -> DataFrame:
    """Control rows for every slot."""
    known = ("add", "remove", "at", "advance")
    names = [name for name in known if name in changes.columns]
    strange = [name for name in changes.columns if name not in known]
    if strange or not names:
        raise EventError(f"control rows have the columns {', '.join(known)}, not {', '.join(strange) or 'none'}")
    slots = F.explode(F.array(*(F.lit(label).cast("int") for label in labels)))
    none = F.lit(None).cast("bigint")
    payload = F.to_json(F.struct(*names)).cast("binary")
    return changes.select(
        slots.alias("slot"), F.lit(CONTROL).alias("what"), none.alias("least"), none.alias("largest"),
        payload.alias("payload"),
    )  # fmt: skip


def apply(orders: Sequence[bytes], job: Job, slot: int, detector: Detector, largest: int, tally: Tally) -> list[int]:
    """Takes the control rows of one batch, the same in every slot. Returns how far they advance time."""
    advances = []
    for order in sorted((json.loads(bytes(order)) for order in orders), key=_turn):
        if order.get("advance") is not None:
            advances.append(int(order["advance"]))
        if order.get("add") or order.get("remove"):
            at = max(largest + 1, int(order["at"]) if order.get("at") is not None else largest + 1)
            try:
                change(job, detector, order, at)
            except RuleError as error:
                if slot == 0:
                    tally.bury(letters([(f"the rules were not changed: {error}", None, at, json.dumps(order))]))
    return advances


def _turn(order: Mapping[str, Any]) -> tuple[int, str]:
    return order.get("at") or 0, json.dumps(order, sort_keys=True)


def change(job: Job, detector: Detector, order: Mapping[str, Any], at: int) -> None:
    """Changes the rules of a slot from that time on."""
    if job.kept is None:
        raise RuleError("this query was not started for rules that come and go", hint="Start it with keep=….")
    add = added(order)
    strange = {type for rule in add for type in types_of(rule)} - {*job.kept}
    strange -= {rule.emits.name for rule in (*detector.coming_rules, *add)}
    if strange:
        raise RuleError(
            f"events of type {min(strange)} are not kept by this query", hint=nearest(min(strange), job.kept)
        )
    detector.change(add=add, remove=order.get("remove") or (), at=at, check=lambda plan: check_fit(plan, job.layout))


def added(order: Mapping[str, Any]) -> tuple[Statement, ...]:
    """The rules that a control row adds."""
    program = parse(order.get("add") or "")
    remedy = "interests do not come and go while a stream runs; start a stream of its own with it"
    check_supported("a change of the rules", program, Rule, Request, Query, remedy=remedy, verb="add")
    return program.rules


def types_of(rule: Statement) -> set[str]:
    """The event types that a rule looks at."""
    return set(rule.uses)


def rules_in(head: bytes, stored: Mapping[int, bytes], job: Job, slot: int) -> tuple[Statement, ...]:
    """The rules of a slot: those of its state where rules come and go, else those of the job."""
    mine = job.rules_of(slot)
    if job.kept is None:
        return mine
    known = {print_rule(rule): rule for rule in mine}
    texts = checkpointer.rules_of(head, stored).values()
    return tuple(known[text] if text in known else parse(text).rules[0] for text in texts)


OBSERVED = "tocsin"
"""The name under which the slots' counts stand in a query's progress."""

ELSEWHERE = (
    "the checkpoint keeps its state in {slots} slots, not in {now}: "
    "run with as many as before, or move the state with 'tocsin rekey'"
)

SLOTS_CACHED = 256
MS = 1_000


@dataclass
class Slot:
    """What is in memory of a slot."""

    detector: Detector
    ledger: Ledger
    largest: int = BEGINNING
    """The largest ts that any slot has seen."""
    token: str = ""
    timer: int | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    """The bytes of each segment."""


_cached: OrderedDict[tuple[str, int], Slot] = OrderedDict()


class SlotProcessor(StatefulProcessor):  # type: ignore[misc]
    """The slots of a partition."""

    def __init__(self, sent: Sent[Job]) -> None:
        self._sent = sent

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._head = handle.getValueState("head", "token string, largest bigint, timer bigint, head binary")
        self._segments = handle.getMapState("segments", "number bigint", "segment binary")
        self._layout = handle.getValueState("layout", "layout string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        parcels = parcel_rows(int(key[0]), rows)
        yield from self._turn(int(key[0]), parcels, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield from self._turn(int(key[0]), [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        settle()

    # ---- one batch

    def _turn(self, label: int, parcels: list[Parcel], clock_ms: int) -> Iterator[pd.DataFrame]:
        begun = perf_counter()
        job = self._sent.job
        if label not in job.labels:
            raise StateError(ELSEWHERE.format(slots="another number of", now=job.layout.slots))
        number = job.labels.index(label)
        if parcels and parcels[0].what == SEED:
            self._sow(job, number, parcels[0])
            return
        slot = self._open(job, number)
        detector, tally = slot.detector, Tally(job.matches, number)
        before = detector.counts
        for parcel in parcels:
            if parcel.what == EVENTS:
                take_events(detector, parcel, tally)
            elif parcel.what == LETTERS:
                tally.bury(decode(parcel.payload or b""))
        ticks = [parcel.largest for parcel in parcels if parcel.largest is not None]
        largest = max([slot.largest, *ticks, *([clock_ms * MS] if clock_ms > 0 else [])])
        advances = [largest - job.delay_us] if largest > BEGINNING else []
        orders = [parcel.payload for parcel in parcels if parcel.what == CONTROL and parcel.payload is not None]
        advances += apply(orders, job, number, detector, largest, tally)
        moved = bool(advances) and max(advances) > (detector.watermark or BEGINNING)
        if moved:
            tally.take(detector.advance(max(advances)))
        tally.bury(detector.dead_letters())
        grown, slot.largest = max(largest, *advances, BEGINNING) > slot.largest, max(largest, *advances, BEGINNING)
        detector.note(slot.largest)
        events = any(parcel.what == EVENTS for parcel in parcels)
        if moved or grown or events or orders or not slot.token:
            self._save(job, slot)
        elif not parcels:
            return
        counts = {name: count - before[name] for name, count in detector.counts.items()}
        counted = {
            **counts,
            "parcels": len(parcels),
            "watermark": detector.watermark,
            "state_bytes": sum(slot.sizes.values()),
            "seconds": round(perf_counter() - begun, 6),
        }
        yield pd.DataFrame({"payload": [encode(tally.closing(counted)).to_pybytes()]})

    # ---- state

    def _open(self, job: Job, number: int) -> Slot:
        """The slot as the state store has it: from memory if that is the same."""
        key = self._sent.digest, number
        held = self._head.get()
        slot = _cached.get(key)
        if held is None:
            slot = self._begin(job, number)
        elif slot is None or slot.token != held[0]:
            slot = self._read(job, number, *held)
        _cached[key] = slot
        _cached.move_to_end(key)
        while len(_cached) > SLOTS_CACHED:
            _cached.popitem(last=False)
        return slot

    def _begin(self, job: Job, number: int) -> Slot:
        detector = job.detector(number)
        self._layout.update((json.dumps(job.layout.as_data()),))
        return Slot(detector, Ledger(detector))

    def _sow(self, job: Job, number: int, seed: Parcel) -> None:
        """Begins with the state of another checkpoint."""
        self._layout.update((json.dumps(job.layout.as_data()),))
        detector = Detector.restore(seed.payload or b"", job.rules_of(number), {})
        self._save(job, Slot(detector, Ledger(detector), BEGINNING if seed.largest is None else seed.largest))

    def _read(self, job: Job, number: int, token: str, largest: int, timer: int | None, head: bytes) -> Slot:
        written = self._layout.get()
        check_layout(Layout.from_data(json.loads(written[0])), job.layout, number)
        head = bytes(head)
        stored = {n: bytes(self._segments.getValue((n,))[0]) for n in checkpointer.live(head)}
        detector, ledger = checkpointer.restore(head, stored, rules_in(head, stored, job, number), {})
        detector.select, detector.named = job.made, job.named
        if written[0] != (now := json.dumps(job.layout.as_data())):
            self._layout.update((now,))
        return Slot(detector, ledger, largest, token, timer, {n: len(segment) for n, segment in stored.items()})

    def _save(self, job: Job, slot: Slot) -> None:
        changes = slot.ledger.changes()
        for n, segment in changes.put.items():
            self._segments.updateValue((n,), (segment,))
            slot.sizes[n] = len(segment)
        for n in changes.drop:
            if slot.sizes.pop(n, None) is not None and n not in changes.put:
                self._segments.removeKey((n,))
        waits = slot.detector.next_ts
        timer = None if waits is None else (waits + job.delay_us) // MS + 1
        if timer != slot.timer:
            if timer is not None:
                self._handle.registerTimer(timer)
            slot.timer = timer
        slot.token = uuid.uuid4().hex
        self._head.update((slot.token, slot.largest, slot.timer, changes.head))


def check_layout(old: Layout, new: Layout, slot: int) -> None:
    """Fails if state is not where the rules look for it."""
    if old.slots != new.slots:
        raise StateError(ELSEWHERE.format(slots=old.slots, now=new.slots))
    for name, unit in new.homes.items():
        was = old.homes.get(name)
        if was is not None and _moved(was, unit) and slot in (slot if was.slot is None else was.slot, unit.slot):
            raise StateError(f"the state of rule {name} is elsewhere: move it with 'tocsin rekey'")


def _moved(was: RuleUnit, now: RuleUnit) -> bool:
    """Whether state is looked for elsewhere. A key of more types than before is the same key."""
    if was.key is None or now.key is None:
        return (was.key, was.slot) != (now.key, now.slot)
    return any(now.key.get(type, attribute) != attribute for type, attribute in was.key.items())


def detect_stream(source: Source, sent: Sent[Job], changes: DataFrame | None) -> DataFrame:
    """The report of a stream."""
    from tocsin.spark.source import report_schema

    job = sent.job
    parcels = map_in_arrow(source.ticking(sent.job.types), packer(sent, ticks=True), PARCELS_DDL)
    if changes is not None:
        parcels = parcels.unionByName(parcels(changes, job.labels))
    payloads = parcels.groupBy("slot").transformWithStateInPandas(
        SlotProcessor(sent), blocks.PAYLOADS_DDL, "Append", "EventTime"
    )
    report = payloads.mapInArrow(blocks.unpacker(sent), report_schema(job))
    return blocks.told_apart(report).observe(OBSERVED, F.collect_list("_metrics").alias("slots"))


def parcel_rows(label: int, rows: Iterator[pd.DataFrame]) -> list[Parcel]:
    """The parcels of a slot."""
    return [
        Parcel(label, what, _whole(least), _whole(largest), payload)
        for frame in rows
        for what, least, largest, payload in zip(
            frame["what"], frame["least"], frame["largest"], frame["payload"], strict=True
        )
    ]


def _whole(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
