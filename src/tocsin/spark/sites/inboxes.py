"""Which parcels wait for a replica, in the folders of its channels?

Names only, so that the source of ticks can look too: Spark runs it in a process of its own, to which this module is
sent as it stands, so it needs nothing but Python.
"""

from __future__ import annotations

import os

HELD = "held"


def senders(inbox: str) -> list[str]:
    """Who has a channel to this replica."""
    try:
        return sorted(os.listdir(inbox))
    except FileNotFoundError:
        return []


def places(inbox: str, sender: str, *, held: bool = False) -> list[str]:
    """The parcels of a channel, in order; none if it is held, unless that does not matter."""
    try:
        names = os.listdir(os.path.join(inbox, sender))
    except FileNotFoundError:
        return []
    if HELD in names and not held:
        return []
    return sorted(name for name in names if name[0] != "." and name != HELD)


def heads(inbox: str) -> dict[str, str]:
    """By sender the last parcel, of channels that can be read."""
    return {sender: found[-1] for sender in senders(inbox) if (found := places(inbox, sender))}
