"""Limits of memory and time for small requests: bodies, headers, keys and texts of rules."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.language.hostile import DEEP, HOSTILE, LONG
from tests.service import hostile_sizes
from tests.service.serving import Running, running
from tocsin.service.event_intake import ARROW_STREAM, NDJSON
from tocsin.service.service import Service
from tocsin.service.web_app import HEAD_BYTES_MAX

REFUSED_MB = 300
"""How much more memory the process may have at most for a body that is refused. Measured: 0 to 209 MB."""
TAKEN_MB = 500
"""The same for the largest body that is taken. Measured: 226 MB."""
ANSWER_S = 10.0
"""Within how many seconds a text of rules is answered on a busy machine. The slowest needs half of that."""
OTHERS_S = 2.0
"""Within how many seconds other requests are answered meanwhile."""
RULES_DEPLOYED = 50


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("size")) as service:
        yield service


# ---- bodies


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from /proc (Linux)")
@pytest.mark.parametrize("name", hostile_sizes.REFUSED)
def test_a_body_that_is_large_when_it_is_decoded_is_refused_before(tmp_path: Path, name: str) -> None:
    format, made = hostile_sizes.REFUSED[name]
    peak_mb, outcome = read(tmp_path, made(), format)
    assert outcome.startswith("TooLarge"), outcome
    assert peak_mb < REFUSED_MB


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from /proc (Linux)")
def test_the_largest_arrow_stream_that_is_taken_needs_a_bounded_memory(tmp_path: Path) -> None:
    peak_mb, outcome = read(tmp_path, hostile_sizes.whole_bytes(), ARROW_STREAM)
    assert outcome == "1000000 accepted"
    assert peak_mb < TAKEN_MB


def read(folder: Path, body: bytes, format: str) -> tuple[int, str]:
    """How many MB more memory a process had at most that read a body, and what became of it."""
    assert len(body) <= 64 << 20
    (folder / "body").write_bytes(body)
    command = [sys.executable, "-m", "tests.service.hostile_sizes", str(folder / "body"), format]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    peak, _, outcome = done.stdout.strip().partition(" ")
    return int(peak), outcome


def test_a_stream_that_is_too_large_when_decoded_is_a_413(web: Running) -> None:
    for made in (lambda: hostile_sizes.zeros("zstd"), hostile_sizes.claim, hostile_sizes.runs):
        answer = web.http().post("/events", content=made(), headers={"Content-Type": ARROW_STREAM})
        assert answer.status_code == 413
        assert "at most" in answer.json()["error"]["message"]


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_a_compressed_stream_of_a_usual_size_is_taken(web: Running, compression: str | None) -> None:
    import pyarrow as pa

    columns = {
        "type": hostile_sizes.types(50_000),
        "value": pa.array([1.5] * 50_000),
        "area": pa.array(["A1"] * 50_000),
    }
    body = hostile_sizes.stream(columns, compression, batches=2)
    answer = web.http().post("/events", content=body, headers={"Content-Type": ARROW_STREAM})
    assert answer.json()["accepted"] == 100_000


def test_what_is_kept_of_rejected_lines_under_keys_has_a_bound(tmp_path: Path) -> None:
    service = Service(tmp_path)
    body = b"\n".join(b'{"type": "Temp", "value": "%s"' % (b"x" * 50) for _ in range(20_000))
    kept = []
    tracemalloc.start()
    for number in range(8):
        ack = service.publish(body, NDJSON, key=f"key {number}")
        assert (ack.rejected, len(ack.reasons)) == (20_000, 1_000)
        service.wait()
        gc.collect()
        kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    service.close()
    assert (kept[-1] - kept[1]) / 6 < 1_000_000  # 0.5 MB: a thousand reasons and dead letters; it was 57 MB of 100,000


# ---- headers


def test_an_endless_header_is_refused_and_others_are_answered_meanwhile(web: Running) -> None:
    client = web.http()
    client.get("/health")
    slowest = 0.0
    done = threading.Event()

    def ask() -> None:
        nonlocal slowest
        while not done.is_set():
            start = time.monotonic()
            client.get("/health").raise_for_status()
            slowest = max(slowest, time.monotonic() - start)

    asking = threading.Thread(target=ask)
    asking.start()
    sent = 0
    answer = b""
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        with suppress(OSError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            for _ in range(800):
                connection.sendall(b"x" * 65_536)
                sent += 65_536
        with suppress(OSError):  # what was sent is lost if the client goes on sending
            answer = connection.recv(65_536)
    done.set()
    asking.join(30)
    assert sent < 16 << 20  # what the buffers of both sockets hold
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert slowest < 2.0


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * HEAD_BYTES_MAX,
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"x" * HEAD_BYTES_MAX,
        b"GET /health?" + b"x" * HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
        + b"x" * HEAD_BYTES_MAX,
    ],
    ids=["value", "whole value", "many", "path", "query", "trailer"],
)
def test_a_request_line_and_headers_of_more_than_64_kb_are_a_431(web: Running, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=20) as connection:
        connection.sendall(head)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    if b"chunked" in head:  # the token is missing, which is said before the trailer comes
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 401 "))
        return
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert "65,536 bytes" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_headers_of_less_than_64_kb_and_requests_after_each_other_are_answered(web: Running) -> None:
    http = web.http()
    for _ in range(5):
        assert http.get("/health", headers={"X": "x" * 60_000}).status_code == 200
    body = b'{"type": "A"}\n' * 50_000
    assert http.post("/events", content=body, headers={"Content-Type": NDJSON}).json()["accepted"] == 50_000


# ---- texts of rules

TEXTS = {
    **HOSTILE,
    "tesla: or chains": ("tesla", f"define O() from A({' and '.join(f'(x = {n} or y = {n})' for n in range(400))})"),
    "tesla: 10,000 parentheses": ("tesla", f"define O() from A({'(' * LONG}x = 1{')' * LONG})"),
    "eps: 10,000 parentheses": ("eps", f"request R on {'(' * LONG}A{')' * LONG}"),
    "siddhi: 10,000 parentheses": ("siddhi", f"from A[{'(' * LONG}x == 1{')' * LONG}] select x insert into O"),
    "siddhi: a million": ("siddhi", "from every e1=A<1:1000000> -> e2=B select e2.x as x insert into O"),
    "siddhi: or in and": (
        "siddhi",
        f"from A[{' and '.join(f'(x == {n} or y == {n})' for n in range(400))}] select x insert into O",
    ),
    "siddhi: every": ("siddhi", f"from {'every (' * DEEP}e1=A{')' * DEEP} -> e2=B select e2.x as x insert into O"),
    "mcep: corners": (
        "mcep",
        "define Hot() from A(x > 1) interest I of Hot around Me() range polygon "
        + ", ".join(f"({n} m, {n % 7} m)" for n in range(6_000)),
    ),
    "no language": (None, "(" * 99_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/rules/check", "/rules/dry-run", "/rules"])
def test_any_text_of_rules_is_answered_soon_and_others_meanwhile(tmp_path: Path, path: str) -> None:
    slow: dict[str, str] = {}
    with running(tmp_path) as web, ThreadPoolExecutor(1) as pool:
        http = web.http()
        http.post("/rules/dry-run", json={"text": "define O() from A()"})  # compiles what all texts need
        for name, (language, text) in TEXTS.items():
            if path == "/rules":  # it would take minutes to remove thousands of rules one by one
                checked = http.post("/rules/check", json={"text": text.replace("\ud800", ""), "language": language})
                if len(checked.json().get("rules", ())) > RULES_DEPLOYED:
                    continue
            start = time.monotonic()
            body = json.dumps({"text": text, "language": language})
            asked = pool.submit(http.post, path, content=body, headers={"Content-Type": "application/json"})
            slowest = 0.0
            while not asked.done():
                other = time.monotonic()
                web.http("subscribe").get("/health").raise_for_status()
                slowest = max(slowest, time.monotonic() - other)
                time.sleep(0.02)
            answer, took = asked.result(), time.monotonic() - start
            if answer.status_code >= 500 or took > ANSWER_S or slowest > OTHERS_S:
                slow[name] = f"{answer.status_code} after {took:.1f} s, others after {slowest:.1f} s"
            if answer.status_code == 201:
                for rule in answer.json():
                    http.delete(f"/rules/{rule['id']}")
        assert web.service.failure is None
    assert slow == {}


@pytest.mark.parametrize(
    "text",
    [
        "request R on " + " & ".join(f"A{n}" for n in range(88)),
        "define O(v: double) from A() where v = " + "(1.0 + " * 90 + "A.x" + ")" * 90,
    ],
    ids=["many terms", "a deep expression"],
)
def test_a_rule_that_the_engine_cannot_hold_is_refused_when_it_is_checked(tmp_path: Path, text: str) -> None:
    """It was deployed, and the first event stopped detection, also after a restart."""
    with running(tmp_path) as web:
        http = web.http()
        checked = http.post("/rules/check", json={"text": text}).json()
        for path in ("/rules", "/rules/dry-run"):
            answer = http.post(path, json={"text": text})
            assert answer.is_success == checked["ok"], answer.text
            assert answer.status_code in (200, 201, 422)
        http.post("/events", json={"type": "A", "ts": 1, "x": 1.5}).raise_for_status()
        web.service.wait()
        assert http.get("/health").status_code == 200
