"""Repeat the T-Rex paper's evaluation of deployment strategies (its Section 4).

Each run is one strategy over one workload, which is generated from a seed. All strategies of a point see the same
topology, rules and events. The paper runs until the rarest event has come 100 times, which takes a day. Here, a run is
measured after a warm-up as long as the windows of a sequence together: for one minute with `--quick`, ten minutes by
default, and two hours with `--full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tocsin.studies.study import Claim, Figure, Row, Scale, Settings, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STRATEGIES = ("Centr", "ST", "STpp", "MT", "MTpp")
COLOURS = {"Centr": "#444444", "ST": "#1f77b4", "STpp": "#7fb6dd", "MT": "#d62728", "MTpp": "#f0908f"}
FLAT = 1.25
"""A delay is flat if its largest mean is at most this many times its smallest."""


def measure(settings: Settings) -> list[Row]:
    """Simulate one strategy on one workload, and return the traffic and the delay of its notifications."""
    from tocsin.overlay.strategies import strategy
    from tocsin.simulation.runs import run
    from tocsin.simulation.workloads import Workload, events, generate

    known = {field.name for field in fields(Workload)}
    workload = Workload(**{name: value for name, value in settings.items() if name in known})  # type: ignore[arg-type]
    world = generate(workload)
    warm_s = float(settings["warm_s"])
    end_s = warm_s + float(settings["measured_s"])
    happening, where = events(world, end_s, workload.seed)
    outcome, _ = run(
        world.sites, strategy(str(settings["strategy"])), world.types, world.rules, happening, where,
        epochs_s=[warm_s, end_s], measured_from_s=warm_s,
    )  # fmt: skip
    counts = outcome.messages
    return [
        {
            "traffic": outcome.traffic / outcome.seconds,
            "delay_ms": outcome.delay_ms_mean,
            "bytes": outcome.bytes / outcome.seconds,
            "notices": outcome.notices,
            **{kind.lower(): counts.get(kind, 0) for kind in ("Events", "Matches", "Answer", "Awaken", "Progress")},
        }
    ]


@dataclass(frozen=True)
class Sweep:
    """The runs of a figure, which vary one variable.

    `x` is the name of the variable, and `knobs` returns the settings for one of its values. `quick` and `usual` are the
    values for the quick scale and for the other scales.
    """

    x: str
    knobs: Callable[[Any], Mapping[str, int | float | bool]]
    quick: Sequence[int | float]
    usual: Sequence[int | float]

    def runs(self, scale: Scale) -> list[Settings]:
        values = self.quick if scale.quick else self.usual
        found: list[Settings] = []
        for value in values:
            knobs = dict(self.knobs(value))
            window_s, length = float(knobs.get("window_s", 60.0)), int(knobs.get("length", 3))
            warm_s = max(30.0, window_s * (length - 1))
            for seed in range(1, 1 + (1 if scale.quick else scale.seeds)):
                for strategy in STRATEGIES:
                    found.append(
                        {
                            "x": value,
                            "strategy": strategy,
                            "seed": seed,
                            "warm_s": warm_s,
                            "measured_s": scale.pick(60.0, 600.0, 7200.0),
                            **knobs,
                        }
                    )
        return found


@dataclass(frozen=True)
class Means:
    """The means of measurements over seeds, by strategy and value of the variable."""

    rows: Sequence[Row]

    @property
    def values(self) -> list[float]:
        return sorted({float(row["x"]) for row in self.rows})

    def of(self, what: str, strategy: str, x: float) -> float:
        return fmean(
            float(row[what]) for row in self.rows if row["strategy"] == strategy and float(row["x"]) == x
        )  # fmt: skip

    def line(self, what: str, strategy: str) -> list[float]:
        return [self.of(what, strategy, x) for x in self.values]

    def traffic(self, strategy: str) -> list[float]:
        return self.line("traffic", strategy)

    def ratio(self, above: str, below: str) -> list[float]:
        """Return the traffic of strategy `above` divided by the traffic of `below`, for each value of the variable."""
        return [one / other for one, other in zip(self.traffic(above), self.traffic(below), strict=True)]

    def flat(self) -> tuple[bool, str]:
        """Return whether the delay of every strategy is flat, and a text with the strategy whose delay varies most."""
        spread = {
            name: max(line) / max(min(line), 1e-9) for name in STRATEGIES if (line := self.line("delay_ms", name))
        }
        worst = max(spread, key=lambda name: spread[name])
        return spread[worst] <= FLAT, f"delay varies {spread[worst]:.2f}× at most ({worst})"


def _grows(line: Sequence[float]) -> bool:
    return line[-1] > line[0]


def _list(line: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in line) + "]"


# ---- claims


def default(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    (x,) = means.values
    delay = {name: means.of("delay_ms", name, x) for name in STRATEGIES}
    traffic = {name: means.of("traffic", name, x) for name in STRATEGIES}
    faster = max(delay["MT"], delay["MTpp"]) < min(delay["Centr"], delay["ST"], delay["STpp"])
    close = abs(delay["Centr"] / delay["ST"] - 1) <= 0.1
    above = all(1 <= delay[f"{name}pp"] / delay[name] <= 1.5 for name in ("ST", "MT"))
    by_far = all(traffic["Centr"] >= 1.2 * traffic[name] for name in STRATEGIES if name != "Centr")
    slight = all(abs(traffic[f"{name}pp"] / traffic[name] - 1) < 0.1 for name in ("ST", "MT"))
    return [
        Claim("T1", faster and close and above, "ms " + ", ".join(f"{n} {v:.1f}" for n, v in delay.items())),
        Claim(
            "T2",
            by_far and traffic["MT"] > traffic["ST"] and slight,
            "messages/s " + ", ".join(f"{n} {v:.0f}" for n, v in traffic.items()),
        ),
    ]


def rules(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    flat, said = means.flat()
    growth = {name: means.traffic(name)[-1] / means.traffic(name)[0] for name in STRATEGIES}
    holds = flat and all(value > 1 for value in growth.values()) and growth["MT"] > growth["ST"]
    grown = ", ".join(f"× {value:.2f} ({name})" for name, value in growth.items())
    return [Claim("T3", holds, f"{said}; traffic {grown}")]


def subscriptions(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    flat, said = means.flat()
    ratio = means.ratio("MT", "ST")
    crossing = next((x for x, value in zip(means.values, ratio, strict=True) if value > 1), float("inf"))
    gain = means.ratio("MTpp", "MT")[-1]
    holds = flat and ratio[0] < 1 < ratio[-1] and 2 <= crossing <= 10 and gain >= 0.97
    return [
        Claim("T4", holds, f"{said}; MT/ST {_list(ratio)}, above 1 from {crossing:g} on; MTpp/MT at last {gain:.2f}")
    ]


def policy(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    flat, said = means.flat()
    growth = {name: means.traffic(name)[-1] / means.traffic(name)[0] for name in ("ST", "MT")}
    holds = flat and growth["ST"] >= 1.2 * growth["MT"]
    return [Claim("T5", holds, f"{said}; traffic × {growth['ST']:.2f} (ST), × {growth['MT']:.2f} (MT)")]


def windows(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    flat, said = means.flat()
    st, mt = means.ratio("Centr", "ST"), means.ratio("Centr", "MT")
    pull = means.ratio("STpp", "ST")
    grow = all(_grows(means.traffic(name)) for name in STRATEGIES)
    holds = flat and grow and st[-1] < st[0] and mt[-1] > mt[0] and pull[0] < pull[-1]
    return [Claim("T6", holds, f"{said}; Centr/ST {_list(st)}, Centr/MT {_list(mt)}, STpp/ST {_list(pull)}")]


def filtering(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    left = {name: means.traffic(name)[-1] / means.traffic(name)[0] for name in STRATEGIES}
    holds = all(value < 1 for value in left.values()) and max(left["ST"], left["MT"]) < left["Centr"]
    return [Claim("T7", holds, "traffic left " + ", ".join(f"{name} {value:.2f}" for name, value in left.items()))]


def processors(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    ratio = means.ratio("MT", "ST")
    grow = all(_grows(means.traffic(name)) for name in STRATEGIES)
    above = means.traffic("MT")[-1] > max(means.traffic(name)[-1] for name in ("ST", "STpp"))
    return [Claim("T8", grow and _grows(ratio) and above, f"MT/ST {_list(ratio)} at {_list(means.values)} processors")]


def locality(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    mt, st = means.ratio("MT", "Centr")[-1], means.ratio("ST", "Centr")[-1]
    both = means.ratio("MT", "ST")[-1]
    holds = both <= 1.3 and mt <= 0.7 and st <= 0.7
    return [Claim("T9", holds, f"at the most processors MT/ST {both:.2f}, ST/Centr {st:.2f}, MT/Centr {mt:.2f}")]


def filtered(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    mt, st = means.ratio("MT", "Centr")[-1], means.ratio("ST", "Centr")[-1]
    pull = [1 - value for value in means.ratio("STpp", "ST")]
    pulls = [1 - value for value in means.ratio("MTpp", "MT")]
    holds = mt <= 0.5 and st <= 0.5 and _grows(pull) and _grows(pulls)
    return [
        Claim("T10", holds, f"ST/Centr {st:.2f}, MT/Centr {mt:.2f}; pull saves {_list(pull)} (ST), {_list(pulls)} (MT)")
    ]


def rates(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    st, pp, mt = means.ratio("Centr", "ST"), means.ratio("Centr", "STpp"), means.ratio("Centr", "MT")
    alike = means.ratio("STpp", "ST")[0], means.ratio("MTpp", "MT")[0]
    steady = abs(mt[-1] / mt[0] - 1) <= 0.15
    holds = _grows(st) and _grows(pp) and steady and min(alike) >= 0.99
    return [
        Claim(
            "T11",
            holds,
            f"Centr/ST {_list(st)}, Centr/STpp {_list(pp)}, Centr/MT {_list(mt)}; pp/push at like rates {_list(alike)}",
        )
    ]


def pulling(rows: Sequence[Row]) -> list[Claim]:
    means = Means(rows)
    st = [1 - value for value in means.ratio("STpp", "ST")]
    mt = [1 - value for value in means.ratio("MTpp", "MT")]
    delay = [means.line("delay_ms", name) for name in ("STpp", "MTpp")]
    behind = means.ratio("Centr", "ST")
    rises = all(_grows(line) and line[-1] <= 2 * line[0] for line in delay)
    holds = min(*st, *mt) >= 0.15 and rises and _grows(behind)
    return [
        Claim("T12", holds, f"pull saves {_list(st)} (ST), {_list(mt)} (MT); delay STpp {_list(delay[0])} ms; "
              f"Centr/ST {_list(behind)}")
    ]  # fmt: skip


# ---- pictures


def _draw(label: str, *, logarithmic: bool = False) -> Callable[[Sequence[Row], Canvas], None]:
    def draw(rows: Sequence[Row], canvas: Canvas) -> None:
        means = Means(rows)
        for axes, what, unit in zip(
            canvas.subplots(1, 2), ("delay_ms", "traffic"), ("delay (ms)", "traffic (messages × hops / s)"), strict=True
        ):
            if len(means.values) == 1:
                values = [means.of(what, name, means.values[0]) for name in STRATEGIES]
                axes.bar(STRATEGIES, values, color=[COLOURS[name] for name in STRATEGIES])
            else:
                for name in STRATEGIES:
                    axes.plot(means.values, means.line(what, name), "o-", label=name, color=COLOURS[name])
                axes.set_xlabel(label)
                if logarithmic:
                    axes.set_xscale("log")
            axes.set_ylabel(unit)
            axes.set_ylim(bottom=0)
        if len(means.values) > 1:
            axes.legend(fontsize=8)

    return draw


def _sized(count: float, **more: float) -> dict[str, int | float | bool]:
    """Return the settings of a network with `count` processors, and with types, rules and links in proportion."""
    processors = int(count)
    return {
        "processors": processors,
        "types": 6 * processors,
        "rules": 5 * processors,
        "links": max(3.0, processors / 4),
        **more,
    }


def _figure(
    name: str, title: str, claims: tuple[str, ...], label: str, sweep: Sweep,
    judge: Callable[[Sequence[Row]], Iterable[Claim]], *, logarithmic: bool = False,
) -> Figure:  # fmt: skip
    draw = _draw(label, logarithmic=logarithmic)
    return Figure(name, title, claims, sweep.runs, measure, draw, judge)


STUDY = Study(
    "trex",
    "T-Rex: deployment strategies",
    (
        _figure("10", "Default scenario", ("T1", "T2"), "", Sweep("", lambda _: {}, (0,), (0,)), default),
        _figure("11", "Number of rules", ("T3",), "rules",
                Sweep("rules", lambda x: {"rules": x}, (20, 200), (20, 50, 100, 150, 200)), rules),
        _figure("12", "Subscriptions", ("T4",), "subscriptions per processor",
                Sweep("subscriptions", lambda x: {"subscriptions": x}, (1, 5, 20), (1, 2, 5, 10, 15, 20)),
                subscriptions),
        _figure("13", "Selection policy", ("T5",), "% each",
                Sweep("each", lambda x: {"each": x / 100}, (0, 30), (0, 10, 20, 30)), policy),
        _figure("14", "Size of windows", ("T6",), "window (s)",
                Sweep("window_s", lambda x: {"window_s": x}, (10, 120), (10, 30, 60, 120, 300)), windows),
        _figure("15", "Filtering of primitive events", ("T7",), "values of the attribute",
                Sweep("values", lambda x: {"values": x}, (1, 10), (1, 2, 5, 10)), filtering),
        _figure("16", "Number of processors", ("T8",), "processors",
                Sweep("processors", _sized, (5, 20), (5, 20, 35, 50)), processors),
        _figure("17", "Number of processors, with locality", ("T9",), "processors",
                Sweep("processors", lambda x: _sized(x, locality=True), (5, 20), (5, 20, 35, 50)), locality),
        _figure("18", "Number of processors, with filtering", ("T10",), "processors",
                Sweep("processors", lambda x: _sized(x, values=10), (5, 20), (5, 20, 35, 50)), filtered),
        _figure("19", "Publication rate", ("T11",), "most seconds between publications",
                Sweep("rate_min", lambda x: {"rate_min": 1 / x}, (5, 10000), (5, 50, 500, 10000)), rates,
                logarithmic=True),
        _figure("20", "A scenario for pull notifications", ("T12",), "length of sequences",
                Sweep("length", lambda x: {"length": x, "processors": 50, "links": 5.0, "window_s": 1.0, "rules": 50,
                                           "apart": True},
                      (2, 6), (2, 3, 4, 5, 6)), pulling),
    ),
)  # fmt: skip
