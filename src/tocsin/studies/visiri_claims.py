"""Define the runs, plots and claims of each of VISIRI's figures.

Figures 3 to 8 place generated queries on 4 to 40 nodes, and Figures 9 to 12 compare throughputs. Table 1 shows the cost
model. The figure `beyond` compares this project's placer, `even`, with VISIRI's where costs, rates and filters are
measured. VISIRI's thresholds are the paper's: 80 queries and a cost of 400. They are slack above the least loaded node,
as in the authors' published program. A plot has a panel for each number of queries, with a line for each placer over
the number of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from tocsin.language.siddhi import parser
from tocsin.language.siddhi.ast import Query, StreamSource
from tocsin.plans.cost import MS_US, query_cost
from tocsin.studies.study import Claim, Row, Scale, Settings
from tocsin.studies.visiri_queries import TABLE_1
from tocsin.studies.visiri_runs import AGAIN, TIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STYLES: Mapping[str, Mapping[str, Any]] = {
    "random": {"color": "#999999", "marker": "^"},
    "SCTXPF": {"color": "#e08214", "marker": "s", "markersize": 9},  # visible also below VISIRI's
    "VISIRI": {"color": "#2166ac", "marker": "o"},
    "VISIRI, cost slack 40": {"color": "#67a9cf", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "VISIRI, filtering": {"color": "#2166ac", "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "even": {"color": "#1b7837", "marker": "D"},
    "even, all at once": {"color": "#1b7837", "marker": "D", "linestyle": ":", "markerfacecolor": "white"},
    "even, rebalanced": {"color": "#1b7837", "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
}
"""The line style of each placer, in the order of the legend."""


def means(rows: Sequence[Row], value: str) -> dict[tuple[int, int, str], float]:
    """Return the means of `value` over seeds, by (queries, nodes, placer)."""
    found: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for row in rows:
        found[int(row["queries"]), int(row["nodes"]), str(row["placer"])].append(float(row[value]))
    return {key: sum(values) / len(values) for key, values in found.items()}


def panels(
    rows: Sequence[Row],
    canvas: Canvas,
    values: Sequence[tuple[str, str]],
    *,
    logarithmic: Sequence[str] = (),
    share: bool = True,
) -> None:
    """Plot a row of panels for each value, with one panel for each number of queries.

    If `share` is true, the panels of a row share the y axis.
    """
    sizes = sorted({int(row["queries"]) for row in rows})
    shown = [placer for placer in STYLES if any(row["placer"] == placer for row in rows)]
    across = len(sizes) == 1
    shape = (1, len(values)) if across else (len(values), len(sizes))
    canvas.set_size_inches(max(6.5, 3.7 * shape[1]), 0.9 + 3.2 * shape[0])
    grid = canvas.subplots(*shape, sharey="row" if share and not across else False, squeeze=False)
    for (value, label), line in zip(values, grid.T if across else grid, strict=True):
        points = means(rows, value)
        for size, axes in zip(sizes, line, strict=True):
            for placer in shown:
                nodes = sorted(nodes for queries, nodes, name in points if (queries, name) == (size, placer))
                heights = [points[size, node, placer] for node in nodes]
                axes.plot(nodes, heights, label=placer, linewidth=1.6, **{"markersize": 5, **STYLES[placer]})
            axes.set_title(f"{size:,} queries", fontsize=10)
            axes.set_xlabel("nodes")
            axes.set_xticks(sorted({int(row["nodes"]) for row in rows}))
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.3)
            if value in logarithmic:
                axes.set_yscale("log")
        for axes in () if value in logarithmic else line:  # after all plots, as this also fixes the upper limit
            axes.set_ylim(bottom=0)
        line[0].set_ylabel(label)
    handles, labels = grid[0][0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def bars(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the costs of Table 1: the paper's, this model's, and this model's with 32-bit milliseconds."""
    canvas.set_size_inches(8, 4.2)
    axes = canvas.subplots()
    styles = (
        ("paper", "the paper", "#2166ac"),
        ("cost", "this model", "#1b7837"),
        ("cost_32_bits", "this model, milliseconds in 32 bits", "#a6dba0"),
    )
    for position, (value, label, color) in enumerate(styles, -1):
        at = [n + 0.27 * position for n in range(len(rows))]
        group = axes.barh(at, [float(row[value]) for row in rows], 0.25, color=color)
        axes.bar_label(group, [f"{float(row[value]):.3f}" for row in rows], padding=3, fontsize=9)
        group.set_label(label)
    axes.set_yticks(range(len(rows)), [str(row["says"]) for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("cost of the query (a logarithm)")
    axes.legend(frameon=False, loc="upper right")


NODES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40)
NODES_QUICK = (4, 12, 24, 40)
NODES_OWN_MAX = 16
"""The largest number of nodes that the authors' program runs; the smallest is 4."""
SIZES = (1_000, 5_000, 10_000)
MODEL_SEEDS = 4
"""How many times more seeds the runs of the cost model have, because they are cheap.

With three seeds, the ratio of two throughputs varies by 1 or 2 %, as much as some throughputs differ.
"""
CLOSE = 0.1
"""The largest share of the distance to random, or of random's growth, that counts as close or flat."""
FAR = 0.5
"""The largest share of random's copies beyond the first that counts as far below random."""
ALIKE = 0.05
TABLE_PRECISION = 0.01
_MEASURED = (("sent", "seen"), ("busy_s",))


def placement_runs(scale: Scale) -> list[Settings]:
    """Return runs of 1,000, 5,000 and 10,000 mixed queries on 4 to 40 nodes."""
    nodes = scale.pick(NODES_QUICK, NODES, NODES)
    return _runs(scale, SIZES, nodes, MODEL_SEEDS, shape="mixed")


def throughput_runs(sizes: Sequence[int], shape: str, scale: Scale) -> list[Settings]:
    """Return runs of queries of the given shape on the paper's 4, 8 and 12 nodes."""
    return _runs(scale, sizes, (4, 8, 12), MODEL_SEEDS, shape=shape)


def slot_runs(scale: Scale) -> list[Settings]:
    """Return runs of mixed queries on 4, 8 and 12 nodes. The quick scale has fewer queries and fewer nodes."""
    sizes = scale.pick((2_500,), (2_500, 5_000, 10_000), (2_500, 5_000, 10_000))
    seeds = Scale(quick=True, seeds=1) if scale.quick else scale
    return _runs(seeds, sizes, scale.pick((4, 12), (4, 8, 12), (4, 8, 12)), shape="mixed")


def beyond_runs(scale: Scale) -> list[Settings]:
    """Return runs for the figure `beyond`, which measures costs and rates of queries."""
    return _runs(scale, scale.pick((10_000,), SIZES, SIZES), scale.pick((4, 12, 40), NODES_QUICK, NODES))


def _runs(scale: Scale, sizes: Sequence[int], nodes: Sequence[int], times: int = 1, **more: str) -> list[Settings]:
    seeds = range(1, 1 + times * (min(scale.seeds, 2) if scale.quick else scale.seeds))
    # The longest first, so that the last tasks are short.
    grid = sorted(product(sizes, nodes, seeds), reverse=True)
    return [{"queries": queries, "nodes": node, "seed": seed, **more} for queries, node, seed in grid]


def judge_duplication(rows: Sequence[Row]) -> list[Claim]:
    """Check V1: VISIRI's duplication is close to SCTXPF's, far below random's, and flat in the number of queries."""
    found = means(rows, "duplication")
    points = sorted({(queries, nodes) for queries, nodes, _ in found})
    way, excess = [], []
    for at in points:
        visiri, sctxpf, random = (found[*at, name] for name in ("VISIRI", "SCTXPF", "random"))
        way.append(abs(visiri - sctxpf) / (random - sctxpf))
        excess.append((visiri - 1) / (random - 1))
    low, high = points[0][0], points[-1][0]
    nodes = sorted({nodes for _, nodes in points})

    def growth(placer: str, node: int) -> float:
        return found[high, node, placer] - found[low, node, placer]

    growths = [growth("VISIRI", node) / growth("random", node) for node in nodes]
    most = nodes[-1]
    grown = {name: f"{found[low, most, name]:.2f} to {found[high, most, name]:.2f}" for name in ("VISIRI", "random")}
    return [
        Claim(
            "V1",
            max(way) <= CLOSE and max(excess) <= FAR and max(growths) <= CLOSE,
            f"from SCTXPF at most {max(way):.0%} of the way to random, at most {max(excess):.0%} of random's copies "
            f"beyond the first; from {low:,} to {high:,} queries on {most} nodes {grown['VISIRI']} copies of an event, "
            f"random {grown['random']}",
        )
    ]


def judge_variance(rows: Sequence[Row]) -> list[Claim]:
    """Check V2: VISIRI's variance is below SCTXPF's and random's, and more so with more queries."""
    return [_less_variance("V2", "VISIRI", rows)]


def judge_tight(rows: Sequence[Row]) -> list[Claim]:
    """Check V2a: like V2, but with a tenth of the paper's slack of costs."""
    return [_less_variance("V2a", TIGHT, rows)]


def _less_variance(claim: str, placer: str, rows: Sequence[Row]) -> Claim:
    ratios = _ratios(placer, rows)
    text = ", ".join(f"{size:,} queries {_summary(by)}" for size, by in ratios.items())
    own = [{nodes: ratio for nodes, ratio in by.items() if nodes <= NODES_OWN_MAX} for by in ratios.values()]
    return Claim(
        claim,
        all(max(by.values()) < 1 for by in ratios.values()) and _falling(ratios),
        f"variance ÷ the smaller of the others': {text}; "
        f"on at most {NODES_OWN_MAX} nodes {', '.join(map(_summary, own))}",
    )


def judge_growing(rows: Sequence[Row]) -> list[Claim]:
    """Check V2b: as in the paper, VISIRI's advantage grows with the number of queries.

    With the most queries, VISIRI's variance is below SCTXPF's and random's on every number of nodes.
    """
    ratios = _ratios("VISIRI", rows)
    most, by = max(ratios.items())
    text = ", ".join(f"{_mean(list(by.values())):.2g} at {size:,}" for size, by in ratios.items())
    below = sum(ratio < 1 for ratio in by.values())
    return [
        Claim(
            "V2b",
            below == len(by) and _falling(ratios),
            f"variance ÷ the smaller of the others': {text} queries; at {most:,} below both on {below} of {len(by)} "
            f"numbers of nodes, {min(by.values()):.2g} to {max(by.values()):.2g}",
        )
    ]


def _ratios(placer: str, rows: Sequence[Row]) -> dict[int, dict[int, float]]:
    """Return a placer's variance ÷ the smaller of SCTXPF's and random's, by queries and nodes."""
    found = means(rows, "variance")
    ratios: dict[int, dict[int, float]] = {}
    for size, nodes in sorted({(queries, nodes) for queries, nodes, _ in found}):
        others = min(found[size, nodes, "SCTXPF"], found[size, nodes, "random"])
        ratios.setdefault(size, {})[nodes] = found[size, nodes, placer] / others
    return ratios


def _falling(ratios: Mapping[int, Mapping[int, float]]) -> bool:
    """Return whether the mean ratio falls with each larger number of queries."""
    return all(_mean(list(more.values())) < _mean(list(few.values())) for few, more in pairwise(ratios.values()))


def _summary(by: Mapping[int, float]) -> str:
    return f"{_mean(list(by.values())):.2g} (at most {max(by.values()):.2g})"


def judge_simple(rows: Sequence[Row]) -> list[Claim]:
    """Check V3: the throughputs of VISIRI and SCTXPF are alike, and both are above random's."""
    found = means(rows, "throughput")
    points = sorted({(queries, nodes) for queries, nodes, _ in found})
    apart = max(abs(found[*at, "VISIRI"] / found[*at, "SCTXPF"] - 1) for at in points)
    above = min(min(found[*at, "VISIRI"], found[*at, "SCTXPF"]) / found[*at, "random"] for at in points)
    text = f"VISIRI and SCTXPF at most {apart:.1%} apart; at least {above:.2f} times random's throughput (cost model)"
    return [Claim("V3", apart <= ALIKE and above > 1, text)]


def judge_throughput(rows: Sequence[Row]) -> list[Claim]:
    """Check V4: VISIRI's throughput is at least SCTXPF's, which is above random's."""
    return [_more_throughput("V4", rows, "cost model")]


def judge_slots(rows: Sequence[Row]) -> list[Claim]:
    """Check V4a and V6b by the busy times of slots.

    V4a is like V4. V6b: the throughput of this project's placer `even` is above VISIRI's and SCTXPF's on average, and
    nowhere below them by more than the noise.
    """
    found = means(rows, "throughput")
    points = {(queries, nodes) for queries, nodes, _ in found}
    noise = max(abs(found[*at, AGAIN] / found[*at, "VISIRI"] - 1) for at in points)
    by = f"processor time of slots; one placement measured twice: up to {noise:.1%} apart"
    over = {name: [found[*at, "even"] / found[*at, name] for at in points] for name in ("VISIRI", "SCTXPF")}
    holds = all(_mean(ratios) > 1 and min(ratios) >= 1 - noise for ratios in over.values())
    text = " and ".join(
        f"{min(ratios):.3f} to {max(ratios):.3f} times {name}, {_mean(ratios):.3f} on the average"
        for name, ratios in over.items()
    )
    return [_more_throughput("V4a", rows, f"{by}; {_prices(rows)}"), Claim("V6b", holds, f"even {text} ({by})")]


def _prices(rows: Sequence[Row]) -> str:
    """Fit the costs of ingesting an event and of one query reading it, by least squares."""
    counts, busy_s = (np.array([[float(row[name]) for name in names] for row in rows]) for names in _MEASURED)
    (ingest_s, read_s), *_ = np.linalg.lstsq(counts, busy_s[:, 0])
    return f"about {ingest_s * 1e9:.0f} ns to ingest an event and {read_s * 1e9:.0f} ns for each query that reads it"


def _more_throughput(claim: str, rows: Sequence[Row], by: str) -> Claim:
    found = means(rows, "throughput")
    points = sorted({(queries, nodes) for queries, nodes, _ in found})
    first = {at: found[*at, "VISIRI"] / found[*at, "SCTXPF"] for at in points}
    second = [found[*at, "SCTXPF"] / found[*at, "random"] for at in points]
    at = min(first, key=lambda at: first[at])
    text = (
        f"VISIRI {first[at]:.3f} (at {at[0]:,} queries on {at[1]} nodes) to {max(first.values()):.3f} times SCTXPF, "
        f"{_mean(list(first.values())):.3f} on the average, "
        f"SCTXPF {min(second):.2f} to {max(second):.2f} times random ({by})"
    )
    return Claim(claim, first[at] >= 1 and min(second) > 1, text)


def judge_beyond(rows: Sequence[Row]) -> list[Claim]:
    """Check V6: `even` has fewer copies and less variance than VISIRI if costs, rates and filters are known."""
    copies, variance = means(rows, "copies"), means(rows, "variance")
    points = sorted({(queries, nodes) for queries, nodes, _ in copies})

    def worst(of: dict[tuple[int, int, str], float], placer: str, other: str) -> float:
        return max(of[*at, placer] / of[*at, other] for at in points)

    fewer, less = worst(copies, "even", "VISIRI"), worst(variance, "even", "VISIRI")
    filtering = worst(copies, "even", "VISIRI, filtering")
    moved = max(float(row["moved"]) / float(row["queries"]) for row in rows if row["placer"] == "even, rebalanced")
    text = (
        f"at most {fewer:.2f} times VISIRI's copies ({filtering:.2f} times if its dispatcher filtered too) and "
        f"{less:.1e} times its variance; placed by the model and rebalanced "
        f"{worst(copies, 'even, rebalanced', 'VISIRI'):.2f} and {worst(variance, 'even, rebalanced', 'VISIRI'):.1e} "
        f"times, moving at most {moved:.0%} of the queries"
    )
    return [Claim("V6", fewer < 1 and less < 1, text)]


def judge_alone(rows: Sequence[Row]) -> list[Claim]:
    """Check V6a: like V6, but with VISIRI's own costs and whole streams, and with queries placed one by one."""
    copies, variance = means(rows, "duplication"), means(rows, "variance")
    points = sorted({(queries, nodes) for queries, nodes, _ in copies})
    more = [at for at in points if copies[*at, "even"] > max(1.0, copies[*at, "VISIRI"])]
    same = [at for at in points if copies[*at, "even"] == copies[*at, "VISIRI"] > 1]
    worse = [at for at in points if variance[*at, "even"] >= variance[*at, "VISIRI"]]
    text = (
        f"knowing no more than VISIRI: more copies at {len(more)}, more variance at {len(worse)} of {len(points)} "
        f"points; at most {max(copies[*at, 'even'] for at in points):.2f} copies of an event, VISIRI "
        f"{max(copies[*at, 'VISIRI'] for at in points):.2f}"
    )
    return [Claim("V6a", not more and not same and not worse, text)]


def table_runs(scale: Scale) -> list[Settings]:
    """Return a run for each of the three queries of Table 1."""
    return [{"query": number, "paper": cost, "says": says} for number, (says, _, cost) in enumerate(TABLE_1, 1)]


def measure_cost(settings: Settings) -> list[Row]:
    """Return the cost of a query, and its cost with the window truncated to 32 bits, as in the authors' program."""
    _, text, _ = TABLE_1[int(settings["query"]) - 1]
    (query,) = parser.parse(text).rules
    assert isinstance(query, Query)
    return [{"cost": query_cost(query), "cost_32_bits": query_cost(_in_32_bits(query))}]


def _in_32_bits(query: Query) -> Query:
    source = query.input
    if not isinstance(source, StreamSource) or source.window is None or not source.window.extent.timed:
        return query
    left_ms = (source.window.size // MS_US + 2**31) % 2**32 - 2**31
    return replace(query, input=replace(source, window=replace(source.window, size=left_ms * MS_US)))


def judge_costs(rows: Sequence[Row]) -> list[Claim]:
    """Check V5: the costs of the first two queries are within 1 % of the paper's, and all three are in order."""
    ours, papers = [float(row["cost"]) for row in rows], [float(row["paper"]) for row in rows]
    close = all(abs(cost / paper - 1) <= TABLE_PRECISION for cost, paper in zip(ours[:2], papers, strict=False))
    pairs = ", ".join(f"{cost:.3f} for {paper:.3f}" for cost, paper in zip(ours, papers, strict=True))
    text = f"{pairs}; if 32 bits had to hold the milliseconds, the last would be {float(rows[-1]['cost_32_bits']):.3f}"
    return [Claim("V5", close and ours == sorted(ours), text)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def draw_placements(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the copies of an event, and the variance of the nodes' total cost."""
    named = [("duplication", "nodes that an event goes to"), ("variance", "variance of the nodes' total cost")]
    panels(rows, canvas, named, logarithmic=["variance"])


def draw_throughput(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the throughput: the number of events divided by the time of the busiest node."""
    panels(rows, canvas, [("throughput", "events ÷ largest busy time")], share=False)


def draw_beyond(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the copies of an event and the variance of work, both counted on events."""
    named = [("copies", "events sent ÷ events"), ("variance", "variance of work ÷ mean²")]
    panels(rows, canvas, named, logarithmic=["variance"])


def judge_placements(rows: Sequence[Row]) -> list[Claim]:
    """Check V1, V2, V2a, V2b and V6a."""
    judges = (judge_duplication, judge_variance, judge_tight, judge_growing, judge_alone)
    return [claim for judge in judges for claim in judge(rows)]
