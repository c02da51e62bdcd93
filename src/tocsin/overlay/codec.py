"""How is a message, or a processor's state, written down? JSON for what is small, tables and columns as Arrow behind.

Rules and patterns are written as their text. The form is (length of the JSON, JSON, Arrow streams one after another);
no field is evaluated, and an unknown kind of message is an error.

A processor's state as bytes: all that it remembers is events, tables and numbers.

Rules, declared types, links and the strategy are given again by the host; what follows from the state (deployments,
routes, the engine's tables) is worked out anew. Between two messages nothing else exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from tocsin.errors import StateError
from tocsin.events.types import EventType
from tocsin.language import parse, parse_pattern, print_pattern, print_rule
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import messages
from tocsin.overlay.deployment import Mastery, deployment
from tocsin.overlay.messages import Rows
from tocsin.overlay.partial_aggregates import Pending, Tallying
from tocsin.overlay.processor import Processor
from tocsin.overlay.pull import Asking, Rates
from tocsin.overlay.routes import Kept, Sent, Uplink
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import Building
from tocsin.overlay.tree_changes import Change
from tocsin.overlay.tree_node import Membership
from tocsin.overlay.tree_parts import Timing
from tocsin.plans.partial_aggregates import Tally
from tocsin.plans.splitting import Partial, Use

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *get_args(messages.Message),
        messages.Asked,
        messages.Request,
        Timing,
        Partial,
        Kept,
        Rates,
        Asking,
        Pending,
        Tallying,
        Tally,
        messages.Question,
        Building,
        Change,
        Uplink,
        Sent,
        Mastery,
        Use,
    )
}


def known(*kinds: type) -> None:
    """Makes further dataclasses known."""
    _CLASSES.update((kind.__name__, kind) for kind in kinds)


def encode(value: Any) -> bytes:
    """A message, or what a snapshot is made of, as bytes."""
    streams: list[bytes] = []
    head = json.dumps(pack(value, streams), separators=(",", ":")).encode()
    lengths = [len(head), *map(len, streams)]
    numbers = np.array([len(lengths), *lengths], "<i8").tobytes()
    return numbers + head + b"".join(streams)


def decode(data: bytes) -> Any:
    """The message that bytes hold.

    >>> decode(encode(messages.CreateTree("3", 5000)))
    CreateTree(tree='3', distance_us=5000)
    """
    count = int(np.frombuffer(data[:8], "<i8")[0])
    lengths = np.frombuffer(data[8 : 8 + 8 * count], "<i8").tolist()
    at = 8 + 8 * count
    pieces = []
    for length in lengths:
        pieces.append(data[at : at + length])
        at += length
    return unpack(json.loads(pieces[0]), pieces[1:])


def pack(value: Any, streams: list[bytes]) -> Any:
    """A value as JSON, with what is large in streams."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Rule():
            return {"rule": print_rule(value)}
        case Pattern():
            return {"pattern": print_pattern(value)}
        case pa.Table():
            return {"table": _stream(value, streams)}
        case Rows():
            return {"rows": _stream(value.table, streams)}
        case np.ndarray():
            return {"array": _stream(pa.table({"": pa.array(value)}), streams)}
        case tuple():
            return [pack(item, streams) for item in value]
        case list():
            return {"list": [pack(item, streams) for item in value]}
        case set() | frozenset():
            return {type(value).__name__: [pack(item, streams) for item in sorted(value)]}
        case dict():
            return {"dict": [[pack(name, streams), pack(item, streams)] for name, item in value.items()]}
        case bytes():
            streams.append(value)
            return {"bytes": len(streams) - 1}
        case _ if is_dataclass(value) and type(value).__name__ in _CLASSES:
            named = {field.name: pack(getattr(value, field.name), streams) for field in fields(value)}
            return {"is": type(value).__name__, **named}
    raise StateError(f"a {type(value).__name__} cannot be written")


def unpack(value: Any, streams: list[bytes]) -> Any:
    """The value that `pack` wrote."""
    if isinstance(value, list):
        return tuple(unpack(item, streams) for item in value)
    if not isinstance(value, dict):
        return value
    readers: dict[str, Callable[[Any], Any]] = {
        "rule": lambda text: parse(text).rules[0],
        "pattern": parse_pattern,
        "table": lambda number: _read(streams[number]),
        "rows": lambda number: Rows(_read(streams[number])),
        "array": lambda number: _read(streams[number])[""].to_numpy(),
        "bytes": lambda number: streams[number],
        "list": lambda items: list(unpack(items, streams)),
        "set": lambda items: set(unpack(items, streams)),
        "frozenset": lambda items: frozenset(unpack(items, streams)),
        "dict": lambda pairs: {unpack(name, streams): unpack(item, streams) for name, item in pairs},
    }
    if "is" not in value:
        ((kind, content),) = value.items()
        return readers[kind](content)
    kind = value.pop("is")
    if kind not in _CLASSES:
        raise StateError(f"there is no message called {kind}")
    return _CLASSES[kind](**{name: unpack(item, streams) for name, item in value.items()})


def _stream(table: pa.Table, streams: list[bytes]) -> int:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    streams.append(sink.getvalue().to_pybytes())
    return len(streams) - 1


def _read(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


VERSION = 3
_GIVEN = {"tree", "strategy", "types", "send", "push", "deliver", "ended", "deployed", "evaluators", "plain"}
_KEPT = (
    *("outbox", "notices", "leader", "refused", "changes", "pending", "held", "handed", "unbuilt", "heir", "leads"),
    *("wanted", "recent", "published", "memories", "served", "later"),
)


def snapshot(processor: Processor) -> bytes:
    """All that a processor remembers."""
    memberships = {}
    for tree, membership in processor.memberships.items():
        state = {field.name: getattr(membership, field.name) for field in fields(Membership)}
        state = {name: value for name, value in state.items() if name not in _GIVEN}
        memberships[tree] = {"state": state, "engine": [one.snapshot() for one in membership.evaluators]}
    own = {name: getattr(processor, name) for name in _KEPT}
    return encode({"version": VERSION, "name": processor.name, "own": own, "memberships": memberships})


def restore(
    data: bytes,
    links: Mapping[str, int],
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
) -> Processor:
    """A processor that goes on where the snapshot was taken."""
    state: dict[str, Any] = decode(data)
    if state["version"] != VERSION:
        raise StateError(f"a processor's state of version {state['version']} cannot be read, only {VERSION}")
    processor = Processor(state["name"], links, strategy, types, rules)
    for name, value in state["own"].items():
        setattr(processor, name, value)
    for tree, stored in state["memberships"].items():
        processor.add(tree)
        membership = processor.memberships[tree]
        for name, value in stored["state"].items():
            setattr(membership, name, value)
        asked = [request.partial for request in membership.asked]
        membership.deployed = deployment(
            strategy, membership.rules, membership.wanted, asked, membership.taps, membership.advertised, types
        )
        membership.load()
        for evaluator, engine in zip(membership.evaluators, stored["engine"], strict=True):
            evaluator.restore(engine)
        processor.period_us = membership.rates.period_us
    return processor
