"""Read new events from a live source: files in a folder, or records of a Kafka topic.

A *live* source is one that programs outside Tocsin write to. A *position* records how far a source was read, and is
stored with the events. For a folder, the position is the names of the files that were read and still exist. For a
topic, it is an offset for each partition.

The events of a source must have a type that the site publishes. Everything else, even an unreadable file, becomes a
dead letter, so nothing is lost and reading never stops.
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
from tocsin.events.dead_letters import dead_letter_table
from tocsin.events.files import open_events, records
from tocsin.events.formats import Ndjson
from tocsin.events.lines import BadLine, Block, KindCounts, count_kinds, decide, parse
from tocsin.events.reader import LABEL_COLUMN, UNNEEDED, Columns, TypeInfo, read
from tocsin.events.types import EventType
from tocsin.sites.channels import CONSUMER, Broker
from tocsin.sites.site_plan import SitePlan
from tocsin.spark.kafka import Topic

DeadLetterRow = tuple[str, str | None, int | None, str]
"""A dead letter as its reason, type, time (µs) and text. The type and the time are None if they are unknown."""
ROWS_MAX = 100_000
"""The number of rows after which one call of `look` reads no further file or record."""
POLL_MS = 20


@dataclass(frozen=True)
class ArrivedEvents:
    """What one read of a live source returned.

    `events` are in the order of arrival, and have the columns of all types. `letters` are the dead letters.
    `position` is the position after the last event.
    """

    events: pa.Table
    letters: pa.Table
    position: Any


class Arrivals(Protocol):
    """A live source that can be read from a position."""

    def look(self, position: Any) -> ArrivedEvents:
        """Return the events that arrived after `position`, or all events if it is None."""


class ArrivalReader:
    """Converts rows of a source to events of the types that a site publishes.

    `types` are all types of the plan, and `published` the names of those that the site publishes. `id` is the column
    with the ids of events, if there is one. Other events get an id that begins with `site`.
    """

    def __init__(
        self, site: str, types: Mapping[str, EventType], published: frozenset[str], id: str | None = None
    ) -> None:
        self.id = id
        self.site, self.published = site, sorted(published)
        chosen = {name: dict(types[name].attributes) for name in self.published}
        self.known = TypeInfo({name: number for number, name in enumerate(self.published)}, chosen)
        self.declared = {name: kind for kinds in chosen.values() for name, kind in kinds.items()}
        self.kinds = {name: kind for type in types.values() for name, kind in type.attributes}
        self.schema = pa.schema(
            [("type", pa.string()), ("ts", pa.int64()), ("seq", pa.int64()), ("id", pa.string())]
            + [(name, ARROW[kind]) for name, kind in self.kinds.items()]
        )

    def events(self, table: pa.Table, ids: Sequence[str]) -> tuple[pa.Table, list[DeadLetterRow]]:
        """Return the events of `table`, and dead letters for the rows that are not events.

        `ids` has a unique id for each row, made of the file and row, or of the partition and offset. It is used if the
        row has no id in the column that the plan names.
        """
        result = read(table, Columns(id=self.id if self.id in table.column_names else None), self.known)
        rows_read = np.setdiff1d(np.arange(table.num_rows), list(result.reasons))
        batch, numbers = result.batch, result.batch["type"].to_numpy()
        given_ids = pa.array([ids[row] for row in rows_read.tolist()], pa.string())
        own_ids = (
            batch[LABEL_COLUMN].combine_chunks()
            if LABEL_COLUMN in batch.column_names
            else pa.nulls(len(rows_read), pa.string())
        )
        columns = {
            "type": pa.array(self.published, pa.string()).take(pa.array(np.maximum(numbers, 0))),
            "ts": batch["ts"], "seq": batch["seq"], "id": pc.coalesce(own_ids, given_ids),
        }  # fmt: skip
        for name, kind in self.kinds.items():
            full = f"{name}:{kind}"
            columns[name] = batch[full] if full in batch.column_names else pa.nulls(len(rows_read), ARROW[kind])
        fits = numbers != UNNEEDED
        rows = records(table.take(pa.array(rows_read[~fits])))
        unpublished: list[DeadLetterRow] = [
            (f"{self.site} publishes no {row['type']}", row["type"], None, json.dumps(row)) for row in rows
        ]
        return pa.table(columns, schema=self.schema).filter(pa.array(fits)), [*result.rejected, *unpublished]

    def arrived(self, tables: Sequence[pa.Table], rejected: Sequence[DeadLetterRow], position: Any) -> ArrivedEvents:
        return ArrivedEvents(
            pa.concat_tables([self.schema.empty_table(), *tables]), dead_letter_table(rejected), position
        )


def _as_rejected(bad: Sequence[BadLine]) -> list[DeadLetterRow]:
    return [(f"{one.path.name}, line {one.line}: {one.reason}", None, None, one.text) for one in bad]


class FolderArrivals:
    """A live source that is a folder of event files. Each file must be renamed into the folder when it is complete."""

    def __init__(self, folder: Path, reader: ArrivalReader) -> None:
        self.folder, self.reader = folder, reader

    def look(self, position: Any) -> ArrivedEvents:
        present = sorted(path.name for path in self.folder.glob("[!._]*") if path.is_file())
        already_read = set(position or ()).intersection(present)
        tables, rejected, names_read = [], list[DeadLetterRow](), sorted(already_read)
        for name in [name for name in present if name not in already_read]:
            table, row_rejected = self._file(name)
            tables.append(table)
            rejected += row_rejected
            names_read.append(name)
            if sum(one.num_rows for one in tables) >= ROWS_MAX:
                break
        return self.reader.arrived(tables, rejected, tuple(names_read))

    def _file(self, name: str) -> tuple[pa.Table, list[DeadLetterRow]]:
        tables, rejected, before = [self.reader.schema.empty_table()], list[DeadLetterRow](), 0
        try:
            for table, bad, _ in open_events(self.folder / name, declared=self.reader.declared).chunks():
                ids = [f"{self.reader.site}/{name}:{before + row}" for row in range(table.num_rows)]
                events, row_rejected = self.reader.events(table, ids)
                tables.append(events)
                rejected += [*_as_rejected(bad), *row_rejected]
                before += table.num_rows
        except EventError as error:
            rejected.append((str(error), None, None, name))
        return pa.concat_tables(tables), rejected


class TopicArrivals:
    """A live source that is a Kafka topic. Each record is an event as JSON."""

    def __init__(self, broker: Broker, topic: Topic, reader: ArrivalReader) -> None:
        self.topic, self.reader = topic, reader
        self.consumer = broker.consumer({**CONSUMER, "max.poll.records": str(ROWS_MAX), "auto.offset.reset": "none"})
        self.partitions = {number: broker.partition(topic.name, number) for number in broker.numbers(topic.name)}
        broker.assign(self.consumer, self.partitions.values())
        self.broker = broker
        self._next: dict[str, int] | None = None

    def look(self, position: Any) -> ArrivedEvents:
        begin: dict[str, int] = dict(position or {})
        if begin != self._next:
            self._seek(begin)
        rejected: list[DeadLetterRow] = []
        values, ids, next_offsets = [], [], dict(begin)
        for record in self.consumer.poll(self.broker.wait(POLL_MS)).iterator():
            number, offset = record.partition(), record.offset()
            next_offsets[str(number)] = offset + 1
            if (value := record.value()) is not None:
                values.append(bytes(value).replace(b"\n", b" "))
                ids.append(f"{self.reader.site}/{number}:{offset}")
        tables = []
        if values:
            events, rejected = self._events(values, ids)
            tables = [events]
        self._next = next_offsets
        return self.reader.arrived(tables, rejected, next_offsets)

    def _seek(self, begin: Mapping[str, int]) -> None:
        first = self.broker.beginnings(self.consumer, self.partitions.values())
        for number, partition in self.partitions.items():
            wanted = begin.get(str(number))
            if wanted is not None and wanted < first[number]:
                raise TocsinError(
                    f"{self.topic}: records {wanted} to {first[number] - 1} of partition {number} were deleted "
                    "before they were read. Increase their retention; to continue without them, start over (--fresh)"
                )
            self.consumer.seek(partition, first[number] if wanted is None else wanted)

    def _events(self, values: Sequence[bytes], ids: Sequence[str]) -> tuple[pa.Table, list[DeadLetterRow]]:
        """Parse records as the lines of one block, which is fast.

        If any record is not an event, parse each record by itself, because `ids` has one id for each record.
        """
        table, bad = self._parsed(values)
        if not bad and table.num_rows == len(values):
            return self._checked(table, ids)
        tables, rejected = [], list[DeadLetterRow]()
        for value, id in zip(values, ids, strict=True):
            table, bad = self._parsed([value])
            events, row_rejected = self._checked(table, [id] * table.num_rows)
            tables.append(events)
            rejected += [(f"{id}: {one.reason}", None, None, one.text) for one in bad] + row_rejected
        return pa.concat_tables(tables), rejected

    def _checked(self, table: pa.Table, ids: Sequence[str]) -> tuple[pa.Table, list[DeadLetterRow]]:
        try:
            return self.reader.events(table, ids)
        except EventError as error:
            return self.reader.schema.empty_table(), [(str(error), None, None, text) for text in ids]

    def _parsed(self, values: Sequence[bytes]) -> tuple[pa.Table, list[BadLine]]:
        format, counts = Ndjson(), KindCounts()
        block = Block(Path(self.topic.name), 1, b"\n".join([*values, b""]), 0)
        bad = count_kinds(block, format, counts)
        if bad is not None and not counts:
            return pa.table({}), [bad]
        return parse(
            block, format, {name: self.reader.declared.get(name) or decide(one) for name, one in counts.items()}
        )


def open_arrivals(plan: SitePlan, site: str, broker: Callable[[Sequence[str]], Broker] | None) -> Arrivals | None:
    """Open the live source of `site`, or return None if the site has none. `broker` connects to Kafka servers."""
    live = plan.hosting.live.get(site)
    if live is None:
        return None
    reader = ArrivalReader(site, plan.types, plan.sites.sources[site], live.id)
    if isinstance(live.origin, Path):
        return FolderArrivals(live.origin, reader)
    assert broker is not None
    return TopicArrivals(broker(live.origin.servers), live.origin, reader)
