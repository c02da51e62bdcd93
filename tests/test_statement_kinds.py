"""Every kind of statement at every entry point: it runs and gives the reference's answer, or it is refused by name.

`ENTRY_POINTS` names the kinds that an entry point runs: those cells give the matches that the reference finds. All
other cells raise an error that names the kind and the statement. No cell leaves a statement out.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import tocsin
from tests.service.serving import running
from tocsin.cli import app
from tocsin.errors import TocsinError
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.live import Live
from tocsin.reference import patterns
from tocsin.reference import ranges as reference_ranges
from tocsin.testing import Stream, equivalent, given, verify
from tocsin.testing.generate import streams

DECLARED = "event A(x: double, y: double)\nevent Me(x: double, y: double)\n"
INTEREST = "interest Near of Hot around Me() range circle 100 m lifetime 10 s\n"
HOT = "define Hot(v: double) from A(x > 1.0) where v = A.x\n"
TEXTS = {
    "rule": f"{DECLARED}{HOT}",
    "request": f"{DECLARED}request Pair on A as a ; Me as m if a.x > m.x\n",
    "query": "define stream A (x double, y double);\n"
    "@info(name='Big') from A[x > 1.0] select x as v insert into Hot;\n",
    "interest": f"{DECLARED}{HOT}{INTEREST}",
    "mixed": f"{DECLARED}{HOT}define Lone() from A()\n{INTEREST}",
}
"""The statements are rule Hot, request Pair, query Big, interest Near, and beside an interest the rule Lone."""
NAMED = {"rule": "rule Hot", "request": "request Pair", "query": "query Big", "interest": "interest Near"}
S = 1_000_000
EVENTS = [
    Event("Me", 1 * S, {"x": 0.0, "y": 0.0}),
    Event("A", 2 * S, {"x": 5.0, "y": 1.0}),
    Event("A", 3 * S, {"x": 0.5, "y": 1.0}),
    Event("A", 4 * S, {"x": 500.0, "y": 1.0}),
    Event("Me", 5 * S, {"x": 450.0, "y": 0.0}),
    Event("Me", 6 * S, {"x": 1000.0, "y": 0.0}),
]
TABLE = pa.table(
    {
        "type": [event.type for event in EVENTS],
        "ts": [event.ts for event in EVENTS],
        "x": [event.attributes["x"] for event in EVENTS],
        "y": [event.attributes["y"] for event in EVENTS],
    }
)
UNUSED = "no interest uses rule Lone"
"""What every entry point that could run the interest says of the mixed text."""


def right(kind: str) -> list[str]:
    """The ids of the reference's matches."""
    program = parse(TEXTS[kind])
    if program.interests:
        (interest,) = program.interests
        ranges = reference_ranges.coverings(interest, EVENTS)
        return sorted(one.id for covering in ranges for one in covering.delivered)
    return sorted(match.id for match in patterns.detect(program.rules, EVENTS))


def ids(rows: pa.Table | list[dict[str, Any]]) -> list[str]:
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return sorted(row["id"] for row in listed if row["type"] != "Marker")


def detect(text: str, folder: Path) -> list[str]:
    return ids(tocsin.rules(text).detect(EVENTS))


def detector(text: str, folder: Path) -> list[str]:
    made = tocsin.rules(text).detector(ts_unit="us")
    return ids(made.push(EVENTS).to_pylist() + made.finish().to_pylist())


def restore(text: str, folder: Path) -> list[str]:
    made = tocsin.rules(text).detector(ts_unit="us")
    rows = made.push(EVENTS[:3]).to_pylist()
    made = tocsin.rules(text).restore(made.snapshot())
    return ids(rows + made.push(EVENTS[3:]).to_pylist() + made.finish().to_pylist())


def add(text: str, folder: Path) -> list[str]:
    made = tocsin.Detector([], {})
    made.add(text)
    return ids(made.push(EVENTS).to_pylist() + made.finish().to_pylist())


def live(text: str, folder: Path) -> list[str]:
    answer: list[Any] = []
    made = Live(now=lambda: 0)
    made.request(text, answer.append)
    made.publish(EVENTS)
    made.tick(7 * S)
    return sorted(one.id for one in answer)


def objects(text: str, folder: Path) -> list[str]:
    program = parse(text)
    alone = [rule for rule in program.rules if not any(rule in one.rules for one in program.interests)]
    return ids(tocsin.rules([*program.interests, *alone]).detect(EVENTS))


def why(text: str, folder: Path) -> list[str]:
    ruleset = tocsin.rules(text)
    evidence = ruleset.evidence(EVENTS)
    assert all(evidence.why(row["id"]).matched for row in evidence.found.to_pylist())
    return ids(evidence.found)


def why_not(text: str, folder: Path) -> list[str]:
    tried = [(ts, reason) for ts in (2 * S, 3 * S, 4 * S) for reason in tocsin.rules(text).why_not(EVENTS, at=ts)]
    matched = [4 * S] if kind_of(text) == "request" else [2 * S, 4 * S]
    assert [ts for ts, reason in tried if reason.matched] == matched
    return right(kind_of(text))


def explain(text: str, folder: Path) -> list[str]:
    return shown(text, tocsin.rules(text).explain())


def explain_svg(text: str, folder: Path) -> list[str]:
    return shown(text, tocsin.rules(text).explain_svg())


def shown(text: str, answer: str) -> list[str]:
    """The statement stands in what is shown."""
    program = parse(text)
    (name,) = (one.name for one in program.interests or program.rules)
    assert name in answer
    return right(kind_of(text))


def kind_of(text: str) -> str:
    return next(kind for kind, one in TEXTS.items() if one == text)


def case(text: str, folder: Path) -> list[str]:
    return ids(given(text, EVENTS).rows)


def stepwise(text: str, folder: Path) -> list[str]:
    stream = Stream(text)
    stream.push(EVENTS)
    stream.wait("1 s")
    return ids(stream._rows)


def generated_stream(text: str, folder: Path) -> list[str]:
    assert streams(text) is not None
    return right(kind_of(text))


def verified(text: str, folder: Path) -> list[str]:
    assert verify(text, examples=20).matches
    return right(kind_of(text))


def compared(text: str, folder: Path) -> list[str]:
    assert equivalent(text, text, examples=20).matches
    return right(kind_of(text))


def compared_with(text: str, folder: Path) -> list[str]:
    other = TEXTS["query"] if "Pair" not in text else text
    assert equivalent(other, text, examples=20).matches
    return right(kind_of(text))


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exit_code:
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        raise TocsinError(result.stderr)
    return result.stdout


def files(text: str, folder: Path) -> tuple[Path, Path]:
    rules, events = folder / "rules.txt", folder / "events.csv"
    rules.write_text(text, encoding="utf-8")
    pyarrow.csv.write_csv(TABLE, events)
    return rules, events


def cli_check(text: str, folder: Path) -> list[str]:
    return shown(text, command("check", files(text, folder)[0]))


def cli_explain(text: str, folder: Path) -> list[str]:
    return shown(text, command("explain", files(text, folder)[0]))


def cli_explain_svg(text: str, folder: Path) -> list[str]:
    command("explain", files(text, folder)[0], "--svg", folder / "plan.svg")
    return shown(text, (folder / "plan.svg").read_text(encoding="utf-8"))


def cli_run(text: str, folder: Path) -> list[str]:
    rules, events = files(text, folder)
    out = folder / "out.jsonl"
    command("run", rules, "--events", events, "--engine", "embedded", "--matches", out, "--ts-unit", "us")
    return ids([json.loads(line) for line in out.read_text().splitlines()])


def cli_why(text: str, folder: Path) -> list[str]:
    rules, events = files(text, folder)
    answer = json.loads(command("why", rules, "--events", events, "--at", 2 * S, "--ts-unit", "us", "--json"))
    assert [one["matched"] for one in answer] == [kind_of(text) != "request"]
    return right(kind_of(text))


def cli_change(text: str, folder: Path) -> list[str]:
    command("change", folder / "changes", "--add", files(text, folder)[0])
    (order,) = (json.loads(path.read_text()) for path in (folder / "changes").glob("*.json"))
    assert order["add"] == text
    return right(kind_of(text))


def scenario(text: str, folder: Path) -> Path:
    path = folder / "scenario.yaml"
    data = {
        "rules": text,
        "topology": {"links": [["hill", "town", 5]]},
        "sources": {"hill": {"A": 5, "Me": 1}},
        "sinks": {"town": ["Hot"]},
        "seconds": 5,
        "strategies": ["Centr"],
        "hosting": {"folder": str(folder / "run")},
    }
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def cli_simulate(text: str, folder: Path) -> list[str]:
    (run,) = json.loads(command("simulate", scenario(text, folder), "--check", "--json"))["runs"]
    assert run["notices"] > 0
    assert run["wrong_sinks"] == []
    return right("rule")


def cli_site(text: str, folder: Path) -> list[str]:
    assert json.loads(command("site", "status", scenario(text, folder), "--json"))["sites"]
    return right("rule")


ANY = {"rule", "request", "query"}
ENTRY_POINTS: dict[str, tuple[Callable[[str, Path], list[str]], set[str]]] = {
    "rules(text).detect": (detect, {*ANY, "interest"}),
    "rules(objects).detect": (objects, {*ANY, "interest"}),
    "rules(text).detector": (detector, {*ANY, "interest"}),
    "rules(text).restore": (restore, {*ANY, "interest"}),
    "Detector.add": (add, ANY),
    "Live.request": (live, ANY),
    "why": (why, {"rule", "request", "query"}),
    "why_not": (why_not, {"rule", "request", "query"}),
    "explain": (explain, {*ANY, "interest"}),
    "explain_svg": (explain_svg, ANY),
    "testing.given": (case, {*ANY, "interest"}),
    "testing.Stream": (stepwise, {*ANY, "interest"}),
    "testing.streams": (generated_stream, ANY),
    "testing.verify": (verified, ANY),
    "testing.equivalent": (compared, ANY),
    "testing.equivalent, second": (compared_with, ANY),
    "tocsin check": (cli_check, {*ANY, "interest"}),
    "tocsin explain": (cli_explain, {*ANY, "interest"}),
    "tocsin explain --svg": (cli_explain_svg, ANY),
    "tocsin run --engine embedded": (cli_run, {*ANY, "interest"}),
    "tocsin why": (cli_why, {"rule", "request", "query"}),
    "tocsin change": (cli_change, ANY),
    "tocsin simulate": (cli_simulate, {"rule"}),
    "tocsin site": (cli_site, {"rule"}),
}
"""By entry point: how it is used, and the kinds that it runs."""


def holds(use: Callable[[], list[str]], kind: str, runs: set[str]) -> None:
    """The cell gives the reference's answer, or an error that names kind and statement."""
    if kind in runs:
        expected = right(kind)
        assert expected
        assert use() == expected
        return
    with pytest.raises(TocsinError) as refused:
        use()
    named = (UNUSED, "rule Lone: ", "interest Near: ") if kind == "mixed" else (f" {NAMED[kind]}: ",)
    said = str(refused.value)
    assert any(name in said for name in named), said
    assert UNUSED in said or " cannot " in said, said


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_statement_runs_or_is_refused_by_name(entry: str, kind: str, tmp_path: Path) -> None:
    use, runs = ENTRY_POINTS[entry]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holds(lambda: use(TEXTS[kind], tmp_path), kind, runs)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_printed_program_has_every_statement(kind: str) -> None:
    from tocsin.language import print_program

    program = parse(TEXTS[kind])
    assert parse(print_program(program)) == program


@pytest.mark.parametrize("kind", TEXTS)
def test_the_service_runs_a_statement_or_refuses_it_by_name(kind: str, tmp_path: Path) -> None:
    """Over HTTP, by the client: check, deploy, matches, why, why not, dry run."""
    text = TEXTS[kind]
    with running(tmp_path) as started:
        client, http = started.client(), started.http()
        checked = client.check(text)
        if kind == "mixed":
            assert UNUSED in checked["error"]["message"]
            for use in (client.deploy, client.dry_run):
                with pytest.raises(TocsinError, match=UNUSED):
                    use(text)
            return
        (name,) = checked["rules"]
        assert checked["ok"]
        assert name == NAMED[kind].partition(" ")[2]
        client.deploy(text)
        client.publish([{"type": event.type, "ts": event.ts, **event.attributes} for event in EVENTS])
        client.publish([{"type": "Clock", "ts": 7 * S}])
        expected = right(kind)
        found: list[Any] = []
        for _ in range(1_500):
            found = [row for row in client.matches() if row["type"] != "Marker"]
            if len(found) >= len(expected):
                break
            time.sleep(0.02)
        assert ids(found) == expected
        answer = http.get(f"/matches/{found[0]['id']}/why").json()
        asked = http.post("/why-not", json={"rule": name, "ts_us": 2 * S})
        if kind == "rule":
            assert answer["checks"]
            assert answer["note"] is None
            assert asked.json()[0]["matched"] is True
        else:
            assert f"cannot explain {NAMED[kind]}: " in answer["note"]
            assert asked.status_code >= 400
            assert f"cannot explain {NAMED[kind]}: " in asked.text
        assert len(client.dry_run(text)["sample"]) >= len(expected)


@pytest.mark.parametrize("kind", TEXTS)
def test_spark_batch_runs_a_statement_or_refuses_it_by_name(kind: str, spark: SparkSession) -> None:
    def use() -> list[str]:
        return ids(tocsin.rules(TEXTS[kind]).detect(spark.createDataFrame(TABLE), ts_unit="us", slots=2).toArrow())

    holds(use, kind, {*ANY, "interest"})


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow if kind in ANY else ()) for kind in TEXTS])
def test_a_spark_stream_runs_a_statement_across_a_rekey_or_refuses_it_by_name(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    def use() -> list[str]:
        rules = tocsin.rules(TEXTS[kind])
        for name in ("events", "control"):
            (tmp_path / name).mkdir(exist_ok=True)
        schema = "type string, ts long, x double, y double"
        events = spark.readStream.schema(schema).parquet(str(tmp_path / "events"))
        control = spark.readStream.schema("advance long").json(str(tmp_path / "control"))

        def run(checkpoint: str, slots: int) -> None:
            found = rules.detect(events, ts_unit="us", slots=slots, control=control)
            writer = found.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
            writer.trigger(availableNow=True).start().awaitTermination()

        pq.write_table(TABLE.slice(0, 3), tmp_path / "events" / "1.parquet")
        run("old", 1)
        rules.rekey(events, tmp_path / "old", tmp_path / "new", ts_unit="us", slots=2, control=control)
        pq.write_table(TABLE.slice(3), tmp_path / "events" / "2.parquet")
        (tmp_path / "control" / "end.json").write_text(json.dumps({"advance": 7 * S}))
        run("new", 2)
        return ids(spark.read.parquet(str(tmp_path / "out")).toArrow())

    holds(use, kind, {*ANY, "interest"})


@pytest.mark.parametrize("kind", TEXTS)
def test_a_control_row_adds_a_statement_or_refuses_it_by_name(kind: str) -> None:
    from tocsin.spark.stream import added_rules

    def use() -> list[str]:
        assert [rule.name for rule in added_rules({"add": TEXTS[kind]})] == [NAMED[kind].partition(" ")[2]]
        return right(kind)

    holds(use, kind, ANY)
