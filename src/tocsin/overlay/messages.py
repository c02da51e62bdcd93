"""What do processors say to each other? Frozen data; `codec` writes and reads it.

`delayed` gives what arrives at the other end of a link that takes so long: only times of sending change, and only the
simulator looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from tocsin.language.rules import Pattern, Rule
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import Array, Timing, no_times
from tocsin.plans.splitting import Partial
from tocsin.plans.tallies import Share, Tally


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
