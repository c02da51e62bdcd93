"""The reference semantics of SiddhiQL patterns and sequences, as nodes at which runs wait for their next event.

Each step and each absence of a pattern is a *node*. A *run* holds the events selected so far. It waits at one node, at
the two nodes of a pair, or at a counting node and the node after it, which then share the run. An event is offered to
the nodes of its stream. Later nodes come first, so that no run takes two steps on one event. A run that advances is
*new*, and waits from the next event. In a sequence, every event of the query's streams ends the runs that waited and
did not advance.

The semantics are Siddhi's own, determined by experiment. docs/design says where we differ, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tocsin.language.siddhi.ast import AbsentState, Chain, Every, Pair, State, Step
from tocsin.reference.patterns import Fact
from tocsin.reference.windows import Chunk, IndexedFacts, Sign, meets


@dataclass(eq=False, slots=True)
class _Run:
    """The events selected so far, by the number of their node, and the time of the last event."""

    events: dict[int, list[Fact]] = field(default_factory=dict)
    since_us: int | None = None
    violated: bool = False
    """Whether an event came that should be absent, in a pair with `and`."""

    def copy_until(self, number: int) -> _Run:
        """Return a copy of the run without the events of node `number` and later nodes."""
        events = {node: list(facts) for node, facts in self.events.items() if node < number}
        return _Run(events, self.since_us)


@dataclass(eq=False, slots=True)
class _Node:
    """A step or an absence, and the runs that wait there."""

    number: int
    leaf: Step | AbsentState
    starts: bool
    pair: Pair | None = None
    partner: _Node | None = None
    next: _Node | None = None
    restart: _Node | None = None
    """The node at which an `every` begins again when this node is complete."""
    every: _Node | None = None
    """The first node of the `every` that contains this node."""
    waiting: list[_Run] = field(default_factory=list)
    new: list[_Run] = field(default_factory=list)
    over: bool = False
    """Whether this is an absence at the start of the pattern that has lasted long enough, and does not begin again."""
    absent_since_us: int | None = None
    """The time (µs) at which the absence began, for an absence at the start of the pattern."""

    @property
    def first(self) -> int:
        """The number of the first node of the state that this node belongs to."""
        return min(self.number, self.partner.number) if self.partner else self.number

    @property
    def counts(self) -> bool:
        return isinstance(self.leaf, Step) and not self.leaf.single


class ReferenceAutomaton:
    """The evaluator of a pattern or a sequence."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._nodes = list(_linked(chain))
        self._begun = False
        self._restarts = False
        """Whether a sequence that can begin with a count of 0 has advanced, so that the next run begins."""
        self._completed: list[_Run] = []
        self._begin()

    def due(self) -> int | None:
        times = [time for node in self._nodes for time in self._due_times(node)]
        return min(times, default=None)

    def fire(self, ts: int) -> list[Chunk]:
        self._completed = []
        for node in self._nodes:
            if any(time <= ts for time in self._due_times(node)):
                self._elapse(node, ts)
        return self._chunks()

    def arrive(self, fact: Fact) -> list[Chunk]:
        self._completed = []
        for node in self._nodes:
            if node.starts and isinstance(node.leaf, AbsentState) and node.absent_since_us is None:
                node.absent_since_us = fact.ts
                for run in (*node.waiting, *node.new):
                    run.since_us = fact.ts
        self._expire(fact.ts)
        if self._chain.sequence:
            self._give_up()
        for node in self._nodes:
            if self._chain.sequence or self._sees(node, fact):
                self._promote(node)
        first = self._nodes[0]
        may_restart = self._chain.sequence and isinstance(first.leaf, Step) and first.leaf.least == 0
        for node in self._order():
            if node.leaf.pattern.type == fact.type:
                self._restarts = self._restarts or (may_restart and node is first.next and bool(node.waiting))
                self._offer(node, fact)
        return self._chunks()

    def _chunks(self) -> list[Chunk]:
        return [[(Sign.CURRENT, self._chosen(run))] for run in self._completed]

    def _chosen(self, run: _Run, own: Fact | None = None) -> IndexedFacts:
        roles: dict[str | None, Fact] = {} if own is None else {None: own}
        several = {}
        for node in self._nodes:
            events = run.events.get(node.number, [])
            if node.counts:
                several[node.leaf.pattern.role] = events
            elif events and isinstance(node.leaf, Step):
                roles[node.leaf.pattern.role] = events[0]
        return IndexedFacts(roles, several)

    # ---- where runs begin and wait

    def _begin(self) -> None:
        """Begin the first run, or a later run under `every` or in a sequence whose second state has an absence."""
        first = self._nodes[0]
        second = _sides(first.next) if first.next is not None else ()
        waits = self._chain.sequence and any(isinstance(side.leaf, AbsentState) for side in second)
        if self._begun and first.restart is None and not waits:
            return
        self._begun = True
        self._add(first, _Run())

    def _add(self, node: _Node, run: _Run) -> None:
        """Let a run wait at a node and at its partner from the next event."""
        if node.over:
            return
        alone = self._chain.sequence
        if node.partner is not None:
            for side in _sides(node):
                if not ((alone or node.starts) and side.new):
                    side.new.append(run)
            return
        if alone and isinstance(node.leaf, AbsentState):
            node.new = [run]
        elif not (alone and node.new):
            node.new.append(run)
        if isinstance(node.leaf, Step) and node.leaf.least == 0 and not run.events.get(node.number):
            self._reached(node, run)

    def _restart(self, node: _Node, run: _Run) -> None:
        """Let a copy of a run begin again at `node`, the first node of an `every`."""
        copy = run.copy_until(node.first)
        for side in _sides(node):
            side.new.append(copy)

    def _promote(self, node: _Node) -> None:
        node.waiting += node.new
        node.new = []

    def _sees(self, node: _Node, fact: Fact) -> bool:
        return any(side.leaf.pattern.type == fact.type for side in _sides(node))

    def _order(self) -> list[_Node]:
        """Return the nodes in the order in which they see an event.

        Nodes of later states come first. In a pair, an absence comes first, then the left node.
        """
        return sorted(self._nodes, key=lambda node: (-node.first, isinstance(node.leaf, Step), node.number))

    def _give_up(self) -> None:
        """End the runs of a sequence that are not new.

        A pair joined by `and` that has one event waits for one more event.
        """
        first, begins = self._nodes[0], False
        for node in self._nodes:
            if node.partner is None:
                node.waiting = []
                begins = begins or (node is first and not node.new)
            elif node.number == node.first:
                both = node.pair is not None and node.pair.both
                if not both or len(node.waiting) == len(node.partner.waiting):
                    node.waiting, node.partner.waiting = [], []
                    begins = begins or (node is first and not node.partner.new)
        if begins:
            self._begin()
        if self._restarts:
            self._restarts = False
            self._begin()

    def _expire(self, ts: int) -> None:
        """End the runs that are older than `within` allows.

        Inside an `every` at the start, one of the ended runs restarts.
        """
        within_us = self._chain.within_us
        if within_us is None:
            return
        expired: list[_Run] = []
        for node in self._nodes:
            if node.number != node.first:
                continue
            old = None
            for runs in (waits for side in _sides(node) for waits in (side.waiting, side.new)):
                for run in list(runs):
                    if self._is_old(run, ts):
                        runs.remove(run)
                        old = run if run not in expired else old
                        expired.append(run)
            if old is not None and node.every is not None and node.every.starts:
                self._restart(node.every, old)
                for side in _sides(node.every):
                    self._promote(side)

    def _is_old(self, run: _Run, ts: int) -> bool:
        within_us = self._chain.within_us
        firsts = [run.events[node.number][0] for node in self._nodes if node.starts and run.events.get(node.number)]
        return within_us is not None and any(ts - fact.ts > within_us for fact in firsts)

    # ---- an event is offered to a node

    def _offer(self, node: _Node, fact: Fact) -> None:
        for run in list(node.waiting):
            if run not in node.waiting:
                continue
            if isinstance(node.leaf, AbsentState):
                self._violate(node, run, fact)
            elif node.counts:
                self._count(node, run, fact)
            else:
                self._step(node, run, fact)

    def _fits(self, node: _Node, run: _Run, fact: Fact) -> bool:
        return meets(node.leaf.pattern.constraints, self._chosen(run, fact))

    def _step(self, node: _Node, run: _Run, fact: Fact) -> None:
        partner, pair = node.partner, node.pair
        if not self._fits(node, run, fact):
            if self._chain.sequence:
                node.waiting.remove(run)
            return
        node.waiting.remove(run)
        run.events[node.number] = [fact]
        if partner is None or pair is None or not pair.both or self._ready(partner, run):
            self._advance(node, run, fact.ts)
        elif isinstance(partner.leaf, AbsentState) and node.restart is not None:
            # The event that should be absent came, so this run has ended; `every` begins the next one.
            self._restart(node.restart, run)

    def _ready(self, partner: _Node, run: _Run) -> bool:
        """Return whether `partner`, the other node of a pair with `and`, is complete."""
        if isinstance(partner.leaf, Step):
            return bool(run.events.get(partner.number))
        return not run.violated

    def _count(self, node: _Node, run: _Run, fact: Fact) -> None:
        assert isinstance(node.leaf, Step)
        following = self._following(node)
        if any(run.events.get(number) for number in following):
            node.waiting.remove(run)
            return
        if not self._fits(node, run, fact):
            if self._chain.sequence:
                node.waiting.remove(run)
            return
        events = run.events.setdefault(node.number, [])
        events.append(fact)
        run.since_us = fact.ts
        if len(events) == node.leaf.most:
            node.waiting.remove(run)
        if self._chain.sequence:
            if len(events) >= node.leaf.least and node.next is not None:
                self._add(node.next, run)
            if len(events) != node.leaf.most:
                self._add(node, run)
            if node.next is None and len(events) == node.leaf.least:
                self._reached(node, run)
        elif len(events) == node.leaf.least:
            self._reached(node, run)

    def _following(self, node: _Node) -> list[int]:
        """Return the numbers of the nodes whose events show that a run has left a counting node."""
        if node.next is None:
            return []
        after = node.next
        numbers = [after.number, after.partner.number] if after.partner else [after.number]
        if after.partner is None and after.next is not None:
            numbers.append(after.next.first)
        return numbers

    def _reached(self, node: _Node, run: _Run) -> None:
        """Advance a run at a counting node that has as many events as the node needs."""
        if node.next is None:
            for runs in (node.waiting, node.new):
                if run in runs:
                    runs.remove(run)
            self._completed.append(run)
        else:
            self._add(node.next, run)
        if node.restart is not None:
            self._restart(node.restart, run)

    def _advance(self, node: _Node, run: _Run, ts: int) -> None:
        """Move a run that has completed a node to the next node."""
        for runs in (waits for side in _sides(node) for waits in (side.waiting, side.new)):
            if run in runs:
                runs.remove(run)
        run.since_us = ts
        if node.next is None:
            self._completed.append(run)
        else:
            self._add(node.next, run)
        if node.restart is not None:
            self._restart(node.restart, run)

    # ---- absences

    def _violate(self, node: _Node, run: _Run, fact: Fact) -> None:
        """End a run if the event that should be absent came."""
        if not self._fits(node, run, fact):
            return
        node.waiting.remove(run)
        if node.partner is not None:
            run.violated = True
            return
        if node.starts:
            node.absent_since_us = fact.ts
            copy = run.copy_until(node.number)
            copy.since_us = fact.ts
            node.new.append(copy)

    def _due_times(self, node: _Node) -> Iterator[int]:
        """Yield for each waiting run the time at which the absence of the node will have lasted long enough."""
        if not isinstance(node.leaf, AbsentState) or node.leaf.duration_us is None or node.over:
            return
        for run in (*node.waiting, *node.new):
            if run.since_us is not None:
                yield run.since_us + node.leaf.duration_us

    def _elapse(self, node: _Node, ts: int) -> None:
        assert isinstance(node.leaf, AbsentState)
        assert node.leaf.duration_us is not None
        if self._chain.sequence and node.new:
            node.waiting = []
        self._promote(node)
        for run in list(node.waiting):
            if run.since_us is None or run.since_us + node.leaf.duration_us > ts:
                continue
            node.waiting.remove(run)
            if self._is_old(run, ts):
                continue
            self._advance(node, run, ts)
            node.over = node.starts and node.restart is None


def _sides(node: _Node) -> tuple[_Node, ...]:
    """Return a node, followed by its partner if it is in a pair."""
    return (node, node.partner) if node.partner is not None else (node,)


def _linked(chain: Chain) -> list[_Node]:
    """Return the nodes of a chain, each linked to the nodes that follow it."""
    nodes: list[_Node] = []
    states: list[tuple[_Node, ...]] = []
    groups: list[tuple[int, int]] = []
    for part in chain.parts:
        start = len(states)
        for state in part.states if isinstance(part, Every) else (part,):
            nodes_of_state = _nodes_of(state, len(nodes), starts=not states)
            nodes += nodes_of_state
            states.append(nodes_of_state)
        if isinstance(part, Every):
            groups.append((start, len(states) - 1))
    for before, after in pairwise(states):
        for node in before:
            node.next = after[0]
    for start, end in groups:
        for node in states[end]:
            node.restart = states[start][0]
        for state_nodes in states[start : end + 1]:
            for node in state_nodes:
                node.every = states[start][0]
    return nodes


def _nodes_of(state: State, number: int, *, starts: bool) -> tuple[_Node, ...]:
    if not isinstance(state, Pair):
        return (_Node(number, state, starts),)
    left = _Node(number, state.left, starts, state)
    right = _Node(number + 1, state.right, starts, state)
    left.partner, right.partner = right, left
    return left, right
