"""Define the messages that processors send each other, and the rows of events in them.

Messages are frozen dataclasses; `codec` encodes and decodes them. `tree` is the name of the processing tree that a
message is about, and `at` has the time (µs) at which each row was sent. `delayed` returns a copy of the message with
the times at which it arrives at the other end of a link. Only the simulator reads these times.

Most events that reach a processor are forwarded unchanged. So a message does not copy rows of a table but refers to
them (`Rows`). A column is copied when it is read, whole rows only when they are concatenated or encoded. `Base`
computes the types, times and identities of a table once, for all messages that refer to its rows.

A *partial rule* is the part of a rule that a processor lower in the tree can decide. In push-pull deployment, one
partial rule of a rule is the *master*, whose events are sent at once. The others are *slaves*, whose events are
retained until an Awaken requests them. The *anchor* of a rule is the event from which the rule looks back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.ingest import content_ids
from tocsin.engine.strings import string_buffers
from tocsin.events.columns import one_array
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import Kind, text_words
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.tree_parts import Array, Timing, no_times
from tocsin.plans.partial_aggregates import Accumulator, PartialAggregate
from tocsin.plans.splitting import Partial


class Base:
    """A table of events with cached columns: types, times and identities of all rows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._contents: dict[tuple[tuple[str, Kind], ...], tuple[Array, Array]] = {}

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        coded = one_array(self.table["type"]).dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy()

    @cached_property
    def ts(self) -> Array:
        return np.array(self.table["ts"].to_numpy())

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """Hash the content of each row: type, time, `seq`, id and the `attributes` that the table has.

        The two arrays have the upper and the lower half of each 128-bit hash.
        """
        key = tuple(attributes.items())
        if key not in self._contents:
            names, codes = self.types
            columns = {"type": pa.array(codes.astype(np.int32)), "ts": self.ts, "seq": self.table["seq"]}
            columns[LABEL_COLUMN] = self.table["id"]
            there = {name: kind for name, kind in attributes.items() if name in self.table.column_names}
            columns |= {f"{name}:{kind}": self.table[name] for name, kind in there.items()}
            words = np.array([text_words(name) for name in names], np.uint64).reshape(-1, 2)
            self._contents[key] = content_ids(pa.table(columns), words, np.arange(self.table.num_rows), {})
        return self._contents[key]

    @cached_property
    def identities(self) -> tuple[Array, Array]:
        offsets, data, _ = string_buffers(one_array(self.table["id"]))
        first, second = np.empty(len(offsets) - 1, np.uint64), np.empty(len(offsets) - 1, np.uint64)
        kernels.string_identities(first, second, offsets, data, np.arange(len(first)))
        return first, second


class Rows:
    """Some rows of a table, given by their numbers, or all rows if `numbers` is None."""

    def __init__(self, base: Base | pa.Table, numbers: Array | None = None) -> None:
        self.base = base if isinstance(base, Base) else Base(base)
        self.numbers = numbers

    @property
    def num_rows(self) -> int:
        return self.base.table.num_rows if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Estimate the size of these rows in bytes from the average row size of the table."""
        table = self.base.table
        size: int = self.num_rows * table.nbytes // max(1, table.num_rows)
        return size

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        column = self.base.table[name]
        return column if self.numbers is None else column.take(pa.array(self.numbers))

    def of(self, column: Array) -> Array:
        """Select the values of these rows from `column`, which has a value for each row of the table."""
        return column if self.numbers is None else np.asarray(column[self.numbers])

    @cached_property
    def ts(self) -> Array:
        return self.of(self.base.ts)

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        """Return the type names of the table, and for each of these rows the index of its type."""
        names, codes = self.base.types
        return names, self.of(codes)

    @property
    def identities(self) -> tuple[Array, Array]:
        """Return the 128-bit hashes of the ids of these rows, as two arrays of 64-bit halves."""
        first, second = self.base.identities
        return self.of(first), self.of(second)

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """Return the content hashes of these rows (see `Base.contents`)."""
        first, second = self.base.contents(attributes)
        return self.of(first), self.of(second)

    def take(self, chosen: Array) -> Rows:
        """Select some of these rows, by position or by a boolean mask."""
        if self.numbers is not None:
            return Rows(self.base, self.numbers[chosen])
        return Rows(self.base, np.nonzero(chosen)[0] if chosen.dtype == bool else chosen)

    def slice(self, start: int, length: int | None = None) -> Rows:
        """Return `length` rows from position `start`, or all rows from `start` if `length` is None."""
        if self.numbers is None:
            return Rows(self.base.table.slice(start, length))
        return Rows(self.base, self.numbers[start:][:length])

    @property
    def table(self) -> pa.Table:
        """Copy these rows into a table."""
        return self.base.table if self.numbers is None else self.base.table.take(pa.array(self.numbers))


def concatenate(pieces: Sequence[Rows]) -> Rows:
    """Concatenate rows. The table is copied only if the rows come from different tables."""
    base = pieces[0].base
    if len(pieces) == 1:
        return pieces[0]
    if all(piece.base is base for piece in pieces):
        numbers = (piece.numbers for piece in pieces)
        return Rows(base, np.concatenate([np.arange(base.table.num_rows) if one is None else one for one in numbers]))
    return Rows(pa.concat_tables([piece.table for piece in pieces], promote_options="default"))


@dataclass(frozen=True)
class Elect:
    """Announce the best leader that the sender knows, which is the processor with the lowest rank.

    A rank is the negated number of links, the sum of their delays, and the name of the processor.
    """

    rank: tuple[int, int, str]


@dataclass(frozen=True)
class CreateTree:
    """Offer the receiver a path to the root of a tree.

    `distance_us` is the sum of the declared delays from the sender to the root.
    """

    tree: str
    distance_us: int


@dataclass(frozen=True)
class Ack:
    """Accept the receiver as the parent of the sender in a tree."""

    tree: str


@dataclass(frozen=True)
class Nack:
    """Inform the receiver that it is not, or no longer, the parent of the sender in a tree."""

    tree: str


@dataclass(frozen=True)
class Completed:
    """Answer a CreateTree after all messages that it caused have been answered."""

    tree: str


@dataclass(frozen=True)
class Gather:
    """Ask a child, after a tree has been built, for the types and subscriptions of its subtree."""

    tree: str


@dataclass(frozen=True)
class Retire:
    """Announce that all matches before the end of a tree have been delivered, so that the tree can be removed.

    `followed` says whether another tree of the same root, or another single tree, replaces the tree.
    """

    tree: str
    followed: bool


@dataclass(frozen=True)
class Handover:
    """Announce that the sender leaves with change `number`, and hand its duties over to its successor.

    `successor` says whether the receiver is the successor. `leads` says whether the receiver becomes the root of the
    single tree. `wanted` names the rules that were wanted in that tree. `events` are the events of the sender's sources
    that windows may still need.
    """

    number: int
    successor: bool
    leads: bool = False
    wanted: tuple[str, ...] = ()
    events: pa.Table | None = None


@dataclass(frozen=True)
class Memory:
    """Send the state of a consuming rule to the processor that decides the rule after change `number`.

    `root` is the root of the tree in which the rule was decided. `data` is a snapshot of the detector.
    """

    number: int
    root: str
    rule: str
    data: bytes


@dataclass(frozen=True)
class Advertise:
    """Report all event types that sources at the sender and in its subtree publish."""

    tree: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class Subscribe:
    """Report all subscriptions of sinks at the sender and in its subtree."""

    tree: str
    wanted: tuple[Pattern, ...]


Unsubscribe = Subscribe
"""The same message as Subscribe: each Subscribe replaces the previous one, so leaving out a pattern unsubscribes it."""


@dataclass(frozen=True)
class RequestedPartial:
    """A partial rule that a parent requests of a child.

    `pushed` says whether the child sends the selected events at once. Otherwise the child retains each event for
    `keep_us` so that the parent can pull the event.
    """

    partial: Partial
    pushed: bool = True
    keep_us: int = 0


@dataclass(frozen=True)
class DeployRule:
    """Tell a child everything that it decides for the sender; replaces the previous DeployRule.

    `rules` are decided completely by the child or below it, and `wanted` names the rules whose matches are sent up.
    `requested` are the partial rules whose events the sender needs. `remembered` names the consuming rules whose state
    follows in a Memory.
    """

    tree: str
    version: int
    rules: tuple[Rule, ...] = ()
    wanted: tuple[str, ...] = ()
    requested: tuple[RequestedPartial, ...] = ()
    remembered: tuple[str, ...] = ()
    aggregates: tuple[PartialAggregate, ...] = ()
    """The aggregates for which the receiver and its subtree retain the events of their own sources."""


@dataclass(frozen=True)
class Events:
    """Push events to the parent. Bit k of a row's label says that the event is for `trees[k]`."""

    trees: tuple[str, ...]
    batch: Rows
    labels: Array
    at: Array

    def delayed(self, delay_us: int) -> Events:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Matches:
    """Send matches up to the root, or from the root of a single tree down to the sinks."""

    tree: str
    batch: Rows
    at: Array

    def delayed(self, delay_us: int) -> Matches:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Progress:
    """Promise the parent that no more events of the tree before `ts` will follow.

    A Progress from a parent says that the parent has decided everything before `ts`, so a child can drop events that it
    retains for the parent. `version` is the version of the deployment to which the promise applies. `timing` says when
    the events were complete. `generated` counts the events that each partial rule has selected so far.
    """

    tree: str
    ts: int
    version: int = 0
    timing: Timing = field(default_factory=Timing)
    generated: tuple[tuple[Partial, int], ...] = ()

    def delayed(self, delay_us: int) -> Progress:
        return replace(self, timing=self.timing.delayed(delay_us))


@dataclass(frozen=True)
class WindowRequest:
    """Request the events with `since` < ts < `until` whose attributes have the values in `values`."""

    since: int
    until: int
    values: tuple[tuple[str, str | int | float | bool], ...] = ()


@dataclass(frozen=True)
class Awaken:
    """Request events of a slave from a child: the events that are retained, and those that will be selected later.

    Done with the same `number` confirms that the retained events have been sent.
    """

    tree: str
    partial: Partial
    number: int
    requests: tuple[WindowRequest, ...]
    ts: Array = field(default_factory=no_times)
    """For each request, the event time of the master's event that caused the request."""
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Awaken:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Answer:
    """Send the parent events of a partial rule that an Awaken requested."""

    tree: str
    partial: Partial
    batch: pa.Table
    at: Array

    def delayed(self, delay_us: int) -> Answer:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Done:
    """Confirm that all retained events that Awaken `number` requested have been sent."""

    tree: str
    partial: Partial
    number: int
    ts: Array = field(default_factory=no_times)
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Done:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class AggregateScope:
    """The events over which an aggregate is computed for one anchor.

    The events have ts > `since`, precede (`until`, `seq`), and have the attribute values in `values`.
    """

    since: int
    until: int
    seq: int
    values: tuple[tuple[str, str | int | bool | None], ...] = ()


@dataclass(frozen=True)
class AggregateQuery:
    """Request the partial results of an aggregate from the receiver's subtree, one result for each scope.

    `ts` has the event time of each scope's anchor.
    """

    tree: str
    number: int
    aggregate: PartialAggregate
    scopes: tuple[AggregateScope, ...]
    ts: Array = field(default_factory=no_times)
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> AggregateQuery:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class AggregatePartials:
    """Answer AggregateQuery `number` with one partial result for each scope."""

    tree: str
    number: int
    rows: tuple[Accumulator, ...]
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> AggregatePartials:
        return replace(self, at=self.at + delay_us)


Message = (
    Elect
    | CreateTree
    | Ack
    | Nack
    | Completed
    | Gather
    | Retire
    | Handover
    | Memory
    | Advertise
    | Subscribe
    | DeployRule
    | Events
    | Matches
    | Progress
    | Awaken
    | Answer
    | Done
    | AggregateQuery
    | AggregatePartials
)
Timed = Events | Matches | Progress | Awaken | Answer | Done | AggregateQuery | AggregatePartials
