"""The network as SVG: links as wide as what they carry, tree links dark, the root of a single tree ringed."""

from __future__ import annotations

from html import escape

import networkx as nx

from tocsin.overlay.sites import Link
from tocsin.simulation.runs import Outcome

SIZE, MARGIN, RADIUS = 760, 60, 15


def picture(outcome: Outcome, delays_us: dict[Link, int]) -> str:
    """The processors, the links, and the traffic of one run on them, in messages a second."""
    graph = nx.Graph()
    graph.add_nodes_from(sorted({name for link in delays_us for name in link} or {outcome.root or "0"}))
    graph.add_weighted_edges_from((*link, 1 / max(delay, 1)) for link, delay in sorted(delays_us.items()))
    spots = (
        nx.spring_layout(graph, weight=None, seed=1, iterations=300) if len(graph) > 1 else dict.fromkeys(graph, (0, 0))
    )
    low, high = ([edge(spot[k] for spot in spots.values()) for k in range(2)] for edge in (min, max))
    place = {
        name: tuple(MARGIN + (spot[k] - low[k]) / ((high[k] - low[k]) or 1) * (SIZE - 2 * MARGIN) for k in range(2))
        for name, spot in spots.items()
    }
    used = {frozenset(edge) for fathers in outcome.trees.values() for edge in fathers.items()}
    loads = {frozenset(edge): outcome.links.get(edge, 0) + outcome.links.get(edge[::-1], 0) for edge in graph.edges}
    most = max(loads.values(), default=0) or 1
    lines, labels = [], []
    for here, there in graph.edges:
        edge = frozenset((here, there))
        (x1, y1), (x2, y2) = place[here], place[there]
        a_second = loads[edge] / outcome.seconds
        title = f"{here} – {there}: {a_second:.1f} messages/s, {delays_us[here, there] / 1000:.1f} ms"
        colour, width = ("#1f5f99", 1.5 + 9 * loads[edge] / most) if edge in used else ("#cccccc", 1.0)
        lines.append(
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" '
            f'stroke-width="{width:.1f}"><title>{escape(title)}</title></line>'
        )
        if edge in used and loads[edge] / most > 0.05:
            labels.append(f'<text x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2:.0f}" class="load">{a_second:.3g}</text>')
    for name, (x, y) in place.items():
        ring = ' stroke="#d62728" stroke-width="4"' if name == outcome.root else ' stroke="#333"'
        labels.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{RADIUS}" fill="#fff"{ring}/>')
        labels.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" class="name">{escape(name)}</text>')
    style = (
        "text{font:12px sans-serif;text-anchor:middle}.load{fill:#a33;paint-order:stroke;stroke:#fff;stroke-width:3}"
    )
    said = f"{outcome.strategy}: {outcome.traffic / outcome.seconds:.3g} messages/s on all links"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" viewBox="0 0 {SIZE} {SIZE}">'
        f'<style>{style}</style><rect width="{SIZE}" height="{SIZE}" fill="#fff"/>{"".join(lines)}{"".join(labels)}'
        f'<text x="{SIZE / 2:.0f}" y="24">{escape(said)}</text></svg>\n'
    )
