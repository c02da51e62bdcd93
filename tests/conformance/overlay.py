"""Rules over sites: small random networks, and the matches of their sinks compared with the reference."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from tests.conformance.hosts import rows_of
from tests.strategies import KINDS, TYPES
from tocsin.events.columns import ARROW
from tocsin.events.types import Event, Kind
from tocsin.language import parse
from tocsin.language.syntax.ast import Attribute, Comparison, Literal, Pattern, Rule
from tocsin.overlay import messages as m
from tocsin.overlay.codec import decode, encode, kind_of, restore, snapshot
from tocsin.overlay.strategies import STRATEGIES, Sites, strategy
from tocsin.reference import patterns
from tocsin.simulation.network import Watch
from tocsin.simulation.runs import deploy

ALL = {**STRATEGIES, **{f"{name} eager": replace(STRATEGIES[name], eager=True) for name in ("STpp", "MTpp")}}
WITH_AGGREGATES = {name: strategy(name) for name in ("ST+aggregates", "MT+aggregates", "MTpp+aggregates")}
BY_NAME = {**ALL, **WITH_AGGREGATES}
DECLARED = {type.name: type for type in TYPES}


def swept(seeds: range, checked: Callable[[random.Random, int], Counter[str]]) -> Counter[str]:
    """Count the messages of the cases of all seeds; report the seed of a case that fails."""
    sent: Counter[str] = Counter()
    for seed in seeds:
        try:
            sent += checked(random.Random(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return sent


def table(events: Sequence[Event]) -> pa.Table:
    """Return events as a batch; all types have the same attributes."""
    columns = {
        "type": pa.array([event.type for event in events], pa.string()),
        "ts": pa.array([event.ts for event in events], pa.int64()),
        "seq": pa.array([event.seq for event in events], pa.int64()),
        "id": pa.array([event.id for event in events], pa.string()),
    }
    for name, kind in KINDS.items():
        values = [event.attributes.get(name) for event in events]
        columns[name] = pa.array(values, ARROW[kind])
    return pa.table(columns)


def network_of(rng: random.Random, rules: Sequence[Rule]) -> Sites:
    """Generate a connected network with sources and sinks at random processors."""
    count = rng.choice([1, 2, 3, 3, 4, 5, 6])
    names = [str(number) for number in range(count)]
    links = {(names[number], names[rng.randrange(number)]) for number in range(1, count)}
    links |= {tuple(rng.sample(names, 2)) for _ in range(rng.choice([0, 0, 1, 2, 4]) if count > 1 else 0)}
    delays = {}
    for here, there in sorted(links):
        delays[here, there] = delays[there, here] = rng.choice([1, 2, 3, 5])
    sources: dict[str, set[str]] = {name: set() for name in names}
    for type in DECLARED:
        for name in rng.sample(names, min(count, rng.choice([1, 1, 1, 1, 2]))):
            sources[name].add(type)
    composite = sorted({rule.emits.name for rule in rules})
    sinks = {}
    for number in range(rng.choice([1, 1, 2, 3])):
        wanted = [Pattern(type) for type in rng.sample(composite, rng.randint(1, len(composite)))]
        if rng.random() < 0.3:
            test = Comparison(">", Attribute("n"), Literal(rng.randint(0, 2), Kind.INT))
            wanted.append(Pattern(rng.choice("ABC"), rng.choice([(), (test,)])))
        sinks[f"{rng.choice(names)}/{number}"] = tuple(wanted)
    return Sites(delays, {name: frozenset(types) for name, types in sources.items() if types}, sinks)


def check(
    rules: Sequence[Rule], given: Sequence[Event], strategy: str, seed: int, watched: Watch | None = None
) -> Counter[str]:
    """Check that every sink gets exactly the expected matches and the events that it wants, once, in order.

    `watched`: called with every message, too.
    """
    rng = random.Random(seed)
    sites = network_of(rng, rules)
    events = [replace(event, id=event.id or f"e{number}") for number, event in enumerate(given)]
    homes = {type: [name for name, types in sites.sources.items() if type in types] for type in DECLARED}
    at = {event.id: rng.choice(homes[event.type]) for event in events}
    through = (lambda message: decode(encode(message))) if rng.random() < 0.2 else (lambda message: message)
    sent: Counter[str] = Counter()
    carried: set[tuple[str, str, str, str]] = set()

    def watch(sender: str, receiver: str, message: m.Message) -> None:
        sent[kind_of(message)] += 1
        if watched is not None:
            watched(sender, receiver, message)
        for tree, id in carried_by(message):
            assert (sender, receiver, tree, id) not in carried, f"{id} twice from {sender} to {receiver} for {tree}"
            carried.add((sender, receiver, tree, id))

    network = deploy(
        sites,
        BY_NAME[strategy],
        DECLARED,
        rules,
        watch=watch,
        through=through,
        period_us=rng.choice([1, 3, 10, 100]),
    )
    latest = max((event.ts for event in events), default=0) + 2
    ends = [*sorted(rng.sample(range(latest), min(latest, rng.choice([0, 0, 1, 3, 8, 20])))), 1000]
    together = rng.random() < 0.5
    if not together:
        network.jitter_us = lambda: rng.choice([0, 0, 1, 5, 50])
    done = dict.fromkeys(sites.processors, 0)
    while any(count < len(ends) for count in done.values()):
        name = rng.choice([name for name, count in done.items() if count < len(ends)])
        for one in sites.processors if together else [name]:
            start = ends[done[one] - 1] if done[one] else -1000
            end = ends[done[one]]
            own = [event for event in events if start <= event.ts < end and at[event.id] == one]
            network.processors[one].publish(table(own), end)
            done[one] += 1
        network.run(None if together else rng.choice([0, 1, 3, 10, 40]))
        if rng.random() < 0.2:
            for one, processor in network.processors.items():
                again = restore(snapshot(processor), processor.links, BY_NAME[strategy], DECLARED, rules)
                network.processors[one] = again
    network.run()
    matches = patterns.detect(rules, events)
    for sink, wanted in sites.sinks.items():
        types = {pattern.type for pattern in wanted}
        rows = [row for name, batch, _ in _notices(network) if name == sink for row in rows_of(batch.table)]
        got = [
            (row["rule"], row["id"], row["ts"], [part["id"] for part in row["parts"]]) for row in rows if row["rule"]
        ]
        expected = [
            (match.rule, match.id, match.ts, [part.id for part in match.parts])
            for match in matches
            if match.type in types
        ]
        assert got == expected, difference(got, expected)
        values = [{name: row[name] for name in KINDS if row.get(name) is not None} for row in rows if row["rule"]]
        for value, match in zip(values, [match for match in matches if match.type in types], strict=True):
            assert value == {name: item for name, item in match.attributes.items() if item is not None}
        plain = [row["id"] for row in rows if not row["rule"]]
        facts = sorted(patterns.identified(events), key=lambda fact: fact.key)
        asked = [pattern for pattern in wanted if pattern.type in DECLARED]
        fitting = [fact.id for fact in facts if any(fits(fact, pattern) for pattern in asked)]
        assert plain == fitting, (sink, plain, fitting)
    return sent


def fits(fact: patterns.Fact, pattern: Pattern) -> bool:
    """Return whether a subscription matches an event."""
    return fact.type == pattern.type and all(patterns.holds(test, {None: fact}, {}) for test in pattern.constraints)


def carried_by(message: m.Message) -> Iterator[tuple[str, str]]:
    """Return the events in a message, by tree and id."""
    if isinstance(message, m.Answer):
        yield from ((message.tree, id) for id in message.batch["id"].to_pylist())
    if isinstance(message, m.Events):
        for id, label in zip(message.batch["id"].to_pylist(), message.labels.tolist(), strict=True):
            yield from ((tree, id) for bit, tree in enumerate(message.trees) if label >> bit & 1)


def difference(got: list[object], expected: list[object]) -> str:
    """Describe the first difference of two lists."""
    at = next(
        (row for row, both in enumerate(zip(got, expected, strict=False)) if both[0] != both[1]),
        min(len(got), len(expected)),
    )
    return f"{len(got)} for {len(expected)}, from row {at}: {got[at : at + 3]} for {expected[at : at + 3]}"


def _notices(network):  # type: ignore[no-untyped-def]
    return [notice for processor in network.processors.values() for notice in processor.notices]


def sequences(rng: random.Random) -> tuple[list[Rule], list[Event]]:
    """Generate sequences over types with different rates, so that masters are chosen, change, and awaken slaves."""
    rules = []
    for number in range(rng.choice([1, 2, 3])):
        letters = rng.sample("ABCDE", rng.choice([2, 3, 3, 4]))
        shared = rng.random() < 0.4
        text = [f"define P{number}() from {letters[0]}({'k=$k' if shared else ''})"]
        for before, letter in itertools.pairwise(letters):
            policy = rng.choice(["last", "last", "last", "each", "first", "2-last"])
            test = rng.choice(["", "n>1", "k=$k" if shared else ""])
            text.append(f"and {policy} {letter}({test}) within {rng.choice([4, 8, 15])} us from {before}")
        if rng.random() < 0.3:
            text.append(f"and not {rng.choice('ABCDE')}(n=0) between {letters[-1]} and {letters[-2]}")
        rules += parse(" ".join(text)).rules
    rates = {letter: rng.choice([1, 2, 10, 20]) for letter in "ABCDE"}
    events = [
        Event(rng.choices([*rates], [*rates.values()])[0], rng.randrange(200),
              {"k": rng.choice(["x", "y"]), "n": rng.randrange(4)}, rng.choice([0, 0, 1]))
        for _ in range(rng.choice([20, 60, 120]))
    ]  # fmt: skip
    return rules, events


def aggregates(rng: random.Random) -> tuple[list[Rule], list[Event]]:
    """Generate rules with aggregates that look back from the anchor, and others, over values whose sum depends on the
    order."""
    rules = []
    for number in range(rng.choice([1, 1, 2])):
        anchor, other, *counted = rng.sample("ABCDE", 4)
        shared = "k=$k" if rng.random() < 0.5 else ""
        text = [f"define P{number}(v: double) from {anchor}({shared})"]
        selected = rng.random() < 0.5
        if selected:
            text.append(f"and {rng.choice(['last', 'each', 'first'])} {other}() within 8 us from {anchor}")
        for at, letter in enumerate(counted[: rng.choice([1, 1, 2])]):
            function = rng.choice(["Avg", "Sum", "Min", "Max", "Count"])
            tests = ", ".join(test for test in (shared, rng.choice(["", "n>0"])) if test)
            bound = rng.choice(["-5 < ", "1 >= ", "0 < ", ""])
            origin = other if selected and rng.random() < 0.3 else anchor
            scope = f"within {rng.choice([3, 9, 20])} us from {origin}"
            text.append(f"and {bound}$t{at} = {function}({letter}({tests}).{rng.choice('vvni')} {scope})")
        rules += parse(" ".join([*text, "where v = $t0"])).rules
    values = [0.1, 0.2, 0.3, -0.1, 1e16, -1e16, 1e308, -1e308, 5e-324, None, 3.0]
    events = [
        Event(rng.choice("ABBBBCCDE"), rng.randrange(60),
              {"k": rng.choice(["x", "y", None]), "n": rng.choice([0, 1, 2, 3, None, 2**62]),
               "v": rng.choice(values), "i": rng.choice([1, 2, -3])}, rng.choice([0, 0, 1]))
        for _ in range(rng.choice([20, 60]))
    ]  # fmt: skip
    return rules, events
