"""Fires over seven sites that are joined by slow links, run under virtual time: a picture, and numbers."""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

SCENARIO = """
topology:
  links: [[1, 2, 4], [2, 3, 6], [2, 4, 5], [2, 5, 3], [4, 6, 2], [4, 7, 7], [3, 5, 9]]
rules: rules.tesla
sources: {{7: {{Smoke: 0.05}}, 6: {{Temp: 5}}, 3: {{Rain: 0.01}}}}
values: {{area: [A1, A2, A3], value: [20, 60]}}
sinks: {{1: [Fire], 5: [Fire, "Temp(value>59.5)"]}}
strategies: [{strategy}]
seconds: {seconds}
seed: {seed}
"""


def simulated(strategy: str, seconds: int, seed: int) -> dict[str, Any]:
    """The paper's Fig. 3 with one of its strategies: the network as SVG, with what it carries."""
    from tocsin.simulation import scenarios
    from tocsin.simulation.runs import picture, run

    with tempfile.TemporaryDirectory(prefix="tocsin-sites-") as folder:
        rules = files("tocsin.service").joinpath("sites.tesla").read_text(encoding="utf-8")
        (Path(folder) / "rules.tesla").write_text(rules, encoding="utf-8")
        path = Path(folder) / "sites.yaml"
        path.write_text(SCENARIO.format(strategy=strategy, seconds=seconds, seed=seed), encoding="utf-8")
        scenario = scenarios.read(path)
    end_s = scenario.warm_up_s + scenario.seconds
    outcome, _ = run(
        scenario.sites, scenario.strategies[0], scenario.types, scenario.rules, scenario.events, scenario.where,
        epochs_s=[scenario.warm_up_s, end_s] if scenario.warm_up_s else [end_s],
        measured_from_s=scenario.warm_up_s, changes=scenario.changes,
    )  # fmt: skip
    return {
        "svg": picture(outcome, dict(scenario.sites.delays_us)),
        "strategy": strategy,
        "messages_per_s": round(outcome.traffic / outcome.seconds, 2),
        "bytes_per_s": round(outcome.bytes / outcome.seconds, 1),
        "delay_ms_mean": round(outcome.delay_ms_mean, 3),
        "notices": outcome.notices,
    }
