"""What do sites need to know? Who is where, what is deployed, and how it is hosted: `hosting` in a scenario.

hosting:
  folder: run                  # what sites remember, channels, sinks; beside the plan
  channels: folder             # or kafka://host:port/prefix
  replicas: 2                  # of each site, or {town: 2}: f + 1
  epoch: 5                     # seconds of event time that sources hand over at once
  speed: 10                    # how fast event time passes; 0: as fast as sites are
  rounds: 1                    # between two batches of the sources
  beat: 0.5                    # seconds between heartbeats; a leader that is silent for `suspect` is thought dead
  suspect: 5
  live:                        # sources that others write to, instead of events by chance: then of every site with some
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
from tocsin.overlay.replicas.replica import Place, named
from tocsin.overlay.replicas.state_machine import SINK
from tocsin.overlay.strategies import Link, Sites, Strategy, place
from tocsin.overlay.tree_changes import CHANGES_KEPT, Change
from tocsin.spark import kafka

SECOND_US = 1_000_000
FOLDER = "folder"
KEYS = ("folder", "channels", "replicas", "epoch", "speed", "rounds", "beat", "suspect", "live")
LIVE_KEYS = ("from", "late", "idle", "ahead", "id")
NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")
SILENT_BEATS = 3
"""A leader that has said nothing for fewer heartbeats than this may only be slow."""


@dataclass(frozen=True)
class Live:
    """A source that others write to: a folder into which files are put, or a topic. `late_us`: how much older than the
    latest an event may be; `idle_us`: after how long in silence its time goes on with the clock, if ever; `ahead_us`:
    how far ahead of the clock an event may be; `id`: the column that holds ids of events, unique among all sites, if
    there is one."""

    origin: Path | kafka.Topic
    late_us: int = 0
    idle_us: int | None = None
    ahead_us: int = AHEAD_US
    id: str | None = None


@dataclass(frozen=True)
class Hosting:
    """How sites are hosted."""

    folder: Path
    topics: kafka.Topic | None = None
    """The brokers and the prefix of the topics, where channels are not folders."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Of each site; one if it is not named. Of every other site: ''."""
    epoch_s: float = 5.0
    speed: float = 0.0
    settings: Settings = field(default_factory=lambda: settings(1, 0.5, 5.0))
    live: Mapping[str, Live] = field(default_factory=dict)
    """By site; empty if events are drawn by chance."""

    @property
    def kafka(self) -> bool:
        """Whether a broker is needed."""
        return self.topics is not None or any(isinstance(one.origin, kafka.Topic) for one in self.live.values())

    def count(self, site: str) -> int:
        """How many replicas a site has."""
        return self.replicas.get(site, self.replicas.get("", 1))


@dataclass(frozen=True)
class Turn:
    """What is different from an event time on (µs): how the sites are then, and what each processor is told."""

    at_us: int
    sites: Sites
    told: Mapping[str, Change]


@dataclass(frozen=True)
class Plan:
    """All that a site needs. `begins`: how the sites are at first; `events`: of all sources, in order of time, and
    `where` they happen; over `seconds`."""

    begins: Sites
    strategy: Strategy
    types: Mapping[str, EventType]
    rules: Sequence[Rule]
    events: pa.Table
    where: Sequence[str]
    seconds: float
    hosting: Hosting
    turns: Sequence[Turn] = ()

    @cached_property
    def sites(self) -> Sites:
        """All that there will ever be: each runs from the beginning, and does nothing until its time has come."""
        return everything([self.begins, *(turn.sites for turn in self.turns)])

    @property
    def reach(self) -> int:
        """The most links of any shortest way, at any time."""
        return max(sites.reach for sites in (self.begins, *(turn.sites for turn in self.turns)))

    def comes(self, site: str) -> int:
        """With which change a site comes; 0: it is there from the beginning."""
        states = (self.begins, *(turn.sites for turn in self.turns))
        return next(number for number, sites in enumerate(states) if site in sites.processors)

    def replicas(self, site: str) -> tuple[str, ...]:
        return named(site, self.hosting.count(site))

    @property
    def names(self) -> list[str]:
        """All replicas of all sites."""
        return [name for site in self.sites.processors for name in self.replicas(site)]

    def place(self, site: str) -> Place:
        """Where the replicas of a site stand. A sink is one folder, whoever writes into it."""
        neighbours = {there: self.replicas(there) for there in self.sites.links(site)}
        sinks = {SINK + sink: named(SINK + sink, 1) for sink in self.sites.sinks if place(sink) == site}
        return Place(site, self.replicas(site), neighbours, sinks)

    def senders(self, name: str) -> tuple[str, ...]:
        """Who may send to a replica: its peers and all replicas of its neighbours."""
        at = self.place(name.partition("#")[0])
        groups = (at.replicas, *(at.neighbours[there] for there in sorted(at.neighbours)))
        return tuple(one for replicas in groups for one in replicas if one != name)


def everything(states: Sequence[Sites]) -> Sites:
    """The links, sources and sinks that there are at any time."""
    delays_us, sources, sinks = dict[Link, int](), dict[str, frozenset[str]](), dict[str, tuple[Pattern, ...]]()
    for sites in states:
        delays_us |= sites.delays_us
        for name, types in sites.sources.items():
            sources[name] = sources.get(name, frozenset()) | types
        for sink, wanted in sites.sinks.items():
            sinks[sink] = tuple(dict.fromkeys((*sinks.get(sink, ()), *wanted)))
    return Sites(delays_us, sources, sinks)


def checked(turns: Sequence[Turn], begins: Sites, hosted: Hosting) -> None:
    """Fails if changes cannot be hosted."""
    if turns and hosted.live:
        raise TocsinError("changes are at times of events that are drawn: live sources have no plan of what comes")
    if len(turns) > CHANGES_KEPT:
        raise TocsinError(f"there are {len(turns)} changes: sites that run for real take {CHANGES_KEPT} at most")
    left: set[str] = set()
    before = begins
    for turn in turns:
        left |= set(before.processors) - set(turn.sites.processors)
        if back := sorted(left & set(turn.sites.processors)):
            raise TocsinError(f"{back[0]} leaves and comes back: a site that has left for good cannot")
        before = turn.sites


def settings(rounds: int, beat_s: float, suspect_s: float) -> Settings:
    """Times and limits for sites that are processes. Channels lose nothing, so what is not acknowledged is sent again
    only after long."""
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
    """The section `hosting` of a plan in a folder."""
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
        raise TocsinError(f"suspect is at least {SILENT_BEATS} times beat, or leaders are suspected while they live")
    return Hosting(
        (folder / where).resolve(),
        _topics(data.get("channels", FOLDER)),
        _replicas(data.get("replicas", 1), sites),
        _number(data, "epoch", 5.0, 0.001),
        _number(data, "speed", 0.0),
        settings(_whole("rounds", data.get("rounds", 1)), beat_s, suspect_s),
        _live(data.get("live", {}), folder, sites),
    )


def _live(data: object, folder: Path, sites: Sites) -> dict[str, Live]:
    if not isinstance(data, Mapping):
        raise TocsinError("live names for each site with sources where they come from: a folder, or a Kafka topic")
    found = {}
    for site, given in data.items():
        if site not in sites.sources:
            raise TocsinError(f"live: there are no sources at {site}. {nearest(str(site), sites.sources)}")
        options = given if isinstance(given, Mapping) else {"from": given}
        for name in options:
            if name not in LIVE_KEYS:
                raise TocsinError(f"live: {site} has no '{name}'. {nearest(str(name), LIVE_KEYS)}")
        origin = options.get("from")
        if not isinstance(origin, str):
            raise TocsinError(f"live: {site} comes from a folder or from kafka://host:port/topic, not from {origin!r}")
        idle_us = round(_number(options, "idle", 0.0, 0.1) * SECOND_US) if "idle" in options else None
        found[str(site)] = Live(
            kafka.topic(origin) if "://" in origin else (folder / origin).resolve(),
            round(_number(options, "late", 0.0) * SECOND_US),
            idle_us,
            round(_number(options, "ahead", AHEAD_US / SECOND_US) * SECOND_US),
            None if options.get("id") is None else str(options["id"]),
        )
    if found and (left := sorted(sites.sources.keys() - found.keys())):
        raise TocsinError(f"live: where do the sources at {left[0]} come from? All are live, or none")
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
