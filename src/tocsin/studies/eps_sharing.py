"""Compare one tree that all requests share with a copy of the tree for each request (the paper's Figure 8).

The requests have the same expression and different conditions. Instances are stored, then an instance of `e1` arrives
and all requests are notified. The time to the last notification is measured. Tests 1 to 4 have a balanced tree and four
spreads of the stored instances; test 5 has a backbone. The operator is `;`, so that `e1` occurs last in either shape.

There are as many copies (trees or detectors) as requests. If there are many copies, only some are measured, and their
time is scaled up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tocsin import ruleset
from tocsin.studies.eps_expressions import (
    LEAVES,
    STEP_US,
    PrimitiveInstance,
    declared,
    facts,
    requests,
    stored,
    table,
    timed,
    tree,
)
from tocsin.studies.eps_tree import Tree
from tocsin.studies.study import Claim, Row, Scale, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TREES, TOCSIN = "four phases", "Tocsin"
REQUESTS = (2, 10, 100, 1_000)
COPIES_MAX = 20
"""The largest number of copies that are measured."""


class SharingTest(NamedTuple):
    """A test of the figure: the shape of the tree, and the number of stored instances of each leaf, `e2` to `e8`."""

    shape: str
    counts: tuple[int, ...]
    spread: str


TESTS = {
    1: SharingTest("balanced", (8, 1, 1, 1, 1, 1, 1), "nearly all beside e1"),
    2: SharingTest("balanced", (1, 1, 8, 1, 1, 1, 1), "nearly all two nodes away"),
    3: SharingTest("balanced", (1, 1, 1, 1, 1, 1, 8), "nearly all in the other half"),
    4: SharingTest("balanced", (2, 2, 2, 2, 2, 2, 2), "even"),
    5: SharingTest("backbone", (8, 1, 1, 1, 1, 1, 1), "nearly all beside e1"),
}
BACKBONE = 5


def runs(scale: Scale) -> Sequence[Settings]:
    """Return a run for each evaluator, test and number of requests."""
    trees_max = scale.pick(100, 1_000, 1_000)
    repeats, limit_s = scale.pick((15, 0.6), (25, 4.0), (50, 20.0))
    return [
        {"by": by, "test": test, "requests": count, "repeats": repeats, "limit_s": limit_s}
        for by, most in ((TREES, trees_max), (TOCSIN, REQUESTS[-1]))
        for count in REQUESTS
        for test in TESTS
        if count <= most
    ]


def text(test: SharingTest, numbers: Sequence[int]) -> str:
    """Return the text of a request for each of `numbers`, all with one expression but different conditions on `e1`."""
    expression = tree(test.shape, ";")
    return declared() + "\n".join(f"request R{n} on {expression} if e1.k = e2.k and e1.v >= {n}" for n in numbers)


def measure(settings: Settings) -> list[Row]:
    """Measure the time of the shared tree and the time of all copies.

    Each time is the minimum of several repeats, because other load only adds time.
    """
    prepared = _trees if settings["by"] == TREES else _detectors
    test, count = TESTS[int(settings["test"])], int(settings["requests"])
    copies = min(count, COPIES_MAX)
    shared = prepared(test, [range(count)])
    apart = prepared(test, [range(n, n + 1) for n in range(copies)])
    shared_s: list[float] = []
    apart_s: list[float] = []
    for repeat in range(int(settings["repeats"])):
        if repeat >= 3 and sum(shared_s) + sum(apart_s) > float(settings["limit_s"]):
            break
        for arrive, seconds, expected in ((shared, shared_s, count), (apart, apart_s, copies)):
            took_s, notified = arrive()
            assert notified == expected
            seconds.append(took_s)
    copies_ms = min(apart_s) * 1e3 * count / copies
    return [{"shape": test.shape, "shared_ms": min(shared_s) * 1e3, "copies_ms": copies_ms, "measured": copies}]


Arrival = Callable[[], tuple[float, int]]
"""A function that pushes the last instance, and returns the time in seconds and the number of notifications."""


def _trees(test: SharingTest, groups: Sequence[Sequence[int]]) -> Arrival:
    """Return a function that builds a tree for each group of requests and times the last arrival."""
    parsed = [requests(text(test, group)) for group in groups]
    every = stored(test.counts)
    *before, arriving = facts([*every, _last(every[-1].ts + STEP_US)])

    def arrive() -> tuple[float, int]:
        grown = [Tree(some) for some in parsed]
        for fact in before:
            for one in grown:
                one.arrive(fact)
        return timed(lambda: sum(len(one.arrive(arriving)) for one in grown))

    return arrive


def _detectors(test: SharingTest, groups: Sequence[Sequence[int]]) -> Arrival:
    """Return a function that times the last arrival at the detectors, of which each group of requests has one.

    After each arrival, the function replaces the consumed instances.
    """
    detectors = [ruleset.rules(text(test, group), "eps").detector(ordered=True) for group in groups]
    every = stored(test.counts)
    now = every[-1].ts
    for detector in detectors:
        detector.push(table(every))

    def arrive() -> tuple[float, int]:
        nonlocal now
        arriving = table([_last(now + STEP_US)])
        result = timed(lambda: sum(detector.push(arriving).num_rows for detector in detectors))
        again = [PrimitiveInstance(leaf, now + n * STEP_US, 0) for n, leaf in enumerate(reversed(LEAVES[1:]), 2)]
        now = again[-1].ts
        for detector in detectors:
            detector.push(table(again))
        return result

    arrive()
    return arrive


def _last(ts: int) -> PrimitiveInstance:
    return PrimitiveInstance(LEAVES[0], ts, 0, v=REQUESTS[-1])


# ---- results


def gains(rows: Sequence[Row], by: str) -> dict[tuple[int, int], float]:
    """Return how many times faster the shared tree is than the copies, by test and number of requests."""
    return {
        (int(row["test"]), int(row["requests"])): float(row["copies_ms"]) / float(row["shared_ms"])
        for row in rows
        if row["by"] == by
    }


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Check E3: sharing is faster in all tests, and with the paper's trees it gains most for the backbone."""
    trees, tocsin = gains(rows, TREES), gains(rows, TOCSIN)
    faster = min(trees.values()) > 1 and min(tocsin.values()) > 1
    most = {by: _backbone_gains_most(some) for by, some in ((TREES, trees), (TOCSIN, tocsin))}
    gained = [
        f"{by}: {_listed(some)}; most for the backbone in {sum(most[by].values())} of {len(most[by])}"
        for by, some in ((TREES, trees), (TOCSIN, tocsin))
    ]
    reason = "" if all(most[TOCSIN].values()) else " (it stores nothing at inner nodes, so depth gains nothing)"
    text = f"copies/shared, balanced (least to most) and backbone: {'; '.join(gained)}{reason}"
    return [Claim("E3", faster and all(most[TREES].values()), text)]


def _backbone_gains_most(gains: dict[tuple[int, int], float]) -> dict[int, bool]:
    return {
        count: gains[BACKBONE, count] >= max(gain for (_, n), gain in gains.items() if n == count)
        for count in sorted({n for _, n in gains})
    }


def _listed(gains: dict[tuple[int, int], float]) -> str:
    parts = []
    for count in sorted({n for _, n in gains}):
        balanced = [gain for (test, n), gain in gains.items() if n == count and test != BACKBONE]
        low, high = f"{min(balanced):.3g}", f"{max(balanced):.3g}"
        parts.append(f"{count:,} requests {low} to {high}, {gains[BACKBONE, count]:.3g}")
    return ", ".join(parts)


def draw(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the paper's bars for two requests, and the gain for more requests."""
    canvas.set_size_inches(11, 7)
    panels = canvas.subplots(2, 2)
    for (left, right), by in zip(panels, (TREES, TOCSIN), strict=True):
        pairs = [row for row in rows if row["by"] == by and row["requests"] == 2]
        tests = [int(row["test"]) for row in pairs]
        for offset, column, label in ((-0.2, "copies_ms", "two copies"), (0.2, "shared_ms", "shared")):
            heights = [float(row[column]) for row in pairs]
            left.bar([test + offset for test in tests], heights, 0.38, label=label)
        left.set_xticks(tests, [f"test {test}\n{TESTS[test].shape}" for test in tests], fontsize=8)
        left.set_ylabel("time to the second\nnotification (ms)")
        left.set_title(f"{by}: two requests, as in the paper", fontsize=9)
        left.margins(y=0.3)
        left.legend(fontsize=8, ncols=2, loc="upper left")
        for test in tests:
            points = sorted((n, gain) for (which, n), gain in gains(rows, by).items() if which == test)
            style = "s-" if test == BACKBONE else "o--"
            label = f"test {test}, {TESTS[test].shape}: {TESTS[test].spread}"
            right.plot(*zip(*points, strict=True), style, markersize=4, label=label)
        right.axhline(1, color="0.5", linewidth=1)
        right.set_xscale("log")
        if by == TOCSIN:
            right.set_yscale("log")
        right.set_xticks(REQUESTS, [f"{n:,}" for n in REQUESTS])
        right.set_xlabel("requests")
        right.set_ylabel("copies / shared")
        right.set_title(f"{by}: how many times faster shared is", fontsize=9)
    canvas.legend(*panels[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    canvas.suptitle("One shared tree against copies of it (Fig. 8)")
