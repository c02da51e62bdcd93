"""The operator graph as SVG: types, filters, buffers, rules, composite types; what is shared is drawn bold."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tocsin.events.types import shown_name
from tocsin.language.requests import shown_type
from tocsin.plans.explain import filter_text, names, users_of, window_text
from tocsin.plans.graph import Buffer, Filter
from tocsin.plans.plan import Plan

NODES_SHOWN = 60
"""How many nodes of a column are drawn; the rest is counted."""

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, HEAD = 190, 34, 70, 14, 20, 50
COLUMNS = ("event types", "filters", "buffers", "rules", "composite types")
FILLS = ("#e8f1fb", "#eef7e8", "#fdf4e3", "#fbe9e7", "#f1eafa")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.head{font-weight:600}.small{font-size:10px;fill:#666}"
    "rect{stroke:#888;rx:5}.shared{stroke:#222;stroke-width:2.5}path{fill:none;stroke:#9aa;stroke-width:1.2}"
)


@dataclass(frozen=True, slots=True)
class Outline:
    """What there is to draw: by column, nodes with title and detail; links (column, node, column, node); what is shared
    by several rules.
    """

    labels: list[dict[object, tuple[str, str]]]
    links: list[tuple[int, object, int, object]]
    shared: set[Filter | Buffer]


def picture(plan: Plan) -> str:
    """The graph as an SVG document."""
    return _draw(outline(plan))


def outline(plan: Plan) -> Outline:
    """The graph as nodes and links."""
    filters, buffers = names(plan)
    users = users_of(plan)
    labels: list[dict[object, tuple[str, str]]] = [{}, {}, {}, {}, {}]
    links: list[tuple[int, object, int, object]] = []
    for type in plan.columns:
        if type not in plan.defined:
            labels[0][type] = (type, ", ".join(map(shown_name, sorted(plan.columns[type]))))
    ticking = {clock.type for rule in plan.rules for clock in rule.clocks}
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
        if rule.clock is None:
            labels[3].setdefault(key, (rule.rule.name, ", ".join(roles)))
        labels[4][emits] = (shown_type(emits), ", ".join(name for name, _ in rule.emits.attributes))
        links.append((1, rule.anchor, 3, key))
        links += [(2, buffer, 3, key) for buffer in rule.buffers]
        links.append((3, key, 4, emits))
    shared = {node for node, rules in users.items() if len(rules) > 1}
    return Outline(labels, list(dict.fromkeys(links)), shared)


def _draw(outline: Outline) -> str:
    labels, links, shared = outline.labels, outline.links, outline.shared
    place: dict[tuple[int, object], tuple[int, int]] = {}
    boxes: list[str] = []
    for column, nodes in enumerate(labels):
        x = MARGIN + column * (WIDTH + GAP_X)
        boxes.append(f'<text class="head" x="{x}" y="{MARGIN + 8}">{COLUMNS[column]}</text>')
        for row, (node, (title, detail)) in enumerate(list(nodes.items())[:NODES_SHOWN]):
            y = HEAD + row * (HEIGHT + GAP_Y)
            place[column, node] = (x, y)
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
        _line(place[source, a], place[target, b], backwards=source > target)
        for source, a, target, b in links
        if (source, a) in place and (target, b) in place
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
