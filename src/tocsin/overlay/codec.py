"""Encode messages and the states of processors as bytes, and decode them.

An encoded value has the number of its parts, their lengths, and the parts: a JSON document, then Arrow streams and raw
bytes to which the JSON refers by number. Tables and arrays are Arrow streams; rules and patterns are written as their
source text. Decoding never executes data, and an unknown kind of message is an error.

A snapshot of a processor contains events, tables and numbers, but no rules of the host. When a host restores a
snapshot, it passes links, strategy, declared types and rules again; deployments, routes and detectors are computed from
them.
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
from tocsin.overlay.partial_aggregates import AggregateState, PendingQuery
from tocsin.overlay.processor import Processor
from tocsin.overlay.pull import AwakeningState, MeasuredRates
from tocsin.overlay.routes import RetainedEvents, SentEvents, Uplink
from tocsin.overlay.strategies import Strategy
from tocsin.overlay.tree_building import TreeConstruction
from tocsin.overlay.tree_changes import TopologyChange
from tocsin.overlay.tree_node import TreeNode
from tocsin.overlay.tree_parts import Timing
from tocsin.plans.partial_aggregates import PartialAggregate
from tocsin.plans.splitting import Partial, Use

_KINDS: dict[Any, str] = {kind: kind.__name__ for kind in (*get_args(messages.Message), Timing, Uplink, Mastery)} | {
    Partial: "Partial",
    Use: "Use",
    messages.RequestedPartial: "Asked",
    messages.WindowRequest: "Request",
    messages.Completed: "Settled",
    messages.AggregateQuery: "Survey",
    messages.AggregatePartials: "Shares",
    messages.AggregateScope: "Question",
    RetainedEvents: "Kept",
    SentEvents: "Sent",
    MeasuredRates: "Rates",
    AwakeningState: "Asking",
    PendingQuery: "Pending",
    AggregateState: "Tallying",
    PartialAggregate: "Tally",
    TreeConstruction: "Building",
    TopologyChange: "Change",
}
"""The kind that is written for each class. A kind keeps its spelling when its class is renamed."""
_CLASSES: dict[str, Any] = {name: kind for kind, name in _KINDS.items()}
_FIELDS: dict[str, dict[str, str]] = {
    "Handover": {"successor": "heir"},
    "DeployRule": {"requested": "asked", "aggregates": "tallies"},
    "Survey": {"aggregate": "tally", "scopes": "questions"},
    "Uplink": {"requested": "asked", "retained": "kept", "parent_upto": "needless", "generated": "found"},
    "Rates": {"baseline": "marks"},
    "Pending": {"query": "survey"},
    "Tallying": {"requested": "asked", "retained": "kept"},
    "Delivered": {"restarted": "anew"},
}
"""For each kind, the fields whose written name differs from the name of the attribute."""


def register(*kinds: type, **named: type) -> None:
    """Register further dataclasses for encoding.

    The written kind of a class in `kinds` is its name, and that of a class in `named` is its keyword.
    """
    _KINDS.update({kind: kind.__name__ for kind in kinds} | {kind: name for name, kind in named.items()})
    _CLASSES.update({name: kind for kind, name in _KINDS.items()})


def kind_of(value: Any) -> str:
    """Return the kind under which a message is encoded and counted.

    >>> kind_of(messages.Completed("3"))
    'Settled'
    """
    return _KINDS.get(type(value), type(value).__name__)


def encode(value: Any) -> bytes:
    """Encode a message, or a value of a snapshot."""
    streams: list[bytes] = []
    head = json.dumps(pack(value, streams), separators=(",", ":")).encode()
    lengths = [len(head), *map(len, streams)]
    numbers = np.array([len(lengths), *lengths], "<i8").tobytes()
    return numbers + head + b"".join(streams)


def decode(data: bytes) -> Any:
    """Decode the bytes that `encode` returned.

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
    """Convert a value to JSON; append its tables, arrays and bytes to `streams`."""
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
        case _ if is_dataclass(value) and type(value) in _KINDS:
            kind = _KINDS[type(value)]
            written = _FIELDS.get(kind, {})
            named = {
                written.get(field.name, field.name): pack(getattr(value, field.name), streams)
                for field in fields(value)
            }
            return {"is": kind, **named}
    raise StateError(f"{type(value).__name__} cannot be encoded")


def unpack(value: Any, streams: list[bytes]) -> Any:
    """Convert the JSON that `pack` returned back to the value."""
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
        raise StateError(f"unknown kind of message: {kind}")
    names = {old: new for new, old in _FIELDS.get(kind, {}).items()}
    return _CLASSES[kind](**{names.get(name) or name: unpack(item, streams) for name, item in value.items()})


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
_RECREATED = {"tree", "strategy", "types", "send", "push", "deliver", "ended", "deployed", "evaluators", "plain"}
"""The attributes of a tree node that are not written but computed again."""
_NODE_NAMES = {
    "parent": "father",
    "requested": "asked",
    "awakening": "asking",
    "aggregate_state": "tallying",
    "construction": "building",
    "owes_progress": "owing",
    "finished": "over",
}
_PROCESSOR_NAMES = {
    "outbox": "outbox",
    "notices": "notices",
    "leader": "leader",
    "refused": "refused",
    "changes": "changes",
    "pending": "pending",
    "early_messages": "held",
    "handed_over": "handed",
    "unbuilt": "unbuilt",
    "successor": "heir",
    "leads": "leads",
    "wanted": "wanted",
    "retained": "recent",
    "published": "published",
    "memories": "memories",
    "served": "served",
    "early_matches": "later",
}
"""The attributes of a processor that are written, with the names under which they are written."""


def snapshot(processor: Processor) -> bytes:
    """Return the state of a processor as bytes."""
    nodes = {}
    for tree, node in processor.tree_nodes.items():
        names = [field.name for field in fields(TreeNode) if field.name not in _RECREATED]
        state = {_NODE_NAMES.get(name, name): getattr(node, name) for name in names}
        nodes[tree] = {"state": state, "engine": [evaluator.snapshot() for evaluator in node.evaluators]}
    own = {written: getattr(processor, name) for name, written in _PROCESSOR_NAMES.items()}
    return encode({"version": VERSION, "name": processor.name, "own": own, "memberships": nodes})


def restore(
    data: bytes,
    links: Mapping[str, int],
    strategy: Strategy,
    types: Mapping[str, EventType],
    rules: Sequence[Rule],
) -> Processor:
    """Return a processor that continues from the state in `data`, which `snapshot` returned."""
    state: dict[str, Any] = decode(data)
    if state["version"] != VERSION:
        raise StateError(f"a processor state of version {state['version']} cannot be read, only version {VERSION}")
    processor = Processor(state["name"], links, strategy, types, rules)
    names = {written: name for name, written in _PROCESSOR_NAMES.items()}
    for written, value in state["own"].items():
        setattr(processor, names[written], value)
    names = {written: name for name, written in _NODE_NAMES.items()}
    for tree, stored in state["memberships"].items():
        processor.add(tree)
        node = processor.tree_nodes[tree]
        for written, value in stored["state"].items():
            setattr(node, names.get(written, written), value)
        requested = [request.partial for request in node.requested]
        node.deployed = deployment(strategy, node.rules, node.wanted, requested, node.taps, node.advertised, types)
        node.load()
        for evaluator, engine in zip(node.evaluators, stored["engine"], strict=True):
            evaluator.restore(engine)
        processor.period_us = node.rates.period_us
    return processor
