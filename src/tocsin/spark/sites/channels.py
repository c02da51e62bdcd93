"""How does what a site says get to another? Parcels in a folder, one channel for each direction between two replicas.

    channels/RECEIVER/SENDER/LIFE.STEP        all that the sender had to say in one step

The name is the parcel's place in the channel: it grows, as a step is one of a life of the sender, and lives are
numbered. A parcel is renamed into place, so that nobody sees half of it; one that is delivered again has the same name,
or a name that the receiver has passed. The receiver removes what it has committed. A channel in which too much waits
takes no more: what is sent then is lost, as on a link that is cut, and is sent again by the protocol.

A channel with a file `held` in it cannot be read, as if the link were cut while what is sent is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tocsin.overlay.codec import decode

Place = str
"""Of a parcel in its channel; '' is before all."""
Heads = Mapping[str, Place]
"""By sender the last parcel there is."""
HELD = "held"
LOOK_S_MIN = 0.004
LOOK_S_MAX = 0.04
LOOKS = 100
"""How long it is until the next look where there was nothing, and how often that was before it takes longer."""
WAITING_MAX = 2_000
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""Parcels that may wait in a channel."""
OPERATOR = "operator"
"""Who runs the sites may say something too. What he said stays: a site that starts hears it again."""


@dataclass(frozen=True)
class Parcel:
    """What one replica says to another in a step."""

    sender: str
    receiver: str
    place: Place
    data: bytes


def placed(life: int, step: int) -> Place:
    """The place of a step's parcels."""
    return f"{life:016}.{step:012}"


def packed(messages: Iterable[bytes]) -> bytes:
    """Encoded messages as one."""
    pieces: list[bytes] = []
    for message in messages:
        pieces += [len(message).to_bytes(8, "little"), message]
    return b"".join(pieces)


def unpacked(data: bytes) -> Iterator[Any]:
    """The messages of a parcel, in order."""
    at = 0
    while at < len(data):
        length = int(np.frombuffer(data[at : at + 8], "<i8")[0])
        yield decode(data[at + 8 : at + 8 + length])
        at += 8 + length


class Channels(Protocol):
    """What carries parcels."""

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Delivers parcels; those that were delivered before change nothing."""

    def read(self, name: str, after: Heads) -> list[Parcel]:
        """What there is for a replica after some parcels, in order: by sender, and as it was sent. Waits a moment if
        there is nothing."""

    def prune(self, name: str, upto: Heads) -> None:
        """A replica will not ask again for parcels up to here."""

    def known(self, name: str) -> bool:
        """Whether a replica has sent something before."""


class Folders:
    """Channels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked = 0

    def post(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            channel = self.folder / parcel.receiver / parcel.sender
            channel.mkdir(parents=True, exist_ok=True)
            with os.scandir(channel) as waiting:
                sizes = [entry.stat().st_size for entry in waiting]
            if len(sizes) < WAITING_MAX and sum(sizes) + len(parcel.data) <= WAITING_BYTES_MAX:
                written(channel / parcel.place, parcel.data)

    def read(self, name: str, after: Heads) -> list[Parcel]:
        found = []
        for sender in self._senders(name):
            last = after.get(sender, "")
            new = [place for place in self._places(name, sender) if place > last]
            found += [Parcel(sender, name, at, (self.folder / name / sender / at).read_bytes()) for at in new]
        if found:
            self._looked = 0
        else:
            self._looked += 1
            time.sleep(LOOK_S_MIN if self._looked < LOOKS else LOOK_S_MAX)
        return found

    def prune(self, name: str, upto: Heads) -> None:
        for sender, last in upto.items():
            for place in () if sender == OPERATOR else self._places(name, sender, held=True):
                if place <= last:
                    (self.folder / name / sender / place).unlink(missing_ok=True)

    def known(self, name: str) -> bool:
        return any((receiver / name).is_dir() for receiver in self.folder.glob("*"))

    def hold(self, sender: str, receiver: str, *, held: bool) -> None:
        """Makes a channel unreadable, or readable again."""
        channel = self.folder / receiver / sender
        channel.mkdir(parents=True, exist_ok=True)
        if held:
            (channel / HELD).touch()
        else:
            (channel / HELD).unlink(missing_ok=True)

    def waiting(self, receiver: str) -> dict[str, int]:
        """How many parcels of each sender wait for a replica."""
        found = {sender: len(self._places(receiver, sender, held=True)) for sender in self._senders(receiver)}
        found.pop(OPERATOR, None)
        return found

    def _senders(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / name))
        except FileNotFoundError:
            return []

    def _places(self, name: str, sender: str, *, held: bool = False) -> list[Place]:
        """The parcels of a channel, in order; none if it is held, unless that does not matter."""
        names = os.listdir(self.folder / name / sender) if (self.folder / name / sender).is_dir() else []
        if HELD in names and not held:
            return []
        return sorted(place for place in names if place[0] != "." and place != HELD)


def written(path: Path, data: bytes, *, once: bool = False) -> None:
    """Puts a file into place so that it is whole or not there, also after the machine fails. `once`: unless it is."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if not once:
        fresh.replace(path)
        return
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
