"""How is a processor's state written down without writing all of it each time? As a base, and what came in since.

    pieces/B.base       the whole state
    pieces/B.rounds     the inputs of each round since, one behind the other

A machine is deterministic, as replicas need it to be: base and inputs give the state again. A new base is written when
the inputs since the last have become larger than it, so that all in all little more is written than twice what came in,
however large windows are, and a start repeats no more than that.

A step refers to a base and to so many bytes of inputs. What lies behind them belongs to a step that was not committed;
it is written over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin.errors import StateError
from tocsin.overlay.codec import encode
from tocsin.overlay.processor import Processor
from tocsin.overlay.replicas.machines import Inputs, Outputs, Own, stepped
from tocsin.spark.sites.channels import packed, unpacked, written

REFERENCE = b"pieces:"
SMALL_BYTES = 64 * 1024
"""Inputs that are not worth a new base."""


class Pieces(Own):
    """A processor whose state is written into a folder, piece by piece."""

    def __init__(self, begin: Callable[[], Processor], folder: Path) -> None:
        super().__init__(begin)
        self.folder = folder
        self.written_bytes = 0
        """By this process."""
        self._base = -1
        """The last one's number; none if what came in does not follow from it."""
        self._follows = False
        self._base_bytes = self._rounds_bytes = 0
        self._new: list[bytes] = []
        """Inputs that are not written down yet."""
        self._referring = False

    def step(self, inputs: Inputs) -> Outputs:
        self._new.append(encode(tuple(inputs)))
        return super().step(inputs)

    def snapshot(self) -> bytes:
        return self._saved() if self._referring else super().snapshot()

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Within, a snapshot is written into the folder, and what one gets refers to it."""
        self._referring = True
        try:
            yield
        finally:
            self._referring = False

    def load(self, data: bytes) -> None:
        self._new, self._follows = [], False
        if not data.startswith(REFERENCE):
            super().load(data)
            return
        told = json.loads(data.removeprefix(REFERENCE))
        self._base, self._rounds_bytes = told["base"], told["bytes"]
        try:
            base, rounds = self._path("base").read_bytes(), self._path("rounds").read_bytes()[: self._rounds_bytes]
        except FileNotFoundError as error:
            raise StateError(f"{error.filename} is missing, without which the last step cannot be read") from None
        super().load(base)
        for inputs in unpacked(rounds):
            stepped(self.processor, inputs)
        self._base_bytes, self._follows = len(base), True

    def clean(self) -> None:
        """A step that refers to the last base is committed: nobody needs those before."""
        for name in os.listdir(self.folder):
            if not name.startswith(f"{self._base:012}."):
                (self.folder / name).unlink()

    def _saved(self) -> bytes:
        size = sum(len(data) + 8 for data in self._new)
        if not self._follows or self._rounds_bytes + size > max(self._base_bytes, SMALL_BYTES):
            self._begin()
        elif size:
            self._append(packed(self._new))
        self._new = []
        return REFERENCE + json.dumps({"base": self._base, "bytes": self._rounds_bytes}).encode()

    def _begin(self) -> None:
        """Writes a new base."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = super().snapshot()
        self._base += 1
        written(self._path("base"), data)
        written(self._path("rounds"), b"")
        self.written_bytes += len(data)
        self._base_bytes, self._rounds_bytes, self._follows = len(data), 0, True

    def _append(self, data: bytes) -> None:
        with self._path("rounds").open("r+b") as file:
            file.seek(self._rounds_bytes)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._rounds_bytes += len(data)
        self.written_bytes += len(data)

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self._base:012}.{kind}"
