"""Which processors are joined, and how far are they from each other? Random graphs as BRITE makes them, or a file.

Processors lie in a square. Waxman: near ones are likelier joined. Barabási–Albert: well-joined ones are likelier
joined. The delay of a link follows the distance; the mean over all links is what is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path

import networkx as nx

from tocsin.errors import TocsinError, nearest
from tocsin.overlay.sites import Link

MODELS = ("waxman", "barabasi-albert")
REACH = 0.3
"""How fast Waxman's likelihood falls with the distance, as a share of the longest one."""


def topology(model: str, processors: int, links: float, delay_ms: float, seed: int) -> dict[Link, int]:
    """The delays in microseconds of a connected graph, both ways; `links`: at each processor, on the average."""
    if model not in MODELS:
        raise TocsinError(f"there is no topology '{model}'. {nearest(model, MODELS)}")
    if processors < 1:
        raise TocsinError("a topology has at least one processor")
    chance = random.Random(f"{model} {processors} {links} {seed}")
    at = [(chance.random(), chance.random()) for _ in range(processors)]
    wanted = min(round(processors * links / 2), processors * (processors - 1) // 2)
    edges = _waxman(at, wanted, chance) if model == "waxman" else _preferential(processors, links, chance)
    lengths = {edge: max(math.dist(at[edge[0]], at[edge[1]]), 0.01) for edge in edges}
    scale = delay_ms * 1000 / (sum(lengths.values()) / len(lengths)) if lengths else 0.0
    return both_ways((str(here), str(there), round(length * scale)) for (here, there), length in lengths.items())


def _waxman(at: list[tuple[float, float]], wanted: int, chance: random.Random) -> list[tuple[int, int]]:
    """Each processor is joined to an earlier one, then others are until there are enough; near ones are likelier."""
    longest = math.sqrt(2)
    edges: dict[tuple[int, int], None] = {}

    def weight(here: int, there: int) -> float:
        return math.exp(-math.dist(at[here], at[there]) / (REACH * longest))

    for new in range(1, len(at)):
        (old,) = chance.choices(range(new), [weight(new, known) for known in range(new)])
        edges[old, new] = None
    rest = [(here, there) for there in range(len(at)) for here in range(there) if (here, there) not in edges]
    keyed = sorted(rest, key=lambda edge: chance.random() ** (1 / weight(*edge)), reverse=True)
    edges.update(dict.fromkeys(keyed[: max(0, wanted - len(edges))]))
    return list(edges)


def _preferential(processors: int, links: float, chance: random.Random) -> list[tuple[int, int]]:
    each = max(1, min(processors - 1, round(links / 2 + 0.5)))
    if processors < 2:
        return []
    graph = nx.barabasi_albert_graph(processors, each, seed=chance.randrange(2**31))
    return [(min(edge), max(edge)) for edge in graph.edges]


def both_ways(links: Iterable[tuple[str, str, int]]) -> dict[Link, int]:
    """Links with one delay for both directions."""
    delays: dict[Link, int] = {}
    for here, there, delay_us in links:
        delays[here, there] = delays[there, here] = delay_us
    return delays


def read(path: Path) -> dict[Link, int]:
    """A topology from a file: on each line two processors and the delay between them in milliseconds."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TocsinError(f"{path} cannot be read: {error}") from None
    links = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            here, there, delay = words
            links.append((here, there, round(float(delay) * 1000)))
        except ValueError:
            raise TocsinError(
                f"{path}, line {number}: expected two processors and a delay in ms, as in: a b 5"
            ) from None
    return connected(both_ways(links), str(path))


def connected(delays: dict[Link, int], where: str) -> dict[Link, int]:
    """The links, if every processor can reach every other."""
    graph = nx.Graph(list(delays))
    if any(delay < 0 for delay in delays.values()):
        raise TocsinError(f"{where}: a delay cannot be negative")
    if any(here == there for here, there in delays):
        raise TocsinError(f"{where}: a link joins two processors")
    if graph.number_of_nodes() and not nx.is_connected(graph):
        parts = [sorted(part)[0] for part in nx.connected_components(graph)]
        raise TocsinError(f"{where}: there is no way from {parts[0]} to {parts[1]}")
    return delays
