"""`tocsin serve` stops cleanly while clients are connected."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from tocsin.cli import main; main()", "serve", "--engine", "embedded", "--no-tokens"]
STREAM = b"GET /matches/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF = b"POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_the_service_cleanly_with_an_open_stream(tmp_path: Path, number: int, code: int) -> None:
    said, left, returned, seconds = stopped(tmp_path, STREAM, number)
    assert (returned, said) == (code, "")
    assert left.endswith(b"0\r\n\r\n")
    assert seconds < 3  # it does not wait until the stream is cancelled


def test_a_signal_stops_the_service_cleanly_with_half_a_request(tmp_path: Path) -> None:
    said, left, returned, _ = stopped(tmp_path, HALF, signal.SIGTERM)
    assert returned == 0
    assert "Traceback" not in said
    assert left.startswith(b"HTTP/1.1 503 ")
    assert b'{"error":{"message":"the service is stopping"}}' in left


def stopped(folder: Path, request: bytes, number: int) -> tuple[str, bytes, int, float]:
    """What a service says when it gets a signal during a request, the answer, the exit code, and the seconds."""
    options = [*COMMAND, "--data", str(folder), "--port", "0"]
    service = subprocess.Popen(options, stderr=subprocess.PIPE, text=True)
    assert service.stderr is not None
    try:
        port = None
        for line in service.stderr:
            if found := re.search(r"API: http://127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
            if line.startswith("data:"):
                break
        assert port is not None
        with connected(port) as connection:
            connection.sendall(request)
            answer = connection.recv(65_536) if request is STREAM else b""
            time.sleep(0.5)  # the request is under way
            start = time.monotonic()
            service.send_signal(number)
            while piece := connection.recv(65_536):
                answer += piece
        said = service.stderr.read()
        return said, answer, service.wait(30), time.monotonic() - start
    finally:
        service.kill()
        service.wait()
        service.stderr.close()


def connected(port: int) -> socket.socket:
    """A connection to a service that may not listen yet."""
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("the service does not listen")
