"""Trees, tables and labels, with rules that do not matter."""

from __future__ import annotations

import networkx as nx
import pyarrow as pa
import pytest

from tocsin.errors import EventError, RuleError
from tocsin.events.types import EventType, Kind
from tocsin.language import parse, parse_pattern
from tocsin.overlay import messages as m
from tocsin.overlay.processor import Processor
from tocsin.overlay.strategies import STRATEGIES, Sites
from tocsin.simulation.network import Network
from tocsin.simulation.runs import deploy
from tocsin.simulation.workloads import topology

TYPES = {name: EventType(name, (("v", Kind.INT),)) for name in "AB"}
RULES = parse("define Pair() from A() and last B() within 5 s from A").rules


def network(strategy: str, seed: int = 3, processors: int = 12, **options: object) -> tuple[Network, Sites]:
    delays = topology("waxman", processors, 4, 5, seed)
    sites = Sites(delays, {"0": frozenset("A"), "5": frozenset("B")}, {"3": (parse_pattern("Pair()"),)})
    return deploy(sites, STRATEGIES[strategy], TYPES, RULES, **options), sites  # type: ignore[arg-type]


def batch(type: str, *times: int) -> pa.Table:
    return pa.table(
        {
            "type": pa.array([type] * len(times), pa.string()),
            "ts": pa.array(times, pa.int64()),
            "seq": pa.array([0] * len(times), pa.int64()),
            "id": pa.array([f"{type}{ts}" for ts in times]),
            "v": pa.array([1] * len(times), pa.int32()),
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_trees_are_shortest_paths_and_both_ends_agree(seed: int) -> None:
    for strategy in ("ST", "MT"):
        net, sites = network(strategy, seed)
        graph = nx.Graph()
        graph.add_weighted_edges_from((*link, delay) for link, delay in sites.delays_us.items())
        trees = {tree for processor in net.processors.values() for tree in processor.tree_nodes}
        assert len(trees) == 1
        for tree in trees:
            lengths = nx.single_source_dijkstra_path_length(graph, tree)
            for name, processor in net.processors.items():
                node = processor.tree_nodes[tree]
                assert node.distance_us == lengths[name]
                below = {other for other, p in net.processors.items() if p.tree_nodes[tree].parent == name}
                assert node.children == below


def test_all_elect_the_leader_with_the_most_links() -> None:
    net, _ = network("ST")
    (leader,) = {processor.leader[-1] for processor in net.processors.values()}
    assert len(net.processors[leader].links) == max(len(processor.links) for processor in net.processors.values())
    assert net.processors[leader].tree_nodes[leader].parent is None


def test_advertisements_are_merged_upwards_and_other_events_are_refused() -> None:
    net, _ = network("MT")
    root = net.processors["3"].tree_nodes["3"]
    assert {type for types in root.advertised.values() for type in types} == {"A", "B"}
    net.publish({"0": pa.concat_tables([batch("A", 1), batch("B", 2)])}, batch("A"), 10)
    assert net.processors["0"].refused == 1


def test_unknown_types_are_refused_with_a_hint() -> None:
    net, _ = network("MT")
    with pytest.raises(EventError, match="no event type AA"):
        net.processors["0"].advertise("x", ["AA"])
    with pytest.raises(RuleError, match="no rule defines Pear"):
        net.processors["0"].subscribe("x", [parse_pattern("Pear()")])


def test_types_that_cannot_share_a_table_are_refused() -> None:
    reserved = {"A": EventType("A", (("rule", Kind.INT),))}
    with pytest.raises(EventError, match="cannot have an attribute called rule"):
        Processor("p", {}, STRATEGIES["MT"], reserved, ())
    mixed = {"A": EventType("A", (("v", Kind.INT),)), "B": EventType("B", (("v", Kind.STRING),))}
    with pytest.raises(EventError, match="is of kind string, in another type v is of kind int"):
        Processor("p", {}, STRATEGIES["MT"], mixed, ())


def test_a_pair_reaches_the_sink_after_the_longest_way_to_the_root() -> None:
    net, sites = network("MT")
    net.publish({"5": batch("B", 1_000_000), "0": batch("A", 2_000_000)}, batch("A"), 3_000_000)
    ((sink, found, at),) = net.processors["3"].notices
    graph = nx.Graph()
    graph.add_weighted_edges_from((*link, delay) for link, delay in sites.delays_us.items())
    farthest = max(nx.single_source_dijkstra_path_length(graph, "3").values())
    assert sink == "3"
    assert found["type"].to_pylist() == ["Pair"]
    assert at.tolist() == [2_000_000 + farthest]


def test_an_event_for_several_trees_goes_over_a_link_once() -> None:
    delays = {("s", "a"): 1, ("a", "s"): 1, ("a", "b"): 1, ("b", "a"): 1, ("a", "c"): 1, ("c", "a"): 1}
    wanted = (parse_pattern("A()"),)
    sites = Sites(delays, {"s": frozenset("A")}, {"b": wanted, "c": wanted})
    sent: list[tuple[str, str, int]] = []

    def watch(sender: str, receiver: str, message: m.Message) -> None:
        if isinstance(message, m.Events):
            sent.append((sender, receiver, message.batch.num_rows))

    net = deploy(sites, STRATEGIES["MT"], TYPES, (), watch=watch)
    net.publish({"s": batch("A", 5)}, batch("A"), 10)
    assert sorted(sent) == [("a", "b", 1), ("a", "c", 1), ("s", "a", 1)]
    assert [len(net.processors[name].notices) for name in ("b", "c")] == [1, 1]
