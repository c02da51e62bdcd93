"""How much is sent? Messages as the T-Rex paper counts them, whatever host carries them.

An event on a link is one message, whatever trees it is for, if it is sent at one time; composite events, awakenings and
answers count too. Progress, Done and what sets up trees and rules are counted apart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tocsin.overlay import messages as m
from tocsin.overlay.messages import Rows
from tocsin.overlay.strategies import Link
from tocsin.overlay.tree_parts import Array

COUNTED = ("Events", "Matches", "Answer", "Awaken", "Survey", "Shares")
"""What is traffic."""
AWAKEN_BYTES = 48
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads times over all bits of a word."""


@dataclass
class Meter:
    """Counts what is sent while it is on."""

    on: bool = False
    messages: Counter[str] = field(default_factory=Counter)
    """Rows or requests by kind, and messages of other kinds."""
    links: Counter[Link] = field(default_factory=Counter)
    bytes: int = 0
    _pushed: dict[Link, list[tuple[Rows, Array]]] = field(default_factory=dict)

    def watch(self, sender: str, receiver: str, message: m.Message) -> None:
        if not self.on:
            return
        kind = type(message).__name__
        if isinstance(message, m.Events):
            self._pushed.setdefault((sender, receiver), []).append((message.batch, message.at))
            return
        if isinstance(message, m.Matches | m.Answer):
            count, size = message.batch.num_rows, message.batch.nbytes
        elif isinstance(message, m.Awaken):
            count, size = len(message.requests), len(message.requests) * AWAKEN_BYTES
        elif isinstance(message, m.Survey | m.Shares):
            count = len(message.at)
            size = count * AWAKEN_BYTES
        else:
            self.messages[kind] += 1
            return
        self._add(kind, (sender, receiver), count, size)

    def settle(self) -> None:
        """Counts pushed events: copies for several trees that leave at one time are one message."""
        for link, pieces in self._pushed.items():
            count = sum(rows.num_rows for rows, _ in pieces)
            if len(pieces) > 1:
                keys = np.concatenate([rows.identities[0] ^ (at.view(np.uint64) * ODD) for rows, at in pieces])
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
