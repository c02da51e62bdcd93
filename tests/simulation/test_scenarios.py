from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.cli.commands import app
from tocsin.errors import TocsinError
from tocsin.simulation import scenarios

EXAMPLE = Path(__file__).parents[2] / "examples" / "sites" / "fire.yaml"
GOOD = """
topology: {links: [[a, b, 5]]}
rules: |
  event Smoke(area: string)
  define Fire() from Smoke()
sources: {a: {Smoke: 1}}
sinks: {b: [Fire]}
seconds: 10
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_runs_and_every_sink_is_right(tmp_path: Path) -> None:
    svg = tmp_path / "net.svg"
    command = ["simulate", str(EXAMPLE), "--strategy", "st", "--strategy", "MT", "--json", "--svg", str(svg)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["runs"]
    assert [run["strategy"] for run in found] == ["ST", "MT"]
    assert all(run["wrong_sinks"] == [] and run["notices"] > 0 for run in found)
    assert (tmp_path / "net-ST.svg").read_text().startswith("<svg")


def test_sites_that_change_are_repaired_and_the_cost_is_reported() -> None:
    command = ["simulate", str(EXAMPLE.with_name("changes.yaml")), "--strategy", "ST", "--strategy", "MT", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    for run in json.loads(result.stdout)["runs"]:
        assert run["wrong_sinks"] == []
        assert [repair["at_s"] for repair in run["repairs"]] == [400, 500, 550, 600]
        assert all(min(one["messages"], one["events"], one["time_ms"]) > 0 for one in run["repairs"])


def test_aggregates_on_the_way_take_a_fifth_of_the_messages() -> None:
    result = CliRunner().invoke(app, ["simulate", str(EXAMPLE.with_name("average.yaml")), "--json"])
    assert result.exit_code == 0, result.output
    found = {run["strategy"]: run for run in json.loads(result.stdout)["runs"]}
    assert all(run["wrong_sinks"] == [] and run["notices"] > 0 for run in found.values())
    for name in ("ST", "MT"):
        assert found[name]["messages_per_s"] >= 5 * found[f"{name}+aggregates"]["messages_per_s"]


def test_a_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(written(tmp_path, GOOD)), "--strategy", "Centr"])
    assert result.exit_code == 0
    assert "Centr" in result.stdout
    assert "right" in result.stdout


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("topology", "topolgy", "no 'topolgy'. Did you mean 'topology'"),
        ("[[a, b, 5]]", "[[a, b]]", "a link is two processors and a delay"),
        ("[[a, b, 5]]", "[[a, b, 5], [c, d, 1]]", "no way from a to c"),
        ("{b: [Fire]}", "{c: [Fire]}", "no processor c"),
        ("{Smoke: 1}", "{Smok: 1}", "has no 'Smok'. Did you mean 'Smoke'"),
        ("{Smoke: 1}", "{Smoke: -1}", "Smoke is a number from 0 on, not -1"),
        ("from Smoke()", "from Smokes()", "no event type Smokes"),
        ("event Smoke(area: string)\n", "\n", "must be declared"),
        ("seconds: 10", "seconds: soon", "seconds is a number from 1 on"),
        ("seconds: 10", "strategies: [TS]", "no strategy 'TS'"),
        ("seconds: 10", "values: {heat: [1, 2]}", "no type has an attribute heat"),
        ("seconds: 10", "workload: {}", "workload makes up what"),
        ("rules: |", "rules: [", "is not YAML"),
        ("sinks: {b: [Fire]}", "", "there is no 'sinks'"),
        ("seconds: 10", "changes: {at: 5}", "changes is a list"),
        ("seconds: 10", "changes: [{at: 500, leave: [a]}]", "a change at 500 is not after 0 and before 300 s"),
        ("seconds: 10", "changes: [{at: 5, leaves: [a]}]", "a change has no 'leaves'. Did you mean 'leave'"),
        ("seconds: 10", "changes: [{at: 5, leave: [c]}]", "no processor c"),
        ("seconds: 10", "changes: [{at: 5, links: [[c, d, 1]]}]", "the change at 5: there is no way"),
    ],
)
def test_mistakes_are_reported(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(TocsinError) as error:
        scenarios.read(written(tmp_path, GOOD.replace(before, after)))
    assert message in str(error.value)
    assert "scenario.yaml" in str(error.value)


def test_a_workload_and_a_file_of_links(tmp_path: Path) -> None:
    text = "workload: {processors: 4, types: 6, rules: 3, links: 2, subscriptions: 2}\nseconds: 20\nwarm_up: 0\n"
    made = scenarios.read(written(tmp_path, text))
    assert len(made.sites.processors) == 4
    with pytest.raises(TocsinError, match="workload has no 'processor'"):
        scenarios.read(written(tmp_path, "workload: {processor: 4}\n"))
    (tmp_path / "net.txt").write_text("a b 5  # ms\nb c 2.5\n")
    read = scenarios.read(written(tmp_path, GOOD.replace("{links: [[a, b, 5]]}", "net.txt")))
    assert read.sites.delays_us["c", "b"] == 2500
    (tmp_path / "net.txt").write_text("a b\n")
    with pytest.raises(TocsinError, match="line 1: expected two processors and a delay"):
        scenarios.read(written(tmp_path, GOOD.replace("{links: [[a, b, 5]]}", "net.txt")))
