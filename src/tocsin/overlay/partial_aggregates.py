"""How are aggregates worked out on the way? Anchors ask for shares (`plans.tallies`), which are added up going up.

    decides the rule ── Survey: these scopes ──► child ── Survey ──► …      each keeps the events of its own sources
                     ◄── Survey's shares, one ── child ◄── one ────── …

A survey is sent when anchors are released. By then everybody below has said that nothing before them will come, so the
answer is there at once: own share, and those of the children. Until it has come nothing is decided.
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
from tocsin.overlay.messages import Question, Rows, Shares, Survey
from tocsin.overlay.tree_parts import Array
from tocsin.plans.partial_aggregates import NOTHING, Share, Tally, merged, share, value

if TYPE_CHECKING:
    from tocsin.overlay.tree_node import Membership


@dataclass
class Pending:
    """A survey that waits for children: the father's, or one for anchors of a rule that is decided here; and what has
    come."""

    survey: Survey
    key: str | None
    anchors: tuple[str, ...]
    children: set[str]
    rows: tuple[Share, ...]
    at: Array


@dataclass
class Tallying:
    """What a membership keeps for surveys, and those that are under way."""

    asked: tuple[Tally, ...] = ()
    """By the father."""
    kept: dict[Tally, list[pa.Table]] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    count: int = 0
    values: dict[str, dict[str, dict[str, int | float | None]]] = field(default_factory=dict)
    """For each rule that is decided here, by column: the value of each anchor."""

    @property
    def waiting(self) -> bool:
        """Whether something that is decided here waits."""
        return any(one.key is not None for one in self.pending.values())

    def keep(self, tallies: Iterable[Tally]) -> None:
        """Keeps own events for these, and no others."""
        self.kept = {tally: self.kept.get(tally, []) for tally in tallies}

    def add(self, batch: Rows, types: Types) -> None:
        """Own sources' events."""
        for tally, tables in self.kept.items():
            met = batch.take(meeting(tally.events.rule.anchor, batch, types))
            if met.num_rows:
                tables.append(met.table)

    def forget(self, ts: int) -> None:
        """Anchors before a time have been decided."""
        for tally, tables in self.kept.items():
            floor = ts - tally.window_us
            self.kept[tally] = [table for table in tables if int(table["ts"].to_numpy().max()) >= floor]

    def ask(self, tree: str, rule: str, tally: Tally, anchors: pa.Table, at: Array, children: Iterable[str]) -> Survey:
        """A survey for anchors of a rule."""
        columns = [anchors[name].to_pylist() for _, name in tally.equal]
        questions = []
        for row, (ts, seq) in enumerate(zip(anchors["ts"].to_pylist(), anchors["seq"].to_pylist(), strict=True)):
            values = tuple((name, column[row]) for (name, _), column in zip(tally.equal, columns, strict=True))
            questions.append(Question(ts - tally.window_us, ts, seq, values))
        survey = Survey(tree, 0, tally, tuple(questions), anchors["ts"].to_numpy(), at)
        return self.begin(survey, children, rule, anchors["id"].to_pylist())

    def begin(
        self, survey: Survey, children: Iterable[str], key: str | None = None, anchors: Iterable[str] = ()
    ) -> Survey:
        """Takes up a survey; the one to send on has an own number."""
        self.count += 1
        rows = tuple(self._share(survey.tally, question) for question in survey.questions)
        self.pending[self.count] = Pending(survey, key, tuple(anchors), set(children), rows, survey.at)
        return replace(survey, number=self.count)

    def _share(self, tally: Tally, question: Question) -> Share:
        if any(wanted is None for _, wanted in question.values):
            return NOTHING
        found: list[int | float | None] = []
        for table in self.kept.get(tally, ()):
            ts, seq = table["ts"].to_numpy(), table["seq"].to_numpy()
            inside = (ts > question.since) & ((ts < question.until) | ((ts == question.until) & (seq < question.seq)))
            rows = np.nonzero(inside)[0]
            for name, wanted in question.values if len(rows) else ():
                same = pc.equal(table[name].take(rows), wanted).combine_chunks().fill_null(False)
                rows = rows[same.to_numpy(zero_copy_only=False)]
            if len(rows):
                name = tally.attribute or "ts"
                found += table[name].take(rows).to_pylist()
        return share(found, tally)

    def answered(self, sender: str, message: Shares) -> None:
        """A child's shares."""
        one = self.pending.get(message.number)
        if one is not None and sender in one.children:
            one.children.discard(sender)
            one.rows = tuple(merged(both) for both in zip(one.rows, message.rows, strict=True))
            one.at = np.maximum(one.at, message.at)

    def finished(self) -> list[Pending]:
        """Surveys that wait for nobody any more; the values of those of rules that are decided here are kept."""
        done = [number for number, one in self.pending.items() if not one.children]
        found = [self.pending.pop(number) for number in done]
        for one in found:
            if one.key is not None:
                results = [value(one.survey.tally, row) for row in one.rows]
                mine = self.values.setdefault(one.key, {}).setdefault(one.survey.tally.column, {})
                mine.update(zip(one.anchors, results, strict=True))
        return found

    def columns(self, rule: str, tallies: Sequence[Tally], history: pa.Table) -> pa.Table:
        """The history with the values of anchors."""
        ids = history["id"].to_pylist()
        for tally in tallies:
            values = self.values.get(rule, {}).get(tally.column, {})
            history = history.append_column(tally.column, pa.array([values.get(id) for id in ids], ARROW[tally.kind]))
        return history

    def decided(self, needless: int) -> None:
        """The anchors that were asked for have been decided; nobody asks for those before a time any more."""
        self.values = {}
        self.forget(needless)


# ---- in a membership


def survey(membership: Membership) -> None:
    """Events were released: those that may be anchors ask for what their aggregates need."""
    history, mine = membership.history, membership.tallying
    for item in membership.deployed.items:
        if item.asks is None or history is None:
            continue
        assert isinstance(item.key, str)
        fresh = history.slice(int(np.searchsorted(history.ts, membership.upto)))
        anchors = fresh.take(meeting(item.asks, fresh, membership.types)).table
        at = membership.timing.at(anchors["ts"].to_numpy())
        for tally in item.tallies if anchors.num_rows else ():
            children = _sharing(membership, tally)
            _spread(membership, mine.ask(membership.tree, item.key, tally, anchors, at, children))


def receive_survey(membership: Membership, message: Survey) -> None:
    _spread(membership, membership.tallying.begin(message, _sharing(membership, message.tally)))


def receive_shares(membership: Membership, sender: str, message: Shares) -> None:
    membership.tallying.answered(sender, message)
    _finish(membership)
    membership.advance()


def _sharing(membership: Membership, tally: Tally) -> list[str]:
    """The children that have a share of an aggregate."""
    known = membership.advertised
    return sorted(child for child in membership.children if tally.events.types & known.get(child, frozenset()))


def _spread(membership: Membership, message: Survey) -> None:
    for child in _sharing(membership, message.tally):
        membership.send(child, message)
    _finish(membership)


def _finish(membership: Membership) -> None:
    """Surveys for which all shares are there: the father's are answered, those for rules here can be decided on."""
    for one in membership.tallying.finished():
        if one.key is not None:
            membership.asking.stalls.append((one.survey.ts, one.at))
        elif membership.father is not None:
            membership.send(membership.father, Shares(membership.tree, one.survey.number, one.rows, one.at))
