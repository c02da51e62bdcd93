"""Inspect a running service: dry runs, explanations of matches, the operator graph, and ranges of moving queries.

The operator graph shows how many events pass each filter per second. This rate is the rate of the filter's type, times
the share of recent events of this type that pass. It is computed on request, so that detection needs no counters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin import kernels
from tocsin.engine.compile import RuleTables
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.predicates import PredicateEvaluator
from tocsin.engine.strings import StringDictionary
from tocsin.errors import EventError, RuleError, TocsinError
from tocsin.events.files import records as rows_of
from tocsin.events.reader import LABEL_COLUMN, Columns
from tocsin.events.types import ID, LABEL, Event, EventType
from tocsin.language.eps.ast import Statement
from tocsin.language.mcep.ast import Circle, Interest, Polygon, Rectangle
from tocsin.language.syntax.ast import Rule
from tocsin.plans.explain import COLUMNS, NODES_SHOWN, outline
from tocsin.plans.expressions import Field, leaves
from tocsin.plans.plan import Plan, plan
from tocsin.plans.rules import Buffer, Filter
from tocsin.plans.typing import Catalog
from tocsin.service.deployments import Deployed, ParsedText
from tocsin.service.embedded_backend import EmbeddedBackend, Row, concat_records, tables_by_type
from tocsin.service.feed import RecentEvents
from tocsin.service.records import Deploy, EventsRecord, RulesRecord
from tocsin.service.service import NotFound, Service
from tocsin.why.evidence import Evidence, check_explicable, identity_strings, lookback_us, matches_identity
from tocsin.why.reasons import Reason, event_text

EVENTS = 20_000
"""The number of recent events on which filters are evaluated."""


def pass_rates(
    plan: Plan, filters: Iterable[Filter], recent: RecentEvents, per_s: Mapping[str, float]
) -> dict[Filter, float | None]:
    """Return how many events per second pass each filter, or None if this is unknown.

    `per_s` has the events per second of each type.
    """
    rates: dict[Filter, float | None] = {}
    tried: list[Filter] = []
    for filter in filters:
        if filter.type not in per_s:
            rates[filter] = None
        elif not filter.conditions:
            rates[filter] = per_s[filter.type]
        elif filter.type in plan.defined or any(_reads_id(filter)):
            rates[filter] = None
        else:
            tried.append(filter)
    shares = _shares(plan, tried, recent) if tried else {}
    return rates | {filter: per_s[filter.type] * share for filter, share in shares.items()}


def _shares(plan: Plan, filters: list[Filter], recent: RecentEvents) -> dict[Filter, float]:
    """Return, for each filter, the share of the recent events of its type that pass the filter."""
    records, count = [], 0
    for record in reversed(recent.records({filter.type for filter in filters})):
        records.append(record)
        count += record.batch.num_rows
        if count >= EVENTS:
            break
    if not count:
        return dict.fromkeys(filters, 0.0)
    strings = StringDictionary()
    tables = RuleTables(strings)
    numbers = {}
    for filter in filters:
        tables.add_type(filter.type, plan.columns[filter.type])
        numbers[filter] = tables.filter(filter)
    batch, types = concat_records(records)
    codes = np.array([tables.types.get(type, kernels.NONE) for type in types], np.int32)[batch["type"].to_numpy()]
    evaluator = PredicateEvaluator(tables, strings)
    passed, _ = evaluator.evaluate(evaluator.view_batch(batch.set_column(0, "type", pa.array(codes))))
    by_filter = np.bincount(passed.filters, minlength=len(filters))
    by_type = np.bincount(codes[codes >= 0], minlength=len(tables.types))
    return {
        filter: float(by_filter[number]) / max(1, int(by_type[tables.types[filter.type]]))
        for filter, number in numbers.items()
    }


def _reads_id(filter: Filter) -> Iterable[bool]:
    for condition in filter.conditions:
        for leaf in leaves(condition):
            yield isinstance(leaf, Field) and leaf.attribute == ID


DRY_MATCHES = 50
HEADER = ("ts", "seq", LABEL)
FOREVER_US = 2**60


def dry_run(service: Service, source: str, language: str | None = None) -> dict[str, Any]:
    """Return the matches of the rules in `source` among the recent events, without deploying the rules."""
    text = service.check(source, language)
    records = service.recent.records()
    backend = EmbeddedBackend(FOREVER_US)
    for record in records:
        for type, named in record.new_kinds.items():
            backend.kinds.setdefault(type, dict(named))
    backend.detector.learn(
        {type: named for type, named in service.registry.kinds.items() if type not in service.backend.plan.defined}
    )
    backend.detector.declare(service.backend.plan.catalog.types.values())
    for needed in _needed(service, text):
        backend.detector.add([needed])
    backend.change(RulesRecord(deploy=Deploy(source, text.language)))
    plain = [EventsRecord(record.batch, record.types) for record in records]
    rows = backend.take(plain) if plain else []
    if plain:
        rows += backend.advance(backend.largest + 1)
    names = set(text.names)
    mine = [row for row in rows if row["rule"] in names or row.get("query") in names]
    span = [int(edge) for record in records if record.batch.num_rows for edge in _edges(record)]
    return {
        "events": sum(record.batch.num_rows for record in records),
        "from_us": min(span, default=None),
        "to_us": max(span, default=None),
        "matches": len(mine),
        "by_rule": {name: sum(name in (row["rule"], row.get("query")) for row in mine) for name in text.names},
        "sample": mine[-DRY_MATCHES:],
    }


def _edges(record: EventsRecord) -> tuple[int, int]:
    ts = record.batch["ts"].to_numpy()
    return ts.min(), ts.max()


def _needed(service: Service, text: ParsedText) -> list[Statement]:
    """Return the deployed rules that `text` needs because they define the types that its rules use."""
    if text.program.interests:
        return []
    return _uses(service, [type for rule in text.program.rules for type in rule.uses], text.names)


def _uses(service: Service, types: Iterable[str], but: Collection[str]) -> list[Statement]:
    """Return the deployed rules that define `types`, and the rules that these rules use in turn.

    Leave out the rules named in `but`. Order the rules by stratum, so that a rule comes after the rules that it uses.
    """
    plan = service.backend.plan
    known = {rule.name: rule for rule in plan.sources if rule.name not in but}
    wanted: dict[str, Statement] = {}
    waiting = list(types)
    while waiting:
        type = waiting.pop()
        for rule in known.values():
            if rule.emits.name == type and rule.name not in wanted:
                wanted[rule.name] = rule
                waiting += rule.uses
    return sorted(wanted.values(), key=lambda rule: plan.strata[rule.name])


def find_match(service: Service, id: str) -> Row:
    """Return the stored match whose number or id is `id`."""
    line = service.matches.get(int(id)) if id.isdecimal() and len(id) < 19 else None
    if line is not None:
        return dict(json.loads(line.text))
    wanted = f'"id":"{id}"'.encode()
    for candidate in reversed(service.matches.latest(20_000)):
        if wanted in candidate.text:
            return dict(json.loads(candidate.text))
    raise NotFound(f"there is no match {id}, or it is no longer stored")


def why(service: Service, id: str) -> dict[str, Any]:
    """Explain the match whose number or id is `id`.

    Return its rule, its events with their attributes, and the check of each clause.
    """
    match = find_match(service, id)
    rule = service.rules.get(match.get("query") or match["rule"])
    checks: list[dict[str, Any]] = []
    note = None
    ids = [part["id"] for part in match["parts"]]
    if rule is not None:
        try:
            evidence = _evidence(service, rule, _micros(match["ts"]))
            if len(identities := evidence.parts(match["id"])) == len(ids):
                ids = identities  # a source may repeat ids; identities are unique
            checks = _check_fields(evidence.why(match["id"]))
        except TocsinError as error:
            note = str(error)
    parts = [
        {**part, "attributes": _attributes(service, part, id)} for part, id in zip(match["parts"], ids, strict=True)
    ]
    rule_fields = None if rule is None else {"id": rule.id, "language": rule.language, "text": rule.source}
    return {"match": match, "rule": rule_fields, "parts": parts, "checks": checks, "note": note}


def why_not(service: Service, rule: str, ts_us: int | None, id: str | None) -> list[dict[str, Any]]:
    """Explain why `rule` did not match at an event, which is given by its time `ts_us`, its `id`, or both.

    Return the conditions that held, and the first condition that did not hold, with the nearest candidate.
    """
    deployed = service.rules.get(rule)
    if deployed is None:
        raise NotFound(f"there is no rule {rule}")
    if ts_us is None and id is None:
        raise EventError("give the event's id, its time (ts_us), or both")
    reasons = _evidence(service, deployed, ts_us).why_not(id, ts_us, rule)
    return [
        {
            "rule": reason.rule,
            "matched": reason.matched,
            "anchor": event_text(reason.anchor),
            "checks": _check_fields(reason),
        }
        for reason in reasons
    ]


def _check_fields(reason: Reason) -> list[dict[str, Any]]:
    return [
        {"clause": check.clause, "asked": check.asked, "found": check.found, "holds": check.holds}
        for check in reason.checks
    ]


def _evidence(service: Service, rule: Deployed, ts_us: int | None) -> Evidence:
    """Prepare the recent events with which matches of `rule` can be explained, including the rules that it uses.

    If `ts_us` is given, take only the events that the rules can look back to from this time.
    """
    statement = next((one for one in service.backend.plan.sources if one.name == rule.id), None)
    if rule.is_moving:
        check_explicable([rule.interest()[0]], Rule)
    elif statement is not None:
        check_explicable([statement], Rule)
    if not isinstance(statement, Rule):
        raise RuleError(f"rule {rule.id} is not running yet")
    needed = [*_uses(service, statement.uses, {rule.id}), statement]
    types = {type for one in needed for type in one.uses}
    kinds = service.registry.kinds
    declared = {type: EventType(type, tuple(kinds[type].items())) for type in types if type in kinds}
    lookback = sum(lookback_us(one) for one in needed if isinstance(one, Rule))
    span = None if ts_us is None else (ts_us - lookback, ts_us)
    events = [
        Event(event["type"], event["ts_us"], event["values"], event["seq"], event["id"])
        for event in _events(service.recent.records(types), types, span)
    ]
    if not events:
        raise EventError("the events are no longer stored")
    return Evidence(plan(needed, Catalog(types=declared, by_kind=True)), declared, events, Columns())


def _attributes(service: Service, part: Row, id: str) -> dict[str, Any]:
    """Return the attributes of the event `id` in `part` of a match, or nothing if the event is no longer stored."""
    type, moment = part["type"], _micros(part["ts"])
    if type in service.backend.plan.defined:
        with suppress(NotFound):
            return dict(find_match(service, id)["attributes"])
        return {}
    for record in reversed(service.recent.records({type})):
        batch = record.batch
        wanted = (batch["ts"].to_numpy() == moment) & (batch["type"].to_numpy() == record.types.index(type))
        batch = batch.filter(pa.array(wanted))
        if not batch.num_rows:
            continue
        same = matches_identity(batch, record.types, id)
        if LABEL_COLUMN in batch.column_names:
            same |= np.asarray(pc.fill_null(pc.equal(batch[LABEL_COLUMN], id), False))
        for event in _events([replace(record, batch=batch.filter(pa.array(same)))], {type}, None):
            return dict(event["attributes"])
    return {}


def latest_events(service: Service, type: str | None, limit: int) -> list[Row]:
    """Return the last `limit` events, newest first. If `type` is given, return only events of this type."""
    types = set(service.registry.kinds) if type is None else {type}
    rows: list[Row] = []
    for record in reversed(service.recent.records(types)):
        rows += sorted(_events([record], types, None), key=lambda event: int(event["ts_us"]), reverse=True)
        if len(rows) >= limit:
            break
    return [
        {name: event[name] for name in ("type", "ts", "ts_us", "attributes")} | {"id": event["id"] or event["identity"]}
        for event in rows[:limit]
    ]


def _micros(ts: str) -> int:
    return int(np.datetime64(ts.rstrip("Z"), "us").astype(np.int64))


def _events(records: Iterable[EventsRecord], types: Iterable[str], span: tuple[int, int] | None) -> list[Row]:
    """Return the events of `types` as rows, in order of arrival.

    If `span` is given, return only events between its two times (µs).
    """
    wanted = set(types)
    rows: list[Row] = []
    for record in records:
        if span is not None:
            ts = record.batch["ts"].to_numpy()
            near = (ts >= span[0]) & (ts <= span[1])
            if not near.any():
                continue
            record = replace(record, batch=record.batch.filter(pa.array(near)))
        strings = identity_strings(record.batch, record.types)
        for type, table in tables_by_type(record).items():
            if type not in wanted:
                continue
            micros = table["ts"].cast(pa.int64()).to_pylist()
            mine = strings.filter(pa.array(record.batch["type"].to_numpy() == record.types.index(type))).to_pylist()
            for row, plain, ts_us, identity in zip(rows_of(table), _plain(table), micros, mine, strict=True):
                attributes = {name: value for name, value in row.items() if name not in HEADER and value is not None}
                values = {name: value for name, value in plain.items() if name not in HEADER and value is not None}
                rows.append(
                    {"type": type, "ts": row["ts"], "ts_us": ts_us, "seq": row["seq"], "id": row.get(LABEL)}
                    | {"attributes": attributes, "values": values, "identity": identity}
                )
    return rows


def _plain(table: pa.Table) -> list[Row]:
    """Return the rows of `table`, with times as integers."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(number, column.name, table[column.name].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    return rows


def graph(service: Service) -> dict[str, Any]:
    """Return the operator graph that all rules share, with rates in events per second.

    The rate of a buffer is the rate of its filter.
    """
    plan = service.backend.plan
    shape = outline(plan)
    events, matches = service.event_rates.per_s(), service.match_rates.per_s()
    by_emitted: dict[str, float] = {}
    for rule in plan.rules:
        by_emitted[rule.emits.name] = by_emitted.get(rule.emits.name, 0.0) + matches.get(rule.rule.name, 0.0)
    filters = [node for node in shape.labels[1] if isinstance(node, Filter)]
    through = pass_rates(plan, filters, service.recent, {**events, **by_emitted})
    ids: dict[tuple[int, object], str] = {}
    nodes = []
    for column, labels in enumerate(shape.labels):
        for row, (node, (title, detail)) in enumerate(list(labels.items())[:NODES_SHOWN]):
            ids[column, node] = f"{column}-{row}"
            rate = {0: events.get(title), 3: matches.get(title), 4: by_emitted.get(title)}.get(column)
            if isinstance(node, Filter | Buffer):
                rate = through.get(node if isinstance(node, Filter) else node.filter)
            shared = column in (1, 2) and node in shape.shared
            nodes.append(
                {"id": ids[column, node], "column": column, "title": title, "detail": detail, "shared": shared}
                | {"per_s": None if rate is None else round(rate, 2)}
            )
    links = [
        [ids[source, a], ids[target, b]]
        for source, a, target, b in shape.links
        if (source, a) in ids and (target, b) in ids
    ]
    more = [max(0, len(labels) - NODES_SHOWN) for labels in shape.labels]
    return {"columns": list(COLUMNS), "nodes": nodes, "links": links, "more": more}


def ranges(service: Service) -> list[dict[str, Any]]:
    """Return the current position and shape of the range of each moving query."""
    rows = []
    for id, detector in list(service.backend.moving.items()):
        follower = _tracker(detector)
        interest, _ = service.rules[id].interest() if id in service.rules else (None, ())
        if interest is None or not follower.number[0]:
            continue
        rows.append(
            {
                "query": id,
                "range": int(follower.number[0]),
                "start_us": int(follower.start[0]),
                "east": float(follower.east[0]),
                "north": float(follower.north[0]),
                "space": str(interest.space),
                "shape": _shape(interest),
            }
        )
    return rows


def located_events(service: Service, limit: int = 500) -> list[dict[str, Any]]:
    """Return the last `limit` events that have coordinates, oldest first."""
    rows = []
    for record in reversed(service.recent.records()):
        for type, table in tables_by_type(record).items():
            names = next((pair for pair in (("x", "y"), ("lon", "lat")) if set(pair) <= set(table.column_names)), None)
            if names is None:
                continue
            east, north = (table[name].to_pylist() for name in names)
            for ts, one, other in zip(table["ts"].cast("int64").to_pylist(), east, north, strict=True):
                if one is not None and other is not None:
                    rows.append({"type": type, "ts_us": ts, "east": one, "north": other})
        if len(rows) >= limit:
            break
    return sorted(rows, key=lambda event: event["ts_us"])[-limit:]


def _tracker(detector: MovingDetector) -> Any:
    return detector._tracker


def _shape(interest: Interest) -> dict[str, Any]:
    match interest.shape:
        case Rectangle(width_m, height_m):
            return {"rectangle_m": [width_m, height_m]}
        case Circle(radius_m):
            return {"circle_m": radius_m}
        case Polygon(corners_m):
            return {"polygon_m": [list(corner) for corner in corners_m]}


def error_fields(error: TocsinError) -> dict[str, Any]:
    """Return the fields of the JSON object that describes `error`."""
    if isinstance(error, RuleError):
        span = error.span
        return {
            "message": error.message,
            "hint": error.hint,
            "line": error.line,
            "column": error.column,
            "start": None if span is None or error.source is None else span.start,
            "end": None if span is None or error.source is None else span.end,
        }
    return {"message": str(error)}
