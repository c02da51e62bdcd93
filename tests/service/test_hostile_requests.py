"""Every request gets 2xx, or 4xx with a problem document; a bad event rejects only itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.service import hostile_requests
from tests.service.hostile_requests import (
    ARROW,
    EVENTS,
    GOOD,
    JSON,
    LINES,
    NDJSON,
    NOW,
    RAW,
    Hostile,
    arrow_events,
    stream,
)
from tests.service.serving import Running, running
from tests.service.test_web import Receiver, wait_for
from tocsin.service.encoding import to_json
from tocsin.service.service import Options

NEVER_LATE = Options(delay_us=2**58)
QUOTIENT = "define Quotient(v: double) from Dividend() where v = Dividend.v / Dividend.w"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("hostile")) as service:
        service.client().deploy(QUOTIENT)
        yield service


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service to which no event is late."""
    with running(tmp_path_factory.mktemp("patient"), NEVER_LATE) as service:
        yield service


def strict(content: bytes) -> Any:
    """JSON as the standard has it: without NaN and infinities, in UTF-8."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(content.decode(), parse_constant=refuse)


def fault(answer: httpx.Response) -> str | None:
    """What is wrong with an answer."""
    if answer.status_code >= 500:
        return f"{answer.status_code}"
    try:
        said = strict(answer.content) if "json" in answer.headers.get("content-type", "") else None
        if answer.status_code >= 400 and not said["error"]["message"]:
            return f"{answer.status_code} without a message"
    except (ValueError, TypeError, KeyError):
        return f"{answer.status_code} without a problem document: {answer.text[:80]!r}"
    return None


def send(web: Running, request: Hostile) -> httpx.Response:
    """Sends a request as it is."""
    headers = {"Authorization": f"Bearer {web.tokens['all']}".encode(), **request.headers}
    return web.http().request(request.method, request.path, content=request.body, headers=headers)


GROUPS = sorted({name.split(" ")[0].split("?")[0] for name in hostile_requests.table()})


@pytest.mark.parametrize("group", GROUPS)
def test_every_request_gets_2xx_or_a_problem_document(web: Running, group: str) -> None:
    faults = {}
    for name, request in hostile_requests.table().items():
        if name.split(" ")[0].split("?")[0] != group:
            continue
        answer = send(web, request)
        if request.method != "HEAD" and (wrong := fault(answer)) is not None:
            faults[name] = wrong
    assert faults == {}
    assert web.service.failure is None


def test_the_sweep_has_at_least_a_thousand_requests_against_all_routes() -> None:
    requests = hostile_requests.table().values()
    assert len(requests) >= 1_000
    paths = {request.path.partition("?")[0] for request in requests}
    wanted = {
        "/events", "/rules", "/rules/check", "/rules/dry-run", "/why-not", "/webhooks", "/matches", "/matches/stream",
        "/dead-letters", "/types", "/status", "/graph", "/health", "/static/dom.js", "/matches/1",
    }  # fmt: skip
    assert wanted <= paths


@pytest.mark.parametrize("name", RAW)
def test_every_request_line_and_header_gets_2xx_or_a_problem_document(web: Running, name: str) -> None:
    answer = raw(web.port, RAW[name])
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    assert 200 <= status < 500
    if status >= 400:
        assert strict(body)["error"]["message"]


def raw(port: int, data: bytes) -> bytes:
    """The answer to some bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        got = b""
        while b"}" not in got and (piece := connection.recv(65_536)):
            got += piece
        return got


def test_an_invalid_host_header_gets_421(web: Running) -> None:
    for host in ("[zz]", "[", "]", "[]", "[::1", "::1]"):
        answer = web.http().get("/health", headers={"Host": host})
        assert (answer.status_code, fault(answer)) == (421, None), host


def test_two_host_headers_are_refused(web: Running) -> None:
    answer = raw(web.port, b"GET /health HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


# ---- events


@pytest.mark.parametrize("format", [JSON, NDJSON])
def test_good_events_beside_any_bad_event_are_accepted(patient: Running, format: str) -> None:
    faults = {}
    for name, event in EVENTS.items():
        body = f"[{GOOD}, {event}, {GOOD}]" if format == JSON else f"{GOOD}\n{event}\n{GOOD}"
        for query in ("", "?id=key"):
            answer = send(patient, hostile_requests.publishing(body.encode(), format, query))
            receipt = answer.json()
            if answer.status_code != 200 or receipt["accepted"] < 2 or receipt["accepted"] + receipt["rejected"] != 3:
                faults[name, query] = answer.text[:200]
    assert faults == {}


def test_good_lines_beside_any_bad_line_are_accepted(patient: Running) -> None:
    faults = {}
    for name, line in LINES.items():
        body = b"\n".join([GOOD.encode(), line, GOOD.encode()])
        answer = send(patient, hostile_requests.publishing(body, NDJSON))
        if answer.status_code != 200 or answer.json()["accepted"] < 2:
            faults[name] = answer.text[:200]
    assert faults == {}


def test_good_events_beside_a_deeply_nested_one_are_accepted(patient: Running) -> None:
    for depth in (*range(50, 900, 50), *range(900, 1_000, 2)):
        event = f'{{"type": "Odd", "v": {"[" * depth}{"]" * depth}, "w": NaN}}'
        answer = send(patient, hostile_requests.publishing(f"[{GOOD}, {event}]".encode(), JSON))
        assert fault(answer) is None, depth
        assert answer.status_code == 422 or answer.json()["accepted"] == 1


def test_every_arrow_stream_is_accepted_by_row_or_refused_as_a_whole(patient: Running) -> None:
    faults = {}
    for name, body in arrow_events().items():
        for query in ("", "?id=key"):
            answer = send(patient, hostile_requests.publishing(body, ARROW, query))
            if (wrong := fault(answer)) is not None:
                faults[name, query] = wrong
    assert faults == {}


MICROSECONDS = pa.array([NOW] * 3)
BESIDE: dict[str, dict[str, pa.Array]] = {
    "a time of another world": {"t": pa.array([NOW // 10**6, 2**63 - 1, NOW // 10**6], pa.timestamp("s"))},
    "a ts out of range": {"ts": pa.array([NOW, 2**63 - 1, NOW])},
    "a ts in seconds out of range": {"ts": pa.array([NOW // 10**6, 2**63 - 1, NOW // 10**6], pa.timestamp("s"))},
    "a ts of a day out of range": {"ts": pa.array([20_000, 2**31 - 1, 20_000], pa.date32())},
    "a ts that is no time": {"ts": pa.array(["2026-07-01", "2026-02-30", "2026-07-01"])},
    "no type": {"type": pa.array(["Good", None, "Good"])},
    "a type that is no name": {"type": pa.array(["Good", "a b", "Good"])},
    "a type of a dictionary": {"type": pa.array(["Good", "", "Good"]).dictionary_encode()},
    "NaN": {"v": pa.array([1.5, float("nan"), 1.5])},
    "infinity": {"v": pa.array([1.5, float("inf"), 1.5])},
    "an unsigned number": {"u": pa.array([1, 2**64 - 1, 1], pa.uint64())},
    "a decimal": {"d": pa.array([1, 10**37, 1], pa.decimal128(38, 0))},
    "a text": {"v": pa.array(["1.5", "x", "1.5"])},
    "a number of order": {"seq": pa.array([1, 2**64 - 1, 1], pa.uint64())},
}


@pytest.mark.parametrize("name", BESIDE)
def test_good_rows_beside_any_bad_row_are_accepted(patient: Running, name: str) -> None:
    columns = {"type": pa.array(["Good", "Odd", "Good"]), "ts": MICROSECONDS, **BESIDE[name]}
    answer = send(patient, hostile_requests.publishing(stream(pa.table(columns)), ARROW))
    receipt = answer.json()
    assert answer.status_code == 200, receipt
    assert receipt["accepted"] >= 2, receipt
    assert receipt["accepted"] + receipt["rejected"] == 3


def test_each_event_with_a_lone_surrogate_is_rejected(patient: Running) -> None:
    odd = [
        '{"type": "Odd", "v": "\\ud800"}', '{"type": "Odd", "\\ud800": 1}', '{"type": "Odd", "\\ud800": null}',
        '{"type": "\\ud800"}', '{"type": "Odd", "ts": "\\ud800"}', '{"type": "Odd", "key": "\\udfff"}',
    ]  # fmt: skip
    for body, format in ((f"[{', '.join([GOOD, *odd, GOOD])}]", JSON), ("\n".join([GOOD, *odd, GOOD]), NDJSON)):
        receipt = send(patient, hostile_requests.publishing(body.encode(), format, "?id=key")).json()
        assert (receipt["accepted"], receipt["rejected"]) == (2, 6)
        assert [one["index"] for one in receipt["reasons"]] == [1, 2, 3, 4, 5, 6]
    raw_surrogate = b'[{"type": "Odd", "v": "\xed\xa0\x80"}, %s]' % GOOD.encode()
    receipt = send(patient, hostile_requests.publishing(raw_surrogate, JSON)).json()
    assert (receipt["accepted"], receipt["rejected"]) == (1, 1)


def test_each_integer_of_thousands_of_digits_is_rejected(patient: Running) -> None:
    body = f'[{GOOD}, {{"type": "Odd", "v": {"9" * 5_000}}}, {{"type": "Odd", "ts": -{"9" * 5_000}}}, {GOOD}]'
    receipt = send(patient, hostile_requests.publishing(body.encode(), JSON)).json()
    assert (receipt["accepted"], receipt["rejected"]) == (2, 2)
    assert "more than 64 bits" in receipt["reasons"][0]["reason"]


@pytest.mark.parametrize("format", [JSON, NDJSON, ARROW])
def test_rejected_events_register_no_types(tmp_path: Path, format: str) -> None:
    """Whether they are rejected for what they hold, as late, or as ahead of the clock."""
    with running(tmp_path, Options(delay_us=0)) as web:
        assert publish(web, [{"type": "Good", "ts": NOW, "v": 1.5}], format)["accepted"] == 1
        web.service.wait()
        rejected = [
            {"type": "Late", "ts": NOW - 10_000_000, "a": 1.5},
            {"type": "Ahead", "ts": 2**60, "b": 1.5},
            {"type": "Out of range", "ts": NOW + 1, "c": 1.5},
            {"type": "Range", "ts": 2**62, "d": 1.5},
            {"type": "Good", "ts": NOW - 10_000_000, "e": 1.5},
        ]
        receipt = publish(web, rejected, format)
        assert (receipt["accepted"], receipt["rejected"]) == (0, 5)
        assert web.http().get("/types").json() == {"Good": {"v": "double"}}
        receipt = publish(web, [*rejected, {"type": "Fine", "ts": NOW + 1, "w": 1.5}], format)
        assert (receipt["accepted"], receipt["rejected"]) == (1, 5)
        assert web.http().get("/types").json() == {"Good": {"v": "double"}, "Fine": {"w": "double"}}
        names = {letter["type"] for letter in web.http().get("/dead-letters").json()["dead_letters"]}
        assert {"Late", "Ahead", "Range"} <= names


def publish(web: Running, events: list[dict[str, Any]], format: str) -> Any:
    """Publishes events in a format."""
    if format == ARROW:
        names = dict.fromkeys(name for event in events for name in event)
        body = stream(pa.table({name: [event.get(name) for event in events] for name in names}))
    else:
        body = (json.dumps(events) if format == JSON else "\n".join(map(json.dumps, events))).encode()
    answer = send(web, hostile_requests.publishing(body, format))
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---- answers


def test_numbers_that_are_not_finite_are_left_out_of_matches_and_null_in_events(tmp_path: Path) -> None:
    with running(tmp_path) as web:
        client, http = web.client(), web.http()
        client.deploy(QUOTIENT)
        client.deploy("define Copy(v: double, w: double) from Clock() where v = Clock.v, w = Clock.w + 1.0")
        table = pa.table(
            {
                "type": ["Clock"] + ["Dividend"] * 4 + ["End"],
                "ts": [NOW, NOW + 1, NOW + 2, NOW + 3, NOW + 4, NOW + 5],
                "v": [float("nan"), 1.0, -1.0, 0.0, 3.0, None],
                "w": [float("inf"), 0.0, 0.0, 0.0, 2.0, None],
            }
        )
        assert send(web, hostile_requests.publishing(stream(table), ARROW)).json()["accepted"] == 6
        wait_for(lambda: client.latest(rule="Quotient"), "the matches")
        found = strict(http.get("/matches").content)["matches"]
        assert [one["attributes"] for one in found if one["attributes"]] == [{"v": 1.5}]
        events = strict(http.get("/events").content)
        assert [one["attributes"] for one in events if one["type"] == "Clock"] == [{"v": None, "w": None}]
        for path in ("/dead-letters", "/map", "/graph", "/types", *(f"/matches/{one['number']}/why" for one in found)):
            assert strict(http.get(path).content) is not None
        assert strict(http.post("/rules/dry-run", json={"text": QUOTIENT.replace("Quotient", "Other")}).content)
        assert strict(http.post("/why-not", json={"rule": "Quotient", "ts_us": NOW + 1}).content)


def test_a_match_with_numbers_that_are_not_finite_is_json_everywhere(tmp_path: Path) -> None:
    """Whatever rule has found it: in pages, alone, in a stream and at a webhook."""
    receiver = Receiver()
    with running(tmp_path, allow_private=True) as web:
        http = web.http()
        http.post("/webhooks", json={"url": f"http://127.0.0.1:{receiver.server_port}/"}).raise_for_status()
        match = {"id": "ab", "rule": "R", "type": "R", "ts": "2026-07-01T00:00:00.000000Z", "parts": []}
        web.service.matches.write([{**match, "attributes": {"v": float("nan"), "w": [float("inf")], "t": "\ud800"}}])
        expected = {"v": None, "w": [None], "t": "\\ud800"}
        assert strict(http.get("/matches").content)["matches"][0]["attributes"] == expected
        assert strict(http.get("/matches/1").content)["attributes"] == expected
        with http.stream("GET", "/matches/stream", params={"after": 0}) as answer:
            data = next(line for line in answer.iter_lines() if line.startswith("data:"))
            assert strict(data[5:].encode())["attributes"] == expected
        wait_for(lambda: receiver.taken, "a webhook")
        assert strict(receiver.taken[0][1])["matches"][0]["attributes"] == expected
    receiver.shutdown()
    receiver.server_close()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), b"null"),
        ([float("inf"), -float("inf"), 1.5], b"[null,null,1.5]"),
        ({"\ud800": "\udfff", "a": ("\ud800",)}, b'{"\\\\ud800":"\\\\udfff","a":["\\\\ud800"]}'),
        ({"ü": "😀"}, '{"ü":"😀"}'.encode()),
    ],
)
def test_to_json_writes_strict_json(value: object, written: bytes) -> None:
    assert to_json(value) == written
    assert strict(written) is None or strict(written)


def test_an_invalid_range_of_a_file_gets_a_problem_document(web: Running) -> None:
    answer = web.http().get("/static/dom.js", headers={"Range": "bytes=9-1"})
    assert answer.status_code == 400
    assert "start must be less than end" in answer.json()["error"]["message"]


def test_years_of_less_than_four_digits_are_before_all_others(tmp_path: Path) -> None:
    with running(tmp_path) as web:
        web.client().deploy(QUOTIENT)
        web.client().publish([{"type": "Dividend", "ts": NOW, "v": 1.0, "w": 2.0}, {"type": "Clock", "ts": NOW + 1}])
        wait_for(lambda: web.service.matches.last == 1, "a match")
        for name, count in (("since", 1), ("until", 0)):
            page = web.http().get("/matches", params={name: "0500-01-01T00:00:00Z"}).json()
            assert len(page["matches"]) == count, name
