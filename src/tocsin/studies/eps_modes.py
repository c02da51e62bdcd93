"""Derive the composites of six instances, in EPS's generic mode and Snoop's four contexts (the paper's Figure 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tocsin import ruleset
from tocsin.events.formats import read_events
from tocsin.language.eps.ast import Mode
from tocsin.reference.patterns import Fact, identified
from tocsin.reference.requests import derived, notifications
from tocsin.studies.eps_expressions import requests
from tocsin.studies.study import Claim, Row, Scale, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

CYCLE = """\
request   Cycle
on        st as s ; rt as r
if        s.proc = r.proc and s.msg = r.msg
notify    "a message came back"
"""
INSTANCES = """\
st@1(proc=1, msg=2)
st@2(proc=2, msg=1)
rt@3(proc=3, msg=1)
rt@4(proc=2, msg=2)
st@5(proc=3, msg=1)
rt@6(proc=2, msg=1)
"""
PRINTED = {
    Mode.RECENT: "st2+rt3 st5+rt6",
    Mode.CHRONOLOGICAL: "st1+rt3 st2+rt4 st5+rt6",
    Mode.CONTINUOUS: "st1+rt3 st2+rt3 st5+rt6",
    Mode.CUMULATIVE: "st1+st2+rt3 st5+rt6",
    Mode.GENERIC: "st1+rt3 st2+rt3 st1+rt4 st2+rt4 st1+rt6 st2+rt6 st5+rt6",
}
"""The composites that the figure prints for each mode. Its `(st2,st2,rt3)` is a slip for `(st1,st2,rt3)`."""
NOTIFIED = {mode: "st2+rt6" if mode == Mode.GENERIC else "" for mode in PRINTED}
"""The composites of each mode that meet the condition of the request `Cycle`. By Section 8.2, Snoop never finds one."""

REFERENCE, ENGINE = "reference", "engine"


def runs(scale: Scale) -> Sequence[Settings]:
    """Return the only run."""
    return [{}]


def measure(settings: Settings) -> list[Row]:
    """Return a row for each derived composite and each notification, by mode and evaluator."""
    (cycle,) = requests(CYCLE)
    facts = identified(read_events(INSTANCES))
    last_ts = facts[-1].ts
    rows: list[Row] = []
    for mode in PRINTED:
        request = replace(cycle, mode=mode)
        derivations = [_named(fact for _, fact in one) for one in derived(request, facts, last_ts)]
        rows += [_row(REFERENCE, mode, "derived", name) for name in derivations]
        for _, match in notifications(request, facts, last_ts):
            name = "+".join(f"{part.type}{part.ts}" for part in match.parts)
            rows.append(_row(REFERENCE, mode, "notified", name))
    for found in ruleset.rules(CYCLE, "eps").detect(list(read_events(INSTANCES))).to_pylist():
        name = "+".join(f"{part['type']}{part['ts']}" for part in found["parts"])
        rows.append(_row(ENGINE, Mode.GENERIC, "notified", name))
    return rows


def _row(by: str, mode: Mode, what: str, composite: str) -> Row:
    return {"by": by, "mode": str(mode), "what": what, "composite": composite}


def _named(facts: Iterable[Fact]) -> str:
    return "+".join(f"{fact.type}{fact.ts}" for fact in facts)


def _of(rows: Sequence[Row], by: str, what: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["by"] == by and row["what"] == what:
            found[str(row["mode"])].append(str(row["composite"]))
    return found


def judge(rows: Sequence[Row]) -> list[Claim]:
    """Check E1: the composites and notifications are exactly those in the figure and in the paper's text about it."""
    composites, notified = _of(rows, REFERENCE, "derived"), _of(rows, REFERENCE, "notified")
    wrong = [mode for mode, right in PRINTED.items() if sorted(composites[mode]) != sorted(right.split())]
    wrong += [mode for mode, right in NOTIFIED.items() if notified[mode] != right.split() and mode not in wrong]
    by_engine = _of(rows, ENGINE, "notified")[Mode.GENERIC]
    counts = ", ".join(f"{mode} {len(composites[mode])}" for mode in PRINTED)
    listed = "; ".join(f"{mode} ({', '.join(names)})" for mode, names in notified.items() if names) or "none"
    text = f"composites: {counts}; notifications: {listed}; engine, generic: ({', '.join(by_engine)})"
    if wrong:
        text += f"; not as printed: {', '.join(wrong)}"
    return [Claim("E1", not wrong and by_engine == NOTIFIED[Mode.GENERIC].split(), text)]


def draw(rows: Sequence[Row], canvas: Canvas) -> None:
    """Plot the six instances from left to right, and a bracket for each composite. Highlight notified composites."""
    composites, notified = _of(rows, REFERENCE, "derived"), _of(rows, REFERENCE, "notified")
    canvas.set_size_inches(8.5, 6.5)
    axes = canvas.subplots()
    axes.set_axis_off()
    for fact in identified(read_events(INSTANCES)):
        send = fact.type == "st"
        values = ", ".join(f"{name} {value}" for name, value in fact.attributes.items())
        box = {"boxstyle": "round", "facecolor": _color(send), "edgecolor": "none", "alpha": 0.25}
        axes.text(fact.ts, 1.0, f"{fact.type}{fact.ts}\n{values}", ha="center", va="center", fontsize=9, bbox=box)
        axes.axvline(fact.ts, 0, 0.93, color="0.9", linewidth=1, zorder=0)
    y = -0.2
    for mode in PRINTED:
        axes.text(0.55, y, f"{mode}\n{len(composites[mode])} composites", ha="right", va="top", fontsize=9)
        for name in composites[mode]:
            _bracket(axes, name, y, stands_out=name in notified[mode])
            y -= 0.55
        axes.plot([-0.8, 7.6], [y + 0.05, y + 0.05], color="0.8", linewidth=0.8)
        y -= 0.5
    axes.set_xlim(-0.8, 7.7)
    axes.set_ylim(y + 0.3, 1.6)
    canvas.suptitle("Composites derived from six instances by  st ; rt  (Fig. 6)\n"
                    "red: meets the condition that process and message are the same, and is notified")  # fmt: skip


def _bracket(axes: Axes, name: str, y: float, *, stands_out: bool) -> None:
    moments = [int(part[2:]) for part in name.split("+")]
    color = "crimson" if stands_out else "0.35"
    axes.plot([moments[0], moments[-1]], [y, y], color=color, linewidth=2.5 if stands_out else 1.5)
    for part, moment in zip(name.split("+"), moments, strict=True):
        send = part.startswith("st")
        axes.plot([moment], [y], ">" if send else "<", color=color if stands_out else _color(send), markersize=8)
    label = f"({', '.join(name.split('+'))})" + ("  notified" if stands_out else "")
    axes.text(6.25, y, label, color=color, va="center", fontsize=8)


def _color(send: bool) -> str:
    return "tab:blue" if send else "tab:orange"
