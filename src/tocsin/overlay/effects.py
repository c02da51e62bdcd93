"""Count the messages that processors send, as the T-Rex paper counts them.

An event that is sent once over a link is one message, even if it is sent for several trees. Composite events, requests
of slave events (Awaken) and their answers count, too. Progress, Done and the messages that set up trees and rules are
counted by kind, but are no traffic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tocsin.overlay import messages as m
from tocsin.overlay.codec import kind_of
from tocsin.overlay.messages import Rows
from tocsin.overlay.strategies import Link
from tocsin.overlay.tree_parts import Array

COUNTED = ("Events", "Matches", "Answer", "Awaken", "Survey", "Shares")
"""The kinds of messages that count as traffic."""
AWAKEN_BYTES = 48
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The factor that spreads times over all 64 bits, so that they can be combined with the hashes of ids."""


@dataclass
class Meter:
    """Count messages by kind and by link while `on` is true."""

    on: bool = False
    messages: Counter[str] = field(default_factory=Counter)
    """The count of each kind: rows or requests for the kinds that are traffic, messages for all other kinds."""
    links: Counter[Link] = field(default_factory=Counter)
    bytes: int = 0
    _pushed: dict[Link, list[tuple[Rows, Array]]] = field(default_factory=dict)

    def watch(self, sender: str, receiver: str, message: m.Message) -> None:
        if not self.on:
            return
        kind = kind_of(message)
        if isinstance(message, m.Events):
            self._pushed.setdefault((sender, receiver), []).append((message.batch, message.at))
            return
        if isinstance(message, m.Matches | m.Answer):
            count, size = message.batch.num_rows, message.batch.nbytes
        elif isinstance(message, m.Awaken):
            count, size = len(message.requests), len(message.requests) * AWAKEN_BYTES
        elif isinstance(message, m.AggregateQuery | m.AggregatePartials):
            count = len(message.at)
            size = count * AWAKEN_BYTES
        else:
            self.messages[kind] += 1
            return
        self._add(kind, (sender, receiver), count, size)

    def count_pushed(self) -> None:
        """Count the pushed events seen so far; copies of an event for several trees at the same time count once."""
        for link, pieces in self._pushed.items():
            count = sum(rows.num_rows for rows, _ in pieces)
            if len(pieces) > 1:
                keys = np.concatenate([rows.identities[0] ^ (at.view(np.uint64) * GOLDEN) for rows, at in pieces])
                keys.sort()
                count = 1 + int(np.count_nonzero(keys[1:] != keys[:-1]))
            self._add("Events", link, count, count * max(rows.nbytes // max(1, rows.num_rows) for rows, _ in pieces))
        self._pushed = {}

    def _add(self, kind: str, link: Link, count: int, size: int) -> None:
        self.messages[kind] += count
        self.links[link] += count
        self.bytes += size

    @property
    def traffic(self) -> int:
        return sum(self.messages[kind] for kind in COUNTED)
