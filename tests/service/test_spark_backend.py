"""The Spark backend has the matches of the embedded one while rules change and the service restarts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tocsin.errors import StateError
from tocsin.language import parse
from tocsin.plans.assignment import assign_rules
from tocsin.plans.plan import plan
from tocsin.plans.typing import Catalog
from tocsin.service.event_intake import JSON
from tocsin.service.service import Options, Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
DELAY_S = 120
DECLARED = """
event Temp(area: string, value: double)
event Smoke(area: string, note: string)
event Order(n: long)
"""
FIRE = """
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value
"""
BLAZE = """
define  Blaze(temp: string)
from    Smoke(area=$a) and last Temp(area=$a, value>48) within 5 min from Smoke
where   temp = Smoke.area
"""
"""Its `temp` is of another kind than that of Fire."""
SPREADING = """
define  Spreading(first: string, then: string)
from    Fire(area=$a) as now and last Fire(area != $a) as before within 2 min from now
where   first = before.area, then = now.area
"""
LATE = 'request Late on Order as o ; at(Order, 30 s) as t notify "late"'
TWICE = "from Temp[value > 40]#window.length(3) select count() as hot insert into Hot;"


def event(rng: random.Random, at_s: float) -> dict[str, Any]:
    type = rng.choice(["Temp", "Temp", "Smoke", "Order"])
    ts = START + round((at_s - rng.uniform(0, DELAY_S / 2)) * SECOND)
    held: dict[str, dict[str, Any]] = {
        "Temp": {"area": rng.choice("ABCD"), "value": rng.choice([20.0, 46.5, 50.0])},
        "Smoke": {"area": rng.choice("ABCD"), "note": rng.choice("xy")},
        "Order": {"n": rng.randrange(5)},
    }
    named = {"id": f"e{rng.randrange(10**9)}"} if rng.random() < 0.5 else {}
    return {"type": type, "ts": ts, **held[type], **named}


def story(folder: Path, engine: str, seed: int, *, short: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
    """Rules come and go while events come, and the service is closed in between. Matches, dead letters, receipts.

    The `short` one starts two queries on Spark, the whole one three, and moves their state.
    """
    rng = random.Random(seed)
    options = Options(delay_us=DELAY_S * SECOND, ahead_us=2**60, engine=engine)
    receipts = []

    def publish(service: Service, from_s: float, to_s: float, count: int = 60) -> None:
        times = sorted(rng.uniform(from_s, to_s) for _ in range(count))
        for half in (times[: count // 2], times[count // 2 :]):
            ack = service.publish(json.dumps([event(rng, at_s) for at_s in half]).encode(), JSON)
            receipts.append((ack.accepted, ack.reasons))
        service.wait()

    service = Service(folder, options)
    service.deploy(DECLARED + FIRE).result(300)
    service.deploy(LATE).result(300)
    publish(service, 200, 400)
    if short:
        service.deploy(BLAZE).result(300)
        publish(service, 400, 600)
    else:
        service.deploy(SPREADING).result(300)  # Fire cannot be in several slots any more
        service.deploy(TWICE).result(300)
        publish(service, 400, 600)
        service.close()
        service = Service(folder, options)
        service.remove("Late").result(300)
        publish(service, 600, 800)
    service.publish(json.dumps({"type": "Clock", "ts": START + 9_000 * SECOND}).encode(), JSON)
    service.wait()
    found = [json.loads(line.text) for line in service.matches.after(0, 100_000)]
    dead = [json.loads(line.text) for line in service.dead_letters.after(0, 100_000)]
    assert [match["number"] for match in found] == [*range(1, len(found) + 1)]
    assert [match["ts"] for match in found] == sorted(match["ts"] for match in found)
    assert service.events == sum(accepted for accepted, _ in receipts) + 1
    service.close()
    for row in (*found, *dead):
        del row["number"]
    return sorted(found, key=json.dumps), sorted(dead, key=json.dumps), receipts


def test_spark_finds_what_the_service_finds_in_its_own_process(tmp_path: Path, spark: SparkSession) -> None:
    there = story(tmp_path / "spark", "spark", 7, short=True)
    here = story(tmp_path / "embedded", "embedded", 7, short=True)
    assert {match["rule"] for match in here[0]} == {"Fire", "Blaze", "Late"}
    assert there == here


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_spark_has_the_same_matches_when_state_moves(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    there = story(tmp_path / "spark", "spark", seed)
    here = story(tmp_path / "embedded", "embedded", seed)
    assert {match["rule"] for match in here[0]} >= {"Fire", "Spreading", "Late"}
    assert there == here
    (generation,) = (tmp_path / "spark" / "spark").glob("[0-9]*")
    assert int(generation.name) > 1, "the state has moved, and the old checkpoints are gone"


def test_the_test_scenario_moves_rules() -> None:
    def homes(*texts: str) -> dict[str, Any]:
        programs = [parse(text) for text in texts]
        types = {type.name: type for program in programs for type in program.types}
        rules = [rule for program in programs for rule in program.rules]
        return assign_rules(plan(rules, Catalog(types=types)), 2).units_by_rule

    assert homes(DECLARED + FIRE)["Fire"].key is not None
    assert homes(DECLARED + FIRE, SPREADING)["Fire"].key is None


def test_a_folder_belongs_to_one_engine(tmp_path: Path) -> None:
    service = Service(tmp_path, Options())
    service.publish(b'{"type": "A"}', JSON)
    service.close()
    with pytest.raises(StateError, match="--engine embedded"):
        Service(tmp_path, Options(engine="spark"))


def test_without_java_the_error_suggests_the_embedded_engine(tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "nowhere")}
    command = "from tocsin.cli import main; main()"
    options = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--no-tokens"]
    process_result = subprocess.run(
        [sys.executable, "-c", command, *options], env=environment, capture_output=True, text=True, timeout=300
    )
    assert process_result.returncode == 1
    assert "--engine embedded" in process_result.stderr
    assert "Traceback" not in process_result.stderr


def test_a_range_of_the_log_is_split_at_records(tmp_path: Path) -> None:
    from tocsin.service.records import EventsRecord, TimeRecord
    from tocsin.service.spark_backend import LogReading
    from tocsin.storage import Log

    log = Log(tmp_path / "events", segment_bytes=1 << 20)
    batch = pa.table(
        {
            "type": pa.array([0] * 40_000, pa.int32()),
            "ts": pa.array(range(40_000), pa.int64()),
            "seq": pa.array([0] * 40_000, pa.int64()),
        }
    )
    ends = [0, *log.append([EventsRecord(batch, ("A",)).encode()] * 5), *log.append([TimeRecord(7).encode()])]
    limit = tmp_path / "limit"
    limit.write_text(json.dumps({"upto": ends[-1], "unused": [ends[1]]}))
    reading = LogReading(str(tmp_path / "events"), str(limit), pieces=2)
    cuts = reading.cut(0, ends[-1])
    assert (cuts[0], cuts[-1]) == (0, ends[-1])
    assert 3 <= len(cuts) <= 4
    assert set(cuts) <= set(ends)
    pieces = [reading.read(one, other) for one, other in pairwise(cuts)]
    assert sum(events.num_rows for batches, _ in pieces for events, _ in batches) == 4 * 40_000
    assert [ts for _, reached in pieces for ts in reached] == [7]
    assert reading.latest() == ends[-1]
    log.close()
