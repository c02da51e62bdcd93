"""Runs of generated workloads: correct answers, and measurements that do not depend on the epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.errors import TocsinError
from tocsin.overlay.strategies import STRATEGIES
from tocsin.simulation import runs
from tocsin.simulation.checking import wrong_sinks
from tocsin.simulation.workloads import MODELS, Workload, events, generate, topology

SMALL = Workload(processors=8, links=3, types=24, rules=16, subscriptions=4, rate_max=1.0, window_s=20.0, each=0.1)
WORLD = generate(SMALL)
EVENTS, WHERE = events(WORLD, 120.0, 1)


def ran(strategy: str, *ends: float):  # type: ignore[no-untyped-def]
    return runs.run(
        WORLD.sites, STRATEGIES[strategy], WORLD.types, WORLD.rules, EVENTS, WHERE, epochs_s=ends, measured_from_s=0.0
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_sink_gets_the_matches_of_one_place(strategy: str) -> None:
    outcome, network = ran(strategy, 60.0, 120.0)
    assert outcome.notices > 50
    assert wrong_sinks(network, WORLD.sites, WORLD.types, WORLD.rules, EVENTS, 120_000_000) == []


@pytest.mark.parametrize("strategy", ["Centr", "ST", "MT"])
def test_traffic_and_delay_do_not_depend_on_the_epochs(strategy: str) -> None:
    whole, _ = ran(strategy, 120.0)
    cut, _ = ran(strategy, 7.0, 31.0, 90.0, 120.0)
    assert replace(cut, bytes=0, messages={}) == replace(whole, bytes=0, messages={})


def test_the_checker_finds_a_lost_and_a_repeated_notice() -> None:
    _, network = ran("MT", 120.0)
    name, processor = next((name, one) for name, one in network.processors.items() if one.notices)
    sink, batch, at = processor.notices[0]
    for wrong in ([(sink, batch.slice(1), at[1:])], [(sink, batch, at), (sink, batch, at)]):
        processor.notices[:] = wrong
        found = wrong_sinks(network, WORLD.sites, WORLD.types, WORLD.rules, EVENTS, 120_000_000)
        assert found == [name]


def test_shared_trees_send_less_than_a_center_where_much_is_filtered() -> None:
    world = generate(replace(SMALL, values=10))
    table, where = events(world, 120.0, 1)
    traffic = {}
    for name in ("Centr", "ST"):
        outcome, _ = runs.run(
            world.sites, STRATEGIES[name], world.types, world.rules, table, where, epochs_s=[120.0], measured_from_s=0.0
        )
        traffic[name] = outcome.traffic
    assert traffic["ST"] < 0.5 * traffic["Centr"]


@pytest.mark.parametrize("model", MODELS)
def test_topologies_have_the_requested_links_and_delay(model: str) -> None:
    delays = topology(model, 20, 5, 5, 1)
    assert delays == topology(model, 20, 5, 5, 1)
    assert 4.5 <= len(delays) / 20 <= 5.5
    assert abs(sum(delays.values()) / len(delays) - 5000) < 5


def test_invalid_parameters() -> None:
    with pytest.raises(TocsinError, match=r"no topology .waxmann.\. Did you mean .waxman."):
        topology("waxmann", 5, 2, 5, 1)
    with pytest.raises(TocsinError, match="at least 1 rules"):
        Workload(rules=0)
