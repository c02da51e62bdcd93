"""Sites that change at random while events flow, and the expected matches of every sink."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import networkx as nx

from tests.conformance.hosts import rows_of
from tests.conformance.overlay import BY_NAME, DECLARED, carried_by, difference, fits, network_of, table
from tocsin.events.types import Event
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay import messages as m
from tocsin.overlay.codec import decode, encode, restore, snapshot
from tocsin.overlay.deployment import closure
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import Sites, processor_of
from tocsin.plans.splitting import FOREVER_US
from tocsin.reference import patterns
from tocsin.simulation.network import Watch
from tocsin.simulation.runs import deploy, topology_changes

LATEST = 1000
KINDS_OF_CHANGE = ("join", "leave", "delay", "link", "source", "sink")


def changed(rng: random.Random, sites: Sites, rules: Sequence[Rule], kind: str) -> Sites:
    """Return the sites after a change of a kind, or the same sites where it is impossible."""
    delays, sources, sinks = dict(sites.delays_us), dict(sites.sources), dict(sites.sinks)
    names = sites.processors
    composite = sorted({rule.emits.name for rule in rules})

    def linked(here: str, there: str) -> None:
        delays[here, there] = delays[there, here] = rng.choice([1, 2, 3, 5, 9])

    if kind == "join":
        new = str(max(int(name) for name in names) + 1)
        for there in rng.sample(names, min(len(names), rng.choice([1, 2]))):
            linked(new, there)
        if rng.random() < 0.7:
            sources[new] = frozenset(rng.sample(sorted(DECLARED), 2))
        if rng.random() < 0.5:
            sinks[f"{new}/0"] = (Pattern(rng.choice(composite)),)
    elif kind == "leave" and len(names) > 1:
        gone = rng.choice(names)
        delays = {link: delay for link, delay in delays.items() if gone not in link}
        sources.pop(gone, None)
        sinks = {sink: wanted for sink, wanted in sinks.items() if processor_of(sink) != gone}
        if len(names) > 2 and not _connected(delays, [name for name in names if name != gone]):
            return sites
        if len(names) == 2:
            (stays,) = set(names) - {gone}
            sources.setdefault(stays, frozenset())
    elif kind == "delay" and delays:
        linked(*rng.choice(sorted(delays)))
    elif kind == "link" and len(names) > 1:
        here, there = rng.sample(names, 2)
        if (here, there) not in delays:
            linked(here, there)
        else:
            del delays[here, there], delays[there, here]
            if not _connected(delays, names):
                return sites
    elif kind == "source":
        name = rng.choice(names)
        if sources.get(name) and rng.random() < 0.5:
            sources[name] = sources[name] - {rng.choice(sorted(sources[name]))}
        else:
            sources[name] = sources.get(name, frozenset()) | {rng.choice(sorted(DECLARED))}
    elif kind == "sink":
        if sinks and rng.random() < 0.5:
            del sinks[rng.choice(sorted(sinks))]
        else:
            wanted = [Pattern(type) for type in rng.sample(composite, rng.randint(1, len(composite)))]
            sinks[f"{rng.choice(names)}/n{rng.randrange(99)}"] = tuple(wanted)
    return Sites(delays, sources, sinks)


def _connected(delays: dict[tuple[str, str], int], names: Sequence[str]) -> bool:
    graph = nx.Graph(list(delays))
    graph.add_nodes_from(names)
    return bool(nx.is_connected(graph))


def check_changes(
    rules: Sequence[Rule], given: Sequence[Event], strategy: str, seed: int, watched: Watch | None = None
) -> Counter[str]:
    """Check that every sink gets exactly the matches of its time, once, in order, for any changes.

    `watched`: called with every message, too.
    """
    rng = random.Random(f"changes {seed}")
    sent: Counter[str] = Counter()
    states = [(-LATEST, network_of(rng, rules))]
    latest = max((event.ts for event in given), default=0) + 2
    for at in sorted(rng.randrange(latest) for _ in range(rng.choice([1, 1, 2, 3]))):
        kind = rng.choice(KINDS_OF_CHANGE)
        after = changed(rng, states[-1][1], rules, kind)
        if after != states[-1][1]:
            states.append((at, after))
            sent[kind] += 1
    ends = [*(at for at, _ in states[1:]), LATEST]
    lives = [(at, end, sites) for (at, sites), end in zip(states, ends, strict=True)]
    homes = {}
    events = []
    for number, event in enumerate(given):
        event = replace(event, id=event.id or f"e{number}")
        sites = next(sites for at, end, sites in reversed(lives) if at <= event.ts < end)
        here = sorted(name for name, types in sites.sources.items() if event.type in types)
        if here:
            homes[event.id] = rng.choice(here)
            events.append(event)
    carried: set[tuple[str, str, str, str]] = set()

    def watch(sender: str, receiver: str, message: m.Message) -> None:
        sent[type(message).__name__] += 1
        if watched is not None:
            watched(sender, receiver, message)
        for tree, id in carried_by(message):
            assert (sender, receiver, tree, id) not in carried, f"{id} twice from {sender} to {receiver} for {tree}"
            carried.add((sender, receiver, tree, id))

    through = (lambda message: decode(encode(message))) if rng.random() < 0.2 else (lambda message: message)
    first = states[0][1]
    period_us = rng.choice([1, 3, 10, 100])
    network = deploy(first, BY_NAME[strategy], DECLARED, rules, watch=watch, through=through, period_us=period_us)
    network.jitter_us = lambda: rng.choice([0, 0, 1, 5, 50])
    network.delays_us = {link: delay for _, sites in states for link, delay in sites.delays_us.items()}
    changes = [
        topology_changes(number, at, before, sites, BY_NAME[strategy])
        for number, ((_, before), (at, sites)) in enumerate(pairwise(states), 1)
    ]
    steps: dict[str, list[tuple[str, int]]] = {}
    cuts = sorted(rng.sample(range(latest), min(latest, rng.choice([0, 1, 3, 8]))))
    for name in sorted({name for _, sites in states for name in sites.processors}):
        present = [number for number, (_, sites) in enumerate(states) if name in sites.processors]
        begin, end = present[0], present[-1]
        if begin:
            network.processors[name] = Processor(
                name, {}, BY_NAME[strategy], DECLARED, rules, period_us=period_us, joins=begin
            )
        steps[name] = []
        for number in range(begin, end + 1):
            since, until, _ = lives[number]
            if number:
                steps[name].append(("change", number))
            steps[name] += [("publish", cut) for cut in cuts if since < cut < until] + [("publish", until)]
        if end + 1 < len(states):
            steps[name].append(("change", end + 1))
    done = dict.fromkeys(steps, -LATEST)
    while any(steps.values()):
        name = rng.choice([name for name, left in steps.items() if left])
        what, number = steps[name].pop(0)
        processor = network.processors[name]
        if what == "change":
            done[name] = max(done[name], states[number][0])
            processor.change(changes[number - 1][name])
        else:
            own = [event for event in events if done[name] <= event.ts < number and homes[event.id] == name]
            processor.publish(table(own), number)
            done[name] = number
        network.run(rng.choice([0, 1, 3, 10, 40]))
        if rng.random() < 0.1:
            for one, old in network.processors.items():
                network.processors[one] = restore(snapshot(old), old.links, BY_NAME[strategy], DECLARED, rules)
    network.run()
    for name, processor in network.processors.items():
        left = [*processor.early_messages, *processor.early_matches, *processor.memories, *processor.pending]
        assert left == [], name
        assert all(one.ready and one.end == FOREVER_US for one in processor.tree_nodes.values()), name
    _compare(rules, events, strategy, lives, network)
    return sent


def _compare(rules, events, strategy, lives, network):  # type: ignore[no-untyped-def]
    facts = sorted(patterns.identified(events), key=lambda fact: fact.key)
    matches = patterns.detect(rules, events)
    for sink in sorted({sink for _, _, sites in lives for sink in sites.sinks}):
        expected: list[object] = []
        plain: list[object] = []
        for number, (at, end, sites) in enumerate(lives):
            wanted = sites.sinks.get(sink, ())
            types = {pattern.type for pattern in wanted}
            found = []
            for rule in rules:
                if rule.emits.name not in types:
                    continue
                known = matches
                if any(one.consuming for one in closure(rule, rules)):
                    since = _wanted_since(rule, number, lives, sink, single=BY_NAME[strategy].single)
                    known = patterns.detect(closure(rule, rules), [event for event in events if event.ts >= since])
                found += [match for match in known if match.rule == rule.name and at <= match.ts < end]
            order = {match.id: place for place, match in enumerate(matches)}
            if len({rule.name for rule in rules if any(one.consuming for one in closure(rule, rules))}) == 0:
                found.sort(key=lambda match: order[match.id])
            expected += [(match.rule, match.id, match.ts, [part.id for part in match.parts]) for match in found]
            asked = [pattern for pattern in wanted if pattern.type in DECLARED]
            plain += [
                fact.id for fact in facts if at <= fact.ts < end and any(fits(fact, pattern) for pattern in asked)
            ]
        rows = [
            row
            for processor in network.processors.values()
            for name, batch, _ in processor.notices
            if name == sink
            for row in rows_of(batch.table)
        ]
        got = [
            (row["rule"], row["id"], row["ts"], [part["id"] for part in row["parts"]]) for row in rows if row["rule"]
        ]
        times = [row["ts"] for row in rows]
        assert times == sorted(times), (sink, times)
        if any(rule.consuming for rule in rules):
            got, expected = sorted(got), sorted(expected)
        assert got == expected, f"{sink}: {difference(got, expected)}"
        assert [row["id"] for row in rows if not row["rule"]] == plain, (sink, plain)


def _wanted_since(rule, number, lives, sink, *, single):  # type: ignore[no-untyped-def]
    """Return the time since which a rule has been wanted without interruption, in the tree that serves the sink."""
    while number:
        before = lives[number - 1][2]
        there = [other for other in before.sinks if single or processor_of(other) == processor_of(sink)]
        if not any(pattern.type == rule.emits.name for other in there for pattern in before.sinks[other]):
            break
        number -= 1
    return lives[number][0]
