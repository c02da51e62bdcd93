"""A scenario as a person writes it: a YAML file with a topology, rules, sources with rates, sinks, and strategies.

    topology:                        # or a file of links, or model, processors, links and delay_ms
      links: [[hill, town, 5], [lake, town, 8]]
    rules: fire.tesla                # beside the scenario; it declares the types of events
    sources: {hill: {Smoke: 0.02}, lake: {Temp: 2}}     # events a second
    values: {area: [A1, A2], value: [20, 60]}           # texts: one of these; numbers: between these
    sinks: {town: [Fire, "Temp(value>55)"]}
    strategies: [Centr, ST, MT]      # all five if left out; auto: the one with the least predicted traffic
    seconds: 300
    seed: 1
    changes:                         # at seconds of event time; what is not named stays
      - {at: 60, links: [[dam, town, 4]], sources: {dam: {Temp: 1}}}   # a new processor, or another delay
      - {at: 90, sinks: {town: [], dam: [Fire]}}
      - {at: 120, leave: [hill], unlink: [[lake, town]]}

Instead of topology, rules, sources and sinks, `workload` can name the knobs of a made-up one (`workloads.Workload`).
With `hosting` a scenario can also be run for real (`spark.sites.plans`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from tocsin.errors import TocsinError, nearest
from tocsin.events.columns import ARROW
from tocsin.events.types import EventType, Kind
from tocsin.language import parse, parse_pattern
from tocsin.language.supported import check_supported
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.processor import check_names
from tocsin.overlay.strategies import STRATEGIES, Link, Sites, Strategy, place, strategy
from tocsin.plans.bind.structure import Shape
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.simulation import workloads
from tocsin.simulation.workloads import Workload, drawn, events

SECOND_US = 1_000_000
AUTO = "auto"
"""Stands for the strategy that `planning` chooses."""
KEYS = (
    *("topology", "rules", "sources", "sinks", "values", "strategies", "seconds", "warm_up", "seed", "workload"),
    *("changes", "hosting"),
)
CHANGE_KEYS = ("at", "links", "unlink", "leave", "sources", "sinks")
Rates = Mapping[tuple[str, str], float]
"""Events a second by source and type."""


@dataclass(frozen=True)
class Scenario:
    """What a run needs."""

    sites: Sites
    types: Mapping[str, EventType]
    rules: tuple[Rule, ...]
    events: pa.Table
    where: pa.Array
    strategies: tuple[Strategy, ...]
    warm_up_s: float
    seconds: float
    rates: Rates
    """At the beginning."""
    values: Mapping[str, Any]
    changes: tuple[tuple[float, Sites], ...] = ()
    """How the sites are from a time on."""
    hosting: object = field(default_factory=dict)
    """How sites run for real, as it was written."""


def read(path: Path) -> Scenario:
    """The scenario in a file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TocsinError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise TocsinError(f"{path} is not YAML: {error}") from None
    try:
        named = _mapping(data, "a scenario", KEYS)
        return replace(_scenario(named, path.parent), hosting=named.get("hosting", {}))
    except TocsinError as error:
        raise TocsinError(f"{path}: {error}") from None


def _mapping(data: object, what: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TocsinError(f"{what} is a mapping of names to values")
    for name in data:
        if known and name not in known:
            raise TocsinError(f"{what} has no '{name}'. {nearest(str(name), known)}")
    return {str(name): value for name, value in data.items()}


def _number(data: Mapping[str, Any], name: str, default: float, least: float = 0) -> float:
    value = data.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < least:
        raise TocsinError(f"{name} is a number from {least:g} on, not {value!r}")
    return float(value)


def _scenario(data: dict[str, Any], folder: Path) -> Scenario:
    names = data.get("strategies", list(STRATEGIES))
    strategies = tuple(strategy(str(name)) for name in ([names] if isinstance(names, str) else names) if name != AUTO)
    seconds = _number(data, "seconds", 300.0, 1)
    seed = int(_number(data, "seed", 1))
    if "workload" in data:
        if clash := {"topology", "rules", "sources", "sinks", "values", "changes"} & data.keys():
            raise TocsinError(f"workload makes up what {min(clash)} says: leave one out")
        knobs = _mapping(data["workload"] or {}, "workload", tuple(knob.name for knob in fields(Workload)))
        try:
            made = drawn(Workload(**{"seed": seed, **knobs}))
        except TypeError as error:
            raise TocsinError(f"workload: {error}") from None
        sites, types, rules = made.sites, made.types, made.rules
        warm_s = _number(data, "warm_up", _warm_up_s(rules))
        table, where = events(made, warm_s + seconds, seed)
        known = {(made.homes[type], type): rate for type, rate in made.rates.items()}
        values = {"v": [0, made.values]}
        return Scenario(sites, types, rules, table, where, strategies, warm_s, seconds, known, values)
    for name in ("topology", "rules", "sources", "sinks"):
        if name not in data:
            raise TocsinError(f"there is no '{name}'; a scenario has topology, rules, sources and sinks, or a workload")
    types, rules = _rules(data["rules"], folder)
    delays = _topology(data["topology"], folder, seed)
    rates, sinks = _rates(data["sources"], types), _sinks(data["sinks"])
    first = _sites(delays, rates, sinks)
    warm_s = _number(data, "warm_up", _warm_up_s(rules))
    values = _mapping(data.get("values", {}), "values")
    states = _changes(data.get("changes", []), first, rates, types, warm_s + seconds)
    starts = [0.0, *(at_s for at_s, _, _ in states), warm_s + seconds]
    spans = list(zip(pairwise(starts), (rates, *(later for _, _, later in states)), strict=True))
    table, where = _drawn_events(spans, types, values, seed)
    later = tuple((at_s, sites) for at_s, sites, _ in states)
    return Scenario(first, types, rules, table, where, strategies, warm_s, seconds, rates, values, later)


def _rates(data: object, types: Mapping[str, EventType]) -> dict[tuple[str, str], float]:
    return {
        (source, type): _number(_mapping(offered, f"the source {source}"), type, 0)
        for source, offered in _mapping(data, "sources").items()
        for type in _mapping(offered, f"the source {source}", tuple(types))
    }


def _sinks(data: object) -> dict[str, tuple[Pattern, ...]]:
    return {
        sink: tuple(parse_pattern(text) if "(" in text else parse_pattern(f"{text}()") for text in _texts(wanted, sink))
        for sink, wanted in _mapping(data, "sinks").items()
    }


def _sites(delays: dict[Link, int], rates: Rates, sinks: dict[str, tuple[Pattern, ...]]) -> Sites:
    sources: dict[str, frozenset[str]] = {}
    for source, type in rates:
        sources[place(source)] = sources.get(place(source), frozenset()) | {type}
    known = {name for link in delays for name in link}
    for name in (*sources, *map(place, sinks)):
        if known and name not in known:
            raise TocsinError(f"there is no processor {name}. {nearest(name, known)}")
    return Sites(delays, sources, sinks)


def _changes(
    data: object, sites: Sites, rates: Rates, types: Mapping[str, EventType], end_s: float
) -> list[tuple[float, Sites, Rates]]:
    """How sites and rates are from each change on."""
    if not isinstance(data, list):
        raise TocsinError("changes is a list, each with a time 'at' and what is different from then on")
    found: list[tuple[float, Sites, Rates]] = []
    before_s = 0.0
    for one in data:
        change = _mapping(one, "a change", CHANGE_KEYS)
        at_s = _number(change, "at", -1.0)
        if not before_s < at_s < end_s:
            raise TocsinError(f"a change at {at_s:g} is not after {before_s:g} and before {end_s:g} s")
        links = _links(change.get("links", []))
        gone = {str(name) for name in change.get("leave", [])}
        cut = {frozenset(map(str, link)) for link in change.get("unlink", [])}
        if strange := sorted(gone - set(sites.processors)):
            raise TocsinError(f"there is no processor {strange[0]}. {nearest(strange[0], sites.processors)}")
        delays = {link: delay for link, delay in sites.delays_us.items() if frozenset(link) not in cut}
        delays = {link: delay for link, delay in {**delays, **links}.items() if not gone & set(link)}
        new = _rates(change.get("sources", {}), types)
        named = {str(source) for source in change.get("sources", {})}
        kept = {pair: rate for pair, rate in rates.items() if pair[0] not in named and place(pair[0]) not in gone}
        rates = {**kept, **new}
        sinks = {sink: wanted for sink, wanted in sites.sinks.items() if place(sink) not in gone}
        sinks = {sink: wanted for sink, wanted in {**sinks, **_sinks(change.get("sinks", {}))}.items() if wanted}
        sites = _sites(workloads.connected(delays, f"the change at {at_s:g}"), rates, sinks)
        found.append((at_s, sites, rates))
        before_s = at_s
    return found


def _texts(wanted: object, sink: str) -> list[str]:
    found = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TocsinError(f"the sink {sink} wants a list of types or subscriptions, such as [Fire, 'Temp(value>55)']")
    return found


def _warm_up_s(rules: tuple[Rule, ...]) -> float:
    return max((Shape(rule).horizon_us for rule in rules), default=0) / SECOND_US


def _rules(text: object, folder: Path) -> tuple[dict[str, EventType], tuple[Rule, ...]]:
    if not isinstance(text, str):
        raise TocsinError("rules is the name of a file, or the text of rules")
    if "\n" not in text and "(" not in text:
        try:
            text = (folder / text).read_text(encoding="utf-8")
        except OSError as error:
            raise TocsinError(f"the rules in {text} cannot be read: {error.strerror}") from None
    program = parse(text)
    remedy = "sites run TESLA rules; use `tocsin run`"
    check_supported("a scenario (`tocsin simulate`, `tocsin site`)", program, Rule, remedy=remedy)
    rules = [rule for rule in program.rules if isinstance(rule, Rule)]
    if not program.types:
        raise TocsinError("between sites the types of events must be declared, as in: event Temp(area: string)")
    types = {type.name: type for type in program.types}
    check_names([*types.values(), *(rule.emits for rule in rules)])
    plan(rules, Catalog(types=types, closed=True))
    return types, tuple(rules)


def _topology(data: object, folder: Path, seed: int) -> dict[tuple[str, str], int]:
    if isinstance(data, str):
        return workloads.read(folder / data)
    made = _mapping(data, "topology", ("links", "model", "processors", "delay_ms"))
    if isinstance(made.get("links"), list):
        return workloads.connected(_links(made["links"]), "topology")
    return workloads.topology(
        str(made.get("model", "waxman")),
        int(_number(made, "processors", 20, 1)),
        _number(made, "links", 5, 1),
        _number(made, "delay_ms", 5),
        seed,
    )


def _links(data: object) -> dict[Link, int]:
    try:
        assert isinstance(data, list)
        links = [(str(here), str(there), round(float(delay) * 1000)) for here, there, delay in data]
    except (AssertionError, TypeError, ValueError):
        raise TocsinError("a link is two processors and a delay in ms, such as [hill, town, 5]") from None
    return workloads.both_ways(links)


def _drawn_events(
    spans: Sequence[tuple[tuple[float, float], Rates]],
    types: Mapping[str, EventType],
    values: Mapping[str, Any],
    seed: int,
) -> tuple[pa.Table, pa.Array]:
    """Events of each source by chance at its rates, in order of time."""
    chance = np.random.default_rng([seed, 11])
    kinds = {name: kind for type in types.values() for name, kind in type.attributes}
    for name in values:
        if name not in kinds:
            raise TocsinError(f"no type has an attribute {name}. {nearest(name, kinds)}")
    pieces, places = [], []
    for (start_s, end_s), source, name, rate in (
        (span, *pair, rate) for span, rates in spans for pair, rate in rates.items()
    ):
        count = int(chance.poisson(rate * (end_s - start_s)))
        columns = {
            "type": pa.array([name] * count, pa.string()),
            "ts": pa.array(np.sort(chance.integers(round(start_s * SECOND_US), round(end_s * SECOND_US), count))),
            "seq": pa.array(np.zeros(count, np.int64)),
        }
        for attribute, kind in types[name].attributes:
            columns[attribute] = _values(attribute, kind, values.get(attribute), count, chance)
        pieces.append(pa.table(columns))
        places += [place(source)] * count
    if not pieces:
        raise TocsinError("no source publishes anything")
    table = pa.concat_tables(pieces, promote_options="default")
    table = table.append_column("id", pa.array(np.arange(table.num_rows)).cast(pa.string()))
    order = np.argsort(table["ts"].to_numpy(), kind="stable")
    return table.take(order), pa.array(places, pa.string()).take(pa.array(order))


def _values(name: str, kind: Kind, given: object, count: int, chance: np.random.Generator) -> pa.Array:
    if given is not None and (not isinstance(given, list) or not given):
        raise TocsinError(f"values of {name}: a list of texts to choose from, or the least and the largest number")
    if kind is Kind.STRING:
        texts = [str(text) for text in given or ["a", "b", "c"]]
        return pa.array(texts, pa.string()).take(pa.array(chance.integers(0, len(texts), count)))
    if kind is Kind.BOOL:
        return pa.array(chance.integers(0, 2, count) == 1)
    try:
        low, high = (float(number) for number in given or [0, 100])
    except (TypeError, ValueError):
        raise TocsinError(f"values of {name}, a {kind}, are the least and the largest number") from None
    drawn = chance.uniform(low, high, count)
    return pa.array(drawn if kind is Kind.DOUBLE else drawn.astype(np.int64)).cast(ARROW[kind])
