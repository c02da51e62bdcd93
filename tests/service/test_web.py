"""HTTP responses to valid and invalid requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.service.serving import Running, running
from tocsin.client import ServiceError
from tocsin.errors import RuleError

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
FIRE = """define Fire(area: string, temp: double)
from   Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
where  area = Smoke.area, temp = Temp.value"""
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("web"), body_bytes=200_000, body_s=0.5) as service:
        yield service


clock = iter(range(10, 10_000_000, 10))


def readings(area: str) -> list[dict[str, Any]]:
    """A hot reading and smoke, later than all before, and something to end their instant."""
    at = START + next(clock) * SECOND
    return [
        {"type": "Temp", "ts": at, "area": area, "value": 50.5},
        {"type": "Smoke", "ts": at + SECOND, "area": area},
        {"type": "Clock", "ts": at + 2 * SECOND},
    ]


def wait_for(check: Any, what: str = "it") -> Any:
    for _ in range(1_500):
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen")


# ---- those who ask well


def test_the_lifecycle_of_a_rule(web: Running) -> None:
    client = web.client()
    answer = client.check(FIRE.replace("value>45", "value>"))
    assert not answer["ok"]
    assert (answer["error"]["line"], answer["error"]["column"]) == (2, 52)
    client.publish(readings("dry"))
    web.service.wait()
    dry = client.dry_run(FIRE)
    assert dry["by_rule"] == {"Fire": 1}
    assert dry["sample"][0]["attributes"] == {"area": "dry", "temp": 50.5}
    assert client.rules() == []
    (rule,) = client.deploy(FIRE)
    assert (rule["id"], rule["language"], rule["by"]) == ("Fire", "tesla", "all")
    client.publish(readings("wet"))
    web.service.wait()
    (match,) = client.matches(rule="Fire")
    assert match["attributes"]["area"] == "wet"
    answer = client.why(match["number"])
    assert [part["attributes"].get("value") for part in answer["parts"]] == [None, 50.5]
    assert answer["rule"]["text"] == FIRE
    again = web.http().get(f"/matches/{match['id']}/why").json()
    assert again == answer
    assert [check["holds"] for check in answer["checks"]] == [True] * len(answer["checks"])
    assert {"value>45": "value is 50.5"}.items() <= {one["asked"]: one["found"] for one in answer["checks"]}.items()
    at = START + next(clock) * SECOND
    client.publish(
        [{"type": "Temp", "ts": at, "area": "cold", "value": 44.5}, {"type": "Smoke", "ts": at + 1, "area": "cold"}]
    )
    web.service.wait()
    assert web.http().get("/events", params={"type": "Smoke"}).json()[0]["attributes"] == {"area": "cold"}
    (reason,) = web.http().post("/why-not", json={"rule": "Fire", "ts_us": at + 1}).json()
    assert not reason["matched"]
    assert (reason["checks"][-1]["asked"], reason["checks"][-1]["found"]) == ("value>45", "value is 44.5")
    graph = web.http().get("/graph").json()
    assert {node["title"] for node in graph["nodes"] if node["column"] == 0} == {"Smoke", "Temp"}
    client.remove("Fire")
    assert client.rules() == []
    assert [one["number"] for one in client.matches(rule="Fire")] == [match["number"]]


def test_pages_filter_by_rule_and_time(web: Running) -> None:
    client = web.client()
    client.deploy(FIRE)
    first = web.service.matches.last
    for number in range(5):
        client.publish(readings(f"p{number}"))
    web.service.wait()
    everything = list(client.matches(rule="Fire", after=first))
    assert [one["attributes"]["area"] for one in everything] == [f"p{number}" for number in range(5)]
    page = web.http().get("/matches", params={"after": first, "limit": 2}).json()
    assert (len(page["matches"]), page["more"], page["next"]) == (2, True, first + 2)
    times = [one["ts"] for one in everything]
    some = list(client.matches(since=times[1], until=times[3]))
    assert [one["ts"] for one in some] == times[1:3]
    assert list(client.matches(rule="Nothing")) == []
    client.remove("Fire")


def test_the_latest_matches_filter_by_rule(web: Running) -> None:
    client = web.client()
    client.deploy("rule Often\ndefine Often(n: double) from Tick() where n = Tick.n")
    client.deploy("rule Rare\ndefine Rare(n: double) from Tock() where n = Tock.n")
    at = START + next(clock) * SECOND
    client.publish([{"type": "Tock", "ts": at + n, "n": n} for n in range(30)])
    client.publish([{"type": "Tick", "ts": at + 100 + n, "n": n} for n in range(300)])
    web.service.wait()
    wait_for(lambda: len(client.latest(rule="Often", limit=1_000)) == 300, "the matches")
    assert [one["attributes"]["n"] for one in client.latest(rule="Rare", limit=5)] == [25, 26, 27, 28, 29]
    assert [one["attributes"]["n"] for one in client.latest(limit=2)] == [298, 299]
    page = web.http().get("/matches?latest=true&rule=Rare&limit=5").json()
    assert (page["next"], page["more"]) == (web.service.matches.last, False)
    client.remove("Often")
    client.remove("Rare")


def test_a_stream_resumes_after_the_last_match(web: Running) -> None:
    client = web.client()
    client.deploy(FIRE)
    first = web.service.matches.last
    client.publish(readings("s0"))
    stream = client.subscribe(after=first)
    assert next(stream)["attributes"]["area"] == "s0"
    client.publish(readings("s1"))
    assert next(stream)["attributes"]["area"] == "s1"
    stream.close()
    client.publish(readings("s2"))
    client.publish(readings("s3"))
    headers = {"Last-Event-ID": str(first + 2), "Authorization": f"Bearer {web.tokens['all']}"}
    lines = []
    with httpx.stream("GET", f"{web.url}/matches/stream?rule=Fire", headers=headers, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            lines.append(line)
            if line.startswith("id:") and len([one for one in lines if one.startswith("id:")]) == 2:
                break
    assert [line for line in lines if line.startswith("id:")] == [f"id: {first + 3}", f"id: {first + 4}"]
    client.remove("Fire")


def test_each_rejected_event_is_reported(web: Running) -> None:
    body = b'{"type": "A", "ts": %d}\nnonsense\n{"type": "A", "ts": [1]}' % (START + next(clock) * SECOND)
    answer = web.http().post("/events", content=body, headers={"Content-Type": NDJSON}).json()
    assert (answer["accepted"], answer["rejected"]) == (1, 2)
    assert [(one["index"], one["reason"].split(":")[0]) for one in answer["reasons"]] == [
        (1, "invalid JSON"),
        (2, "ts must be a string, a number or a boolean, it is a list"),
    ]


def test_dead_letters_have_every_rejected_event(web: Running) -> None:
    client, at = web.client(), START + next(clock) * SECOND
    web.service.wait()
    before = len(list(client.dead_letters()))
    client.publish([{"type": "Gauge", "ts": at, "level": 1.5}])
    web.service.wait()
    body = [
        {"type": "Gauge", "ts": at + 1, "level": "high"},
        {"type": "Gauge", "ts": at - 9 * SECOND, "level": 2.5},
        {"type": "Gauge", "ts": 2**61, "level": 2.5},
        {"type": "Gauge", "ts": "soon", "level": 2.5},
        {"type": "no name", "ts": at + 1},
        {"ts": at + 1},
        {"type": "Gauge", "ts": at + 2, "level": 3.5},
        17,
    ]
    text = "\n".join([*map(json.dumps, body), "nonsense"])
    answer = web.http().post("/events", content=text, headers={"Content-Type": NDJSON}).json()
    assert (answer["accepted"], answer["rejected"]) == (1, 8)
    dead_letters = wait_for(lambda: list(client.dead_letters())[before:], "the dead letters")
    assert [one["reason"] for one in dead_letters] == [one["reason"] for one in answer["reasons"]]
    assert [(one["type"], one["reason"].split(":")[0]) for one in dead_letters] == [
        ("Gauge", "level should be a double, it is 'high'"),
        ("Gauge", "late"),
        ("Gauge", "ts is out of range"),
        ("Gauge", "ts is not a time"),
        ("no name", "'no name' is not a type name"),
        (None, "the type is missing"),
        (None, "not a JSON object"),
        (None, "invalid JSON"),
    ]
    assert dead_letters[1]["ts"] == at - 9 * SECOND
    assert json.loads(dead_letters[1]["event"]) == body[1]
    table = pa.table({"type": ["Gauge"], "ts": [at + 3], "level": ["high"]})
    assert client.publish(table)["rejected"] == 1  # nothing of this request is accepted
    letter = wait_for(lambda: list(client.dead_letters())[before + 8 :], "the dead letter")[0]
    assert (letter["type"], letter["event"]) == ("Gauge", json.dumps({**body[0], "ts": at + 3}))
    page = web.http().get("/dead-letters?latest=true&limit=1").json()
    assert page == {"dead_letters": [letter], "next": letter["number"], "more": False}


def test_only_the_first_rejected_events_are_stored(web: Running) -> None:
    last = web.service.dead_letters.last
    answer = web.http().post("/events", content=b"x\n" * 1_500, headers={"Content-Type": NDJSON}).json()
    assert (answer["rejected"], len(answer["reasons"])) == (1_500, 1_000)
    dead_letters = wait_for(lambda: list(web.client().dead_letters(last)), "the dead letters")
    assert len(dead_letters) == 1_001
    assert dead_letters[-1]["reason"] == "500 more events of the same request were rejected"


def test_why_shows_the_events_of_the_match(web: Running) -> None:
    client, at = web.client(), START + next(clock) * SECOND
    client.deploy(FIRE)
    client.publish(  # events of one type and instant, of which one is part of the match
        [
            *({"type": "Temp", "ts": at, "area": f"w{n}", "value": 50.5 + n} for n in (0, 1, 2)),
            *({"type": "Smoke", "ts": at + SECOND, "area": area} for area in ("w9", "w1", "w8", "w1")),
            {"type": "Clock", "ts": at + 2 * SECOND},
        ]
    )
    found = wait_for(lambda: [one for one in client.latest(rule="Fire") if one["attributes"]["area"] == "w1"])
    assert len(found) == 2
    for match in found:
        parts = client.why(match["number"])["parts"]
        assert [part["attributes"] for part in parts] == [{"area": "w1"}, {"area": "w1", "value": 51.5}]
    client.deploy("request Both on Smoke as s & Temp as t if s.area = t.area and t.value > 60 within 5 min", "eps")
    client.publish(
        [
            *({"type": "Temp", "ts": at + 3 * SECOND, "area": f"w{n}", "value": 60.5 + n} for n in (0, 1, 2)),
            *({"type": "Smoke", "ts": at + 4 * SECOND, "area": area, "n": 1.0} for area in ("w9", "w1", "w8")),
            {"type": "Clock", "ts": at + 5 * SECOND},
        ]
    )
    match = wait_for(lambda: client.latest(rule="Both"))[-1]
    parts = client.why(match["number"])["parts"]
    assert [part["attributes"] for part in parts] == [{"area": "w1", "n": 1.0}, {"area": "w1", "value": 61.5}]
    smoke = next(one for one in web.http().get("/events?type=Smoke").json() if one["attributes"]["area"] == "w8")
    question = {"rule": "Fire", "ts_us": smoke["ts_us"], "id": smoke["id"]}
    (reason,) = web.http().post("/why-not", json=question).json()
    assert "w8" in reason["anchor"]
    client.remove("Fire")
    client.remove("Both")


def test_events_that_share_an_id_of_their_source_are_distinguished(web: Running) -> None:
    client, at = web.client(), START + next(clock) * SECOND
    client.deploy(FIRE)
    events = [{"type": "Temp", "ts": at, "area": f"i{n}", "value": 50.5 + n, "sensor": "s"} for n in (0, 1, 2)]
    events += [
        {"type": "Smoke", "ts": at + SECOND, "area": "i1", "sensor": "s"},
        {"type": "Clock", "ts": at + 2 * SECOND},
    ]
    web.http().post("/events?id=sensor", json=events).raise_for_status()
    match = wait_for(lambda: [one for one in client.latest(rule="Fire") if one["attributes"]["area"] == "i1"])[0]
    parts = client.why(match["number"])["parts"]
    assert [part["id"] for part in parts] == ["s", "s"]
    assert [part["attributes"].get("value") for part in parts] == [None, 51.5]
    client.remove("Fire")


def test_arrow_events_and_repeated_keys(web: Running) -> None:
    client = web.client()
    web.service.wait()
    at = START + next(clock) * SECOND
    table = pa.table({"type": ["B"] * 3, "ts": pa.array([at] * 3, pa.timestamp("us", "UTC")), "x": [1, 2, 3]})
    before = web.service.events
    assert client.publish(table, key="same")["accepted"] == 3
    assert client.publish(table, key="same")["repeated"]
    assert web.client("publish").publish(table, key="same")["repeated"] is False
    web.service.wait()
    assert web.service.events == before + 6


def test_status_health_metrics_and_documents(web: Running) -> None:
    http = web.http()
    assert web.http(None).get("/health").json() == {"state": "running"}
    assert http.get("/status").json()["you"] == {"name": "all", "roles": ["deploy", "publish", "subscribe"]}
    assert "tocsin_service_events_total" in http.get("/metrics").text
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/events", "/rules", "/matches", "/matches/stream", "/webhooks", "/graph"} <= paths.keys()
    assert '"validatorUrl": null' in http.get("/docs").text
    assert http.get("/map").json().keys() == {"ranges", "places"}
    assert "script-src" not in http.get("/health").headers["content-security-policy"]


def test_the_client_raises_errors_of_the_service(web: Running) -> None:
    with pytest.raises(RuleError) as mistake:
        web.client().deploy(FIRE.replace("value>45", "value>"))
    assert mistake.value.line == 2
    assert "^" in str(mistake.value)
    with pytest.raises(ServiceError, match="there is no rule") as missing:
        web.client().remove("Nobody")
    assert missing.value.status == 404
    web.client().deploy(FIRE)
    with pytest.raises(ServiceError, match="already") as twice:
        web.client().deploy(FIRE)
    assert twice.value.status == 409
    web.client().remove("Fire")


# ---- those who do not


@pytest.mark.parametrize("token", [None, "wrong", "tocsin_" + "x" * 32, "ü"])
def test_without_a_valid_token_every_route_is_refused(web: Running, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
    for method, path in (
        ("POST", "/events"), ("GET", "/rules"), ("POST", "/rules"), ("DELETE", "/rules/Fire"), ("GET", "/matches"),
        ("GET", "/matches/stream"), ("GET", "/graph"), ("GET", "/status"), ("GET", "/metrics"), ("POST", "/webhooks"),
        ("POST", "/rules/check"), ("POST", "/rules/dry-run"), ("GET", "/map"), ("GET", "/types"),
        ("GET", "/dead-letters"), ("GET", "/webhooks"), ("POST", "/why-not"), ("GET", "/matches/1/why"),
    ):  # fmt: skip
        body = {"text": FIRE} if method == "POST" else None
        answer = httpx.request(method, web.url + path, json=body, headers=headers)
        assert answer.status_code == 401, path
        assert "token" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("role", "method", "path", "body"),
    [
        ("subscribe", "POST", "/events", {"type": "A"}),
        ("deploy", "POST", "/events", {"type": "A"}),
        ("publish", "POST", "/rules", {"text": FIRE}),
        ("subscribe", "POST", "/rules", {"text": FIRE}),
        ("subscribe", "DELETE", "/rules/Fire", None),
        ("publish", "GET", "/rules", None),
        ("publish", "GET", "/matches", None),
        ("deploy", "GET", "/matches", None),
        ("publish", "GET", "/matches/stream", None),
        ("publish", "POST", "/webhooks", {"url": "https://example.org"}),
        ("publish", "GET", "/graph", None),
    ],
)
def test_a_route_requires_its_role(web: Running, role: str, method: str, path: str, body: Any) -> None:
    answer = web.http(role).request(method, path, json=body)
    assert answer.status_code == 403
    assert "role" in answer.json()["error"]["message"]


def test_too_large_bodies_are_refused_even_without_a_length(web: Running) -> None:
    http = web.http()
    answer = http.post("/events", content=b"x" * 200_001, headers={"Content-Type": NDJSON})
    assert answer.status_code == 413
    assert "at most 200,000 bytes" in answer.json()["error"]["message"]

    def endless() -> Iterator[bytes]:
        for _ in range(10_000):
            yield b'{"type": "A"}\n' * 1_000

    try:
        answer = http.post("/events", content=endless(), headers={"Content-Type": NDJSON})
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the service hung up in the middle, which is an answer too
    assert (
        http.post("/rules/check", content=b" " * 1_100_000, headers={"Content-Type": "application/json"}).status_code
        == 413
    )
    assert http.post("/rules/check", json={"text": "x" * 100_001}).status_code == 422
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("content", "format", "status", "message"),
    [
        (b"ARROW", ARROW, 422, "not a valid Arrow stream"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", ARROW, 422, "not a valid Arrow stream"),
        (b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x80" * 40, ARROW, 422, "not a valid Arrow stream"),
        (b"", ARROW, 422, "empty"),
        (b"{", "application/json", 422, "not JSON"),
        (b"[" * 50_000, "application/json", 422, "nested too deeply"),
        (b"a,b", "text/csv", 415, "the content type must be one of"),
        (b"{}", "", 415, "the content type must be one of"),
        (b"null", NDJSON, 200, "not a JSON object"),
    ],
)
def test_broken_bodies_get_a_clear_error(web: Running, content: bytes, format: str, status: int, message: str) -> None:
    answer = web.http().post("/events", content=content, headers={"Content-Type": format})
    assert answer.status_code == status
    assert message in answer.text


def test_arrow_with_any_byte_changed_is_no_failure(web: Running) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"type": ["A", "A"], "ts": [START] * 2, "area": ["x", None]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    body = sink.getvalue().to_pybytes()
    http = web.http()
    for at in range(0, len(body), 7):
        broken = body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]
        answer = http.post("/events", content=broken, headers={"Content-Type": ARROW})
        assert answer.status_code in (200, 413, 422), (at, answer.text)
    assert (
        http.post("/events", content=body, headers={"Content-Type": ARROW, "Content-Encoding": "gzip"}).status_code
        == 415
    )


@pytest.mark.parametrize(
    "id",
    [
        "%2e%2e%2fetc%2fpasswd",
        "..%2f..%2ftokens",
        "a%00b",
        "a/b",
        "%2Fetc",
        "a" * 300,
        "ü",
        "-",
        "a b",
        "a;b",
        "'",
    ],
)
def test_ids_are_names_and_nothing_else(web: Running, id: str) -> None:
    http = web.http()
    for method, path in (("GET", "/rules/"), ("DELETE", "/rules/"), ("GET", "/matches/"), ("GET", "/webhooks/")):
        assert http.request(method, path + id).status_code in (404, 405, 422), path
    for path in (f"/static/{id}", f"/static/../{id}"):
        assert http.get(path).status_code in (404, 405)
    raw = _raw(web, b"GET /static/../../core.py HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert b" 404 " in raw.partition(b"\r\n")[0]


def test_a_slow_body_times_out(web: Running) -> None:
    head = (
        f"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {NDJSON}\r\nContent-Length: 100\r\n"
        f"Authorization: Bearer {web.tokens['all']}\r\n\r\n{{"
    )
    assert b" 408 " in _raw(web, head.encode()).partition(b"\r\n")[0]


def test_slow_headers_time_out(web: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.service.web_app.HEADERS_S", 0.3)
    assert _raw(web, b"GET /health HTTP/1.1\r\nHost: 127.0") == b""


def test_a_subscriber_that_does_not_read_is_disconnected(web: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.service.web_matches.SLOW_S", 0.3)
    client = web.client()
    client.deploy("define Loud(text: string) from Shout() where text = Shout.text")
    with socket.create_connection(("127.0.0.1", web.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        head = f"GET /matches/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {web.tokens['all']}\r\n\r\n"
        connection.sendall(head.encode())
        wait_for(lambda: web.state.streams == 1)
        for _ in range(40):
            at = START + next(clock) * SECOND
            client.publish([{"type": "Shout", "ts": at + k, "text": "x" * 10_000} for k in range(15)])
            if not web.state.streams:
                break
        wait_for(lambda: web.state.streams == 0, "being let go")
    client.remove("Loud")


def test_events_above_the_quota_have_to_wait(web: Running) -> None:
    http = web.http("slow")
    at = START + next(clock) * SECOND
    body = "\n".join(json.dumps({"type": "Q", "ts": at + k}) for k in range(200))
    assert http.post("/events", content=body, headers={"Content-Type": NDJSON}).status_code == 200
    answer = http.post("/events", content=body, headers={"Content-Type": NDJSON})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 5


def test_other_origins_and_hosts_are_refused(web: Running) -> None:
    http = web.http()
    assert http.get("/health", headers={"Host": "evil.example"}).status_code == 421
    assert http.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403
    assert http.get("/health", headers={"Origin": web.url}).status_code == 200
    answer = http.options("/events", headers={"Origin": web.url, "Access-Control-Request-Method": "POST"})
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_tokens_are_in_no_log_and_in_no_file(web: Running, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    secret = web.tokens["all"]
    http = web.http()
    http.get("/status")
    http.get("/nowhere")
    http.post("/events", content=b"{", headers={"Content-Type": "application/json"})
    said = caplog.text + "".join(capfd.readouterr())
    assert secret not in said
    files = [path for path in web.service.folder.rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)
    assert (web.service.folder / "tokens").stat().st_mode & 0o077 == 0


def test_an_internal_error_reveals_no_details(web: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> None:
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr("tocsin.service.inspection.graph", fails)
    answer = httpx.get(f"{web.url}/graph", headers={"Authorization": f"Bearer {web.tokens['all']}"})
    assert answer.status_code == 500
    assert "secret" not in answer.text


# ---- webhooks


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:1/", "http://localhost/", "http://[::1]/",
        "http://10.0.0.1/", "http://192.168.1.1/", "http://0.0.0.0/", "http://[::ffff:127.0.0.1]/", "http://2130706433/",
        "http://0x7f.1/", "http://[fe80::1]/", "http://100.64.0.1/", "file:///etc/passwd", "gopher://example.org/",
        "http://user:pass@example.org/", "http:///nothing", "nonsense", "http://[64:ff9b::7f00:1]/", "https://127.1/x",
        "http://exa\\mple/", "http://127.0.0.1:99999/", "http://[::1",
    ],
)  # fmt: skip
def test_webhooks_to_private_addresses_are_refused(web: Running, url: str) -> None:
    answer = web.http().post("/webhooks", json={"url": url})
    assert answer.status_code == 422, answer.text
    assert web.http().get("/webhooks").json() == []


class Receiver(HTTPServer):
    """Takes bodies, or refuses them for a while."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.taken: list[tuple[str, bytes]] = []
        self.refusals = 0
        self.path = "/"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver = self.server
        assert isinstance(receiver, Receiver)
        refused = receiver.refusals > 0
        receiver.refusals -= refused
        if not refused:
            receiver.taken.append((self.headers["Tocsin-Signature"], body))
        self.send_response(302 if refused else 204)
        if refused:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_webhooks_are_signed_retried_and_given_up(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.refusals = 2
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    with running(tmp_path, allow_private=True) as web:
        client, http = web.client(), web.http()
        client.deploy(FIRE)
        made = http.post("/webhooks", json={"url": url, "rules": ["Fire"]}).json()
        client.publish(readings("h0"))
        wait_for(lambda: receiver.taken)
        header, body = receiver.taken[0]
        at, _, digest = header.removeprefix("t=").partition(",v1=")
        expected = hmac.new(made["secret"].encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        assert digest == expected
        assert [one["attributes"]["area"] for one in json.loads(body)["matches"]] == ["h0"]
        answer = http.get(f"/webhooks/{made['id']}").json()
        assert (answer["failures"], answer["delivered"], answer["secret"]) == (2, 1, None)
        receiver.refusals = 4
        client.publish(readings("h1"))
        wait_for(lambda: http.get(f"/webhooks/{made['id']}/dead-letters").json()["dead_letters"])
        client.publish(readings("h2"))
        wait_for(lambda: len(receiver.taken) == 2)
        assert json.loads(receiver.taken[1][1])["matches"][0]["attributes"]["area"] == "h2"
        (dead,) = http.get(f"/webhooks/{made['id']}/dead-letters").json()["dead_letters"]
        assert (dead["match"]["attributes"]["area"], dead["error"]) == ("h1", "answered 302")
        wait_for(lambda: http.get(f"/webhooks/{made['id']}").json()["cursor"] == web.service.matches.last)
    with running_again(tmp_path) as web:
        assert [one.url for one in web.state.webhooks.all.values()] == [url]
        web.service.accept(web.service.read(json.dumps(readings("h3")).encode(), "application/json")).result(30)
        wait_for(lambda: len(receiver.taken) == 3)
        assert json.loads(receiver.taken[2][1])["matches"][0]["attributes"]["area"] == "h3"
    receiver.shutdown()
    receiver.server_close()


def running_again(folder: Path) -> Any:
    (folder / "tokens").unlink()
    return running(folder, allow_private=True)


def _raw(web: Running, data: bytes) -> bytes:
    """What comes back until the service hangs up."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        connection.sendall(data)
        got = b""
        while piece := connection.recv(65_536):
            got += piece
            if b" 408 " in got:
                break
        return got
