"""Generate events of two scenarios. The same seed gives the same events.

`fire_events` generates the fire scenario of the T-Rex paper (Section 2). Sensors of many areas report the temperature
of the air (`Temp`), smoke and rain. Most temperatures are between 10 and 40 degrees. Sometimes a fire breaks out.
Within minutes, the temperatures of its area exceed 45, and smoke follows. After a while the fire burns out, sometimes
in the rain. There are also showers over other areas, and false alarms: smoke without a fire, or a sensor that reads too
high.

`stream_events` generates the streams of VISIRI's evaluation (Section 4.1 of its paper). There are 1,000 streams with
the attributes `attr1` to `attr5`, which the sample queries of the paper compare with numbers of two decimals between 0
and 100. Here, all values are equally likely.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.events.types import SECOND_US, EventType, Kind

Integers = npt.NDArray[np.integer[Any]]
Numbers = npt.NDArray[np.float64]

START_US = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()) * SECOND_US
"""The time at which the scenarios begin: noon UTC of a summer day."""

TYPES = ("Temp", "Smoke", "Rain")
TEMP, SMOKE, RAIN = range(3)

EVENTS_PER_FIRE = 80_000
EVENTS_PER_SHOWER = 2_500
FIRES_PER_WET_ONE = 3
BURNING_US = (300 * SECOND_US, 900 * SECOND_US)
RAINING_US = (120 * SECOND_US, 900 * SECOND_US)
FALSE_SMOKE = 0.002
FALSE_HEAT = 0.000_1
SMOKE_IN_FIRE = 0.12
RAIN_IN_SHOWER = 0.3


def fire_rules() -> str:
    """Return the rules R1 to R3 of the T-Rex paper, as text with comments."""
    return files("tocsin").joinpath("fire.tesla").read_text(encoding="utf-8")


def fire_events(events: int = 1_000_000, *, areas: int = 1_000, rate: float = 100.0, seed: int = 1) -> pa.Table:
    """Generate the fire scenario: `events` events in `areas` areas, at `rate` events per second on average.

    The times of the events are strictly increasing.

    >>> table = fire_events(3, seed=7)
    >>> table.schema.names, table.num_rows, table.equals(fire_events(3, seed=7))
    (['type', 'ts', 'area', 'value'], 3, True)
    """
    if events < 0 or areas < 1 or not rate > 0:
        raise ValueError("events must not be negative, areas must be at least 1 and rate more than 0")
    random = np.random.default_rng(seed)
    since_us = np.cumsum(np.maximum(1, random.exponential(SECOND_US / rate, events).astype(np.int64)))
    area = random.integers(0, areas, events, dtype=np.int32)
    chance = random.random(events, dtype=np.float32)

    kind = np.full(events, TEMP, np.int8)
    kind[chance < FALSE_SMOKE] = SMOKE
    value = _weather(random, area, since_us, areas)
    outliers = np.flatnonzero(chance > 1 - FALSE_HEAT)
    value[outliers] = random.uniform(45, 60, len(outliers))

    for rows, _, _ in _episodes(random, area, since_us, areas, EVENTS_PER_SHOWER, RAINING_US):
        kind[rows[chance[rows] < RAIN_IN_SHOWER]] = RAIN
    fires = _episodes(random, area, since_us, areas, EVENTS_PER_FIRE, BURNING_US)
    for number, (rows, age_s, length_s) in enumerate(fires, start=1):
        heat = 60 * (1 - np.exp(-age_s / 60)) * np.clip((length_s - age_s) / 90, 0, 1)
        value[rows] = value[rows] + heat + random.normal(0, 1.5, len(rows))
        kind[rows[(heat > 15) & (chance[rows] > 1 - SMOKE_IN_FIRE)]] = SMOKE
        if number % FIRES_PER_WET_ONE == 0:
            kind[rows[(age_s > length_s / 2) & (chance[rows] < RAIN_IN_SHOWER)]] = RAIN

    return _table(since_us + START_US, kind, area, areas, np.round(value, 1))


def _weather(random: np.random.Generator, area: Integers, since_us: Integers, areas: int) -> Numbers:
    """Generate temperatures between 10 and 40 degrees, as the sum of a level of the area, a daily wave and noise."""
    level = random.uniform(19, 27, areas)
    wave = 4 * np.sin(since_us * (2 * np.pi / (86_400 * SECOND_US)))
    degrees: Numbers = level[area] + wave + 2.5 * random.standard_normal(len(area), dtype=np.float32)
    return np.clip(degrees, 10, 40)


def _episodes(
    random: np.random.Generator,
    area: Integers,
    since_us: Integers,
    areas: int,
    events_per_episode: int,
    length_us_range: tuple[int, int],
) -> Iterator[tuple[Integers, Numbers, float]]:
    """Yield random periods of time in one area, such as fires or showers.

    Each period has the rows of its events, their times since its start, and its length; both are in seconds.
    """
    end_us = int(since_us[-1]) if len(since_us) else 0
    for _ in range(max(1, round(len(area) / events_per_episode))):
        where = random.integers(areas)
        length_us = int(random.integers(*length_us_range))
        start_us = random.integers(-length_us // 2, max(1, end_us - length_us // 2))
        first, last = np.searchsorted(since_us, (start_us, start_us + length_us))
        rows = first + np.flatnonzero(area[first:last] == where)
        yield rows, (since_us[rows] - start_us) / SECOND_US, length_us / SECOND_US


def _table(ts_us: Integers, kind: Integers, area: Integers, areas: int, value: Numbers) -> pa.Table:
    names = pa.array([f"A{number}" for number in range(1, areas + 1)])
    return pa.table(
        {
            "type": pa.array(TYPES).take(kind),
            "ts": pa.array(ts_us).cast(pa.timestamp("us", "UTC")),
            "area": names.take(area),
            "value": pa.array(value, mask=kind != TEMP),
        }
    )


ATTRIBUTES = ("attr1", "attr2", "attr3", "attr4", "attr5")
STREAMS = 1_000
VALUE_MAX = 100


def stream_types(streams: int = STREAMS) -> tuple[EventType, ...]:
    """Return the event types `stream1`, `stream2`, … of the VISIRI scenario.

    >>> str(stream_types(3)[2])
    'stream3(attr1: double, attr2: double, attr3: double, attr4: double, attr5: double)'
    """
    attributes = tuple((name, Kind.DOUBLE) for name in ATTRIBUTES)
    return tuple(EventType(f"stream{number}", attributes) for number in range(1, streams + 1))


def stream_shares(streams: int = STREAMS, *, spread: float = 1.0, seed: int = 1) -> Numbers:
    """Return the fraction of all events that belongs to each stream.

    The fractions are log-uniform random numbers, and the largest is at most `spread` times the smallest.
    """
    if streams < 1 or not spread >= 1:
        raise ValueError("streams and spread must be at least 1")
    rates = np.exp(np.random.default_rng(seed).random(streams) * np.log(spread))
    shares: Numbers = rates / rates.sum()
    return shares


def stream_events(
    events: int = 1_000_000, *, streams: int = STREAMS, spread: float = 1.0, rate: float = 1_000.0, seed: int = 1
) -> pa.Table:
    """Generate the VISIRI scenario: `events` events in `streams` streams, at `rate` events per second on average.

    The times of the events are strictly increasing.

    >>> table = stream_events(3, seed=7)
    >>> table.schema.names[:3], table.num_rows, table.equals(stream_events(3, seed=7))
    (['type', 'ts', 'attr1'], 3, True)
    """
    if events < 0 or not rate > 0:
        raise ValueError("events must not be negative, and rate must be more than 0")
    random = np.random.default_rng([seed, 1])
    stream = random.choice(streams, events, p=stream_shares(streams, spread=spread, seed=seed))
    since_us = np.cumsum(np.maximum(1, random.exponential(SECOND_US / rate, events).astype(np.int64)))
    values = random.integers(0, VALUE_MAX * 100 + 1, (len(ATTRIBUTES), events)) / 100
    names = pa.array([stream.name for stream in stream_types(streams)])
    return pa.table(
        {
            "type": names.take(pa.array(stream)),
            "ts": pa.array(since_us + START_US).cast(pa.timestamp("us", "UTC")),
            **dict(zip(ATTRIBUTES, map(pa.array, values), strict=True)),
        }
    )
