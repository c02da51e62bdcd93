"""Changes while a stream runs: control rows, that reach every slot in one batch and so take effect at one event time.

A control row has `add` (the text of rules), `remove` (names of rules), `at` (the event time, µs, from which on that is
so) and `advance` (no event before this time, µs, will come any more); each may be null. They come from a stream of
their own, so that they are in Spark's offset log and are replayed like events. Rules come and go only in a query that
was started for it, with `keep`: that lays it out by type alone. In any other, control rows can advance time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.engine import segments
from tocsin.engine.detector import Detector
from tocsin.errors import EventError, RuleError, nearest
from tocsin.events.letters import letters
from tocsin.language import parse
from tocsin.language.printing import print_rule
from tocsin.language.queries import Query
from tocsin.language.requests import Request, Statement
from tocsin.language.rules import Rule
from tocsin.language.supported import check_supported
from tocsin.plans.layout import check_fit
from tocsin.spark.jobs import Job
from tocsin.spark.packing import CONTROL
from tocsin.spark.slots import Tally

SCHEMA = "add string, remove array<string>, at bigint, advance bigint"
"""The columns of control rows."""


def parcels(changes: DataFrame, labels: Sequence[int]) -> DataFrame:
    """Control rows for every slot."""
    known = ("add", "remove", "at", "advance")
    names = [name for name in known if name in changes.columns]
    strange = [name for name in changes.columns if name not in known]
    if strange or not names:
        raise EventError(f"control rows have the columns {', '.join(known)}, not {', '.join(strange) or 'none'}")
    slots = F.explode(F.array(*(F.lit(label).cast("int") for label in labels)))
    none = F.lit(None).cast("bigint")
    payload = F.to_json(F.struct(*names)).cast("binary")
    return changes.select(
        slots.alias("slot"), F.lit(CONTROL).alias("what"), none.alias("least"), none.alias("largest"),
        payload.alias("payload"),
    )  # fmt: skip


def apply(orders: Sequence[bytes], job: Job, slot: int, detector: Detector, largest: int, tally: Tally) -> list[int]:
    """Takes the control rows of one batch, the same in every slot. Returns how far they advance time."""
    advances = []
    for order in sorted((json.loads(bytes(order)) for order in orders), key=_turn):
        if order.get("advance") is not None:
            advances.append(int(order["advance"]))
        if order.get("add") or order.get("remove"):
            at = max(largest + 1, int(order["at"]) if order.get("at") is not None else largest + 1)
            try:
                change(job, detector, order, at)
            except RuleError as error:
                if slot == 0:
                    tally.bury(letters([(f"the rules were not changed: {error}", None, at, json.dumps(order))]))
    return advances


def _turn(order: Mapping[str, Any]) -> tuple[int, str]:
    return order.get("at") or 0, json.dumps(order, sort_keys=True)


def change(job: Job, detector: Detector, order: Mapping[str, Any], at: int) -> None:
    """Changes the rules of a slot from that time on."""
    if job.kept is None:
        raise RuleError("this query was not started for rules that come and go", hint="Start it with keep=….")
    add = added(order)
    strange = {type for rule in add for type in types_of(rule)} - {*job.kept}
    strange -= {rule.emits.name for rule in (*detector.coming_rules, *add)}
    if strange:
        raise RuleError(
            f"events of type {min(strange)} are not kept by this query", hint=nearest(min(strange), job.kept)
        )
    detector.change(add=add, remove=order.get("remove") or (), at=at, check=lambda plan: check_fit(plan, job.layout))


def added(order: Mapping[str, Any]) -> tuple[Statement, ...]:
    """The rules that a control row adds."""
    program = parse(order.get("add") or "")
    remedy = "interests do not come and go while a stream runs; start a stream of its own with it"
    check_supported("a change of the rules", program, Rule, Request, Query, remedy=remedy, verb="add")
    return program.rules


def types_of(rule: Statement) -> set[str]:
    """The event types that a rule looks at."""
    return set(rule.uses)


def rules_in(head: bytes, stored: Mapping[int, bytes], job: Job, slot: int) -> tuple[Statement, ...]:
    """The rules of a slot: those of its state where rules come and go, else those of the job."""
    mine = job.rules_of(slot)
    if job.kept is None:
        return mine
    known = {print_rule(rule): rule for rule in mine}
    texts = segments.rules_of(head, stored).values()
    return tuple(known[text] if text in known else parse(text).rules[0] for text in texts)
