"""What might a thousand streams carry? Made-up events of numbered streams that a seed makes again.

VISIRI's evaluation (Section 4.1 of its paper) has 1,000 streams, with attributes `attr1` to `attr5` that its sample
queries compare with numbers of two decimals between 0 and 100. All values are equally likely here.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tocsin.events.scenarios import START_US, Numbers
from tocsin.events.types import SECOND_US, EventType, Kind

ATTRIBUTES = ("attr1", "attr2", "attr3", "attr4", "attr5")
STREAMS = 1_000
VALUE_MAX = 100


def stream_types(streams: int = STREAMS) -> tuple[EventType, ...]:
    """The definitions of `stream1`, `stream2`, ….

    >>> str(stream_types(3)[2])
    'stream3(attr1: double, attr2: double, attr3: double, attr4: double, attr5: double)'
    """
    attributes = tuple((name, Kind.DOUBLE) for name in ATTRIBUTES)
    return tuple(EventType(f"stream{number}", attributes) for number in range(1, streams + 1))


def stream_shares(streams: int = STREAMS, *, spread: float = 1.0, seed: int = 1) -> Numbers:
    """The share of events that each stream has: log-uniform, the largest up to `spread` times the smallest."""
    if streams < 1 or not spread >= 1:
        raise ValueError("streams and spread must be at least 1")
    rates = np.exp(np.random.default_rng(seed).random(streams) * np.log(spread))
    shares: Numbers = rates / rates.sum()
    return shares


def stream_events(
    events: int = 1_000_000, *, streams: int = STREAMS, spread: float = 1.0, rate: float = 1_000.0, seed: int = 1
) -> pa.Table:
    """So many events of these streams, `rate` of them a second, in time order at strictly increasing times.

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
