"""Describe a plan as text (`explain`), or draw its operator graph as an SVG picture (`picture`).

The text is always the same for the same plan. The picture has columns for event types, filters, buffers, rules and
composite types. Nodes that several rules share are bold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from tocsin.events.types import shown_name
from tocsin.language.eps.ast import shown_type, timer_owner
from tocsin.language.syntax.ast import Policy
from tocsin.language.syntax.expressions import print_window
from tocsin.plans.cost import Statistics, plan_cost, rule_cost, window_events
from tocsin.plans.expressions import show
from tocsin.plans.keys import keys
from tocsin.plans.plan import Plan
from tocsin.plans.rules import (
    AggregateCondition,
    Buffer,
    ChainAutomaton,
    Filter,
    Lookup,
    QueryPlan,
    RequestJoin,
    RulePlan,
    SnoopContext,
)

RULES_SHOWN = 200
"""The maximum number of rules that `explain` describes. Further rules are only counted."""


def explain(plan: Plan, statistics: Statistics | None = None) -> str:
    """Return a description of a plan: the types that it reads, its filters and buffers, and its rules.

    Filters and buffers are listed with the rules that use them. Costs are estimated from `statistics`.
    """
    statistics = statistics or Statistics()
    filters, buffers = names(plan)
    users = users_of(plan)
    shared = sum(len(rules) > 1 for rules in users.values())
    cost = plan_cost(plan, statistics)
    lines = [
        f"{_count(len(plan.sources), 'rule')}, {_count(len(filters), 'filter')}, {_count(len(buffers), 'buffer')}, "
        f"{shared} of these shared by several rules",
        f"estimated at {statistics.default_rate:g} event/s of each type: {cost.rows:,.0f} events kept "
        f"({cost.bytes / 1024:,.1f} KiB), {cost.candidates:,.1f} candidates/s",
        "",
        "types read",
    ]
    for type in sorted(plan.columns):
        columns = ", ".join(f"{shown_name(name)}: {kind or '?'}" for name, kind in sorted(plan.columns[type].items()))
        origin = " (composite)" if type in plan.defined else ""
        origin = f" (timer of {timer_owner(type)})" if timer_owner(type) else origin
        lines.append(f"  {shown_type(type)}({columns}){origin}")
    lines += ["", "filters"]
    for node, name in filters.items():
        lines.append(f"  {name:4} {filter_text(node)}{_readers(users[node])}")
    if buffers:
        lines += ["", "buffers"]
    for buffer, name in buffers.items():
        lines.append(
            f"  {name:4} {filters[buffer.filter]}{_by(buffer)}, kept {window_text(plan.buffers[buffer])}"
            f"{_readers(users[buffer])}"
        )
    lines += ["", "rules"]
    before = None
    for rule in plan.rules[:RULES_SHOWN]:
        name, stratum = rule.rule.name, plan.stratum(rule)
        lines += [_title(rule, stratum)] if name != before else [f"    or{_at(stratum)}"]
        lines += _rule(rule, filters, buffers, statistics)
        before = name
    if len(plan.rules) > RULES_SHOWN:
        lines.append(f"  … and {len(plan.rules) - RULES_SHOWN:,} more")
    return "\n".join(lines) + "\n"


def names(plan: Plan) -> tuple[dict[Filter, str], dict[Buffer, str]]:
    """Return a short name for each filter and each buffer, such as `f1` and `b1`, in the order of the rules."""
    filters = {node: f"f{number}" for number, node in enumerate(plan.filters, start=1)}
    return filters, {node: f"b{number}" for number, node in enumerate(plan.buffers, start=1)}


def users_of(plan: Plan) -> dict[Filter | Buffer, dict[str, None]]:
    """Return the names of the rules that use each filter and each buffer."""
    users: dict[Filter | Buffer, dict[str, None]] = defaultdict(dict)
    for rule in plan.rules:
        for filter in rule.filters:
            users[filter][rule.rule.name] = None
        for buffer in rule.buffers:
            users[buffer][rule.rule.name] = None
    return users


def filter_text(node: Filter) -> str:
    """Return a filter as text, which consists of its type and its conditions."""
    return f"{shown_type(node.type)}({', '.join(show(condition) for condition in node.conditions)})"


def _title(rule: RulePlan, stratum: int) -> str:
    emits = rule.rule.emits
    return f"  {rule.rule.name}" + (f" → {emits}" if emits.name != rule.rule.name else "") + _at(stratum)


def _at(stratum: int) -> str:
    return f", level {stratum}" if stratum else ""


def window_text(window_us: int) -> str:
    """Return the length of a window as text.

    Windows of requests include their last microsecond. So they are stored one microsecond longer than written.
    """
    return min(print_window(window_us), print_window(max(window_us - 1, 1)), key=len)


def _rule(rule: RulePlan, filters: dict[Filter, str], buffers: dict[Buffer, str], statistics: Statistics) -> list[str]:
    lines: list[str] = []
    if rule.timer is not None:
        lines.append(f"    starts {shown_type(rule.timer.type)} for")
    if rule.context is not None:
        lines += _in_context(rule, rule.context, filters)
    elif rule.request_join is not None:
        lines += _request_join(rule, rule.request_join, filters, buffers)
    elif rule.windowed is not None and rule.windowed.chained is not None:
        lines += _chained(rule, rule.windowed.chained, filters)
    else:
        lines.append(f"    for each {rule.names[0]} in {filters[rule.anchor]}")
        lines += [f"      {text}" for text in _role_conditions(rule, 0, buffers)]
        for role_index, step in enumerate(rule.steps, start=1):
            policy = step.policy.value if step.count <= 1 else f"{step.count}-{step.policy}"
            consumed = ", consumed" if step.consumed else ""
            lines.append(f"    {policy} {rule.names[role_index]} {_lookup(rule, step.lookup, buffers)}{consumed}")
            lines += [f"      {text}" for text in _role_conditions(rule, role_index, buffers)]
    if rule.windowed is not None:
        lines += _windowed(rule, rule.windowed)
    for name, _, value in rule.outputs:
        lines.append(f"    {name} = {show(value, rule.names)}")
    ways = keys(rule)
    if ways:
        attributes = [
            f"{name or type}.{key}" for name, type, key in zip(rule.names, rule.types, ways[0].attributes, strict=True)
        ]
        lines.append("    can be partitioned by " + " = ".join(attributes))
    elif rule.buffers:
        lines.append("    cannot be partitioned: no equality joins all of its events")
    elif rule.windowed is not None and not rule.windowed.looks_at_one:
        lines.append("    cannot be partitioned: its rows depend on all of its events")
    cost = rule_cost(rule, statistics)
    many = rule.request_join is None and any(step.policy == Policy.EACH for step in rule.steps)
    if rule.windowed is not None and (any(rule.windowed.windows) or rule.windowed.chained is not None):
        lines.append(f"    holds {window_events(rule, statistics):,.0f} events")
    elif rule.buffers:
        lines.append(f"    looks back {window_text(rule.retention_us)}")
    else:
        lines.append("    looks at one event at a time")
    lines[-1] += f", {cost.candidates:,.1f} candidates/s" + (
        ", a product of choices" if many and len(rule.steps) > 1 else ""
    )
    return lines


def _windowed(rule: RulePlan, windowed: QueryPlan) -> Iterable[str]:
    """Describe the windows of a query, and the values that the query computes from their events."""
    for window in windowed.windows:
        if window is not None:
            size = print_window(window.size) if window.extent.timed else f"{window.size:,}"
            yield f"    through {window.extent}({size})" + "".join(f", if {show(test)}" for test in windowed.after)
    if windowed.joined is not None:
        keys = [f"{show(left, rule.names)} = {show(right, rule.names)}" for left, right in windowed.joined.keys]
        on = (f", if {show(test, rule.names)}" for test in windowed.joined.on)
        yield "    joined" + (f" by {', '.join(keys)}" if keys else "") + "".join(on)
    for number, call in enumerate(windowed.calls, start=1):
        yield f"      aggregate {number}: {call.function}({'' if call.argument is None else show(call.argument)})"
    if windowed.group_by:
        yield "    by " + ", ".join(key.shown for key in windowed.group_by)
    if windowed.expired:
        yield f"    rows for events that {'come and that leave' if windowed.current else 'leave'}"
    for test in windowed.having:
        text = show(test)
        for number, (name, _, _) in reversed([*enumerate(rule.outputs, len(windowed.calls) + 1)]):
            text = text.replace(f"aggregate {number}", name)
        yield f"    if {text}"


def _chained(rule: RulePlan, chained: ChainAutomaton, filters: dict[Filter, str]) -> Iterable[str]:
    """Describe the stages of an automaton and their next stages."""
    for number, stage in enumerate(chained.stages, start=1):
        name = rule.names[stage.role_index] or ("nothing" if stage.absent else "several")
        text = f"    {number}: {name} in {filters[stage.filter]}"
        if stage.counts:
            text += f", {stage.least} to {'any number' if stage.most is None else stage.most}"
        if stage.duration_us is not None:
            text += f", for {print_window(stage.duration_us)}"
        text += "".join(f", {here.shown} = {show(there, rule.names)}" for there, here in stage.keys)
        text += "".join(f", {show(test, rule.names)}" for test in stage.tests)
        if stage.partner is not None and stage.partner > number - 1:
            text += f", {'and' if stage.both else 'or'} {stage.partner + 1}"
        text += ", then a row" if stage.next is None else f", then {stage.next + 1}"
        yield text + ("" if stage.repeat_at is None else f", and a new run from {stage.repeat_at + 1}")
    within = "" if chained.within_us is None else f", within {print_window(chained.within_us)}"
    yield f"    {'every event counts' if chained.sequence else 'other events are skipped'}{within}"


def _request_join(
    rule: RulePlan, request_join: RequestJoin, filters: dict[Filter, str], buffers: dict[Buffer, str]
) -> Iterable[str]:
    """Describe one variant of a request: the event that arrives last, the lookups, and the order of the events."""
    names = tuple(
        f"{name}{rule.names[:role_index].count(name) + 1}" if rule.names.count(name) > 1 else name
        for role_index, name in enumerate(rule.names)
    )
    yield f"    {names[request_join.anchor]} in {filters[rule.anchor]} arrives last"
    for step in rule.steps:
        lookup = step.lookup
        keys = zip(lookup.buffer.keys, lookup.keys, strict=True)
        tests = [f"{here.shown} = {show(there, names)}" for here, there in keys]
        tests += [show(condition, names) for condition in lookup.conditions]
        yield f"    {names[lookup.role_index]} in {buffers[lookup.buffer]}" + "".join(f", {test}" for test in tests)
    for left, right in request_join.sequences:
        yield f"    {', '.join(names[p] for p in left)} before {', '.join(names[p] for p in right)}"


def _in_context(rule: RulePlan, context: SnoopContext, filters: dict[Filter, str]) -> Iterable[str]:
    """Describe a request in one of Snoop's contexts."""
    events = ", ".join(f"{name} in {filters[one]}" for name, one in zip(rule.names, context.filters, strict=True))
    yield f"    {events}, combined as they come ({context.mode})"
    yield from (f"    {show(condition, rule.names)}" for condition in context.conditions)


def _role_conditions(rule: RulePlan, role_index: int, buffers: dict[Buffer, str]) -> Iterable[str]:
    role_conditions = rule.role_conditions if role_index == 0 else rule.steps[role_index - 1].role_conditions
    for role_condition in role_conditions:
        lookup = _lookup(rule, role_condition.lookup, buffers)
        if isinstance(role_condition, AggregateCondition):
            argument = f" of {show(role_condition.argument)}" if role_condition.argument is not None else ""
            test = f", if {show(role_condition.test, rule.names)}" if role_condition.test is not None else ""
            yield f"aggregate {role_condition.index + 1}: {role_condition.function}{argument} {lookup}{test}"
        else:
            yield f"unless any {lookup}"


def _lookup(rule: RulePlan, lookup: Lookup, buffers: dict[Buffer, str]) -> str:
    bounds = lookup.bounds
    if bounds.window_us is not None:
        where = f"within {print_window(bounds.window_us)} before {rule.names[bounds.end]}"
    else:
        where = f"between {rule.names[bounds.start or 0]} and {rule.names[bounds.end]}"
    key = "".join(
        f", {here.shown} = {show(there, rule.names)}"
        for here, there in zip(lookup.buffer.keys, lookup.keys, strict=True)
    )
    conditions = "".join(f", {show(condition, rule.names)}" for condition in lookup.conditions)
    return f"in {buffers[lookup.buffer]} {where}{key}{conditions}"


def _by(buffer: Buffer) -> str:
    key = " by " + ", ".join(key.shown for key in buffer.keys) if buffer.keys else ""
    return key + (f" of {buffer.owner[0]} alone" if buffer.owner else "")


def _readers(users: dict[str, None]) -> str:
    listed = list(users)
    return "  ← " + ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


NODES_SHOWN = 60
"""The maximum number of nodes in a column of the picture. Further nodes are only counted."""

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 190, 34, 70, 14, 20, 50
COLUMNS = ("event types", "filters", "buffers", "rules", "composite types")
FILLS = ("#e8f1fb", "#eef7e8", "#fdf4e3", "#fbe9e7", "#f1eafa")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.head{font-weight:600}.small{font-size:10px;fill:#666}"
    "rect{stroke:#888;rx:5}.shared{stroke:#222;stroke-width:2.5}path{fill:none;stroke:#9aa;stroke-width:1.2}"
)


@dataclass(frozen=True, slots=True)
class Outline:
    """The content of a picture of an operator graph.

    `labels` has the title and the detail of each node, for each column. A link is (column, node, column, node).
    `shared` are the nodes that several rules use.
    """

    labels: list[dict[object, tuple[str, str]]]
    links: list[tuple[int, object, int, object]]
    shared: set[Filter | Buffer]


def picture(plan: Plan) -> str:
    """Return a picture of the operator graph of `plan` as an SVG document."""
    return _draw(outline(plan))


def outline(plan: Plan) -> Outline:
    """Return the nodes and links of the operator graph of `plan`."""
    filters, buffers = names(plan)
    users = users_of(plan)
    labels: list[dict[object, tuple[str, str]]] = [{}, {}, {}, {}, {}]
    links: list[tuple[int, object, int, object]] = []
    for type in plan.columns:
        if type not in plan.defined:
            labels[0][type] = (type, ", ".join(map(shown_name, sorted(plan.columns[type]))))
    ticking = {timer.type for rule in plan.rules for timer in rule.timers}
    labels[0] |= {type: (shown_type(type), "timer") for type in sorted(ticking)}
    for node, name in filters.items():
        labels[1][node] = (name, filter_text(node))
        links.append((0 if node.type in labels[0] else 4, node.type, 1, node))
    for buffer, name in buffers.items():
        by = "by " + ", ".join(key.shown for key in buffer.keys) if buffer.keys else "in time order"
        labels[2][buffer] = (name, f"{by}, {window_text(plan.buffers[buffer])}")
        links.append((1, buffer.filter, 2, buffer))
    for rule in plan.rules:
        key, emits = ("rule", rule.rule.name), rule.emits.name
        roles = rule.names if rule.context else rule.names[: len(rule.steps) + 1]
        if rule.timer is None:
            labels[3].setdefault(key, (rule.rule.name, ", ".join(roles)))
        labels[4][emits] = (shown_type(emits), ", ".join(name for name, _ in rule.emits.attributes))
        links.append((1, rule.anchor, 3, key))
        links += [(2, buffer, 3, key) for buffer in rule.buffers]
        links.append((3, key, 4, emits))
    shared = {node for node, rules in users.items() if len(rules) > 1}
    return Outline(labels, list(dict.fromkeys(links)), shared)


def _draw(outline: Outline) -> str:
    labels, links, shared = outline.labels, outline.links, outline.shared
    positions: dict[tuple[int, object], tuple[int, int]] = {}
    boxes: list[str] = []
    for column, nodes in enumerate(labels):
        x = MARGIN + column * (WIDTH + GAP_X)
        boxes.append(f'<text class="head" x="{x}" y="{MARGIN + 8}">{COLUMNS[column]}</text>')
        for row, (node, (title, detail)) in enumerate(list(nodes.items())[:NODES_SHOWN]):
            y = HEAD + row * (HEIGHT + GAP_Y)
            positions[column, node] = (x, y)
            bold = ' class="shared"' if node in shared else ""
            boxes.append(
                f'<g><title>{escape(title)}: {escape(detail)}</title><rect{bold} x="{x}" y="{y}" width="{WIDTH}" '
                f'height="{HEIGHT}" fill="{FILLS[column]}"/><text x="{x + 8}" y="{y + 14}">{escape(_cut(title))}</text>'
                f'<text class="small" x="{x + 8}" y="{y + 27}">{escape(_cut(detail))}</text></g>'
            )
        if len(nodes) > NODES_SHOWN:
            y = HEAD + NODES_SHOWN * (HEIGHT + GAP_Y)
            boxes.append(f'<text class="small" x="{x}" y="{y + 10}">and {len(nodes) - NODES_SHOWN:,} more</text>')
    lines = [
        _line(positions[source, a], positions[target, b], backwards=source > target)
        for source, a, target, b in links
        if (source, a) in positions and (target, b) in positions
    ]
    rows = min(NODES_SHOWN + 1, max(len(nodes) for nodes in labels))
    width = 2 * MARGIN + 5 * WIDTH + 4 * GAP_X
    height = HEAD + rows * (HEIGHT + GAP_Y) + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff" style="stroke:none"/>'
        + "".join(lines)
        + "".join(boxes)
        + "</svg>\n"
    )


def _line(start: tuple[int, int], end: tuple[int, int], *, backwards: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + HEIGHT // 2, y2 + HEIGHT // 2
    x1 += WIDTH
    bend = GAP_X if not backwards else GAP_X * 2
    dash = ' stroke-dasharray="5 4"' if backwards else ""
    return f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"{dash}/>'


def _cut(text: str) -> str:
    return text if len(text) <= 30 else text[:29] + "…"
