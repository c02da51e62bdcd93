"""Prepare what an explanation needs from a table of events.

An explanation needs the event in question, the events around it, and the events that matches have consumed. All events
are first run through a detector, which gives the composite events and what matches have consumed. Then only the events
in the time to which the rule can look back are taken from the columns, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.detector import Detector
from tocsin.engine.ingest import content_ids
from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.columns import ARROW
from tocsin.events.reader import LABEL_COLUMN, TS_LIMIT, Columns, Data, read
from tocsin.events.types import HEADER, Event, EventType, Kind, text_words
from tocsin.kernels import Array
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.mcep.ast import Interest
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Clause, Program, Rule, Within
from tocsin.plans.plan import Plan, column_names
from tocsin.reference.patterns import Fact, identified
from tocsin.why import accounts
from tocsin.why.reasons import Reason, Trial

SAME_MAX = 1 << 20
"""The largest number of events of equal content among which an event is found by its id."""


def check_explicable(given: Program | Iterable[Statement | Interest], *kinds: type) -> None:
    """Raise an error unless all statements are of the given kinds, or by default of those that can be explained."""
    explained = kinds or (Rule, Request, Query)
    called = {Rule: "TESLA rules", Request: "requests", Query: "SiddhiQL queries"}
    names = " and ".join(called[kind] for kind in explained)
    remedy = f"they explain {names}; use `explain` for what this one does"
    check_supported("why and why not", given, *explained, remedy=remedy, verb="explain")


class Evidence:
    """The events of a table, and the matches of rules over them."""

    def __init__(self, plan: Plan, types: Mapping[str, EventType], data: Data, columns: Columns) -> None:
        if not isinstance(data, pa.Table | pa.RecordBatch | Mapping):
            data = list(data) if isinstance(data, Iterable) else [data]
        detector = Detector(plan, types, delay_us=2**60, columns=columns)
        detector.shows_ids = False  # two events may share a source id
        found = [detector.push(data), detector.finish()]
        self.found = pa.concat_tables(found)
        """The table of all matches."""
        self.rejected = detector.dead_letters()
        """The dead letters: the rejected events with the reasons."""
        known = detector.known
        self._batch = read(data, columns, known).batch
        self._names = {number: name for name, number in known.numbers.items()}
        self._rules: dict[str, Statement] = {rule.name: rule for rule in plan.sources}
        self._levels = plan.strata
        self._emitted = plan.emitted
        self._columns = column_names(plan.emitted.kinds)

    # ---- explanations

    def has_match(self, id: str) -> bool:
        """Return whether a match has the id `id`."""
        return bool(self._rows("id", id))

    def parts(self, id: str) -> list[str]:
        """Return the identities of the events of match `id`, in role order."""
        return [part["id"] for row in self._rows("id", id)[:1] for part in row["parts"] or ()]

    def why(self, id: str) -> Reason:
        """Explain match `id`."""
        for row in self._rows("id", id):
            rule = self._rule(row["rule"])
            if isinstance(rule, Query):
                found = accounts.explain_row(rule, self._facts(rule, row["ts"]), row["ts"], id)
                assert found is not None
                return found
            facts = self._facts(rule, row["ts"])
            if isinstance(rule, Request):
                return accounts.explain_notification(rule, _filled(row, facts))
            anchor, *_ = (fact for fact in facts if fact.identity == row["parts"][0]["id"] and fact.ts == row["ts"])
            trial = Trial(rule, facts, self._consumed(rule, facts, anchor))
            return trial.at(anchor, [part["id"] for part in row["parts"]])
        raise EventError(f"no match has the id {id}")

    def why_not(self, id: str | None, at: int | None, name: str | None) -> list[Reason]:
        """Explain what the rules, or the rule called `name`, did at an event.

        The event has the id `id`, or it is each event at the time `at` (µs).
        """
        rules = list(self._rules.values()) if name is None else [self._rule(name)]
        reasons: list[Reason] = []
        seen = False
        for ts in sorted({at} if at is not None else self._times(id)):
            for rule in rules:
                facts = self._facts(rule, ts)
                asked = [fact for fact in facts if fact.ts == ts and id in (None, fact.id, fact.identity)]
                seen = seen or bool(asked)
                for anchor in asked:
                    if isinstance(rule, Query):
                        reasons.append(accounts.explain_event(rule, facts, anchor))
                    elif isinstance(rule, Request):
                        reasons += self._of_request(rule, facts, anchor)
                    elif anchor.type == rule.anchor.type:
                        reasons.append(Trial(rule, facts, self._consumed(rule, facts, anchor)).at(anchor))
        if not reasons:
            what = f"event has the id {id}" if id is not None else f"event came at {at}"
            which = f"the anchor of {name}" if name is not None else "the anchor of a rule"
            raise EventError(f"no such event is {which}" if seen else f"no {what} among the events that the rules use")
        return reasons

    def _of_request(self, request: Request, facts: Sequence[Fact], event: Fact) -> list[Reason]:
        """Explain the notifications that contain an event, or why no notification contains it."""
        used: dict[Fact, str] = {}
        reasons: list[Reason] = []
        for row in self._rows_between(event.ts - request.window_us, event.ts + request.window_us):
            if row["rule"] != request.name:
                continue
            if any(part["id"] == event.identity and part["ts"] == event.ts for part in row["parts"]):
                reasons.append(accounts.explain_notification(request, _filled(row, self._facts(request, row["ts"]))))
            elif row["ts"] <= event.ts:
                used |= {fact: row["id"] for _, fact in _filled(row, facts)}
        near = [fact for fact in facts if fact.key <= event.key]
        return reasons or [accounts.explain_no_notification(request, event, near, used)]

    def _rule(self, name: str) -> Statement:
        rule = self._rules.get(name)
        if rule is None:
            raise RuleError(f"there is no rule {name}", hint=nearest(name, self._rules))
        return rule

    # ---- events of a time

    def _times(self, id: str | None) -> set[int]:
        """Return the times of all events with the id `id`, composite or not. Several events may share an id."""
        assert id is not None
        times = {row["ts"] for row in self._rows("id", id)}
        ts = self._batch["ts"].to_numpy()
        if LABEL_COLUMN in self._batch.column_names:
            times |= set(ts[pc.equal(self._batch[LABEL_COLUMN], id).fill_null(False).to_numpy()].tolist())
        names = [self._names.get(number, "") for number in range(max(self._names, default=-1) + 1)]
        return times | set(ts[matches_identity(self._batch, names, id)].tolist())

    def _facts(self, rule: Statement, ts: int) -> list[Fact]:
        """Return the events at which the rule can look from an anchor at the time `ts`, in canonical order."""
        begin = ts - lookback_us(rule)
        whole, needed = self._batch["ts"].to_numpy(), self._batch["type"].to_numpy()
        near = self._batch.take(np.nonzero((needed >= 0) & (whole >= begin) & (whole <= ts))[0])
        facts = identified(self._events(near))
        for row in sorted(self._rows_between(begin, ts), key=lambda row: self._levels[row["rule"]]):
            by = self._rules[row["rule"]]
            if not isinstance(by, Query):
                facts.append(self._composite(row, facts))
            elif by.emits.name in rule.uses:
                raise RuleError(
                    f"{rule.name} uses rows of the query {by.name}, which why cannot explain",
                    hint=f"Ask why {by.name} emitted them (tocsin why … --rule {by.name}), or write them to a file and "
                    f"run {rule.name} over that.",
                )
        return sorted((fact for fact in facts if fact.type in rule.uses), key=lambda fact: fact.key)

    def _events(self, batch: pa.Table) -> Iterator[Event]:
        columns = {name: name.rpartition(":")[0] for name in batch.column_names if ":" in name and name != LABEL_COLUMN}
        for name in columns:
            if batch[name].type == ARROW[Kind.TIMESTAMP]:
                batch = batch.set_column(batch.column_names.index(name), name, batch[name].cast(pa.int64()))
        for row in batch.to_pylist():
            # Keep the null of an attribute that hides a header field, as the name does not mean the header field.
            values = {
                column: row[name] for name, column in columns.items() if row[name] is not None or column in HEADER
            }
            yield Event(self._names[row["type"]], row["ts"], values, row["seq"], row.get(LABEL_COLUMN))

    def _composite(self, row: Mapping[str, Any], facts: Sequence[Fact]) -> Fact:
        """Return a match as an event, with the seq of the match's last event."""
        last = {part["id"] for part in row["parts"] if part["ts"] == row["ts"]}
        seq = max((fact.seq for fact in facts if fact.identity in last and fact.ts == row["ts"]), default=0)
        emits = self._rules[row["rule"]].emits
        values = {name: row[self._columns[self._emitted.key(name, kind)]] for name, kind in emits.attributes}
        words = int(row["id"][:16], 16), int(row["id"][16:], 16)
        return Fact(emits.name, row["ts"], seq, row["id"], words, values)

    # ---- matches

    @cached_property
    def _plain(self) -> pa.Table:
        """The matches, with times as integers."""
        table = self.found
        for number, column in enumerate(table.schema):
            if pa.types.is_timestamp(column.type):
                table = table.set_column(number, column.name, table[column.name].cast(pa.int64()))
        return table

    def _rows(self, column: str, value: object) -> list[dict[str, Any]]:
        return _as_rows(self._plain.filter(pc.equal(self._plain[column], pa.scalar(value))))

    def _rows_between(self, begin: int, end: int) -> list[dict[str, Any]]:
        ts = self._plain["ts"].to_numpy()
        return _as_rows(self._plain.take(np.nonzero((ts >= begin) & (ts <= end))[0]))

    def _consumed(self, rule: Rule, facts: Sequence[Fact], anchor: Fact) -> dict[tuple[str, Fact], str]:
        """Return the events that earlier matches of the rule have used up, each with the id of the match."""
        if not rule.consuming:
            return {}
        by_id = {(fact.type, fact.ts, fact.identity): fact for fact in facts}
        used: dict[tuple[str, Fact], str] = {}
        for row in self._rows("rule", rule.name):
            parts = {part["role"]: by_id.get((part["type"], part["ts"], part["id"])) for part in row["parts"]}
            began = parts[rule.anchor.role]
            if began is not None and began.key < anchor.key:
                for role in rule.consuming:
                    fact = parts[role]
                    if fact is not None:
                        used.setdefault((role, fact), row["id"])
        return used


def matches_identity(batch: pa.Table, names: Sequence[str], id: str) -> Array:
    """Return which events of a batch have the identity `id`, or the same content as the event with that identity.

    `names` has the names of the types, by number.
    """
    same = np.zeros(batch.num_rows, bool)
    if len(id) != 32 or set(id) - set("0123456789abcdef"):
        return same
    rows = np.nonzero(batch["type"].to_numpy() >= 0)[0]
    first, second = content_ids(batch, _type_words(names), rows, {})
    one, other = np.uint64(int(id[:16], 16)), np.uint64(int(id[16:], 16))
    carry = (second > other).astype(np.uint64)  # the number among equal events is added to the id as 128 bits
    same[rows] = (first + carry == one) & (other - second < np.uint64(SAME_MAX))
    return same


def identity_strings(batch: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the identity of each event of a batch, as if no other event had the same content.

    `names` has the names of the types, by number.
    """
    return hexadecimal(*content_ids(batch, _type_words(names), np.arange(batch.num_rows), {}))


def _type_words(names: Sequence[str]) -> Array:
    return np.array([text_words(name) for name in names], np.uint64).reshape(-1, 2)


def _as_rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for part in row["parts"] or ():
            if not isinstance(part["ts"], int):
                part["ts"] = pa.scalar(part["ts"], ARROW[Kind.TIMESTAMP]).value
    return rows


def _filled(row: Mapping[str, Any], facts: Sequence[Fact]) -> list[tuple[str, Fact]]:
    """Return the events of a notification by role. Timers are not in `facts`, so events are created for them."""
    by_id = {(fact.ts, fact.identity): fact for fact in facts}
    return [
        (part["role"], by_id.get((part["ts"], part["id"])) or Fact(part["type"], part["ts"], 0, part["id"], (0, 0), {}))
        for part in row["parts"]
    ]


def lookback_us(rule: Statement) -> int:
    """Return how far back from its anchor a rule can look, in µs. For a query, this covers all earlier events."""
    if isinstance(rule, Query):
        return 2 * TS_LIMIT
    if isinstance(rule, Request):
        return rule.window_us

    def window(clause: Clause) -> int:
        return clause.scope.window_us if isinstance(clause.scope, Within) else 0

    return sum(map(window, rule.clauses))
