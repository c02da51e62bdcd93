"""Rates of filters in the graph, and moving queries across a restart."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tocsin.errors import RuleError
from tocsin.plans.explain import outline
from tocsin.plans.rules import Buffer, Filter
from tocsin.service import inspection as flows
from tocsin.service import inspection as looking
from tocsin.service.event_intake import JSON
from tocsin.service.service import Options, Service

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
OPTIONS = Options(delay_us=0, ahead_us=2**60)
RULES = """
define  Fire(area: string)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area

define  Two(area: string)
from    Fire() as now and last Fire(area="B") as before within 5 min from now
where   area = now.area
"""
NEAR = """
define    Jam(cars: long)
from      Brake() and $n = Count(Brake() within 10 s from Brake)
where     cars = $n

interest  Ahead
of        Jam
around    Position(car="c1")
range     rectangle 300 m by 300 m
lifetime  30 s
update    every 10 s
"""


def publish(service: Service, *events: dict[str, Any]) -> None:
    assert service.publish(json.dumps(events).encode(), JSON).rejected == 0
    service.wait()


def test_a_filter_has_the_rate_of_passing_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path, OPTIONS)
    service.deploy(RULES).result(300)
    rng = random.Random(3)
    values = [rng.uniform(20, 70) for _ in range(400)]
    for n in range(0, 400, 100):
        at = START + n * SECOND
        temps = [{"type": "Temp", "ts": at + k, "area": "A", "value": values[n + k]} for k in range(100)]
        publish(service, *temps, {"type": "Smoke", "ts": at + 100, "area": "A"}, {"type": "Other", "ts": at + 101})
    plan = service.backend.plan
    nodes = outline(plan)
    filters = [node for node in nodes.labels[1] if isinstance(node, Filter)]
    per_s = {"Temp": 50.0, "Smoke": 2.0, "Fire": 1.0}
    rates = flows.pass_rates(plan, filters, service.recent, per_s)
    answer = {(filter.type, bool(filter.conditions)): rate for filter, rate in rates.items()}
    assert answer["Temp", True] == pytest.approx(50.0 * sum(value > 45 for value in values) / 400)
    assert answer["Smoke", False] == 2.0
    assert answer["Fire", False] == 1.0
    assert answer["Fire", True] is None, "composite events are not stored"
    monkeypatch.setattr(service.event_rates, "per_s", lambda: per_s)
    buffers = [node for node in nodes.labels[2] if isinstance(node, Buffer)]
    place = next(n for n, node in enumerate(buffers) if node.filter.type == "Temp")
    shown = {node["id"]: node["per_s"] for node in looking.graph(service)["nodes"]}
    assert shown[f"2-{place}"] == pytest.approx(answer["Temp", True], abs=0.01)
    service.close()


def test_a_moving_query_resumes_after_a_restart(tmp_path: Path) -> None:
    rng = random.Random(5)
    stream: list[dict[str, Any]] = []
    for second in range(80):
        where = {"x": rng.uniform(-300, 700), "y": rng.uniform(-100, 100)}
        stream.append({"type": "Brake", "ts": START + second * SECOND, "car": f"c{second}", **where})
        if second % 10 == 0:
            at = {"x": second * 5.0, "y": 0.0}
            stream.append({"type": "Position", "ts": START + second * SECOND + 1, "car": "c1", **at})

    def answer(folder: Path, restarts: bool) -> list[Any]:
        service = Service(folder, OPTIONS)
        service.deploy(NEAR).result(300)
        for start in range(0, len(stream), 11):
            publish(service, *stream[start : start + 11])
            if restarts:
                service.close()
                service = Service(folder, OPTIONS)
        found = [json.loads(line.text) for line in service.matches.after(0, 10_000)]
        service.close()
        return found

    whole = answer(tmp_path / "whole", restarts=False)
    assert len([match for match in whole if match["type"] == "Jam"]) > 5
    assert answer(tmp_path / "again", restarts=True) == whole


def test_why_of_a_request_or_query_has_events_but_no_checks(tmp_path: Path) -> None:
    service = Service(tmp_path, OPTIONS)
    service.deploy("request Pair on Order as o ; Paid as p within 5 min").result(300)
    service.deploy("@info(name = 'Hot') from Temp[value > 45] select value insert into Warm;").result(300)
    publish(service, {"type": "Order", "ts": START, "n": 1}, {"type": "Paid", "ts": START + 1, "n": 2})
    publish(service, {"type": "Temp", "ts": START + 2 * SECOND, "value": 50.5})
    publish(service, {"type": "Clock", "ts": START + 9 * SECOND})
    found = {match["rule"]: match for line in service.matches.after(0, 10) if (match := json.loads(line.text))}
    assert set(found) == {"Pair", "Hot"}
    for name, match in found.items():
        answer = looking.why(service, str(match["number"]))
        assert answer["checks"] == []
        kind = {"Pair": "request", "Hot": "query"}[name]
        assert answer["note"].startswith(f"why and why not cannot explain {kind} {name}: they explain TESLA rules")
        with pytest.raises(RuleError, match=f"cannot explain {kind} {name}"):
            looking.why_not(service, name, START, None)
    held = [part["attributes"] for part in looking.why(service, str(found["Pair"]["number"]))["parts"]]
    assert sorted(held, key=str) == [{"n": 1.0}, {"n": 2.0}]
    service.close()
