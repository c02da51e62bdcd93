"""Which node does what? Units of work are spread over nodes so that loads are even and few events are sent twice.

    units ─► placer ─► placement ─► measures
                           ▲
                        changes: costs that drift, a node that comes or goes

The question and three of the placers are those of the VISIRI paper (Sections 3.2 and 4.2). A unit is a query, or rules
that must stay together; a node is a slot on Spark, or a site.
"""

from tocsin.plans.placing.changes import add_node, imbalance, rebalance, remove_node
from tocsin.plans.placing.even import Even
from tocsin.plans.placing.measures import duplication, throughput, traffic, variance
from tocsin.plans.placing.placement import Placement
from tocsin.plans.placing.placers import PLACERS, Placer, placer
from tocsin.plans.placing.units import Input, Move, Unit
from tocsin.plans.placing.visiri import Random, Sctxpf, Visiri

__all__ = [
    "PLACERS",
    "Even",
    "Input",
    "Move",
    "Placement",
    "Placer",
    "Random",
    "Sctxpf",
    "Unit",
    "Visiri",
    "add_node",
    "duplication",
    "imbalance",
    "placer",
    "rebalance",
    "remove_node",
    "throughput",
    "traffic",
    "variance",
]
