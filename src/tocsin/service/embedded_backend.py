"""Records of the log in, rows of matches and dead letters out: in this process, or by another engine (`on_spark`).

Rules, requests and queries share one `Detector`; each query that moves has its own. Everything that happens here
follows from the records and their order alone, so that it can be done again after a crash. An engine elsewhere takes
the place of `_push`, `_pass` and `_changed`; the detector then only holds the plan.
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

from tocsin.engine.compile import Tables
from tocsin.engine.detector import Detector
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.moving.ranges import HISTORY_US
from tocsin.engine.strings import Texts
from tocsin.errors import RuleError, StateError, TocsinError, nearest
from tocsin.events.columns import concat
from tocsin.events.files import records as rows_of
from tocsin.events.reorder import BEGINNING
from tocsin.events.types import Kind
from tocsin.plans.plan import Plan, plan
from tocsin.plans.typing import Catalog
from tocsin.service.deployments import Deployed, Text, read
from tocsin.service.records import Change, Events

Row = dict[str, Any]

VERSION = 2


class Detection:
    """Rules at work. Used by one thread."""

    stepwise = False
    """Whether what one step finds must be on the disk before the next."""

    def __init__(self, delay_us: int) -> None:
        self.delay_us = delay_us
        # Matches are JSON objects: rules may give one name different kinds.
        self.detector = Detector(plan([], Catalog(by_kind=True)), {}, delay_us=delay_us, times=True)
        self.moving: dict[str, MovingDetector] = {}
        self.deployed: dict[str, Deployed] = {}
        self.kinds: dict[str, dict[str, Kind]] = {}
        self.largest = BEGINNING
        """The time of the latest event."""
        self.ticked = BEGINNING
        """Up to where time was said to have passed."""
        self.events_by_type: Counter[str] = Counter()
        self.matches_by_rule: Counter[str] = Counter()
        self.dead = 0
        self._letters: list[Row] = []

    @property
    def plan(self) -> Plan:
        return self.detector.plan

    @property
    def watermark(self) -> int:
        """No event before this time is accepted any more."""
        return BEGINNING if self.detector.watermark is None else self.detector.watermark

    @property
    def waits(self) -> bool:
        """Whether something waits for time to pass."""
        return self.detector.next_ts is not None or self.plan.is_timed or bool(self.moving)

    # ---- for an engine elsewhere

    def marks(self) -> set[int]:
        """Positions of the log at which a step must end when it is read again."""
        return set()

    def written(self) -> None:
        """What the last step found is on the disk."""

    def settle(self) -> None:
        """Waits until all that is remembered elsewhere is on the disk too."""

    def close(self) -> None:
        """Ends."""

    def _push(self, batch: pa.Table, types: Sequence[str], records: Sequence[Events]) -> list[pa.Table]:
        return [self.detector.push_batch(batch, types)]

    def _pass(self, ts: int, place: tuple[int, int]) -> list[pa.Table]:
        return [self.detector.advance(ts)]

    def _skip(self, record: Events) -> None:
        """A record is not to be used."""

    # ---- what records do

    def take(self, records: Sequence[Events]) -> list[Row]:
        """Events of several records, as if they had come in one."""
        usable = []
        for record in records:
            if self._learned(record):
                usable.append(record)
            else:
                self._skip(record)
        found: list[Row] = []
        if usable:
            batch, types = joined(usable)
            for type, count in zip(types, np.bincount(batch["type"].to_numpy(), minlength=len(types)), strict=True):
                self.events_by_type[type] += int(count)
            self.largest = max(self.largest, int(batch["ts"].to_numpy().max()))
            outside = [type if type not in self.plan.defined else "" for type in types]
            for table in self._push(batch, outside, usable):
                found += self._rows(table, self.detector.attributes)
            for record in usable if self.moving else ():
                tables = by_type(record)
                for id, detector in self.moving.items():
                    found += self._push_moving(id, detector, tables)
        self._bury()
        return found

    def tick(self, ts: int, place: tuple[int, int] = (0, 0)) -> list[Row]:
        """Time has reached `ts`, says the record of that place."""
        self.ticked = max(self.ticked, ts)
        found = [row for table in self._pass(ts, place) for row in self._rows(table, self.detector.attributes)]
        for id, detector in self.moving.items():
            try:
                found += self._rows(detector.advance(ts), detector.attributes)
            except TocsinError as error:
                self._letter(f"{id}: {error}", None, ts, "")
        self._bury()
        return found

    def change(self, change: Change) -> tuple[Deployed, ...]:
        """Removes rules and adds others, all or nothing. Returns those that were added."""
        for id in change.remove:
            if id not in self.deployed:
                raise RuleError(f"there is no rule {id}", hint=nearest(id, self.deployed))
        new: tuple[Deployed, ...] = ()
        if change.deploy is not None:
            text = read(change.deploy.text, change.deploy.language)
            self.check(text, change.remove)
            new = text.deployed(change.by, change.at_us)
        gone = [id for id in change.remove if id not in self.moving]
        if gone:
            self.detector.remove(gone)
        for id in change.remove:
            self.moving.pop(id, None)
            del self.deployed[id]
        if new and new[0].moves:
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
        self._bury()
        return new

    def check(self, text: Text, remove: Iterable[str] = ()) -> Plan:
        """Fails if a text cannot be deployed here, once some rules are gone. Returns what would run then."""
        rest = set(self.deployed) - set(remove)
        for name in text.names:
            if name in rest:
                raise RuleError(f"there is a rule {name} already", hint="Replace it, or give this one another name.")
        given = self.plan.given
        if text.program.interests:
            types = {type.name: type for type in text.program.types}
            catalog = Catalog(types=types, seen={} if types else given.seen, closed=bool(types))
            return plan(text.program.rules, catalog)
        rules = [rule for rule in self.plan.sources if rule.name in rest]
        return plan([*rules, *text.program.rules], given.declaring(text.program.types))

    def check_kinds(self, kinds: Mapping[str, Mapping[str, Kind]]) -> None:
        """Fails if some rule cannot use events with attributes of these kinds."""
        given = self.plan.given
        outside = {type: dict(named) for type, named in kinds.items() if type not in self.plan.defined}
        learned = given.learned({}, outside, frozenset(), complete=False)
        if learned is not given:
            try:
                plan(self.plan.sources, learned)
            except RuleError as error:
                where = ""
                if error.source is not None and error.span is not None:
                    where = f" in '{error.source[error.span.start : error.span.end][:80]}'"
                raise RuleError(f"a rule cannot use it: {error.message}{where}") from None

    def letters(self) -> list[Row]:
        """Takes what could not be used."""
        taken, self._letters = self._letters, []
        return taken

    # ---- within

    def _learned(self, record: Events) -> bool:
        """Notes the kinds of a record; a rule that cannot use them makes dead letters of it."""
        for type, named in record.news.items():
            self.kinds[type] = {**named, **self.kinds.get(type, {})}
        if not record.batch.num_rows:
            return False
        try:
            for type, named in record.news.items():
                wrong = [name for name, kind in named.items() if self.kinds[type][name] != kind]
                if wrong:
                    raise RuleError(f"{wrong[0]} should be a {self.kinds[type][wrong[0]]}, it is a {named[wrong[0]]}")
            if record.news:
                self.detector.learn(record.news)
        except RuleError as error:
            for row in record.batch.to_pylist():
                self._letter(error.message, record.types[row["type"]], row["ts"], json.dumps(row, default=str))
            return False
        return True

    def _push_moving(self, id: str, detector: MovingDetector, tables: Mapping[str, pa.Table]) -> list[Row]:
        interest, _ = self.deployed[id].interest()
        wanted = {interest.focal.type, *(type for rule in interest.rules for type in rule.uses)}
        mine = {type: _placed(table, interest.space.coordinates) for type, table in tables.items() if type in wanted}
        if not mine:
            return []
        try:
            return self._rows(detector.push(mine), detector.attributes)
        except TocsinError as error:
            self._letter(f"{id}: {error}", None, None, f"{sum(table.num_rows for table in mine.values())} events")
            return []

    def _rows(self, table: pa.Table, columns: Mapping[str, str]) -> list[Row]:
        """Matches as JSON objects; `columns` says which attribute a column holds."""
        if not table.num_rows:
            return []
        found = []
        for row in rows_of(table):
            attributes = {name: row[column] for column, name in columns.items() if row.get(column) is not None}
            told = {name: row[name] for name in ("query", "range", "error", "expired") if row.get(name) is not None}
            rule = str(row["rule"] or row.get("query"))
            self.matches_by_rule[str(row.get("query") or rule)] += row["rule"] is not None
            found.append(
                {
                    "id": row["id"],
                    "rule": rule,
                    "type": row["type"],
                    "ts": row["ts"],
                    **told,
                    "attributes": attributes,
                    "parts": row["parts"] or [],
                }
            )
        return found

    def _bury(self) -> None:
        letters = [self.detector.dead_letters(), *(detector.dead_letters() for detector in self.moving.values())]
        for table in letters:
            for letter in table.to_pylist():
                self._letter(letter["reason"], letter["type"], letter["ts"], letter["event"])

    def _letter(self, reason: str, type: str | None, ts: int | None, event: str) -> None:
        self.dead += 1
        self._letters.append({"reason": reason, "type": type, "ts": ts, "event": event})

    # ---- state

    def snapshot(self, more: Mapping[str, Any]) -> bytes:
        """All that is remembered, with what the caller wants to remember besides."""
        parts = [self.detector.snapshot(), *(detector.snapshot() for detector in self.moving.values())]
        header = json.dumps(
            {
                "version": VERSION,
                "delay_us": self.delay_us,
                "deployed": [asdict(one) for one in self.deployed.values()],
                "kinds": self.kinds,
                "largest": self.largest,
                "ticked": self.ticked,
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
    def restore(data: bytes, made: Callable[[int], Detection] | None = None) -> tuple[Detection, dict[str, Any]]:
        """What goes on where the snapshot was taken, and what was remembered besides. `made`: of which kind it is."""
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
            raise StateError("the snapshot is broken")
        first, _, rest = data[4:].partition(b"\n")
        header = json.loads(first)
        if header["version"] != VERSION:
            raise StateError(f"the snapshot is of version {header['version']}, this is version {VERSION}")
        detection = (made or Detection)(header["delay_us"])
        for one in header["deployed"]:
            detection.deployed[one["id"]] = Deployed(**{**one, "emits": tuple(one["emits"])})
        ends = [0, *accumulate(header["sizes"])]
        state, *moving = (rest[start:end] for start, end in pairwise(ends))
        rules = [one.statement() for one in detection.deployed.values() if not one.moves]
        detection.detector = Detector.restore(state, rules, {})
        detection.detector.know(replace(detection.detector.plan.given, by_kind=True))
        for id, data in zip(header["moving"], moving, strict=True):
            interest, types = detection.deployed[id].interest()
            detection.moving[id] = MovingDetector.restore(data, [interest], {type.name: type for type in types})
        detection.kinds = {
            type: {name: Kind(kind) for name, kind in named.items()} for type, named in header["kinds"].items()
        }
        detection.largest, detection.ticked = header["largest"], header["ticked"]
        detection.events_by_type.update(header["events"])
        detection.matches_by_rule.update(header["matches"])
        detection.dead = header["dead"]
        return detection, header["more"]


def check_loadable(plan: Plan, text: Text) -> None:
    """Fails if the engine cannot hold a rule of the text, before the rule is deployed and stops detection."""
    mine = {rule.name for rule in text.program.rules}
    tables = Tables(Texts())
    for rule in plan.rules:
        if rule.rule.name in mine:
            tables.load(rule, plan.level(rule))


def joined(records: Sequence[Events]) -> tuple[pa.Table, tuple[str, ...]]:
    """The events of several records as one batch, and the names of its types."""
    if len(records) == 1:
        return records[0].batch, records[0].types
    numbers: dict[str, int] = {}
    batches = []
    for record in records:
        codes = np.array([numbers.setdefault(type, len(numbers)) for type in record.types] or [0], np.int32)
        types = codes[record.batch["type"].to_numpy()]
        batches.append(record.batch.set_column(0, "type", pa.array(types)))
    return concat(batches), tuple(numbers)


def by_type(record: Events) -> dict[str, pa.Table]:
    """The events of a record as a table for each type, with columns called as the attributes are."""
    numbers = record.batch["type"].to_numpy()
    tables = {}
    for number, type in enumerate(record.types):
        mine = record.batch.filter(pa.array(numbers == number))
        if not mine.num_rows:
            continue
        columns = {"ts": mine["ts"].cast(pa.timestamp("us", "UTC")), "seq": mine["seq"]}
        for name in mine.column_names:
            attribute = name.rpartition(":")[0]
            if attribute and mine[name].null_count < mine.num_rows:
                columns[attribute] = mine[name]
        tables[type] = pa.table(columns)
    return tables


def _placed(table: pa.Table, coordinates: Sequence[str]) -> pa.Table:
    """The table with columns for places, if it has none."""
    for name in coordinates:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.float64()))
    return table
