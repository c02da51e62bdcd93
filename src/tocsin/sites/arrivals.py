"""What has come from a live source since the last look? Files of a folder, each whole, or records of a Kafka topic.

Where a look has got to is a *position*, data that is written down with what was read: names of the files that were
read and are still there, or an offset for each partition. What is no event of the types that a site publishes, down to
a file that cannot be read at all, comes along as dead letters, so that nothing is lost and nothing stands still.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.errors import EventError, TocsinError
from tocsin.events.columns import ARROW
from tocsin.events.dead_letters import letters
from tocsin.events.files import open_events, records
from tocsin.events.formats import Ndjson
from tocsin.events.lines import BadLine, Block, Counts, decide, parse, tally
from tocsin.events.reader import LABEL_COLUMN, UNNEEDED, Columns, Known, read
from tocsin.events.types import EventType
from tocsin.sites.channels import CONSUMER, Broker
from tocsin.sites.site_plan import Plan
from tocsin.spark.kafka import Topic

Letter = tuple[str, str | None, int | None, str]
"""Why something is no event; its type and time, if that is known; the text."""
ROWS_MAX = 100_000
"""With so many, no further file or record is read at a look."""
POLL_MS = 20


@dataclass(frozen=True)
class Arrived:
    """What came: events under the columns of all types, in the order in which they came, and how far that is."""

    events: pa.Table
    letters: pa.Table
    position: Any


class Arrivals(Protocol):
    """A live source."""

    def look(self, position: Any) -> Arrived:
        """What came after a position; None is before all."""


class Reader:
    """Turns tables as a source has them into events of its types. `site` begins the ids of events that have none."""

    def __init__(
        self, site: str, types: Mapping[str, EventType], published: frozenset[str], id: str | None = None
    ) -> None:
        self.id = id
        self.site, self.published = site, sorted(published)
        chosen = {name: dict(types[name].attributes) for name in self.published}
        self.known = Known({name: number for number, name in enumerate(self.published)}, chosen)
        self.declared = {name: kind for kinds in chosen.values() for name, kind in kinds.items()}
        self.kinds = {name: kind for type in types.values() for name, kind in type.attributes}
        self.schema = pa.schema(
            [("type", pa.string()), ("ts", pa.int64()), ("seq", pa.int64()), ("id", pa.string())]
            + [(name, ARROW[kind]) for name, kind in self.kinds.items()]
        )

    def events(self, table: pa.Table, ids: Sequence[str]) -> tuple[pa.Table, list[Letter]]:
        """The events of a table, and the rows that are no events. `ids` tell its events apart: they name the file and
        row, or the partition and offset. An event has an id of its own where the plan names the column.
        """
        seen = read(table, Columns(id=self.id if self.id in table.column_names else None), self.known)
        kept = np.setdiff1d(np.arange(table.num_rows), list(seen.reasons))
        batch, numbers = seen.batch, seen.batch["type"].to_numpy()
        named = pa.array([ids[row] for row in kept.tolist()], pa.string())
        own = (
            batch[LABEL_COLUMN].combine_chunks()
            if LABEL_COLUMN in batch.column_names
            else pa.nulls(len(kept), pa.string())
        )
        columns = {
            "type": pa.array(self.published, pa.string()).take(pa.array(np.maximum(numbers, 0))),
            "ts": batch["ts"], "seq": batch["seq"], "id": pc.coalesce(own, named),
        }  # fmt: skip
        for name, kind in self.kinds.items():
            full = f"{name}:{kind}"
            columns[name] = batch[full] if full in batch.column_names else pa.nulls(len(kept), ARROW[kind])
        fits = numbers != UNNEEDED
        strange = records(table.take(pa.array(kept[~fits])))
        said: list[Letter] = [
            (f"{self.site} publishes no {row['type']}", row["type"], None, json.dumps(row)) for row in strange
        ]
        return pa.table(columns, schema=self.schema).filter(pa.array(fits)), [*seen.dead, *said]

    def arrived(self, tables: Sequence[pa.Table], dead: Sequence[Letter], position: Any) -> Arrived:
        return Arrived(pa.concat_tables([self.schema.empty_table(), *tables]), letters(dead), position)


def _told(bad: Sequence[BadLine]) -> list[Letter]:
    return [(f"{one.path.name}, line {one.line}: {one.reason}", None, None, one.text) for one in bad]


class FolderArrivals:
    """A folder into which files of events are put, each renamed into place when it is whole."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self.folder, self.reader = folder, reader

    def look(self, position: Any) -> Arrived:
        there = sorted(path.name for path in self.folder.glob("[!._]*") if path.is_file())
        had = set(position or ()).intersection(there)
        tables, dead, taken = [], list[Letter](), sorted(had)
        for name in [name for name in there if name not in had]:
            table, refused = self._file(name)
            tables.append(table)
            dead += refused
            taken.append(name)
            if sum(one.num_rows for one in tables) >= ROWS_MAX:
                break
        return self.reader.arrived(tables, dead, tuple(taken))

    def _file(self, name: str) -> tuple[pa.Table, list[Letter]]:
        tables, dead, before = [self.reader.schema.empty_table()], list[Letter](), 0
        try:
            for table, bad, _ in open_events(self.folder / name, declared=self.reader.declared).chunks():
                ids = [f"{self.reader.site}/{name}:{before + row}" for row in range(table.num_rows)]
                events, refused = self.reader.events(table, ids)
                tables.append(events)
                dead += [*_told(bad), *refused]
                before += table.num_rows
        except EventError as error:
            dead.append((str(error), None, None, name))
        return pa.concat_tables(tables), dead


class TopicArrivals:
    """A Kafka topic whose records are events as JSON."""

    def __init__(self, broker: Broker, topic: Topic, reader: Reader) -> None:
        self.topic, self.reader = topic, reader
        self.consumer = broker.consumer({**CONSUMER, "max.poll.records": str(ROWS_MAX), "auto.offset.reset": "none"})
        self.partitions = {number: broker.partition(topic.name, number) for number in broker.numbers(topic.name)}
        broker.assign(self.consumer, self.partitions.values())
        self.broker = broker
        self._next: dict[str, int] | None = None

    def look(self, position: Any) -> Arrived:
        begin: dict[str, int] = dict(position or {})
        if begin != self._next:
            self._seek(begin)
        dead: list[Letter] = []
        values, ids, upto = [], [], dict(begin)
        for record in self.consumer.poll(self.broker.wait(POLL_MS)).iterator():
            number, offset = record.partition(), record.offset()
            upto[str(number)] = offset + 1
            if (value := record.value()) is not None:
                values.append(bytes(value).replace(b"\n", b" "))
                ids.append(f"{self.reader.site}/{number}:{offset}")
        tables = []
        if values:
            events, dead = self._events(values, ids)
            tables = [events]
        self._next = upto
        return self.reader.arrived(tables, dead, upto)

    def _seek(self, begin: Mapping[str, int]) -> None:
        first = self.broker.beginnings(self.consumer, self.partitions.values())
        for number, partition in self.partitions.items():
            wanted = begin.get(str(number))
            if wanted is not None and wanted < first[number]:
                raise TocsinError(
                    f"{self.topic}: records {wanted} to {first[number] - 1} of partition {number} have been deleted "
                    "before they were read. Keep them for longer; to go on without them, begin anew (--fresh)"
                )
            self.consumer.seek(partition, first[number] if wanted is None else wanted)

    def _events(self, values: Sequence[bytes], ids: Sequence[str]) -> tuple[pa.Table, list[Letter]]:
        """Records are parsed as lines of one block; if one of them is no event, each by itself: ids are by record."""
        table, bad = self._parsed(values)
        if not bad and table.num_rows == len(values):
            return self._checked(table, ids)
        tables, dead = [], list[Letter]()
        for value, id in zip(values, ids, strict=True):
            table, bad = self._parsed([value])
            events, refused = self._checked(table, [id] * table.num_rows)
            tables.append(events)
            dead += [(f"{id}: {one.reason}", None, None, one.text) for one in bad] + refused
        return pa.concat_tables(tables), dead

    def _checked(self, table: pa.Table, ids: Sequence[str]) -> tuple[pa.Table, list[Letter]]:
        try:
            return self.reader.events(table, ids)
        except EventError as error:
            return self.reader.schema.empty_table(), [(str(error), None, None, text) for text in ids]

    def _parsed(self, values: Sequence[bytes]) -> tuple[pa.Table, list[BadLine]]:
        format, counts = Ndjson(), Counts()
        block = Block(Path(self.topic.name), 1, b"\n".join([*values, b""]), 0)
        bad = tally(block, format, counts)
        if bad is not None and not counts:
            return pa.table({}), [bad]
        return parse(
            block, format, {name: self.reader.declared.get(name) or decide(one) for name, one in counts.items()}
        )


def opened(plan: Plan, site: str, broker: Callable[[Sequence[str]], Broker] | None) -> Arrivals | None:
    """What brings the events of a site, if its sources are live. `broker`: speaks to one."""
    live = plan.hosting.live.get(site)
    if live is None:
        return None
    reader = Reader(site, plan.types, plan.sites.sources[site], live.id)
    if isinstance(live.origin, Path):
        return FolderArrivals(live.origin, reader)
    assert broker is not None
    return TopicArrivals(broker(live.origin.servers), live.origin, reader)
