"""The wall clock, the demo, tokens and quotas, and the commands `serve` and `token`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.cli import app
from tocsin.errors import TocsinError
from tocsin.service.demo import MOVING, RULES, Demo
from tocsin.service.event_intake import JSON
from tocsin.service.service import Options, Service
from tocsin.service.tokens import AccessToken, Quotas, Role, Tokens


def test_with_the_wall_clock_a_timer_fires_without_events(tmp_path: Path) -> None:
    service = Service(tmp_path, Options(delay_us=0, clock="wall"))
    service.deploy('request Late on Order as o ; at(Order, 50 ms) as t notify "late"').result(300)
    service.publish(b'{"type": "Order"}', JSON)
    until_s = time.monotonic() + 60
    while not service.matches.last and time.monotonic() < until_s:
        time.sleep(0.01)
    (line,) = service.matches.after(0, 10)
    assert json.loads(line.text)["attributes"]["notification"] == "late"
    assert service.publish(b'{"type": "Order", "ts": "2026-01-01T00:00:00Z"}', JSON).reasons[0][1].startswith("late")
    service.close()


def test_the_demo_matches_every_rule_within_half_a_minute(tmp_path: Path) -> None:
    service = Service(tmp_path, Options(delay_us=0))
    demo = Demo(service)
    for text in (RULES, MOVING):
        service.deploy(text).result(300)
    begun_s = time.time()
    for step in range(4 * 30):
        service.accept(demo._step(begun_s + step / 4, step / 4)).result(60)
    service.wait()
    rung = {
        json.loads(line.text).get("query") or json.loads(line.text)["rule"]
        for line in service.matches.after(0, 100_000)
    }
    assert {"Fire", "DryHeat", "Spreading", "NearTheCar"} <= rung
    assert service.backend.dead == 0
    service.close()


def test_only_the_hash_of_a_token_is_stored(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")
    secret = tokens.issue("sensors", [Role.PUBLISH], events_per_s=100)
    assert secret not in (tmp_path / "tokens").read_text()
    again = Tokens(tmp_path / "tokens").find(secret)
    assert again is not None
    assert (again.name, again.roles, again.events_per_s) == ("sensors", {Role.PUBLISH}, 100)
    assert tokens.find(secret + "x") is None
    with pytest.raises(TocsinError, match="already"):
        tokens.issue("sensors", [])


def test_a_quota_fills_again() -> None:
    token, quotas = AccessToken("t", frozenset(), events_per_s=10), Quotas()
    assert quotas.wait_s(token, 0.0) == 0
    quotas._filled(token, 0.0).full = -20
    assert quotas.wait_s(token, 0.0) == pytest.approx(2.1)
    assert quotas.wait_s(token, 2.5) == 0


def test_the_commands_issue_tokens_and_require_them_beyond_loopback(tmp_path: Path) -> None:
    run = CliRunner().invoke
    made = run(app, ["token", "--data", str(tmp_path), "--name", "a", "--role", "publish"])
    assert made.exit_code == 0
    found = Tokens(tmp_path / "tokens").find(made.stdout.strip())
    assert found is not None
    assert found.roles == {Role.PUBLISH}
    assert run(app, ["token", "--data", str(tmp_path), "--name", "b", "--role", "king"]).exit_code == 2
    refused = run(app, ["serve", "--no-tokens", "--host", "0.0.0.0", "--port", "0"])
    assert refused.exit_code == 1
    assert "loopback" in refused.stderr
