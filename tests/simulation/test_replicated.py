"""Replicas with faults: the five properties hold, and the checkers detect flawed replicas."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.budget import seeds
from tests.simulation.schedules import LIMIT_US, ROUNDS, TYPES, draw, play_case, scheduled
from tocsin.errors import TocsinError
from tocsin.events.types import Event
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.catch_up import LostRange
from tocsin.overlay.replicas.queues import Settings
from tocsin.overlay.replicas.state_machine import ProcessorMachine, SinkReplica
from tocsin.overlay.strategies import STRATEGIES, Sites
from tocsin.reference import patterns as reference
from tocsin.simulation.checking import expected_ids, violations
from tocsin.simulation.faults import Fault, Script, random_script, read, to_yaml
from tocsin.simulation.replica_groups import ReplicatedSetup
from tocsin.simulation.replicated import ReplicatedNetwork, check, finish
from tocsin.simulation.runs import deploy
from tocsin.simulation.workloads import both_ways

WIDE = Settings(rounds=ROUNDS)
SCRIPTS = sorted((Path(__file__).parent / "faults").glob("*.yaml"))


def run(seeds: range) -> None:
    for seed in seeds:
        network, wrong = scheduled(seed)
        assert not wrong, f"seed {seed}: {[str(one) for one in wrong]}\n{to_yaml(network.script)}"


def test_properties_hold_under_random_faults() -> None:
    run(seeds(range(40)))


@pytest.mark.parametrize(
    ("flaw", "f"), [("no filter", None), ("pruned after one", None), ("pruned after two", 2), ("active standby", None)]
)
def test_checkers_find_flaws(flaw: str, f: int | None) -> None:
    assert any(scheduled(seed, flaw=flaw, f=f)[1] for seed in range(50)), "no violation in 50 schedules"


def test_each_flaw_violates_its_property() -> None:
    wrong = [one.property for seed in range(6) for one in scheduled(seed, flaw="active standby")[1]]
    assert "duplicate" in wrong


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_scripts(path: Path, shared: bool) -> None:
    script = read(path.read_text(encoding="utf-8"))
    network, wrong = play_case(draw(1, script.replicas - 1), script, 1, shared=shared)
    assert not wrong
    assert len(network.applied) == len(script.faults)
    assert network.counts.situations
    if path.stem == "ends_fail":
        assert {sink_replica.incarnation for _, sink_replica in network.sink_replicas()} == {0, 1}
    if path.stem == "several_leaders":
        assert network.counts.leaders[2] + network.counts.leaders[3]
        assert network.counts.duplicates


def test_sharing_processors_changes_nothing() -> None:
    for seed in range(3):
        one, _ = play_case(draw(seed), None, seed, shared=True)
        other, _ = play_case(draw(seed), None, seed, shared=False)
        assert one.counts == other.counts
        for _, sink_replica in one.sink_replicas():
            assert one.got(sink_replica.name) == other.got(sink_replica.name)


def test_expected_matches_are_those_of_the_reference() -> None:
    case = draw(5)
    rows = case.events.to_pylist()
    events = [Event(row["type"], row["ts"], {"v": row["v"]}, row["seq"], row["id"]) for row in rows]
    matches = reference.detect(case.rules, events)
    expected = expected_ids(case.rules, TYPES, case.sites.sinks, case.events, 2**60)
    for sink, patterns in case.sites.sinks.items():
        names = {pattern.type for pattern in patterns}
        assert expected[sink] == [match.id for match in matches if match.type in names]


@pytest.mark.parametrize("f", [0, 1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_failures_an_event_crosses_a_link_once_for_each_replica(strategy: str, f: int) -> None:
    case = replace(draw(1, f or 1), strategy=strategy, f=f)
    network, wrong = play_case(case, Script(f + 1), 1)
    assert not wrong
    counts = network.counts
    assert (counts.events, counts.notices) == ((f + 1) * counts.links, (f + 1) * counts.situations)
    assert counts.links
    assert counts.situations
    assert counts.duplicates == counts.elections == 0
    assert set(counts.leaders) == {1}
    network.counts.events += 1
    assert [one.property for one in check(network, case.expected)] == ["more than f + 1 messages"]


# ---- deployment


def tables(processor: Processor) -> dict[str, tuple[object, ...]]:
    return {
        tree: (
            one.parent, one.distance_us, one.children, one.advertised, one.subscribed, one.rules, one.wanted, one.taps,
            {(item.key, item.rules, frozenset(item.uses), item.pullable) for item in one.deployed.items},
            one.deployed.whole, one.deployed.through,
        )
        for tree, one in processor.tree_nodes.items()
    }  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_replicas_deploy_the_same_despite_failures(strategy: str) -> None:
    early = 0
    for seed in range(3):
        case = replace(draw(seed), strategy=strategy)
        plain = deploy(case.sites, STRATEGIES[strategy], TYPES, case.rules)
        network, wrong = play_case(case, None, seed, shared=False)
        assert not wrong
        early += sum(fault.at_us < network.begins_us for fault in network.applied)
        for group, names in network.groups.items():
            for name in names:
                if name not in network.down:
                    machine = network.replica(name).machine
                    assert isinstance(machine, ProcessorMachine)
                    assert tables(machine.processor) == tables(plain.processors[group])
    assert early > 5, "failures come while rules are deployed"


def test_deployment_ends_within_the_computed_rounds_for_any_links() -> None:
    """Links with loops, so that the first path to a processor is not the shortest."""
    for seed in range(25):
        rng = random.Random(f"loops {seed}")
        names = [str(number) for number in range(rng.randint(3, 8))]
        joined = [(name, rng.choice(names[:number])) for number, name in enumerate(names) if number]
        joined += [tuple(rng.sample(names, 2)) for _ in names]  # type: ignore[misc]
        links = both_ways((here, there, rng.choice([500, 1000, 2000, 9000])) for here, there in joined)
        sources: dict[str, frozenset[str]] = {}
        for type in TYPES:
            home = rng.choice(names)
            sources[home] = sources.get(home, frozenset()) | {type}
        case, strategy = draw(seed), STRATEGIES[rng.choice([*STRATEGIES])]
        wishes = enumerate(case.sites.sinks.values())
        sites = Sites(links, sources, {f"{rng.choice(names)}/{number}": wanted for number, wanted in wishes})
        plain = deploy(sites, strategy, TYPES, case.rules)
        network = ReplicatedNetwork(ReplicatedSetup(sites, strategy, TYPES, case.rules), Script(1), settings=WIDE)
        for number, commands in enumerate(network.setup.deploying(ROUNDS)):
            network.publish({group: commands.get(group, ()) for group in network.groups}, number)
        network.run(LIMIT_US, lambda network=network: not network.lagging())  # type: ignore[misc]
        assert not network.lagging()
        for group in network.groups:
            machine = network.replica(f"{group}#0").machine
            assert isinstance(machine, ProcessorMachine)
            assert tables(machine.processor) == tables(plain.processors[group]), f"seed {seed}"


# ---- more failures than replicas


def without(kept: bool) -> Script:
    """All replicas of a group crash; one comes back later."""
    faults = [Fault(70_000, "crash", f"0#{number}") for number in range(2)]
    return Script(2, (*faults, Fault(400_000, "restart", "0#1", kept=kept)))


def test_too_many_failures_stop_deliveries_and_losses_are_reported() -> None:
    case = draw(1, 1)
    network, wrong = play_case(case, without(kept=False), 1, within_limit=False)
    assert {one.property for one in wrong} == {"incomplete"}
    (lost,) = network.lost
    assert lost.replica == "0#1"
    ranges = {one.stream[0]: one for one in lost.ranges}
    assert ranges.keys() == {"feed:0", *network.setup.links("0")}
    for group, one in ranges.items():
        node = network.nodes[group if group.startswith("feed:") else f"{group}#0"]
        assert not isinstance(node, SinkReplica)
        queue = node.outgoing["0"]
        assert one == LostRange((group, "0"), 0, queue.floor, queue.upto_us)
        assert queue.floor >= 0
    assert "0 to" in str(lost)


def test_delivery_continues_when_a_replica_returns_with_its_state() -> None:
    case = draw(1, 1)
    network, wrong = play_case(case, without(kept=True), 1, within_limit=False, settings=WIDE)
    assert not wrong
    assert network.now_us > 400_000


def test_lost_events_are_reported_with_their_time() -> None:
    crashes = [Fault(170_000, "crash", f"0#{number}") for number in range(2)]
    late = Script(2, (*crashes, Fault(190_000, "restart", "0#0")))
    network, _ = play_case(draw(1, 1), late, 1, within_limit=False)
    (lost,) = network.lost
    (sources,) = [one for one in lost.ranges if one.stream[0] == "feed:0"]
    assert sources.upto_us is not None
    assert 0 < sources.upto_us <= 170_000 - network.begins_us
    assert f"events before {sources.upto_us} µs" in str(lost)


def test_a_sink_whose_replicas_have_all_lost_their_state_reports_what_is_lost() -> None:
    names = ("sink:1/0#0", "sink:1/0#1")
    faults = [Fault(200_000, "crash", name) for name in names] + [Fault(220_000, "restart", name) for name in names]
    network, wrong = play_case(draw(1, 1), Script(2, tuple(faults)), 1, within_limit=False, settings=WIDE)
    assert {(one.property, one.sink) for one in wrong} == {("incomplete", name) for name in names}
    assert [lost.replica for lost in network.lost] == list(names)
    for lost in network.lost:
        (lacked,) = lost.ranges
        assert (lacked.stream, lacked.first) == (("1", "sink:1/0"), 0)
        assert lacked.last >= 0
    assert not any(network.got(name) for name in names), "nothing after what is lost"


def test_any_number_of_failures_only_delays_deliveries() -> None:
    stopped = 0
    for seed in range(24):
        case = draw(seed)
        network, wrong = play_case(case, None, seed, within_limit=False)
        assert {one.property for one in wrong} <= {"incomplete"}
        if not wrong:
            continue
        stopped += 1
        assert network.lost or network.down, "it is said why"
        network.revive()
        assert not finish(network, limit_us=2 * LIMIT_US, expected=case.expected), f"seed {seed}"
    assert stopped > 2


# ---- limits


def test_full_queues_hold_sources_back() -> None:
    case = draw(1, 1)
    small = Settings(rounds=ROUNDS, queue_max=3, inbox_max=3)
    crash = Script(2, (Fault(20_000, "crash", "0#1"), Fault(500_000, "restart", "0#1")))
    network, wrong = play_case(case, crash, 1, settings=small)
    assert not wrong
    assert network.now_us > 500_000
    unlimited, _ = play_case(case, Script(2, crash.faults[:1]), 1, settings=WIDE)
    assert max(len(queue.kept) for queue in unlimited.replica("1#0").outgoing.values()) > 3


def test_queues_do_not_wait_for_a_decommissioned_replica() -> None:
    case = draw(1, 1)
    small = Settings(rounds=ROUNDS, queue_max=8)
    faults = (Fault(20_000, "crash", "0#1"), Fault(60_000, "gone", "0#1"))
    network, wrong = play_case(case, Script(2, faults), 1, settings=small)
    assert not wrong
    assert network.now_us < 500_000


def test_a_replica_absent_for_too_long_restores_the_state_of_a_peer() -> None:
    """The host decommissions it, so that queues need not wait; then it returns with its state, which is too old."""
    case = draw(1, 1)
    small = Settings(rounds=ROUNDS, queue_max=8, inbox_max=8)
    for kept in (False, True):
        faults = (Fault(20_000, "crash", "0#1"), Fault(60_000, "gone", "0#1"))
        back = Fault(200_000, "restart", "0#1", kept=kept)
        network, wrong = play_case(case, Script(2, (*faults, back)), 1, settings=small)
        assert not wrong
        assert network.counts.outgoing_longest == 8
        assert network.counts.messages["Gap"]
        assert network.counts.messages["State"]
        assert network.replica("0#1").round == network.replica("0#0").round
        assert network.recovered("0#1")


def test_queues_over_their_limit_are_violations() -> None:
    case = draw(1, 1)
    network, wrong = play_case(case, Script(2, (Fault(20_000, "crash", "0#1"), Fault(90_000, "restart", "0#1"))), 1)
    assert not wrong
    network.settings = Settings(rounds=ROUNDS, queue_max=network.counts.outgoing_longest - 1, inbox_max=1)
    assert [one.property for one in check(network, case.expected)] == ["queue over its limit"] * 2


def test_rare_acknowledgements_change_only_how_much_is_sent_again() -> None:
    case = replace(draw(1, 1), strategy="MT")
    sparing = Settings(rounds=ROUNDS, prune_us=60_000, resend_us=200_000)
    said, again = [0, 0], [0, 0]
    for at_us in range(80_000, 140_000, 12_000):
        crash = Script(2, (Fault(at_us, "crash", "0#0"), Fault(at_us, "crash", "1#0")))
        for number, settings in enumerate((WIDE, sparing)):
            network, wrong = play_case(case, crash, 1, settings=settings)
            assert not wrong
            said[number] += network.counts.messages["Delivered"]
            again[number] += network.counts.duplicates
    assert said[1] < said[0]
    assert again[1] > again[0]


def test_reading_reverses_writing_of_scripts() -> None:
    script = random_script({"0": ("0#0", "0#1"), "1": ("1#0", "1#1")}, 100_000, 3)
    again = read(to_yaml(script))
    assert to_yaml(again) == to_yaml(script)
    assert {fault.kind for fault in again.faults} >= {"crash"}
    with pytest.raises(TocsinError, match="crash"):
        read("{replicas: 2, faults: [{at_ms: 1, crahs: 0#0}]}")


def test_violations_are_distinguished() -> None:
    def found(*got: str) -> set[str]:
        return {one.property for one in violations({"s": got}, {"s": ["a", "b", "c"]})}

    assert found("a", "b", "c") == set()
    assert found("a", "b") == {"incomplete"}
    assert found() == {"incomplete"}
    assert found("a", "c", "b") == {"false order"}
    assert found("a", "b", "b", "c") == {"duplicate"}
    assert found("a", "b", "x", "c") == {"false positive"}
    assert found("a", "c") == {"false negative", "incomplete"}
