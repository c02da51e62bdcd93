"""Read a scenario, which is a YAML file with a topology, rules, sources with rates, sinks, and strategies.

    topology:                        # or a file of links, or model, processors, links and delay_ms
      links: [[hill, town, 5], [lake, town, 8]]         # the delays are in ms
    rules: fire.tesla                # in the folder of the scenario; it declares the types of events
    sources: {hill: {Smoke: 0.02}, lake: {Temp: 2}}     # events a second
    values: {area: [A1, A2], value: [20, 60]}           # a list of strings, or the least and the largest number
    sinks: {town: [Fire, "Temp(value>55)"]}
    strategies: [Centr, ST, MT]      # default: all five; auto is the strategy with the least predicted traffic
    seconds: 300
    seed: 1
    changes:                         # at seconds of event time; a change leaves everything else as it was
      - {at: 60, links: [[dam, town, 4]], sources: {dam: {Temp: 1}}}   # a new processor, or another delay
      - {at: 90, sinks: {town: [], dam: [Fire]}}
      - {at: 120, leave: [hill], unlink: [[lake, town]]}

Instead of topology, rules, sources and sinks, a scenario can have `workload`, with the parameters from which they are
generated (`workloads.Workload`). With `hosting`, the sites of a scenario can also run as applications
(`sites.site_plan`).
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
from tocsin.overlay.strategies import STRATEGIES, Link, Sites, Strategy, processor_of, strategy
from tocsin.plans.bind.structure import PatternTree
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.simulation import workloads
from tocsin.simulation.workloads import Workload, events, generate

SECOND_US = 1_000_000
AUTO = "auto"
"""The name that stands for the strategy that `predictions` chooses."""
KEYS = (
    *("topology", "rules", "sources", "sinks", "values", "strategies", "seconds", "warm_up", "seed", "workload"),
    *("changes", "hosting"),
)
CHANGE_KEYS = ("at", "links", "unlink", "leave", "sources", "sinks")
Rates = Mapping[tuple[str, str], float]
"""The number of events a second, by source and type."""


@dataclass(frozen=True)
class Scenario:
    """A scenario that can be run. `events` are generated, and `where` has the processor of each event."""

    sites: Sites
    types: Mapping[str, EventType]
    rules: tuple[Rule, ...]
    events: pa.Table
    where: pa.Array
    strategies: tuple[Strategy, ...]
    warm_up_s: float
    seconds: float
    rates: Rates
    """The rates of events before any change."""
    values: Mapping[str, Any]
    changes: tuple[tuple[float, Sites], ...] = ()
    """The time (s) of each change, and the sites after the change."""
    hosting: object = field(default_factory=dict)
    """The section `hosting` as it is in the file."""


def read(path: Path) -> Scenario:
    """Read the scenario in the file `path`, and generate its events."""
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
            generated = generate(Workload(**{"seed": seed, **knobs}))
        except TypeError as error:
            raise TocsinError(f"workload: {error}") from None
        sites, types, rules = generated.sites, generated.types, generated.rules
        warm_s = _number(data, "warm_up", _warm_up_s(rules))
        table, where = events(generated, warm_s + seconds, seed)
        rates = {(generated.homes[type], type): rate for type, rate in generated.rates.items()}
        values = {"v": [0, generated.values]}
        return Scenario(sites, types, rules, table, where, strategies, warm_s, seconds, rates, values)
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
    table, where = _generate_events(spans, types, values, seed)
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
        sources[processor_of(source)] = sources.get(processor_of(source), frozenset()) | {type}
    linked = {name for link in delays for name in link}
    for name in (*sources, *map(processor_of, sinks)):
        if linked and name not in linked:
            raise TocsinError(f"there is no processor {name}. {nearest(name, linked)}")
    return Sites(delays, sources, sinks)


def _changes(
    data: object, sites: Sites, rates: Rates, types: Mapping[str, EventType], end_s: float
) -> list[tuple[float, Sites, Rates]]:
    """Return the time of each change, and the sites and rates after the change."""
    if not isinstance(data, list):
        raise TocsinError("changes is a list, each with a time 'at' and what is different from then on")
    states: list[tuple[float, Sites, Rates]] = []
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
        kept = {
            pair: rate for pair, rate in rates.items() if pair[0] not in named and processor_of(pair[0]) not in gone
        }
        rates = {**kept, **new}
        sinks = {sink: wanted for sink, wanted in sites.sinks.items() if processor_of(sink) not in gone}
        sinks = {sink: wanted for sink, wanted in {**sinks, **_sinks(change.get("sinks", {}))}.items() if wanted}
        sites = _sites(workloads.connected(delays, f"the change at {at_s:g}"), rates, sinks)
        states.append((at_s, sites, rates))
        before_s = at_s
    return states


def _texts(wanted: object, sink: str) -> list[str]:
    texts = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TocsinError(f"the sink {sink} wants a list of types or subscriptions, such as [Fire, 'Temp(value>55)']")
    return texts


def _warm_up_s(rules: tuple[Rule, ...]) -> float:
    return max((PatternTree(rule).retention_us for rule in rules), default=0) / SECOND_US


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
    options = _mapping(data, "topology", ("links", "model", "processors", "delay_ms"))
    if isinstance(options.get("links"), list):
        return workloads.connected(_links(options["links"]), "topology")
    return workloads.topology(
        str(options.get("model", "waxman")),
        int(_number(options, "processors", 20, 1)),
        _number(options, "links", 5, 1),
        _number(options, "delay_ms", 5),
        seed,
    )


def _links(data: object) -> dict[Link, int]:
    try:
        assert isinstance(data, list)
        links = [(str(here), str(there), round(float(delay) * 1000)) for here, there, delay in data]
    except (AssertionError, TypeError, ValueError):
        raise TocsinError("a link is two processors and a delay in ms, such as [hill, town, 5]") from None
    return workloads.both_ways(links)


def _generate_events(
    spans: Sequence[tuple[tuple[float, float], Rates]],
    types: Mapping[str, EventType],
    values: Mapping[str, Any],
    seed: int,
) -> tuple[pa.Table, pa.Array]:
    """Generate the events of all sources in order of time, and return them with the processor of each event.

    `spans` has the rates in each span of time.
    """
    rng = np.random.default_rng([seed, 11])
    kinds = {name: kind for type in types.values() for name, kind in type.attributes}
    for name in values:
        if name not in kinds:
            raise TocsinError(f"no type has an attribute {name}. {nearest(name, kinds)}")
    pieces, origins = [], []
    for (start_s, end_s), source, name, rate in (
        (span, *pair, rate) for span, rates in spans for pair, rate in rates.items()
    ):
        count = int(rng.poisson(rate * (end_s - start_s)))
        columns = {
            "type": pa.array([name] * count, pa.string()),
            "ts": pa.array(np.sort(rng.integers(round(start_s * SECOND_US), round(end_s * SECOND_US), count))),
            "seq": pa.array(np.zeros(count, np.int64)),
        }
        for attribute, kind in types[name].attributes:
            columns[attribute] = _values(attribute, kind, values.get(attribute), count, rng)
        pieces.append(pa.table(columns))
        origins += [processor_of(source)] * count
    if not pieces:
        raise TocsinError("no source publishes anything")
    table = pa.concat_tables(pieces, promote_options="default")
    table = table.append_column("id", pa.array(np.arange(table.num_rows)).cast(pa.string()))
    order = np.argsort(table["ts"].to_numpy(), kind="stable")
    return table.take(order), pa.array(origins, pa.string()).take(pa.array(order))


def _values(name: str, kind: Kind, allowed: object, count: int, rng: np.random.Generator) -> pa.Array:
    if allowed is not None and (not isinstance(allowed, list) or not allowed):
        raise TocsinError(f"values of {name}: a list of texts to choose from, or the least and the largest number")
    if kind is Kind.STRING:
        texts = [str(text) for text in allowed or ["a", "b", "c"]]
        return pa.array(texts, pa.string()).take(pa.array(rng.integers(0, len(texts), count)))
    if kind is Kind.BOOL:
        return pa.array(rng.integers(0, 2, count) == 1)
    try:
        low, high = (float(number) for number in allowed or [0, 100])
    except (TypeError, ValueError):
        raise TocsinError(f"values of {name}, a {kind}, are the least and the largest number") from None
    numbers = rng.uniform(low, high, count)
    return pa.array(numbers if kind is Kind.DOUBLE else numbers.astype(np.int64)).cast(ARROW[kind])
