"""Trace the messages of simulated runs, with their senders and receivers, as one line for each run.

A line holds a digest over (sender, receiver, kind, digest of the payload) of all messages in their order, and how many
there were of each kind. Kinds are the names on the wire. Tables count by their values, not by Arrow's bytes, which may
differ between versions of Arrow; other bytes (states of engines) are not counted, since they have a guard of their own.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.guards.internals import (
    BY_NAME,
    WITH_AGGREGATES,
    aggregates,
    as_table,
    check,
    check_changes,
    run_replicas,
    sequences,
    wire_form,
)

PATH = Path(__file__).parent / "messages.txt"
RUNS = 50
"""Number of runs of each sort."""
MESSAGES_MIN = 60


class Trace:
    """The messages of a run."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.kinds: Counter[str] = Counter()

    def watch(self, sender: str, receiver: str, message: Any) -> None:
        kind, payload = kind_and_digest(message)
        self.kinds[kind] += 1
        self._digest.update(f"{sender}\t{receiver}\t{kind}\t{payload}\n".encode())

    def __str__(self) -> str:
        counts = " ".join(f"{kind}={sent}" for kind, sent in sorted(self.kinds.items()))
        return f"{self._digest.hexdigest()[:32]} {counts}"


def kind_and_digest(message: Any) -> tuple[str, str]:
    """Return the name of a message on the wire, and a digest of its content."""
    data = wire_form(message)
    number = int(np.frombuffer(data[:8], "<i8")[0])
    lengths = np.frombuffer(data[8 : 8 + 8 * number], "<i8").tolist()
    at = 8 + 8 * number
    blocks = []
    for length in lengths:
        blocks.append(data[at : at + length])
        at += length
    digest = hashlib.sha256(blocks[0])
    for block in blocks[1:]:
        table = as_table(block)
        if table is not None:
            digest.update(repr([(field.name, str(field.type)) for field in table.schema]).encode())
            digest.update(repr(table.to_pydict()).encode())
    return json.loads(blocks[0])["is"], digest.hexdigest()


def simulated(number: int) -> tuple[str, Trace]:
    """Run processors with any strategy, sometimes with changes of sites during the run."""
    strategy = [*BY_NAME][number % len(BY_NAME)]
    generate = aggregates if strategy in WITH_AGGREGATES else sequences
    rules, events = generate(random.Random(number))
    trace = Trace()
    run = check_changes if number % 3 == 2 else check
    run(rules, events, strategy, number, trace.watch)
    sites = "changing" if run is check_changes else "fixed"
    return f"simulated {number:02} {strategy.replace(' ', '-')} {sites}", trace


def replicated(number: int) -> tuple[str, Trace]:
    """Run replicas under faults."""
    trace = Trace()
    wrong = run_replicas(number, trace.watch)
    assert not wrong, f"replicated {number}: {[str(one) for one in wrong]}"
    return f"replicated {number:02}", trace


SORTS: dict[str, Callable[[int], tuple[str, Trace]]] = {"simulated": simulated, "replicated": replicated}


def line(sort: str, number: int) -> str:
    """Return the trace of one run."""
    name, trace = SORTS[sort](number)
    return f"{name}: {trace}"


def recorded(sort: str) -> list[tuple[int, str]]:
    """Return the recorded runs of a sort: the number of each, which is its seed, and the line."""
    lines = PATH.read_text(encoding="utf-8").splitlines()
    return [(int(line.partition(":")[0].split()[1]), line) for line in lines if line.startswith(f"{sort} ")]


def record() -> None:
    """Write the traces of the first runs that send enough messages."""
    found: list[str] = []
    for run in SORTS.values():
        runs = ((name, trace) for name, trace in map(run, count()) if trace.kinds.total() >= MESSAGES_MIN)
        found += [f"{name}: {trace}" for name, trace in islice(runs, RUNS)]
    PATH.write_text("\n".join(found) + "\n", encoding="utf-8")
    print(f"messages: {len(found)} runs, {PATH.stat().st_size:,} bytes")
