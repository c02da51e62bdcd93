"""What do patterns and sequences of SiddhiQL mean? A row of nodes at which attempts wait for their next event.

Each step and each absence is a node. An *attempt* holds the events found so far and waits at one node, at the two of a
pair, or at a counting node and the one after it, which then share it. An event is shown to the nodes of its stream,
the later ones first, so that it does not take two steps of one attempt. Where an attempt goes on, it is *fresh*, and
waits from the next event on. In a sequence, what waited and was not fresh is given up at every event of the query's
streams.

The rules are Siddhi's own, found by asking it; docs/design says where we differ, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tocsin.language.siddhi.ast import Absence, Chain, Every, Pair, State, Step
from tocsin.reference.patterns import Fact
from tocsin.reference.windows import Chosen, Chunk, Sign, meets


@dataclass(eq=False, slots=True)
class _Attempt:
    """The events found so far, by the number of their node, and when the last of them came."""

    events: dict[int, list[Fact]] = field(default_factory=dict)
    since_us: int | None = None
    spoilt: bool = False
    """Whether what should be absent, beside `and`, has come."""

    def cut(self, number: int) -> _Attempt:
        """A copy that has nothing from that node on."""
        events = {node: list(facts) for node, facts in self.events.items() if node < number}
        return _Attempt(events, self.since_us)


@dataclass(eq=False, slots=True)
class _Node:
    """A step or an absence, and the attempts that wait there."""

    number: int
    leaf: Step | Absence
    starts: bool
    pair: Pair | None = None
    partner: _Node | None = None
    next: _Node | None = None
    again: _Node | None = None
    """Where `every` begins anew when this node is complete."""
    home: _Node | None = None
    """The first node of the `every` that this node is in."""
    waiting: list[_Attempt] = field(default_factory=list)
    fresh: list[_Attempt] = field(default_factory=list)
    over: bool = False
    """An absence at the start that has been, once and for all."""
    quiet_us: int | None = None
    """Since when an absence at the start has lasted."""

    @property
    def first(self) -> int:
        """The number of the first node of its state."""
        return min(self.number, self.partner.number) if self.partner else self.number

    @property
    def counts(self) -> bool:
        return isinstance(self.leaf, Step) and not self.leaf.single


class Automaton:
    """The machine of a pattern or a sequence."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._nodes = list(_linked(chain))
        self._begun = False
        self._restarts = False
        """Whether a sequence that can begin with nothing has moved on, so that the next attempt begins."""
        self._out: list[_Attempt] = []
        self._begin()

    def due(self) -> int | None:
        moments = [moment for node in self._nodes for moment in self._moments(node)]
        return min(moments, default=None)

    def fire(self, ts: int) -> list[Chunk]:
        self._out = []
        for node in self._nodes:
            if any(moment <= ts for moment in self._moments(node)):
                self._lasted(node, ts)
        return self._chunks()

    def arrive(self, fact: Fact) -> list[Chunk]:
        self._out = []
        for node in self._nodes:
            if node.starts and isinstance(node.leaf, Absence) and node.quiet_us is None:
                node.quiet_us = fact.ts
                for attempt in (*node.waiting, *node.fresh):
                    attempt.since_us = fact.ts
        self._expire(fact.ts)
        if self._chain.sequence:
            self._give_up()
        for node in self._nodes:
            if self._chain.sequence or self._shown(node, fact):
                self._settle(node)
        first = self._nodes[0]
        may_restart = self._chain.sequence and isinstance(first.leaf, Step) and first.leaf.least == 0
        for node in self._order():
            if node.leaf.pattern.type == fact.type:
                self._restarts = self._restarts or (may_restart and node is first.next and bool(node.waiting))
                self._show(node, fact)
        return self._chunks()

    def _chunks(self) -> list[Chunk]:
        return [[(Sign.CURRENT, self._chosen(attempt))] for attempt in self._out]

    def _chosen(self, attempt: _Attempt, own: Fact | None = None) -> Chosen:
        roles: dict[str | None, Fact] = {} if own is None else {None: own}
        several = {}
        for node in self._nodes:
            events = attempt.events.get(node.number, [])
            if node.counts:
                several[node.leaf.pattern.role] = events
            elif events and isinstance(node.leaf, Step):
                roles[node.leaf.pattern.role] = events[0]
        return Chosen(roles, several)

    # ---- where attempts begin and wait

    def _begin(self) -> None:
        """A first attempt; later ones under `every`, and in a sequence whose second state has an absence."""
        first = self._nodes[0]
        second = _sides(first.next) if first.next is not None else ()
        waits = self._chain.sequence and any(isinstance(side.leaf, Absence) for side in second)
        if self._begun and first.again is None and not waits:
            return
        self._begun = True
        self._add(first, _Attempt())

    def _add(self, node: _Node, attempt: _Attempt) -> None:
        """Lets an attempt wait at a node, and at its partner, from the next event on."""
        if node.over:
            return
        alone = self._chain.sequence
        if node.partner is not None:
            for side in _sides(node):
                if not ((alone or node.starts) and side.fresh):
                    side.fresh.append(attempt)
            return
        if alone and isinstance(node.leaf, Absence):
            node.fresh = [attempt]
        elif not (alone and node.fresh):
            node.fresh.append(attempt)
        if isinstance(node.leaf, Step) and node.leaf.least == 0 and not attempt.events.get(node.number):
            self._reached(node, attempt)

    def _add_again(self, node: _Node, attempt: _Attempt) -> None:
        """Lets a copy begin anew at the first node of an `every`."""
        copy = attempt.cut(node.first)
        for side in _sides(node):
            side.fresh.append(copy)

    def _settle(self, node: _Node) -> None:
        node.waiting += node.fresh
        node.fresh = []

    def _shown(self, node: _Node, fact: Fact) -> bool:
        return any(side.leaf.pattern.type == fact.type for side in _sides(node))

    def _order(self) -> list[_Node]:
        """Later states first; of a pair, an absence first, then the left one."""
        return sorted(self._nodes, key=lambda node: (-node.first, isinstance(node.leaf, Step), node.number))

    def _give_up(self) -> None:
        """In a sequence: only what is fresh goes on. A pair of which one has come goes on for one more event."""
        first, begins = self._nodes[0], False
        for node in self._nodes:
            if node.partner is None:
                node.waiting = []
                begins = begins or (node is first and not node.fresh)
            elif node.number == node.first:
                both = node.pair is not None and node.pair.both
                if not both or len(node.waiting) == len(node.partner.waiting):
                    node.waiting, node.partner.waiting = [], []
                    begins = begins or (node is first and not node.partner.fresh)
        if begins:
            self._begin()
        if self._restarts:
            self._restarts = False
            self._begin()

    def _expire(self, ts: int) -> None:
        """Gives up attempts that `within` makes too old; inside an `every` at the start, one begins anew."""
        within_us = self._chain.within_us
        if within_us is None:
            return
        gone: list[_Attempt] = []
        for node in self._nodes:
            if node.number != node.first:
                continue
            old = None
            for attempts in (held for side in _sides(node) for held in (side.waiting, side.fresh)):
                for attempt in list(attempts):
                    if self._is_old(attempt, ts):
                        attempts.remove(attempt)
                        old = attempt if attempt not in gone else old
                        gone.append(attempt)
            if old is not None and node.home is not None and node.home.starts:
                self._add_again(node.home, old)
                for side in _sides(node.home):
                    self._settle(side)

    def _is_old(self, attempt: _Attempt, ts: int) -> bool:
        within_us = self._chain.within_us
        firsts = [
            attempt.events[node.number][0] for node in self._nodes if node.starts and attempt.events.get(node.number)
        ]
        return within_us is not None and any(ts - fact.ts > within_us for fact in firsts)

    # ---- an event is shown to a node

    def _show(self, node: _Node, fact: Fact) -> None:
        for attempt in list(node.waiting):
            if attempt not in node.waiting:
                continue
            if isinstance(node.leaf, Absence):
                self._spoil(node, attempt, fact)
            elif node.counts:
                self._count(node, attempt, fact)
            else:
                self._step(node, attempt, fact)

    def _fits(self, node: _Node, attempt: _Attempt, fact: Fact) -> bool:
        return meets(node.leaf.pattern.constraints, self._chosen(attempt, fact))

    def _step(self, node: _Node, attempt: _Attempt, fact: Fact) -> None:
        partner, pair = node.partner, node.pair
        if not self._fits(node, attempt, fact):
            if self._chain.sequence:
                node.waiting.remove(attempt)
            return
        node.waiting.remove(attempt)
        attempt.events[node.number] = [fact]
        if partner is None or pair is None or not pair.both or self._ready(partner, attempt):
            self._advance(node, attempt, fact.ts)
        elif isinstance(partner.leaf, Absence) and node.again is not None:
            # The other one came, so this attempt is over; `every` begins the next one.
            self._add_again(node.again, attempt)

    def _ready(self, partner: _Node, attempt: _Attempt) -> bool:
        """Whether the other one of `… and …` is complete."""
        if isinstance(partner.leaf, Step):
            return bool(attempt.events.get(partner.number))
        return not attempt.spoilt

    def _count(self, node: _Node, attempt: _Attempt, fact: Fact) -> None:
        assert isinstance(node.leaf, Step)
        following = self._following(node)
        if any(attempt.events.get(number) for number in following):
            node.waiting.remove(attempt)
            return
        if not self._fits(node, attempt, fact):
            if self._chain.sequence:
                node.waiting.remove(attempt)
            return
        events = attempt.events.setdefault(node.number, [])
        events.append(fact)
        attempt.since_us = fact.ts
        if len(events) == node.leaf.most:
            node.waiting.remove(attempt)
        if self._chain.sequence:
            if len(events) >= node.leaf.least and node.next is not None:
                self._add(node.next, attempt)
            if len(events) != node.leaf.most:
                self._add(node, attempt)
            if node.next is None and len(events) == node.leaf.least:
                self._reached(node, attempt)
        elif len(events) == node.leaf.least:
            self._reached(node, attempt)

    def _following(self, node: _Node) -> list[int]:
        """The nodes whose events show that an attempt has left a counting node."""
        if node.next is None:
            return []
        after = node.next
        numbers = [after.number, after.partner.number] if after.partner else [after.number]
        if after.partner is None and after.next is not None:
            numbers.append(after.next.first)
        return numbers

    def _reached(self, node: _Node, attempt: _Attempt) -> None:
        """A counting node has as many as it needs."""
        if node.next is None:
            for attempts in (node.waiting, node.fresh):
                if attempt in attempts:
                    attempts.remove(attempt)
            self._out.append(attempt)
        else:
            self._add(node.next, attempt)
        if node.again is not None:
            self._add_again(node.again, attempt)

    def _advance(self, node: _Node, attempt: _Attempt, ts: int) -> None:
        """A state is complete."""
        for attempts in (held for side in _sides(node) for held in (side.waiting, side.fresh)):
            if attempt in attempts:
                attempts.remove(attempt)
        attempt.since_us = ts
        if node.next is None:
            self._out.append(attempt)
        else:
            self._add(node.next, attempt)
        if node.again is not None:
            self._add_again(node.again, attempt)

    # ---- absences

    def _spoil(self, node: _Node, attempt: _Attempt, fact: Fact) -> None:
        """What should be absent has come."""
        if not self._fits(node, attempt, fact):
            return
        node.waiting.remove(attempt)
        if node.partner is not None:
            attempt.spoilt = True
            return
        if node.starts:
            node.quiet_us = fact.ts
            copy = attempt.cut(node.number)
            copy.since_us = fact.ts
            node.fresh.append(copy)

    def _moments(self, node: _Node) -> Iterator[int]:
        """When an absence has lasted long enough for the attempts that wait."""
        if not isinstance(node.leaf, Absence) or node.leaf.duration_us is None or node.over:
            return
        for attempt in (*node.waiting, *node.fresh):
            if attempt.since_us is not None:
                yield attempt.since_us + node.leaf.duration_us

    def _lasted(self, node: _Node, ts: int) -> None:
        assert isinstance(node.leaf, Absence)
        assert node.leaf.duration_us is not None
        if self._chain.sequence and node.fresh:
            node.waiting = []
        self._settle(node)
        for attempt in list(node.waiting):
            if attempt.since_us is None or attempt.since_us + node.leaf.duration_us > ts:
                continue
            node.waiting.remove(attempt)
            if self._is_old(attempt, ts):
                continue
            self._advance(node, attempt, ts)
            node.over = node.starts and node.again is None


def _sides(node: _Node) -> tuple[_Node, ...]:
    """A node, and the other one of its pair."""
    return (node, node.partner) if node.partner is not None else (node,)


def _linked(chain: Chain) -> list[_Node]:
    """The nodes of a chain, each with those that come after it."""
    nodes: list[_Node] = []
    states: list[tuple[_Node, ...]] = []
    groups: list[tuple[int, int]] = []
    for part in chain.parts:
        start = len(states)
        for state in part.states if isinstance(part, Every) else (part,):
            made = _made(state, len(nodes), starts=not states)
            nodes += made
            states.append(made)
        if isinstance(part, Every):
            groups.append((start, len(states) - 1))
    for before, after in pairwise(states):
        for node in before:
            node.next = after[0]
    for start, end in groups:
        for node in states[end]:
            node.again = states[start][0]
        for state_nodes in states[start : end + 1]:
            for node in state_nodes:
                node.home = states[start][0]
    return nodes


def _made(state: State, number: int, *, starts: bool) -> tuple[_Node, ...]:
    if not isinstance(state, Pair):
        return (_Node(number, state, starts),)
    left = _Node(number, state.left, starts, state)
    right = _Node(number + 1, state.right, starts, state)
    left.partner, right.partner = right, left
    return left, right
