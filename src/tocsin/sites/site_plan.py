"""Describe the sites to run, their replicas, and what is deployed at them.

To *host* sites means to run each replica as an application of its own. The section `hosting` of a scenario says how:

hosting:
  folder: run                  # state, channels and sinks of the sites, relative to the plan
  channels: folder             # or kafka://host:port/prefix
  replicas: 2                  # of each site (f + 1, to tolerate f failures), or {town: 2}
  epoch: 5                     # seconds of event time in a batch of the sources
  speed: 10                    # how fast event time passes; 0 means as fast as the sites can process events
  rounds: 1                    # rounds that replicas run for each batch of the sources
  beat: 0.5                    # seconds between heartbeats of a leader
  suspect: 5                   # seconds without a heartbeat after which a leader is suspected
  live:                        # origins of live sources, for all sites with sources; without it, events are generated
    hill: arriving/hill        # a folder into which files of events are put, or kafka://host:port/topic
    lake: {from: "kafka://host:port/lake", late: 5, idle: 30}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from tocsin.errors import TocsinError, nearest
from tocsin.events.times import AHEAD_US
from tocsin.events.types import EventType
from tocsin.language.syntax.ast import Pattern, Rule
from tocsin.overlay.replicas.queues import Settings
from tocsin.overlay.replicas.replica import GroupTopology, replica_names
from tocsin.overlay.replicas.state_machine import SINK
from tocsin.overlay.strategies import Link, Sites, Strategy, processor_of
from tocsin.overlay.tree_changes import CHANGES_MAX, TopologyChange
from tocsin.spark import kafka

SECOND_US = 1_000_000
FOLDER = "folder"
KEYS = ("folder", "channels", "replicas", "epoch", "speed", "rounds", "beat", "suspect", "live")
LIVE_KEYS = ("from", "late", "idle", "ahead", "id")
NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
SILENT_BEATS = 3
"""The number of heartbeats that a leader must miss before it may be suspected. Until then it may only be slow."""


@dataclass(frozen=True)
class LiveSource:
    """A source that programs outside Tocsin write to.

    `origin` is the folder into which files are put, or the topic. An event may be older than the latest event by
    `late_us`, and ahead of the clock by `ahead_us`. After `idle_us` without events, the time of the source follows the
    clock; if `idle_us` is None, it never does. `id` is the column with the ids of events, if there is one. These ids
    must be unique among all sites.
    """

    origin: Path | kafka.Topic
    late_us: int = 0
    idle_us: int | None = None
    ahead_us: int = AHEAD_US
    id: str | None = None


@dataclass(frozen=True)
class Hosting:
    """The options of the section `hosting`, which say how the sites run."""

    folder: Path
    topics: kafka.Topic | None = None
    """The brokers and the prefix of the topics, if channels are not folders."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """The number of replicas of each site. The key '' has the number for all other sites."""
    epoch_s: float = 5.0
    speed: float = 0.0
    settings: Settings = field(default_factory=lambda: settings(1, 0.5, 5.0))
    live: Mapping[str, LiveSource] = field(default_factory=dict)
    """The live source of each site. The mapping is empty if events are generated."""

    @property
    def kafka(self) -> bool:
        """Whether channels or live sources need a Kafka broker."""
        return self.topics is not None or any(isinstance(one.origin, kafka.Topic) for one in self.live.values())

    def count(self, site: str) -> int:
        """Return the number of replicas of a site."""
        return self.replicas.get(site, self.replicas.get("", 1))


@dataclass(frozen=True)
class PlanChange:
    """A change of the sites at the event time `at_us`.

    `sites` are the sites after the change. `topology_changes` has the change that each processor receives.
    """

    at_us: int
    sites: Sites
    topology_changes: Mapping[str, TopologyChange]


@dataclass(frozen=True)
class SitePlan:
    """Everything that is needed to run the sites of a scenario.

    `initial_sites` are the sites before any change. `events` are the generated events of all sources, in order of time,
    and cover `seconds`. `where` has the site of each event.
    """

    initial_sites: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    events: pa.Table
    where: Sequence[str]
    seconds: float
    hosting: Hosting
    changes: Sequence[PlanChange] = ()

    @cached_property
    def sites(self) -> Sites:
        """All sites that exist at any time. A site that joins later also runs from the beginning, but does nothing."""
        return all_sites([self.initial_sites, *(change.sites for change in self.changes)])

    @property
    def diameter(self) -> int:
        """The largest number of links on a shortest path between two sites, at any time."""
        return max(sites.diameter for sites in (self.initial_sites, *(change.sites for change in self.changes)))

    def joins_with(self, site: str) -> int:
        """Return the number of the change with which `site` joins, or 0 if it exists from the beginning."""
        states = (self.initial_sites, *(change.sites for change in self.changes))
        return next(number for number, sites in enumerate(states) if site in sites.processors)

    def replicas(self, site: str) -> tuple[str, ...]:
        return replica_names(site, self.hosting.count(site))

    @property
    def names(self) -> list[str]:
        """The names of all replicas of all sites."""
        return [name for site in self.sites.processors for name in self.replicas(site)]

    def topology(self, site: str) -> GroupTopology:
        """Return the topology of the group of `site`.

        A sink has a single receiver, because all replicas of the site write to the same folder.
        """
        neighbours = {neighbour: self.replicas(neighbour) for neighbour in self.sites.links(site)}
        sinks = {SINK + sink: replica_names(SINK + sink, 1) for sink in self.sites.sinks if processor_of(sink) == site}
        return GroupTopology(site, self.replicas(site), neighbours, sinks)

    def senders(self, name: str) -> tuple[str, ...]:
        """Return the replicas that may send to the replica `name`: its peers and all replicas of its neighbours."""
        topology = self.topology(name.partition("#")[0])
        groups = (topology.replicas, *(topology.neighbours[site] for site in sorted(topology.neighbours)))
        return tuple(one for replicas in groups for one in replicas if one != name)


def all_sites(states: Sequence[Sites]) -> Sites:
    """Combine the links, sources and sinks of several states of the sites."""
    delays_us, sources, sinks = dict[Link, int](), dict[str, frozenset[str]](), dict[str, tuple[Pattern, ...]]()
    for sites in states:
        delays_us |= sites.delays_us
        for name, types in sites.sources.items():
            sources[name] = sources.get(name, frozenset()) | types
        for sink, wanted in sites.sinks.items():
            sinks[sink] = tuple(dict.fromkeys((*sinks.get(sink, ()), *wanted)))
    return Sites(delays_us, sources, sinks)


def check_changes(changes: Sequence[PlanChange], initial_sites: Sites, hosting: Hosting) -> None:
    """Raise `TocsinError` if hosted sites cannot make `changes`."""
    if changes and hosting.live:
        raise TocsinError("changes are at times of generated events: live sources have no known times")
    if len(changes) > CHANGES_MAX:
        raise TocsinError(f"there are {len(changes)} changes: hosted sites support at most {CHANGES_MAX}")
    departed: set[str] = set()
    before = initial_sites
    for change in changes:
        departed |= set(before.processors) - set(change.sites.processors)
        if returning := sorted(departed & set(change.sites.processors)):
            raise TocsinError(f"{returning[0]} leaves and comes back: a site that has left cannot return")
        before = change.sites


def settings(rounds: int, beat_s: float, suspect_s: float) -> Settings:
    """Return the settings of replicas that are processes.

    Channels rarely lose messages, so messages are sent again only after a long time.
    """
    second_us = SECOND_US
    return Settings(
        rounds=rounds,
        beat_us=round(beat_s * second_us),
        prune_us=round(2 * beat_s * second_us),
        suspect_us=round(suspect_s * second_us),
        vote_us=round(2 * beat_s * second_us),
        resend_us=round(6 * suspect_s * second_us),
        queue_max=1_000,
        inbox_max=2_000,
    )


def hosting(data: object, folder: Path, sites: Sites) -> Hosting:
    """Parse the section `hosting` of a scenario. Paths in it are relative to `folder`."""
    if not isinstance(data, Mapping):
        raise TocsinError("hosting is a mapping of names to values")
    for name in data:
        if name not in KEYS:
            raise TocsinError(f"hosting has no '{name}'. {nearest(str(name), KEYS)}")
    for site in sites.processors:
        if NAME.fullmatch(site) is None:
            raise TocsinError(f"'{site}' cannot be hosted: names of sites have up to 60 letters, digits, '.', '_', '-'")
    where = data.get("folder", "run")
    if not isinstance(where, str):
        raise TocsinError(f"folder is the name of a folder, not {where!r}")
    beat_s, suspect_s = _number(data, "beat", 0.5, 0.01), _number(data, "suspect", 5.0, 0.03)
    if suspect_s < SILENT_BEATS * beat_s:
        raise TocsinError(f"suspect is at least {SILENT_BEATS} times beat, or live leaders would be suspected")
    return Hosting(
        (folder / where).resolve(),
        _topics(data.get("channels", FOLDER)),
        _replicas(data.get("replicas", 1), sites),
        _number(data, "epoch", 5.0, 0.001),
        _number(data, "speed", 0.0),
        settings(_whole("rounds", data.get("rounds", 1)), beat_s, suspect_s),
        _live(data.get("live", {}), folder, sites),
    )


def _live(data: object, folder: Path, sites: Sites) -> dict[str, LiveSource]:
    if not isinstance(data, Mapping):
        raise TocsinError("live maps each site with sources to their origin: a folder, or a Kafka topic")
    found = {}
    for site, value in data.items():
        if site not in sites.sources:
            raise TocsinError(f"live: there are no sources at {site}. {nearest(str(site), sites.sources)}")
        options = value if isinstance(value, Mapping) else {"from": value}
        for name in options:
            if name not in LIVE_KEYS:
                raise TocsinError(f"live: {site} has no '{name}'. {nearest(str(name), LIVE_KEYS)}")
        origin = options.get("from")
        if not isinstance(origin, str):
            raise TocsinError(f"live: {site} comes from a folder or from kafka://host:port/topic, not from {origin!r}")
        idle_us = round(_number(options, "idle", 0.0, 0.1) * SECOND_US) if "idle" in options else None
        found[str(site)] = LiveSource(
            kafka.topic(origin) if "://" in origin else (folder / origin).resolve(),
            round(_number(options, "late", 0.0) * SECOND_US),
            idle_us,
            round(_number(options, "ahead", AHEAD_US / SECOND_US) * SECOND_US),
            None if options.get("id") is None else str(options["id"]),
        )
    if found and (departed := sorted(sites.sources.keys() - found.keys())):
        raise TocsinError(f"live: the sources at {departed[0]} have no origin; either all are live, or none")
    return found


def _topics(channels: object) -> kafka.Topic | None:
    if channels == FOLDER:
        return None
    if isinstance(channels, str) and channels.startswith("kafka://"):
        return kafka.topic(channels)
    raise TocsinError(f"channels is '{FOLDER}' or kafka://host:port/prefix, not {channels!r}")


def _replicas(data: object, sites: Sites) -> dict[str, int]:
    if not isinstance(data, Mapping):
        return {"": _whole("replicas", data)}
    for name in data:
        if str(name) not in sites.processors:
            raise TocsinError(f"replicas: there is no site {name}. {nearest(str(name), sites.processors)}")
    return {str(name): _whole(f"replicas of {name}", count) for name, count in data.items()}


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TocsinError(f"{name} is a whole number from 1 on, not {value!r}")
    return value


def _number(data: Mapping[Any, Any], name: str, default: float, least: float = 0) -> float:
    value = data.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or value < least:
        raise TocsinError(f"{name} is a number from {least:g} on, not {value!r}")
    return float(value)
