"""Replicas under faults: the five properties hold, and checkers that find nothing find something in flawed replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.schedules import ROUNDS, TYPES, draw, play, scheduled
from tocsin.engine import reference
from tocsin.errors import TocsinError
from tocsin.events.types import Event
from tocsin.overlay.replicas.sending import Settings
from tocsin.simulation.faults import Fault, Script, drawn, read, written
from tocsin.simulation.properties import right, violations

SCRIPTS = sorted((Path(__file__).parent / "faults").glob("*.yaml"))


def run(seeds: range) -> None:
    for seed in seeds:
        network, wrong = scheduled(seed)
        assert not wrong, f"seed {seed}: {[str(one) for one in wrong]}\n{written(network.script)}"


def test_properties_hold_under_random_faults() -> None:
    run(range(40))


@pytest.mark.slow
def test_properties_hold_under_random_faults_in_a_long_sweep() -> None:
    run(range(40, 240))


@pytest.mark.parametrize(
    ("flaw", "f"), [("no filter", None), ("pruned after one", None), ("pruned after two", 2), ("active standby", None)]
)
def test_checkers_find_flaws(flaw: str, f: int | None) -> None:
    assert any(scheduled(seed, flaw=flaw, f=f)[1] for seed in range(50)), "no violation in 50 schedules"


def test_flaws_show_as_what_they_are() -> None:
    wrong = [one.property for seed in range(12) for one in scheduled(seed, flaw="active standby")[1]]
    assert "duplicate" in wrong


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_scripts(path: Path, shared: bool) -> None:
    script = read(path.read_text(encoding="utf-8"))
    network, wrong = play(draw(1, script.replicas - 1), script, 1, shared=shared)
    assert not wrong
    assert len(network.applied) == len(script.faults)
    assert network.notices_count()
    if path.stem == "several_leaders":
        assert network.counts.leaders[2] + network.counts.leaders[3]
        assert network.counts.duplicates


def test_sharing_processors_changes_nothing() -> None:
    for seed in range(3):
        one, _ = play(draw(seed), None, seed, shared=True)
        other, _ = play(draw(seed), None, seed, shared=False)
        assert one.counts == other.counts
        assert one.got() == other.got()


def test_what_is_right_is_what_the_reference_says() -> None:
    case = draw(5)
    rows = case.events.to_pylist()
    events = [Event(row["type"], row["ts"], {"v": row["v"]}, row["seq"], row["id"]) for row in rows]
    matches = reference.detect(case.rules, events)
    expected = right(case.rules, TYPES, case.sites.sinks, case.events, 2**60)
    for sink, patterns in case.sites.sinks.items():
        names = {pattern.type for pattern in patterns}
        assert expected[sink] == [match.id for match in matches if match.type in names]


def test_one_leader_sends_each_event_once_to_each_replica() -> None:
    case = draw(1, 2)
    network, wrong = play(case, Script(3), 1)
    assert not wrong
    assert network.counts.duplicates == 0
    assert network.counts.elections == 0
    assert set(network.counts.leaders) == {1}


def without(kept: bool) -> Script:
    """All replicas of a group crash; one comes back later."""
    faults = [Fault(30_000, "crash", f"0#{number}") for number in range(2)]
    return Script(2, (*faults, Fault(400_000, "restart", "0#1", kept=kept)))


def test_more_failures_than_replicas_stop_deliveries_and_are_said() -> None:
    case = draw(1, 1)
    network, wrong = play(case, without(kept=False), 1, within_limit=False)
    assert {one.property for one in wrong} == {"incomplete"}
    assert any("has no state" in words for words in network.lost)


def test_it_goes_on_when_a_replica_returns_with_its_state() -> None:
    case = draw(1, 1)
    network, wrong = play(case, without(kept=True), 1, within_limit=False)
    assert not wrong
    assert network.now_us > 400_000


@pytest.mark.parametrize("seed", range(6))
def test_nothing_false_is_delivered_however_many_fail(seed: int) -> None:
    _, wrong = play(draw(seed), None, seed, within_limit=False)
    assert {one.property for one in wrong} <= {"incomplete"}


def test_full_queues_hold_sources_back() -> None:
    case = draw(1, 1)
    small = Settings(rounds=ROUNDS, queue_max=3, inbox_max=3)
    crash = Script(2, (Fault(20_000, "crash", "0#1"), Fault(500_000, "restart", "0#1")))
    network, wrong = play(case, crash, 1, settings=small)
    assert not wrong
    assert network.now_us > 500_000
    unlimited, _ = play(case, Script(2, crash.faults[:1]), 1)
    assert max(len(queue.kept) for queue in unlimited.replica("1#0").outgoing.values()) > 3


def test_one_that_has_gone_for_ever_is_not_waited_for() -> None:
    case = draw(1, 1)
    small = Settings(rounds=ROUNDS, queue_max=8)
    faults = (Fault(20_000, "crash", "0#1"), Fault(60_000, "gone", "0#1"))
    network, wrong = play(case, Script(2, faults), 1, settings=small)
    assert not wrong
    assert network.now_us < 500_000


def test_rare_acknowledgements_change_only_how_much_is_sent_again() -> None:
    case = draw(1, 1)
    crash = Script(2, (Fault(75_000, "crash", "0#0"), Fault(76_000, "crash", "1#0")))
    often, wrong = play(case, crash, 1)
    rare, also_wrong = play(case, crash, 1, settings=Settings(rounds=ROUNDS, prune_us=60_000, resend_us=200_000))
    assert not wrong
    assert not also_wrong
    assert rare.counts.messages["Delivered"] < often.counts.messages["Delivered"]
    assert rare.counts.duplicates > often.counts.duplicates


def test_scripts_are_written_as_they_are_read() -> None:
    script = drawn({"0": ("0#0", "0#1"), "1": ("1#0", "1#1")}, 100_000, 3)
    again = read(written(script))
    assert written(again) == written(script)
    assert {fault.kind for fault in again.faults} >= {"crash"}
    with pytest.raises(TocsinError, match="crash"):
        read("{replicas: 2, faults: [{at_ms: 1, crahs: 0#0}]}")


def test_violations_are_told_apart() -> None:
    def found(*got: str) -> set[str]:
        return {one.property for one in violations({"s": got}, {"s": ["a", "b", "c"]})}

    assert found("a", "b", "c") == set()
    assert found("a", "b") == {"incomplete"}
    assert found() == {"incomplete"}
    assert found("a", "c", "b") == {"false order"}
    assert found("a", "b", "b", "c") == {"duplicate"}
    assert found("a", "b", "x", "c") == {"false positive"}
    assert found("a", "c") == {"false negative", "incomplete"}
