"""Matches of the service are exact and delivered once, across restarts and crashes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tocsin
from tocsin.errors import RuleError, StateError
from tocsin.service import inspection
from tocsin.service import records as receipts_module
from tocsin.service.event_intake import JSON, NDJSON
from tocsin.service.records import EventsAck
from tocsin.service.service import Conflict, NotFound, Options, Service

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
FIRE = """
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where   area = Smoke.area, temp = Temp.value
"""
NOW = Options(delay_us=0, ahead_us=2**60)


def event(type: str, at_s: float, **attributes: Any) -> dict[str, Any]:
    return {"type": type, "ts": START + round(at_s * SECOND), **attributes}


def publish(service: Service, *events: dict[str, Any], **options: Any) -> Any:
    return service.publish(json.dumps(list(events)).encode(), JSON, **options)


def matches(service: Service) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in service.matches.after(0, 1_000_000)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data", NOW)
    yield service
    service.close()


def wait_idle(service: Service) -> None:
    """Close the newest instant and wait."""
    publish(service, event("Clock", 9_000))
    service.wait()


def test_a_match_has_a_number_and_its_events(service: Service) -> None:
    assert [one.id for one in service.deploy(FIRE).result(300)] == ["Fire"]
    ack = publish(
        service, event("Temp", 1, area="A", value=46.5), event("Smoke", 2, area="A", id="s1"), {"type": 1}, key="k"
    )
    assert (ack.accepted, ack.rejected) == (2, 1)
    assert ack.reasons == ((2, "type is 1, not a name"),)
    wait_idle(service)
    (match,) = matches(service)
    assert match["number"] == 1
    assert (match["rule"], match["type"], match["attributes"]) == ("Fire", "Fire", {"area": "A", "temp": 46.5})
    assert [(part["role"], part["type"]) for part in match["parts"]] == [("Smoke", "Smoke"), ("Temp", "Temp")]
    assert len(match["parts"][0]["id"]) == 32


def test_a_request_may_name_the_attribute_of_source_ids(service: Service) -> None:
    service.deploy("define Seen() from Smoke()").result(300)
    body = b"\n".join(json.dumps(event("Smoke", ts, order="s1")).encode() for ts in (1, 2, 2))
    assert service.accept(service.read(body, NDJSON, id="order")).result(300).accepted == 3
    wait_idle(service)
    found = matches(service)
    assert [match["parts"][0]["id"] for match in found] == ["s1"] * 3
    assert len({match["id"] for match in found}) == 3


def test_time_advances_without_events(service: Service) -> None:
    service.deploy(FIRE).result(300)
    heard: list[int] = []
    service.matches.listeners.append(lambda: heard.append(service.matches.last))
    publish(service, event("Temp", 1, area="A", value=46.5), event("Smoke", 2, area="A"))
    for _ in range(500):
        if heard:
            break
        service.wait()
        time.sleep(0.01)
    assert heard == [1]
    late = publish(service, event("Smoke", 1.5, area="A"))
    assert late.accepted == 0
    assert late.reasons[0][1].startswith("late: the watermark is")


def test_a_repeated_key_counts_once_even_after_a_restart(tmp_path: Path) -> None:
    service = Service(tmp_path, NOW)
    first = publish(service, event("A", 1), event("A", 1), key="k")
    again = publish(service, event("A", 1), event("A", 1), key="k")
    assert (first.accepted, first.repeated) == (2, False)
    assert (again.accepted, again.repeated) == (2, True)
    service.wait()
    assert service.events == 2
    service.close()
    service = Service(tmp_path, NOW)
    assert publish(service, event("A", 1), key="k").repeated
    assert service.events == 2
    service.close()


def test_stored_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts_module, "REASONS_CHARACTERS", 1_000)
    receipts = receipts_module.Acks()
    for number in range(20):
        done: Future[EventsAck] = Future()
        assert receipts.claim(f"key {number}", done) is None
        done.set_result(EventsAck(1, 2, ((0, "x" * 100), (1, "y" * 100))))
    kept = [receipts.find(f"key {number}") for number in range(20)]
    answers = [one.result() for one in kept if one is not None]
    assert [(one.accepted, one.rejected) for one in answers] == [(1, 2)] * 20
    assert [bool(one.reasons) for one in answers] == [False] * 15 + [True] * 5


def test_a_fast_clock_does_not_make_other_events_late(tmp_path: Path) -> None:
    service = Service(tmp_path)  # with the bound that there is by default
    now, minute = time.time_ns() // 1_000, 60 * SECOND
    fast = publish(
        service, {"type": "Temp", "ts": now + 59 * minute + 30 * SECOND}, {"type": "Temp", "ts": now + 50 * SECOND}
    )
    assert [reason for _, reason in fast.reasons] == ["ts is 59 min ahead of the clock; at most 1 min is accepted"]
    service.close()
    service = Service(tmp_path / "old")
    for ago in (10**6, 10**5, 10):  # old data is replayed
        assert publish(service, {"type": "Temp", "ts": now - ago * minute}).accepted == 1
        service.wait()
    assert publish(service, {"type": "Temp", "ts": now}).accepted == 1
    service.close()


def test_errors_are_reported_before_anything_is_deployed(service: Service) -> None:
    with pytest.raises(RuleError) as mistake:
        service.deploy("define Fire() from Smoke(area=$a) and last Temp(valeu>) within 5 min from Smoke")
    assert mistake.value.line == 1
    service.deploy(FIRE).result(300)
    with pytest.raises(Conflict):
        service.deploy(FIRE)
    service.deploy(FIRE.replace("45", "50"), replace=True).result(300)
    assert "50" in service.rules["Fire"].source
    with pytest.raises(NotFound, match="Did you mean 'Fire'"):
        service.remove("Fier")
    service.remove("Fire").result(300)
    assert service.rules == {}


def test_only_events_that_a_rule_cannot_use_are_rejected(service: Service) -> None:
    service.deploy(FIRE).result(300)
    ack = publish(service, event("Temp", 1, area="A", value="hot"), event("Smoke", 2, area="A"))
    assert ack.accepted == 1
    assert ack.reasons == (
        (0, "incompatible with a deployed rule: a string cannot be compared with an int in 'value>45'"),
    )


def test_events_must_fit_declared_types(service: Service) -> None:
    text = "event Count(n: long)\ndefine Many(n: long) from Count(n>3) where n=Count.n"
    service.deploy(text).result(300)
    publish(service, event("Count", 1, n=5), event("Count", 2, n=2))
    wait_idle(service)
    assert [match["attributes"] for match in matches(service)] == [{"n": 5}]
    with pytest.raises(RuleError, match="declared already"):
        service.deploy("event Count(n: string)\ndefine Other() from Count()")


def test_rules_may_give_one_name_different_kinds(tmp_path: Path) -> None:
    service = Service(tmp_path, NOW)
    service.deploy("rule A\ndefine A(v: string) from Temp() where v = Temp.area").result(300)
    service.deploy("rule B\ndefine B(v: double) from Temp() where v = Temp.value").result(300)
    both = "rule Both\ndefine Both(v: double) from A(v='y') and last B(v>1) within 1 min from A where v = B.v"
    service.deploy(both).result(300)
    publish(service, event("Temp", 1, area="x", value=2.5), event("Temp", 2, area="y", value=3.5))
    wait_idle(service)
    expected = [("A", "x"), ("B", 2.5), ("Both", 2.5), ("A", "y"), ("B", 3.5)]
    assert sorted((one["rule"], str(one["attributes"]["v"])) for one in matches(service)) == sorted(
        (rule, str(value)) for rule, value in expected
    )
    number = next(one["number"] for one in matches(service) if one["rule"] == "Both")
    assert inspection.why(service, str(number))["checks"]
    assert inspection.dry_run(service, "rule C\ndefine C(v: bool) from A() where v = true")["matches"] == 2
    service.close()
    service = Service(tmp_path, NOW)
    service.remove("Both").result(300)
    service.remove("A").result(300)
    publish(service, event("Temp", 20_000, area="z", value=4.5), event("Clock", 20_001))
    service.wait()
    assert matches(service)[-1]["attributes"] == {"v": 4.5}
    service.close()


LANGUAGES = {
    "tesla": FIRE,
    "eps": 'request Both on Smoke as s & Temp as t if s.area = t.area and t.value > 45 within 5 min notify "run"',
    "siddhi": "define stream Temp (area string, value double); from Temp[value > 45] select area insert into Fire;",
    "mcep": """
        define    Fire(temp: double)
        from      Temp(value>45)
        where     temp = Temp.value

        interest  Near
        of        Fire
        around    Car()
        range     circle 100 m
    """,
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_rules_of_every_language_survive_a_restart(tmp_path: Path, language: str) -> None:
    place = {"x": 1.0, "y": 2.0} if language == "mcep" else {}
    first = [event("Car", 0, **place), event("Temp", 1, area="A", value=50.0, **place)]
    second = [event("Smoke", 2, area="A", **place), event("Temp", 3, area="B", value=60.0, **place), event("Clock", 9)]
    service = Service(tmp_path / "straight", NOW)
    assert service.deploy(LANGUAGES[language]).result(300)[0].language == language
    publish(service, *first)
    service.wait()
    with service._changed:
        service._save()
    shutil.copytree(tmp_path / "straight", tmp_path / "copy")
    publish(service, *second)
    service.wait()
    expected = matches(service)
    service.close()
    again = Service(tmp_path / "copy", NOW)
    publish(again, *second)
    again.wait()
    assert matches(again) == expected
    assert [match for match in expected if match["type"] != "Marker"]
    again.close()


def test_a_corrupt_snapshot_is_skipped(tmp_path: Path) -> None:
    service = Service(tmp_path, NOW)
    service.deploy(FIRE).result(300)
    service.wait()
    service._save()
    publish(service, event("Temp", 1, area="A", value=46.5))
    service.close()
    newest = max((tmp_path / "state").glob("*.state"))
    newest.write_bytes(newest.read_bytes()[:-3])
    service = Service(tmp_path, NOW)
    assert [*service.rules] == ["Fire"]
    publish(service, event("Smoke", 2, area="A"))
    wait_idle(service)
    assert len(matches(service)) == 1
    service.close()


def test_the_log_before_the_snapshots_is_deleted(tmp_path: Path) -> None:
    options = Options(delay_us=0, ahead_us=2**60, segment_bytes=2_000, keep_bytes=0, snapshot_bytes=4_000)
    service = Service(tmp_path, options)
    service.deploy(FIRE).result(300)
    for number in range(60):
        publish(service, event("Temp", number, area="A", value=46.5), event("Smoke", number + 0.5, area="A"))
        service.wait()
    assert service.log.begin > 0
    service.close()
    again = Service(tmp_path, options)
    wait_idle(again)
    assert len(matches(again)) == 60
    again.close()


def test_two_services_do_not_share_a_folder(service: Service) -> None:
    with pytest.raises(StateError, match="in use"):
        Service(service.folder, NOW)


ACTIONS = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.sampled_from(["Temp", "Smoke"]), st.sampled_from("AB"), st.sampled_from([20.0, 50.0])),
            min_size=1, max_size=4,
        ),
        st.sampled_from(["save", "crash", "restart", "torn"]),
    ),
    min_size=3, max_size=12,
)  # fmt: skip


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS)
def test_a_crash_at_any_point_loses_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("service") / "0"
    service = Service(folder, NOW)
    service.deploy(FIRE).result(300)
    sent: list[dict[str, Any]] = []
    for number, action in enumerate(actions):
        if isinstance(action, list):
            events = [
                event(type, len(sent) + k, area=area, **({"value": value} if type == "Temp" else {}))
                for k, (type, area, value) in enumerate(action)
            ]
            sent += events
            publish(service, *events)
            continue
        if action == "save":
            service.wait()
            with service._changed:
                service._save()
            continue
        if action == "restart":
            service.close()
        else:  # what stands on the disk now, whatever the threads are at
            copy = folder.with_name(str(number + 1))
            shutil.copytree(folder, copy)
            service.close()
            folder = copy
            if action == "torn":
                for name in ("events", "matches", "letters"):
                    with max((folder / name).glob("*.log")).open("ab") as file:
                        file.write(b"\x10\0\0\0half a record")
        service = Service(folder, NOW)
    publish(service, event("Clock", len(sent) + 1))
    service.wait()
    found = matches(service)
    service.close()
    columns = {name: [one.get(name) for one in sent] for name in ("type", "ts", "area", "value")}
    columns["ts"] = pa.array(columns["ts"], pa.timestamp("us", "UTC"))
    columns["value"] = pa.array(columns["value"], pa.float64())
    expected = tocsin.rules(FIRE).detect(pa.table(columns)) if sent else pa.table({"id": []})
    assert [match["number"] for match in found] == [*range(1, len(found) + 1)]
    assert sorted(match["id"] for match in found) == sorted(expected["id"].to_pylist())


def test_many_small_requests_match_like_one_table(service: Service) -> None:
    service.deploy(FIRE).result(300)
    events = [event("Temp" if n % 3 else "Smoke", n, area=f"A{n % 4}", value=float(30 + n % 30)) for n in range(300)]
    futures = [service.accept(service.read(json.dumps(one).encode(), NDJSON)) for one in events]
    assert sum(future.result(300).accepted for future in futures) == 300
    wait_idle(service)
    table = pa.Table.from_pylist(events)
    table = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    assert [match["id"] for match in matches(service)] == tocsin.rules(FIRE).detect(table)["id"].to_pylist()
