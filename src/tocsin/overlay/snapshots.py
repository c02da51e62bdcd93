"""A processor's state as bytes: all that it remembers is events, tables and numbers.

Rules, declared types, links and the strategy are given again by the host; what follows from the state (deployments,
routes, the engine's tables) is worked out anew. Between two messages nothing else exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tocsin.errors import StateError
from tocsin.events.types import EventType
from tocsin.language.rules import Rule
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.deployment import deployment
from tocsin.overlay.membership import Membership
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Strategy

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
