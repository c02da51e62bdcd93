"""Detect in this process: apply the records of the log, and return matches and dead letters as rows.

All rules, requests and queries share one `Detector`, and each moving query has its own `MovingDetector`. The result
depends only on the records and their order, so that the records can be replayed after a crash.

`spark_backend` detects in a Spark query instead. It overrides `_push`, `_advance` and `_skip`, and its `Detector` only
holds the plan.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tocsin.engine.compile import RuleTables
from tocsin.engine.detector import Detector
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.moving.ranges import HISTORY_US
from tocsin.engine.strings import StringDictionary
from tocsin.errors import RuleError, StateError, TocsinError, nearest
from tocsin.events.columns import concat
from tocsin.events.files import records as rows_of
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import Kind
from tocsin.plans.plan import Plan, plan
from tocsin.plans.typing import Catalog
from tocsin.service.deployments import Deployed, ParsedText, parse_rules
from tocsin.service.records import EventsRecord, RulesRecord

Row = dict[str, Any]

VERSION = 2


class EmbeddedBackend:
    """The deployed rules and their state. Only one thread may use a backend."""

    stepwise = False
    """Whether the output of a step through the log must be on disk before the next step starts."""

    def __init__(self, delay_us: int) -> None:
        self.delay_us = delay_us
        # Matches are JSON objects, so two rules may give attributes of the same name different kinds.
        self.detector = Detector(plan([], Catalog(by_kind=True)), {}, delay_us=delay_us, times=True)
        self.moving: dict[str, MovingDetector] = {}
        self.deployed: dict[str, Deployed] = {}
        self.kinds: dict[str, dict[str, Kind]] = {}
        self.largest = BEGINNING
        """The time of the latest event (µs)."""
        self.advanced_to = BEGINNING
        """The largest time of a `TimeRecord` (µs)."""
        self.events_by_type: Counter[str] = Counter()
        self.matches_by_rule: Counter[str] = Counter()
        self.dead = 0
        self._dead_letters: list[Row] = []

    @property
    def plan(self) -> Plan:
        return self.detector.plan

    @property
    def watermark(self) -> int:
        """The time (µs) before which events are rejected as late."""
        return BEGINNING if self.detector.watermark is None else self.detector.watermark

    @property
    def waits(self) -> bool:
        """Whether advancing time, without a new event, may produce matches."""
        return self.detector.next_ts is not None or self.plan.is_timed or bool(self.moving)

    # ---- hooks for another engine

    def boundaries(self) -> set[int]:
        """Return the log positions at which a step must end when the log is replayed."""
        return set()

    def committed(self) -> None:
        """Note that the output of the last step is on disk."""

    def flush(self) -> None:
        """Wait until the state that this backend keeps outside of this process is on disk."""

    def close(self) -> None:
        """Release resources."""

    def _push(self, batch: pa.Table, types: Sequence[str], records: Sequence[EventsRecord]) -> list[pa.Table]:
        return [self.detector.push_batch(batch, types)]

    def _advance(self, ts: int, span: tuple[int, int]) -> list[pa.Table]:
        return [self.detector.advance(ts)]

    def _skip(self, record: EventsRecord) -> None:
        """Note that detection does not use the events of `record`."""

    # ---- records

    def take(self, records: Sequence[EventsRecord]) -> list[Row]:
        """Process the events of `records` as one batch and return the matches."""
        usable = []
        for record in records:
            if self._learn(record):
                usable.append(record)
            else:
                self._skip(record)
        matches: list[Row] = []
        if usable:
            batch, types = concat_records(usable)
            for type, count in zip(types, np.bincount(batch["type"].to_numpy(), minlength=len(types)), strict=True):
                self.events_by_type[type] += int(count)
            self.largest = max(self.largest, int(batch["ts"].to_numpy().max()))
            outside = [type if type not in self.plan.defined else "" for type in types]
            for table in self._push(batch, outside, usable):
                matches += self._rows(table, self.detector.attributes)
            for record in usable if self.moving else ():
                tables = tables_by_type(record)
                for id, detector in self.moving.items():
                    matches += self._push_moving(id, detector, tables)
        self._collect_dead_letters()
        return matches

    def advance(self, ts: int, span: tuple[int, int] = (0, 0)) -> list[Row]:
        """Advance time to `ts` (µs) and return the matches. `span` is the log range of the `TimeRecord`."""
        self.advanced_to = max(self.advanced_to, ts)
        matches = [row for table in self._advance(ts, span) for row in self._rows(table, self.detector.attributes)]
        for id, detector in self.moving.items():
            try:
                matches += self._rows(detector.advance(ts), detector.attributes)
            except TocsinError as error:
                self._add_dead_letter(f"{id}: {error}", None, ts, "")
        self._collect_dead_letters()
        return matches

    def change(self, change: RulesRecord) -> tuple[Deployed, ...]:
        """Apply a change of the deployed rules atomically, and return the added rules."""
        for id in change.remove:
            if id not in self.deployed:
                raise RuleError(f"there is no rule {id}", hint=nearest(id, self.deployed))
        new: tuple[Deployed, ...] = ()
        if change.deploy is not None:
            text = parse_rules(change.deploy.text, change.deploy.language)
            self.check(text, change.remove)
            new = text.deployed(change.by, change.at_us)
        removed = [id for id in change.remove if id not in self.moving]
        if removed:
            self.detector.remove(removed)
        for id in change.remove:
            self.moving.pop(id, None)
            del self.deployed[id]
        if new and new[0].is_moving:
            for one in new:
                interest, types = one.interest()
                history_us = HISTORY_US if interest.consumes else None
                self.moving[one.id] = MovingDetector(
                    [interest], {type.name: type for type in types}, delay_us=self.delay_us, history_us=history_us
                )
                if self.watermark > BEGINNING:
                    self.moving[one.id].advance(self.watermark)
        elif new:
            self.detector.declare(text.program.types)
            self.kinds |= {type.name: dict(type.attributes) for type in text.program.types}
            self.detector.add(text.program.rules)
        self.deployed |= {one.id: one for one in new}
        self._collect_dead_letters()
        return new

    def check(self, text: ParsedText, remove: Iterable[str] = ()) -> Plan:
        """Return the plan with the rules of `text`, but without the rules `remove`.

        Raise a `RuleError` if `text` cannot be deployed. For moving queries, the plan has only their own rules.
        """
        rest = set(self.deployed) - set(remove)
        for name in text.names:
            if name in rest:
                raise RuleError(f"rule {name} already exists", hint="Replace it, or rename the new one.")
        given = self.plan.catalog
        if text.program.interests:
            types = {type.name: type for type in text.program.types}
            catalog = Catalog(types=types, seen={} if types else given.seen, closed=bool(types))
            return plan(text.program.rules, catalog)
        rules = [rule for rule in self.plan.sources if rule.name in rest]
        return plan([*rules, *text.program.rules], given.declaring(text.program.types))

    def check_kinds(self, kinds: Mapping[str, Mapping[str, Kind]]) -> None:
        """Raise a `RuleError` if a deployed rule cannot use events whose attributes have `kinds`."""
        given = self.plan.catalog
        outside = {type: dict(named) for type, named in kinds.items() if type not in self.plan.defined}
        learned = given.learned({}, outside, frozenset(), complete=False)
        if learned is not given:
            try:
                plan(self.plan.sources, learned)
            except RuleError as error:
                where = ""
                if error.source is not None and error.span is not None:
                    where = f" in '{error.source[error.span.start : error.span.end][:80]}'"
                raise RuleError(f"incompatible with a deployed rule: {error.message}{where}") from None

    def dead_letters(self) -> list[Row]:
        """Return the dead letters since the last call, and clear them."""
        result, self._dead_letters = self._dead_letters, []
        return result

    # ---- internals

    def _learn(self, record: EventsRecord) -> bool:
        """Learn the attribute kinds of `record`, and return whether detection can use its events.

        If a rule cannot use the kinds, the events become dead letters.
        """
        for type, named in record.new_kinds.items():
            self.kinds[type] = {**named, **self.kinds.get(type, {})}
        if not record.batch.num_rows:
            return False
        try:
            for type, named in record.new_kinds.items():
                wrong = [name for name, kind in named.items() if self.kinds[type][name] != kind]
                if wrong:
                    raise RuleError(f"{wrong[0]} should be a {self.kinds[type][wrong[0]]}, it is a {named[wrong[0]]}")
            if record.new_kinds:
                self.detector.learn(record.new_kinds)
        except RuleError as error:
            for row in record.batch.to_pylist():
                self._add_dead_letter(error.message, record.types[row["type"]], row["ts"], json.dumps(row, default=str))
            return False
        return True

    def _push_moving(self, id: str, detector: MovingDetector, tables: Mapping[str, pa.Table]) -> list[Row]:
        interest, _ = self.deployed[id].interest()
        wanted = {interest.focal.type, *(type for rule in interest.rules for type in rule.uses)}
        selected = {
            type: _with_coordinates(table, interest.space.coordinates)
            for type, table in tables.items()
            if type in wanted
        }
        if not selected:
            return []
        try:
            return self._rows(detector.push(selected), detector.attributes)
        except TocsinError as error:
            self._add_dead_letter(
                f"{id}: {error}", None, None, f"{sum(table.num_rows for table in selected.values())} events"
            )
            return []

    def _rows(self, table: pa.Table, columns: Mapping[str, str]) -> list[Row]:
        """Return the matches in `table` as JSON objects. `columns` maps each column name to an attribute name."""
        if not table.num_rows:
            return []
        matches = []
        for row in rows_of(table):
            attributes = {name: row[column] for column, name in columns.items() if row.get(column) is not None}
            optional = {name: row[name] for name in ("query", "range", "error", "expired") if row.get(name) is not None}
            rule = str(row["rule"] or row.get("query"))
            self.matches_by_rule[str(row.get("query") or rule)] += row["rule"] is not None
            matches.append(
                {
                    "id": row["id"],
                    "rule": rule,
                    "type": row["type"],
                    "ts": row["ts"],
                    **optional,
                    "attributes": attributes,
                    "parts": row["parts"] or [],
                }
            )
        return matches

    def _collect_dead_letters(self) -> None:
        dead_letters = [self.detector.dead_letters(), *(detector.dead_letters() for detector in self.moving.values())]
        for table in dead_letters:
            for dead_letter in table.to_pylist():
                self._add_dead_letter(
                    dead_letter["reason"], dead_letter["type"], dead_letter["ts"], dead_letter["event"]
                )

    def _add_dead_letter(self, reason: str, type: str | None, ts: int | None, event: str) -> None:
        self.dead += 1
        self._dead_letters.append({"reason": reason, "type": type, "ts": ts, "event": event})

    # ---- state

    def snapshot(self, more: Mapping[str, Any]) -> bytes:
        """Serialize the state together with `more`, which is data of the caller."""
        parts = [self.detector.snapshot(), *(detector.snapshot() for detector in self.moving.values())]
        header = json.dumps(
            {
                "version": VERSION,
                "delay_us": self.delay_us,
                "deployed": [asdict(one) for one in self.deployed.values()],
                "kinds": self.kinds,
                "largest": self.largest,
                "ticked": self.advanced_to,
                "events": self.events_by_type,
                "matches": self.matches_by_rule,
                "dead": self.dead,
                "moving": list(self.moving),
                "sizes": [len(part) for part in parts],
                "more": more,
            }
        ).encode()
        body = b"".join([header, b"\n", *parts])
        return zlib.crc32(body).to_bytes(4, "little") + body

    @staticmethod
    def restore(
        data: bytes, create: Callable[[int], EmbeddedBackend] | None = None
    ) -> tuple[EmbeddedBackend, dict[str, Any]]:
        """Restore a backend from the snapshot `data`. Return it, and the caller's data that the snapshot has.

        `create` makes an empty backend, given the delay (µs).
        """
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
            raise StateError("the snapshot is corrupt")
        first, _, rest = data[4:].partition(b"\n")
        header = json.loads(first)
        if header["version"] != VERSION:
            raise StateError(f"the snapshot has version {header['version']}, expected {VERSION}")
        backend = (create or EmbeddedBackend)(header["delay_us"])
        for one in header["deployed"]:
            backend.deployed[one["id"]] = Deployed(**{**one, "emits": tuple(one["emits"])})
        ends = [0, *accumulate(header["sizes"])]
        state, *moving = (rest[start:end] for start, end in pairwise(ends))
        rules = [one.statement() for one in backend.deployed.values() if not one.is_moving]
        backend.detector = Detector.restore(state, rules, {})
        backend.detector.know(replace(backend.detector.plan.catalog, by_kind=True))
        for id, data in zip(header["moving"], moving, strict=True):
            interest, types = backend.deployed[id].interest()
            backend.moving[id] = MovingDetector.restore(data, [interest], {type.name: type for type in types})
        backend.kinds = {
            type: {name: Kind(kind) for name, kind in named.items()} for type, named in header["kinds"].items()
        }
        backend.largest, backend.advanced_to = header["largest"], header["ticked"]
        backend.events_by_type.update(header["events"])
        backend.matches_by_rule.update(header["matches"])
        backend.dead = header["dead"]
        return backend, header["more"]


def check_loadable(plan: Plan, text: ParsedText) -> None:
    """Raise an error if the engine cannot compile a rule of `text`.

    After deployment, such a rule would stop detection.
    """
    selected = {rule.name for rule in text.program.rules}
    tables = RuleTables(StringDictionary())
    for rule in plan.rules:
        if rule.rule.name in selected:
            tables.load(rule, plan.stratum(rule))


def concat_records(records: Sequence[EventsRecord]) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the events of `records` as one batch, and the type names that its type codes index."""
    if len(records) == 1:
        return records[0].batch, records[0].types
    numbers: dict[str, int] = {}
    batches = []
    for record in records:
        codes = np.array([numbers.setdefault(type, len(numbers)) for type in record.types] or [0], np.int32)
        types = codes[record.batch["type"].to_numpy()]
        batches.append(record.batch.set_column(0, "type", pa.array(types)))
    return concat(batches), tuple(numbers)


def tables_by_type(record: EventsRecord) -> dict[str, pa.Table]:
    """Split the events of `record` by type. Return a table for each type, with columns named after attributes."""
    numbers = record.batch["type"].to_numpy()
    tables = {}
    for number, type in enumerate(record.types):
        selected = record.batch.filter(pa.array(numbers == number))
        if not selected.num_rows:
            continue
        columns = {"ts": selected["ts"].cast(pa.timestamp("us", "UTC")), "seq": selected["seq"]}
        for name in selected.column_names:
            attribute = name.rpartition(":")[0]
            if attribute and selected[name].null_count < selected.num_rows:
                columns[attribute] = selected[name]
        tables[type] = pa.table(columns)
    return tables


def _with_coordinates(table: pa.Table, coordinates: Sequence[str]) -> pa.Table:
    """Return `table` with a column of nulls added for each coordinate that it lacks."""
    for name in coordinates:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.float64()))
    return table
