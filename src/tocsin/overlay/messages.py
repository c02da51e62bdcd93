"""What do processors say to each other? Frozen data; `codec` writes and reads it.

`delayed` gives what arrives at the other end of a link that takes so long: only times of sending change, and only the
simulator looks at them.

Which rows of which table? What is only handed on is not copied.

Most events that reach a processor go on to the next as they are, and matches are put in order and handed to sinks. So
messages name rows of a table; columns are taken out of it where somebody looks at them, and whole rows where they are
put together with others or written down. What is worked out once about a table holds for all who have rows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from tocsin import kernels
from tocsin.engine.ingest import identities
from tocsin.engine.strings import text_buffers
from tocsin.events.columns import whole
from tocsin.events.reader import LABEL_COLUMN
from tocsin.events.types import Kind, text_words
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.tree_parts import Array, Timing, no_times
from tocsin.plans.partial_aggregates import Share, Tally
from tocsin.plans.splitting import Partial


class Base:
    """A table, and what is known about all of its rows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._contents: dict[tuple[tuple[str, Kind], ...], tuple[Array, Array]] = {}

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        coded = whole(self.table["type"]).dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy()

    @cached_property
    def ts(self) -> Array:
        return np.array(self.table["ts"].to_numpy())

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """The identities of events with these attributes, of which they may lack some."""
        key = tuple(attributes.items())
        if key not in self._contents:
            names, codes = self.types
            columns = {"type": pa.array(codes.astype(np.int32)), "ts": self.ts, "seq": self.table["seq"]}
            columns[LABEL_COLUMN] = self.table["id"]
            there = {name: kind for name, kind in attributes.items() if name in self.table.column_names}
            columns |= {f"{name}:{kind}": self.table[name] for name, kind in there.items()}
            words = np.array([text_words(name) for name in names], np.uint64).reshape(-1, 2)
            self._contents[key] = identities(pa.table(columns), words, np.arange(self.table.num_rows), {})
        return self._contents[key]

    @cached_property
    def identities(self) -> tuple[Array, Array]:
        offsets, data, _ = text_buffers(whole(self.table["id"]))
        first, second = np.empty(len(offsets) - 1, np.uint64), np.empty(len(offsets) - 1, np.uint64)
        kernels.text_identities(first, second, offsets, data, np.arange(len(first)))
        return first, second


class Rows:
    """Rows of a table by number, or all of them."""

    def __init__(self, base: Base | pa.Table, numbers: Array | None = None) -> None:
        self.base = base if isinstance(base, Base) else Base(base)
        self.numbers = numbers

    @property
    def num_rows(self) -> int:
        return self.base.table.num_rows if self.numbers is None else len(self.numbers)

    @property
    def nbytes(self) -> int:
        """As many bytes as these rows have on the average of the table."""
        table = self.base.table
        size: int = self.num_rows * table.nbytes // max(1, table.num_rows)
        return size

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        column = self.base.table[name]
        return column if self.numbers is None else column.take(pa.array(self.numbers))

    def of(self, column: Array) -> Array:
        """What a column over the whole table has for these rows."""
        return column if self.numbers is None else np.asarray(column[self.numbers])

    @cached_property
    def ts(self) -> Array:
        return self.of(self.base.ts)

    @cached_property
    def types(self) -> tuple[list[str], Array]:
        """The names of types, and for each row which of them it has."""
        names, codes = self.base.types
        return names, self.of(codes)

    @property
    def identities(self) -> tuple[Array, Array]:
        """The identities of the rows' ids."""
        first, second = self.base.identities
        return self.of(first), self.of(second)

    def contents(self, attributes: Mapping[str, Kind]) -> tuple[Array, Array]:
        """The identities of the rows as events with these attributes."""
        first, second = self.base.contents(attributes)
        return self.of(first), self.of(second)

    def take(self, chosen: Array) -> Rows:
        """Some of these rows, by number or by truth."""
        if self.numbers is not None:
            return Rows(self.base, self.numbers[chosen])
        return Rows(self.base, np.nonzero(chosen)[0] if chosen.dtype == bool else chosen)

    def slice(self, start: int, length: int | None = None) -> Rows:
        """The rows from one on."""
        if self.numbers is None:
            return Rows(self.base.table.slice(start, length))
        return Rows(self.base, self.numbers[start:][:length])

    @property
    def table(self) -> pa.Table:
        """A table of these rows alone."""
        return self.base.table if self.numbers is None else self.base.table.take(pa.array(self.numbers))


def joined(pieces: Sequence[Rows]) -> Rows:
    """One behind the other; rows of one table stay rows of it."""
    base = pieces[0].base
    if len(pieces) == 1:
        return pieces[0]
    if all(piece.base is base for piece in pieces):
        numbers = (piece.numbers for piece in pieces)
        return Rows(base, np.concatenate([np.arange(base.table.num_rows) if one is None else one for one in numbers]))
    return Rows(pa.concat_tables([piece.table for piece in pieces], promote_options="default"))


@dataclass(frozen=True)
class Elect:
    """The best leader that the sender knows: the least rank, which ends with its name."""

    rank: tuple[int, int, str]


@dataclass(frozen=True)
class CreateTree:
    """There is a tree with this root, and the sender is `distance_us` of declared delay away from it."""

    tree: str
    distance_us: int


@dataclass(frozen=True)
class Ack:
    """The receiver is the sender's father."""

    tree: str


@dataclass(frozen=True)
class Nack:
    """The receiver is not, or no longer, the sender's father."""

    tree: str


@dataclass(frozen=True)
class Settled:
    """All that followed from a CreateTree of the receiver is over."""

    tree: str


@dataclass(frozen=True)
class Gather:
    """The tree stands: say what comes from you and those below you, and what they want."""

    tree: str


@dataclass(frozen=True)
class Retire:
    """The time of a tree is over: everything before its end has been delivered. `followed`: by another of this root, or
    by another single tree."""

    tree: str
    followed: bool


@dataclass(frozen=True)
class Handover:
    """From a processor that leaves with a change: whether the receiver is now the root of the single tree, in which
    these rules were wanted, and the events of its sources that may still be needed."""

    number: int
    heir: bool
    leads: bool = False
    wanted: tuple[str, ...] = ()
    events: pa.Table | None = None


@dataclass(frozen=True)
class Memory:
    """What a rule that consumes remembers, for whoever decides it from a change on in the tree of this root (of any, if
    there is but one tree)."""

    number: int
    root: str
    rule: str
    data: bytes


@dataclass(frozen=True)
class Advertise:
    """All types that come from the sender and those below it."""

    tree: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class Subscribe:
    """All that sinks at the sender and below it want."""

    tree: str
    wanted: tuple[Pattern, ...]


Unsubscribe = Subscribe
"""Subscriptions are sent as a whole: fewer of them unsubscribe from the others."""


@dataclass(frozen=True)
class Asked:
    """A partial rule, whether its events are pushed, and for how long they are kept for pulling."""

    partial: Partial
    pushed: bool = True
    keep_us: int = 0


@dataclass(frozen=True)
class DeployRule:
    """All that the sender asks of a child: whole rules, those of them whose matches it wants, and partial rules.

    `remembered`: the rules of those that consume, and for which a Memory comes.
    """

    tree: str
    version: int
    rules: tuple[Rule, ...] = ()
    wanted: tuple[str, ...] = ()
    asked: tuple[Asked, ...] = ()
    remembered: tuple[str, ...] = ()
    tallies: tuple[Tally, ...] = ()
    """The aggregates for which the receiver and those below it keep the events of their sources."""


@dataclass(frozen=True)
class Events:
    """Events that are pushed; bit k of a label says that the event is for the k-th of the trees."""

    trees: tuple[str, ...]
    batch: Rows
    labels: Array
    at: Array

    def delayed(self, delay_us: int) -> Events:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Matches:
    """Composite events on their way up, or from the root of a single tree down to the sinks."""

    tree: str
    batch: Rows
    at: Array

    def delayed(self, delay_us: int) -> Matches:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Progress:
    """No event of the tree with `ts` before this will come any more; from a father: he will ask for none.

    `version`: that of the deployment to which this applies. `generated`: how many events partial rules have found.
    """

    tree: str
    ts: int
    version: int = 0
    timing: Timing = field(default_factory=Timing)
    generated: tuple[tuple[Partial, int], ...] = ()

    def delayed(self, delay_us: int) -> Progress:
        return replace(self, timing=self.timing.delayed(delay_us))


@dataclass(frozen=True)
class Request:
    """Events with `since` < ts < `until`, of which attributes have these values."""

    since: int
    until: int
    values: tuple[tuple[str, str | int | float | bool], ...] = ()


@dataclass(frozen=True)
class Awaken:
    """Asks for events of a slave partial rule, those that are kept and those that will come."""

    tree: str
    partial: Partial
    number: int
    requests: tuple[Request, ...]
    ts: Array = field(default_factory=no_times)
    """The time of the master's event for each request."""
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Awaken:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Answer:
    """Events that were asked for."""

    tree: str
    partial: Partial
    batch: pa.Table
    at: Array

    def delayed(self, delay_us: int) -> Answer:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Done:
    """All that was kept for an Awaken has been sent."""

    tree: str
    partial: Partial
    number: int
    ts: Array = field(default_factory=no_times)
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Done:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Question:
    """Events after `since` that come before (`until`, `seq`), of which attributes have these values."""

    since: int
    until: int
    seq: int
    values: tuple[tuple[str, str | int | bool | None], ...] = ()


@dataclass(frozen=True)
class Survey:
    """Asks for the shares that the receiver's sources and those below it have of an aggregate, one for each question.

    `ts`: the time of the anchor of each question.
    """

    tree: str
    number: int
    tally: Tally
    questions: tuple[Question, ...]
    ts: Array = field(default_factory=no_times)
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Survey:
        return replace(self, at=self.at + delay_us)


@dataclass(frozen=True)
class Shares:
    """The answer to a Survey."""

    tree: str
    number: int
    rows: tuple[Share, ...]
    at: Array = field(default_factory=no_times)

    def delayed(self, delay_us: int) -> Shares:
        return replace(self, at=self.at + delay_us)


Message = (
    Elect
    | CreateTree
    | Ack
    | Nack
    | Settled
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
    | Survey
    | Shares
)
Timed = Events | Matches | Progress | Awaken | Answer | Done | Survey | Shares
