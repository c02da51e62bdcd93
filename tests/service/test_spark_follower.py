"""The Spark backend matches like the embedded one while rules change and the service is closed and killed."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tocsin.service.spark_backend
import tocsin.spark.log_stream
import tocsin.spark.rescale
import tocsin.spark.source
from tests.budget import examples
from tests.service import following
from tocsin.errors import TocsinError
from tocsin.service.event_intake import JSON
from tocsin.service.records import TimeRecord
from tocsin.service.service import Options, Service

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
DELAY_S = 1_000
DECLARED = "event Temp(area: string, value: double)\nevent Smoke(area: string)\nevent Order(n: long)\n"
POOL = {
    "Fire": "define Fire(area: string) from Smoke(area=$a) and last Temp(area=$a, value>45) within 20 min from Smoke "
    "where area = Smoke.area",
    "Calm": "define Calm(area: string) from Smoke(area=$a) and not Temp(area=$a, value>45) within 10 min from Smoke "
    "where area = Smoke.area",
    "Used": "define Used(v: double) from Smoke() and each Temp() within 15 min from Smoke where v = Temp.value "
    "consuming Temp",
    "Spread": "define Spread(area: string) from Fire() as now and last Fire() as before within 20 min from now "
    "where area = before.area",
    "Late": 'request Late on Order as o ; at(Order, 200 s) as t notify "late"',
    "Last": "@info(name = 'Last') from Temp[value > 48]#window.length(3) select count() as hot insert into Last;",
    "Both": "request Both on Order as o & Smoke as s within 15 min",
}


def event(rng: random.Random, at_s: float) -> dict[str, Any]:
    type = rng.choice(["Temp", "Temp", "Smoke", "Order"])
    held: dict[str, dict[str, Any]] = {
        "Temp": {"area": rng.choice("ABC"), "value": rng.choice([20.0, 46.5, 50.0])},
        "Smoke": {"area": rng.choice("ABC")},
        "Order": {"n": rng.randrange(5)},
    }
    named = {"id": f"e{rng.randrange(10**9)}"} if rng.random() < 0.3 else {}
    return {"type": type, "ts": START + int((at_s - rng.uniform(0, DELAY_S / 2)) * SECOND), **held[type], **named}


def acts(seed: int) -> list[tuple[str, Any]]:
    """What happens, in this order."""
    rng = random.Random(seed)
    deployed: set[str] = set()
    now_s = 2_000.0
    script: list[tuple[str, Any]] = [("deploy", DECLARED + POOL["Fire"])] if rng.random() < 0.5 else []
    deployed |= {"Fire"} if script else set()
    ever = set(deployed)  # a rule that is back at once has its windows still, on Spark alone
    for _ in range(rng.randint(4, 14)):
        kind = rng.choice(["publish", "publish", "publish", "deploy", "remove", "tick", "restart"])
        if kind == "publish":
            count = rng.randint(1, 30)
            script.append(("publish", [event(rng, now_s + rng.uniform(0, 300)) for _ in range(count)]))
            now_s += 300
        elif kind == "deploy" and (new := sorted(set(POOL) - ever)):
            name = rng.choice(new)
            deployed.add(name)
            ever.add(name)
            script.append(("deploy", POOL[name]))
        elif kind == "remove" and deployed:
            name = rng.choice(sorted(deployed))
            deployed.discard(name)
            script.append(("remove", name))
        elif kind == "tick":
            script.append(("tick", START + int(now_s * SECOND)))
            now_s += DELAY_S / 2 + 1
        elif kind == "restart":
            script.append(("restart", None))
    return [*script, ("tick", START + int((now_s + 9_000) * SECOND))]


class Alive:
    """A service that comes back whenever it is killed, in a copy of what it left on the disk."""

    def __init__(self, folder: Path, options: Options) -> None:
        self._root, self._options, self._lives = folder, options, 0
        self.service = Service(folder / "0", options)

    def do(self, act: str, what: Any) -> object:
        service = self.service
        match act:
            case "publish":
                ack = service.publish(json.dumps(what).encode(), JSON)
                self.settle()
                return ack.accepted, ack.reasons
            case "tick":
                service.committer.submit(TimeRecord(what).encode()).result(60)
                self.settle()
            case "restart":
                service.close()
                self.service = Service(self._root / str(self._lives), self._options)
            case "deploy" | "remove":
                try:
                    return [one.id for one in getattr(service, act)(what).result(60)]
                except TocsinError as error:
                    return str(error)
        return None

    def settle(self) -> None:
        """Waits until all is detected in, across deaths."""
        while True:
            service = self.service
            while service.position < service.log.end and service.failure is None:
                time.sleep(0.001)
            if service.failure is None:
                return
            assert service.failure.startswith("Killed"), service.failure
            old, self._lives = self._root / str(self._lives), self._lives + 1
            service.committer.close()
            for part in (service.log, service.matches, service.dead_letters):
                part.close()
            new = self._root / str(self._lives)
            shutil.move(old, new)
            while True:
                try:
                    self.service = Service(new, self._options)
                    break
                except following.Killed:
                    self._lives += 1
                    moved = self._root / str(self._lives)
                    shutil.copytree(new, moved)
                    new = moved

    def found(self) -> tuple[list[Any], list[Any]]:
        matches = [json.loads(line.text) for line in self.service.matches.after(0, 100_000)]
        dead = [json.loads(line.text) for line in self.service.dead_letters.after(0, 100_000)]
        assert [match["number"] for match in matches] == [*range(1, len(matches) + 1)]
        self.service.close()
        for row in (*matches, *dead):
            del row["number"]
        return sorted(matches, key=json.dumps), sorted(dead, key=json.dumps)


def live(folder: Path, engine: str, seed: int, slots: int, kills: float) -> tuple[Any, ...]:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if engine == "spark":
            patch.setattr(tocsin.spark.log_stream, "LogQuery", following.Following)
            patch.setattr(tocsin.spark.log_stream, "_work", tocsin.spark.log_stream._work)
            patch.setattr(tocsin.spark.rescale, "rekey", following.rekey)
            patch.setattr(tocsin.spark.source, "default_slots", lambda session: slots)
            patch.setattr(tocsin.service.spark_backend, "_session", lambda master: None)
            patch.setattr(following.Following, "fails", staticmethod(lambda moment: rng.random() < kills))
        options = Options(delay_us=DELAY_S * SECOND, ahead_us=2**60, engine=engine)
        alive = Alive(folder, options)
        script = [alive.do(act, what) for act, what in acts(seed) if act != "restart" or engine == "spark"]
        while script and script[-1] is None:
            script.pop()
        outcomes = [outcome for outcome in script if outcome is not None]
        return outcomes, *alive.found()


def check(folder: Path, seed: int, slots: int, kills: float) -> None:
    there = live(folder / "spark", "spark", seed, slots, kills)
    here = live(folder / "embedded", "embedded", seed, slots, 0.0)
    assert there == here


@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([0.0, 0.3]))
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changing_rules_have_the_same_matches(
    tmp_path_factory: pytest.TempPathFactory, seed: int, slots: int, kills: float
) -> None:
    check(tmp_path_factory.mktemp("life"), seed, slots, kills)
