"""Compute aggregates in the tree: possible anchors query partial results, which are merged from child to parent.

    decides the rule ── AggregateQuery: scopes ──► child ── AggregateQuery ──► …    each retains events of its sources
                     ◄── AggregatePartials, merged ── child ◄── partials ── …

Each processor retains the events of its own sources. When events that may be anchors are released, the processor that
decides the rule sends a query to its children, with a *scope* for each anchor. By then each processor below has
reported that no events before the anchors will follow. So it answers as soon as its children have answered, with its
own partial results merged with those of the children. The rule is not decided before all answers have come.

`plans.partial_aggregates` says which aggregates are computed in this way, and merges partial results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.events.columns import ARROW
from tocsin.overlay.evaluation import Types, meeting
from tocsin.overlay.messages import AggregatePartials, AggregateQuery, AggregateScope, Rows
from tocsin.overlay.tree_parts import Array
from tocsin.plans.partial_aggregates import EMPTY, Accumulator, PartialAggregate, accumulate, merge, value

if TYPE_CHECKING:
    from tocsin.overlay.tree_node import TreeNode


@dataclass
class PendingQuery:
    """A query that waits for the answers of `children`.

    If `key` is None, the parent has sent the query. Otherwise the query is for `anchors` of the rule `key`, which is
    decided here. `rows` are the partial results merged so far.
    """

    query: AggregateQuery
    key: str | None
    anchors: tuple[str, ...]
    children: set[str]
    rows: tuple[Accumulator, ...]
    at: Array


@dataclass
class AggregateState:
    """The events that a tree node retains for aggregate queries, and the open queries."""

    requested: tuple[PartialAggregate, ...] = ()
    """The aggregates that the parent may query."""
    retained: dict[PartialAggregate, list[pa.Table]] = field(default_factory=dict)
    pending: dict[int, PendingQuery] = field(default_factory=dict)
    count: int = 0
    values: dict[str, dict[str, dict[str, int | float | None]]] = field(default_factory=dict)
    """The values of aggregates, by rule that is decided here, by column, and by id of the anchor."""

    @property
    def waiting(self) -> bool:
        """Whether some rule that is decided here waits for answers to a query."""
        return any(one.key is not None for one in self.pending.values())

    def keep(self, aggregates: Iterable[PartialAggregate]) -> None:
        """Retain events of own sources for `aggregates`, and for no other aggregates."""
        self.retained = {aggregate: self.retained.get(aggregate, []) for aggregate in aggregates}

    def add(self, batch: Rows, types: Types) -> None:
        """Retain the events of own sources that meet the pattern of some aggregate."""
        for aggregate, tables in self.retained.items():
            met = batch.take(meeting(aggregate.events.rule.anchor, batch, types))
            if met.num_rows:
                tables.append(met.table)

    def forget(self, ts: int) -> None:
        """Drop the events that are too old for anchors from `ts` on."""
        for aggregate, tables in self.retained.items():
            floor = ts - aggregate.window_us
            self.retained[aggregate] = [table for table in tables if int(table["ts"].to_numpy().max()) >= floor]

    def ask(
        self, tree: str, rule: str, aggregate: PartialAggregate, anchors: pa.Table, at: Array, children: Iterable[str]
    ) -> AggregateQuery:
        """Register and return the query of `aggregate` for `anchors` of a rule that is decided here."""
        columns = [anchors[name].to_pylist() for _, name in aggregate.equal]
        scopes = []
        for row, (ts, seq) in enumerate(zip(anchors["ts"].to_pylist(), anchors["seq"].to_pylist(), strict=True)):
            values = tuple((name, column[row]) for (name, _), column in zip(aggregate.equal, columns, strict=True))
            scopes.append(AggregateScope(ts - aggregate.window_us, ts, seq, values))
        query = AggregateQuery(tree, 0, aggregate, tuple(scopes), anchors["ts"].to_numpy(), at)
        return self.begin(query, children, rule, anchors["id"].to_pylist())

    def begin(
        self, query: AggregateQuery, children: Iterable[str], key: str | None = None, anchors: Iterable[str] = ()
    ) -> AggregateQuery:
        """Register a query; return a copy with a new number, which is forwarded to the children."""
        self.count += 1
        rows = tuple(self._accumulate(query.aggregate, scope) for scope in query.scopes)
        self.pending[self.count] = PendingQuery(query, key, tuple(anchors), set(children), rows, query.at)
        return replace(query, number=self.count)

    def _accumulate(self, aggregate: PartialAggregate, scope: AggregateScope) -> Accumulator:
        if any(wanted is None for _, wanted in scope.values):
            return EMPTY
        values: list[int | float | None] = []
        for table in self.retained.get(aggregate, ()):
            ts, seq = table["ts"].to_numpy(), table["seq"].to_numpy()
            inside = (ts > scope.since) & ((ts < scope.until) | ((ts == scope.until) & (seq < scope.seq)))
            rows = np.nonzero(inside)[0]
            for name, wanted in scope.values if len(rows) else ():
                same = pc.equal(table[name].take(rows), wanted).combine_chunks().fill_null(False)
                rows = rows[same.to_numpy(zero_copy_only=False)]
            if len(rows):
                name = aggregate.attribute or "ts"
                values += table[name].take(rows).to_pylist()
        return accumulate(values, aggregate)

    def answered(self, sender: str, message: AggregatePartials) -> None:
        """Merge the partial results of the child `sender` into the pending query."""
        one = self.pending.get(message.number)
        if one is not None and sender in one.children:
            one.children.discard(sender)
            one.rows = tuple(merge(both) for both in zip(one.rows, message.rows, strict=True))
            one.at = np.maximum(one.at, message.at)

    def finished(self) -> list[PendingQuery]:
        """Remove and return the queries that all children have answered.

        The results of queries for rules that are decided here are stored in `values`.
        """
        done = [number for number, one in self.pending.items() if not one.children]
        completed = [self.pending.pop(number) for number in done]
        for one in completed:
            if one.key is not None:
                results = [value(one.query.aggregate, row) for row in one.rows]
                mine = self.values.setdefault(one.key, {}).setdefault(one.query.aggregate.column, {})
                mine.update(zip(one.anchors, results, strict=True))
        return completed

    def columns(self, rule: str, aggregates: Sequence[PartialAggregate], history: pa.Table) -> pa.Table:
        """Return `history` with a column for each aggregate, which has a value in the rows of anchors."""
        ids = history["id"].to_pylist()
        for aggregate in aggregates:
            values = self.values.get(rule, {}).get(aggregate.column, {})
            history = history.append_column(
                aggregate.column, pa.array([values.get(id) for id in ids], ARROW[aggregate.kind])
            )
        return history

    def decided(self, parent_upto: int) -> None:
        """Drop the values of the decided anchors, and the events that the parent can no longer query."""
        self.values = {}
        self.forget(parent_upto)


# ---- in a tree node


def query_aggregates(node: TreeNode) -> None:
    """Send queries for the newly released events that may be anchors of a rule with aggregates."""
    history, mine = node.history, node.aggregate_state
    for item in node.deployed.items:
        if item.asks is None or history is None:
            continue
        assert isinstance(item.key, str)
        fresh = history.slice(int(np.searchsorted(history.ts, node.upto)))
        anchors = fresh.take(meeting(item.asks, fresh, node.types)).table
        at = node.timing.at(anchors["ts"].to_numpy())
        for aggregate in item.aggregates if anchors.num_rows else ():
            children = _contributing(node, aggregate)
            _forward(node, mine.ask(node.tree, item.key, aggregate, anchors, at, children))


def receive_query(node: TreeNode, message: AggregateQuery) -> None:
    _forward(node, node.aggregate_state.begin(message, _contributing(node, message.aggregate)))


def receive_partials(node: TreeNode, sender: str, message: AggregatePartials) -> None:
    node.aggregate_state.answered(sender, message)
    _finish(node)
    node.advance()


def _contributing(node: TreeNode, aggregate: PartialAggregate) -> list[str]:
    """Return the children that advertise a type of the aggregate's events."""
    advertised = node.advertised
    return sorted(child for child in node.children if aggregate.events.types & advertised.get(child, frozenset()))


def _forward(node: TreeNode, message: AggregateQuery) -> None:
    for child in _contributing(node, message.aggregate):
        node.send(child, message)
    _finish(node)


def _finish(node: TreeNode) -> None:
    """Send the parent the answers to its completed queries; record a stall for each completed query of a rule here."""
    for one in node.aggregate_state.finished():
        if one.key is not None:
            node.awakening.stalls.append((one.query.ts, one.at))
        elif node.parent is not None:
            node.send(node.parent, AggregatePartials(node.tree, one.query.number, one.rows, one.at))
