"""The only imports of internal modules that the guards need. A refactoring changes this file and nothing else here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import typer

from tests.conformance import moving_slots, slots
from tests.conformance.changing import check_changes
from tests.conformance.hosts import expected, rows_of
from tests.conformance.overlay import BY_NAME, DECLARED, WITH_AGGREGATES, aggregates, check, sequences, table
from tests.conformance.overlay import network_of as sites_for
from tests.conformance.slots import Store as Slots
from tests.simulation.schedules import draw, play_case
from tocsin import cli
from tocsin.events.formats import read_events, write_event
from tocsin.events.reader import Columns
from tocsin.events.types import Event, Kind
from tocsin.language import parse, print_program
from tocsin.language.syntax.ast import Program
from tocsin.overlay import messages
from tocsin.overlay.codec import encode, restore, snapshot
from tocsin.plans.typing import Catalog
from tocsin.reference import patterns
from tocsin.reference.ranges import coverings
from tocsin.simulation.network import Network
from tocsin.simulation.runs import deploy
from tocsin.spark.job import send
from tocsin.spark.moving_job import MovingJob

__all__ = [
    "BY_NAME",
    "WITH_AGGREGATES",
    "Event",
    "SlotStream",
    "Slots",
    "aggregates",
    "as_table",
    "check",
    "check_changes",
    "commands",
    "new_network",
    "notices_of",
    "parse",
    "print_program",
    "published",
    "read_events",
    "reference_rows",
    "restored_network",
    "rows_of",
    "run_replicas",
    "sample_messages",
    "sequences",
    "sites_for",
    "states_of",
    "wire_form",
    "with_rules",
    "write_event",
]

Row = dict[str, Any]
Watch = Callable[[str, str, Any], None]


# ---- answers


def reference_rows(text: str, language: str, events: Sequence[Event], history_us: int | None) -> list[Row]:
    """Return the reference's rows for a text of rules."""
    program = parse(text, language)
    if not program.interests:
        return expected(patterns.detect(program.rules, events), program.rules)
    rows = []
    for interest in program.interests:
        for covering in coverings(interest, events, history_us):
            number = covering.range.number
            rows.append(
                {"query": interest.name, "range": number, "rule": None, "type": "Marker", "ts": covering.range.start,
                 "id": None, "error": covering.error, "parts": None}
            )  # fmt: skip
            for one in covering.delivered:
                match = one.match
                parts = [{"role": p.role, "type": p.type, "ts": p.ts, "id": p.id} for p in match.parts]
                rows.append(
                    {"query": interest.name, "range": number, "rule": match.rule, "type": match.type, "ts": match.ts,
                     "id": one.id, **match.attributes, "parts": parts}
                )  # fmt: skip
    return rows


# ---- slots of Spark's streams, without Spark


class SlotStream:
    """The slots of a stream, which run micro-batches; their stored state can be read and replaced as bytes."""

    def __init__(self, text: str, language: str, events: Sequence[Event], options: Mapping[str, int]) -> None:
        """`options`: the delay and the history in microseconds, and the seed of random choices."""
        self._events = events
        self._rng = random.Random(options["seed"])
        program = parse(text, language)
        self._types = {type.name: type for type in program.types}
        self._moving = bool(program.interests)
        if self._moving:
            kinds = dict.fromkeys(("x", "y", "lon", "lat"), Kind.DOUBLE)
            shape = Catalog().learned(kinds, {}, frozenset(), complete=True)
            id = "id" if any(event.id is not None for event in events) else None
            job = MovingJob(
                program.interests, shape, Columns(id=id, ts_unit="us"), 3, False, None,
                options["delay_us"], options["history_us"],
            )  # fmt: skip
            self._sent: Any = send(job)
        else:
            self._sent = slots.sent_of(program.rules, self._types, list(events), self._rng, options["delay_us"])
        self.stores = {label: slots.Store() for label in self._sent.job.labels}

    def take(self, batch: list[Event]) -> list[Row]:
        """Run a micro-batch and return its matches."""
        if self._moving:
            return moving_slots.turn(self._sent, self.stores, moving_slots.packed(batch, self._sent, self._rng))
        blocks = slots.packed(batch, self._types, self._sent, self._rng, ticks=True)
        return slots.turn(self._sent, self.stores, blocks)

    def finish(self) -> list[Row]:
        """Advance time past the last event and return the matches."""
        if not self._moving:
            return slots.ended(self._sent, self.stores, list(self._events))
        end = json.dumps({"advance": max(event.ts for event in self._events) + 1}).encode()
        blocks = [moving_slots.ShuffleBlock(label, moving_slots.CONTROL, None, None, end) for label in self.stores]
        return moving_slots.turn(self._sent, self.stores, blocks)


# ---- processors of sites


def with_rules(rules: Iterable[Any], types: Iterable[Any] = (), interests: Iterable[Any] = ()) -> Any:
    """Build a program of rules."""
    return Program(tuple(types), tuple(rules), tuple(interests))


def new_network(sites: Any, strategy: str, text: str, watch: Watch | None = None) -> Network:
    """Build processors with deployed rules, and the links between them."""
    rules = parse(text).rules
    watch = watch or (lambda sender, receiver, message: None)
    return deploy(sites, BY_NAME[strategy], DECLARED, rules, period_us=10, watch=watch)


def states_of(network: Network) -> dict[str, bytes]:
    """Return the state of each processor; no message may be in flight."""
    return {name: snapshot(processor) for name, processor in network.processors.items()}


def restored_network(
    states: Mapping[str, bytes], delays_us: Mapping[tuple[str, str], int], strategy: str, text: str
) -> Network:
    """Build a network whose processors are restored from states."""
    rules, processors = parse(text).rules, {}
    for name, data in states.items():
        links = {there: delay for (here, there), delay in delays_us.items() if here == name}
        processors[name] = restore(data, links, BY_NAME[strategy], DECLARED, rules)
    return Network(processors, delays_us)


def published(network: Network, events: Mapping[str, Sequence[Event]], upto: int) -> None:
    """Publish the events of each processor up to a time, and deliver all messages."""
    for name in sorted(network.processors):
        network.processors[name].publish(table(events.get(name, ())), upto)
    network.run()


def notices_of(network: Network) -> list[tuple[str, list[Row]]]:
    """Return the notices of sinks so far, in order."""
    return [
        (sink, rows_of(batch.table)) for _, one in sorted(network.processors.items()) for sink, batch, _ in one.notices
    ]


# ---- messages


def wire_form(message: Any) -> bytes:
    """Encode a message for a link."""
    return encode(message)


def sample_messages() -> list[Any]:
    """Return two messages of the kind CreateTree."""
    return [messages.CreateTree("3", 5000), messages.CreateTree("3", 5001)]


def run_replicas(seed: int, watch: Watch) -> list[Any]:
    """Run replicas under generated faults and return the violations of their properties."""
    _, wrong = play_case(draw(seed), None, seed, shared=seed % 10 != 0, watch=watch)
    return wrong


# ---- the command line


def commands() -> Iterable[tuple[str, list[str]]]:
    """Yield the commands of `tocsin` with the flags of their options, and their arguments."""
    yield from _commands("tocsin", typer.main.get_command(cli.app))


def _commands(name: str, command: Any) -> Iterable[tuple[str, list[str]]]:
    flags = []
    for one in command.params:
        optional = one.param_type_name == "option"
        flags.append(", ".join([*one.opts, *one.secondary_opts]) if optional else f"<{one.name}>")
    yield name, sorted(flags)
    for child, found in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(f"{name} {child}", found)


def as_table(data: bytes) -> pa.Table | None:
    """Decode the Arrow table in some bytes; None if there is none."""
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowInvalid, OSError):
        return None
