"""A plan that cannot be hosted is refused with a helpful message."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sites.running import FIVE, expected, read_plan, written_plan
from tocsin.cli import app
from tocsin.cli.sites import fleet, plan
from tocsin.errors import TocsinError
from tocsin.sites.channels import OPERATOR, FolderChannels, unpack_messages

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"chanels": "folder"}, "hosting has no 'chanels'. Did you mean 'channels'?"),
    ({"channels": "ftp"}, "channels is 'folder' or kafka://host:port/prefix, not 'ftp'"),
    ({"channels": "kafka://nowhere"}, "is not the address of a Kafka topic"),
    ({"replicas": 0}, "replicas is a whole number from 1 on, not 0"),
    ({"replicas": {"twon": 2}}, "replicas: there is no site twon. Did you mean 'town'?"),
    ({"replicas": {"town": "two"}}, "replicas of town is a whole number from 1 on, not 'two'"),
    ({"epoch": 0}, "epoch is a number from 0.001 on, not 0"),
    ({"speed": -1}, "speed is a number from 0 on, not -1"),
    ({"rounds": 1.5}, "rounds is a whole number from 1 on, not 1.5"),
    ({"beat": 2, "suspect": 3}, "suspect is at least 3 times beat"),
    ({"folder": 7}, "folder is the name of a folder, not 7"),
    ({"live": "arriving"}, "live maps each site with sources to their origin"),
    ({"live": {"twon": "arriving"}}, "live: there are no sources at twon."),
    ({"live": {"hill": {"form": "arriving"}}}, "live: hill has no 'form'. Did you mean 'from'?"),
    ({"live": {"hill": 7}}, "live: hill comes from a folder or from kafka://host:port/topic, not from 7"),
    ({"live": {"hill": "ftp://x/y"}}, "is not the address of a Kafka topic"),
    ({"live": {"hill": {"from": "a", "idle": 0}}}, "idle is a number from 0.1 on, not 0"),
    ({"live": {"hill": "arriving"}}, "live: the sources at dam have no origin; either all are live, or none"),
    (
        {"changes": [{"at": 60, "leave": ["fort"]}, {"at": 80, "links": [["fort", "dam", 1]]}]},
        "fort leaves and comes back: a site that has left cannot return",
    ),
    ({"changes": [{"at": at, "sinks": {"town": []}} for at in range(1, 18)]}, "there are 17 changes"),
    ({"changes": [{"at": 60, "leave": ["dam", "fort"]}]}, "fort cannot leave: none of its neighbours stays"),
    (
        {
            "changes": [{"at": 60, "sinks": {"town": []}}],
            "live": dict.fromkeys(("dam", "fort", "hill", "lake"), "arriving"),
        },
        "live sources have no known times",
    ),
    ({"sources": {"hill 2": {"Smoke": 1}}, "topology": {"links": [["hill 2", "town", 5]]}, "sinks": {}}, "be hosted"),
]


@pytest.mark.parametrize(("wrong", "said"), MISTAKES, ids=[said[:30] for _, said in MISTAKES])
def test_mistakes(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    data = {**FIVE, **{name: value for name, value in wrong.items() if name in (*FIVE, "changes")}}
    data["hosting"] = {**FIVE["hosting"], **{name: value for name, value in wrong.items() if name not in data}}
    with pytest.raises(TocsinError) as caught:
        read_plan(tmp_path, data)
    assert said in str(caught.value)
    assert str(tmp_path / "plan.yaml") in str(caught.value)


def test_who_hears_whom(tmp_path: Path) -> None:
    made = read_plan(tmp_path, FIVE, replicas={"town": 2})
    assert made.names == ["dam#0", "fort#0", "hill#0", "lake#0", "town#0", "town#1"]
    assert made.senders("town#1") == ("town#0", "dam#0", "hill#0", "lake#0")
    assert made.senders("fort#0") == ("dam#0",)


def test_a_folder_belongs_to_one_plan(tmp_path: Path) -> None:
    fleet(written_plan(tmp_path, FIVE)).claim()
    fleet(written_plan(tmp_path, FIVE)).claim()
    with pytest.raises(TocsinError, match="belongs to another plan: use --fresh"):
        fleet(written_plan(tmp_path, FIVE, epoch=7)).claim()
    fleet(written_plan(tmp_path, FIVE, epoch=7)).claim(fresh=True)


def test_what_an_operator_says(tmp_path: Path) -> None:
    path = written_plan(tmp_path, FIVE, replicas={"town": 2})
    run = CliRunner().invoke
    assert run(app, ["site", "forget", str(path), "town#1"]).exit_code == 0
    folders = FolderChannels(tmp_path / "run" / "channels")
    (batch,) = folders.read("hill#0", {})
    assert batch.sender == OPERATOR
    assert [(gone.replica, gone.back) for gone in unpack_messages(batch.data)] == [("town#1", False)]
    folders.prune("hill#0", {OPERATOR: batch.position})
    assert folders.read("hill#0", {}) == [batch]
    alone = run(app, ["site", "forget", str(path), "hill#0"])
    assert alone.exit_code == 1
    assert "is the only replica of its site" in alone.output
    assert run(app, ["site", "hold", str(path), "hill", "town"]).exit_code == 0
    assert (tmp_path / "run" / "channels" / "town#1" / "hill#0" / "held").exists()
    assert run(app, ["site", "hold", str(path), "hill", "town", "--release"]).exit_code == 0
    assert not (tmp_path / "run" / "channels" / "town#1" / "hill#0" / "held").exists()
    assert "there is no link from hill to fort" in run(app, ["site", "hold", str(path), "hill", "fort"]).output
    shown = run(app, ["site", "status", str(path)])
    assert "town#1" in shown.output
    assert run(app, ["site", "down", str(path)]).output.strip() == "no site was running"


def test_the_commands_of_the_guide_exist() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "sites.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", guide, re.M | re.S) for line in block.splitlines()]
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line)[1:]
        assert Path(__file__).parents[2].joinpath(next(word for word in words if word.endswith(".yaml"))).exists()
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, line


def test_the_example_can_be_hosted() -> None:
    made = plan(Path(__file__).parents[2] / "examples" / "sites" / "five.yaml")
    assert len(made.names) == 5
    assert all(expected(made).values())


def test_the_live_example_can_be_hosted() -> None:
    made = plan(Path(__file__).parents[2] / "examples" / "sites" / "live.yaml")
    assert sorted(made.hosting.live) == ["dam", "hill"]
    assert not made.events.num_rows
