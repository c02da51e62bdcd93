"""How is something kept that must not be lost? Records in files that only grow, each with its length and checksum.

A log is a folder of segments, each named by the position of its first byte; positions go on from one to the next. A
record is a header (length, checksum, number of the record) and a payload. `append` returns when all is on the disk.
What a crash left half written can only be at the end: it is cut off when the log is opened, and put beside it. `trim`
deletes segments that nobody reads any more.

Where does detection go on after a restart? Snapshots in a folder, each named by its position in the log.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tocsin.errors import StateError, TocsinError

KEPT = 2
"""The newest may turn out to be broken."""


class States:
    """The snapshots of a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def newest_first(self) -> Iterator[tuple[int, Path]]:
        """Position and file of each snapshot."""
        for path in sorted(self.folder.glob("*.state"), reverse=True):
            yield int(path.stem), path

    def save(self, position: int, data: bytes) -> int:
        """Writes a snapshot, whole or not at all, and deletes old ones. Returns the position of the oldest left."""
        replace_file(self.folder / f"{position:020}.state", data)
        positions = list(self.newest_first())
        for _, path in positions[KEPT:]:
            path.unlink()
        return positions[:KEPT][-1][0]


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file to the disk, whole or not at all."""
    fresh = path.with_name(f".{path.name}.part")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


journal = logging.getLogger("tocsin.service")

HEADER = struct.Struct("<IIQ")
SEGMENT_BYTES = 64 << 20
RECORD_BYTES_MAX = 1 << 30
READ_BYTES = 4 << 20


class Record(NamedTuple):
    """What was appended, where it starts and where the next one does, and its number from 0."""

    position: int
    end: int
    number: int
    payload: memoryview


class Log:
    """Records in a folder. `append` and `trim` are called by one thread at a time, `read` by any."""

    def __init__(self, folder: str | Path, *, segment_bytes: int = SEGMENT_BYTES, begin: int = 0) -> None:
        """`begin`: the position and number that a new log starts at."""
        self.folder = Path(folder)
        self.segment_bytes = segment_bytes
        self._changing = threading.Lock()
        self._failed: str | None = None
        self.end = begin
        """Where the next record will be."""
        self._number = begin
        self._file = self._locked = -1
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        starts = sorted(int(path.stem) for path in self.folder.glob("*.log"))
        if not starts:
            starts = [begin]
            self._path(begin).touch()
            _sync_folder(self.folder)
        self._starts = starts
        """Where each segment starts."""
        for start, next_start in pairwise(starts):
            if start + self._path(start).stat().st_size != next_start:
                raise StateError(f"the log {self.folder} has a gap behind {self._path(start).name}")
        self._recover()

    # ---- what is there

    @property
    def begin(self) -> int:
        """The position of the first record."""
        return self._starts[0]

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    def read(self, position: int, limit_bytes: int | None = None) -> Iterator[Record]:
        """The records from a position on, up to the end that there is now; or as many as fit, but at least one."""
        end = self.end
        if not self.begin <= position <= end:
            raise StateError(f"position {position} is not in the log {self.folder}: it has {self.begin} to {end}")
        stop = end if limit_bytes is None else min(end, position + limit_bytes)
        first = position
        while position < end and (position < stop or position == first):
            with self._changing:
                starts = list(self._starts)
            start = max(one for one in starts if one <= position)
            path = self._path(start)
            segment_end = next((one for one in starts if one > start), end)
            for record in _records(path, start, position, segment_end):
                if record is None or record.end > segment_end:
                    raise StateError(f"the log has a broken record at {position} in {path}")
                yield record
                position = record.end
                if position >= stop:
                    return

    def at(self, position: int) -> Record:
        """The record that starts at a position."""
        with self._changing:
            start = max((one for one in self._starts if one <= position), default=None)
        try:
            with self._path(-1 if start is None else start).open("rb") as file:
                file.seek(position - (start or 0))
                length, checksum, number = HEADER.unpack(file.read(HEADER.size))
                payload = memoryview(file.read(length))
        except (FileNotFoundError, struct.error):
            raise StateError(f"position {position} is not in the log {self.folder} any more") from None
        if len(payload) < length or _checksum(payload, number) != checksum:
            raise StateError(f"the log has a broken record at {position} in {self.folder}")
        return Record(position, position + HEADER.size + length, number, payload)

    # ---- what changes it

    def append(self, payloads: Iterable[bytes]) -> list[int]:
        """Writes records behind the last and waits until they are on the disk. Returns where each of them ends."""
        if self._failed is not None:
            raise StateError(self._failed)
        ends: list[int] = []
        pieces: list[bytes] = []
        end, number = self.end, self._number
        for payload in payloads:
            if len(payload) > RECORD_BYTES_MAX:
                raise TocsinError(f"a record has at most {RECORD_BYTES_MAX >> 20} MB")
            pieces += [_header(payload, number), payload]
            end += HEADER.size + len(payload)
            number += 1
            ends.append(end)
        if not pieces:
            return ends
        try:
            _write(self._file, pieces)
        except OSError as error:
            self._take_back(error)
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # What is on the disk cannot be known any more: a second fsync may say that all is well when it is not.
            self._failed = f"the log {self.folder} could not be brought to the disk: {error.strerror}"
            raise StateError(self._failed) from None
        self.end, self._number = end, number
        if end - self._starts[-1] >= self.segment_bytes:
            self._roll()
        return ends

    def trim(self, before: int) -> None:
        """Deletes segments of which every record is before a position."""
        with self._changing:
            while len(self._starts) > 1 and self._starts[1] <= before:
                self._path(self._starts.pop(0)).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._locked)

    # ---- within

    def _path(self, start: int) -> Path:
        return self.folder / f"{start:020}.log"

    def _lock(self) -> None:
        """Fails if another process has the log open."""
        import fcntl

        self._locked = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._locked)
            raise StateError(f"{self.folder} is in use by another process") from None

    def _recover(self) -> None:
        """Finds the end, and cuts off what was left half written."""
        start = self._starts[-1]
        path = self._path(start)
        size = path.stat().st_size
        self.end, self._number = start, self._first_number()
        for record in _records(path, start, start, start + size):
            if record is None or record.number != self._number:
                break
            self.end, self._number = record.end, record.number + 1
        self._file = os.open(path, os.O_RDWR)
        whole = self.end - start
        if whole < size:
            torn = path.with_name(f"{self.end:020}.torn")
            journal.warning("%s: %d bytes at the end are not whole, cut off into %s", path, size - whole, torn.name)
            with path.open("rb") as file:
                file.seek(whole)
                torn.write_bytes(file.read())
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        os.lseek(self._file, 0, os.SEEK_END)

    def _first_number(self) -> int:
        """The number of the first record of the last segment."""
        if len(self._starts) == 1:
            start = self._starts[0]
            size = self._path(start).stat().st_size
            first = next(_records(self._path(start), start, start, start + size), None)
            return first.number if first is not None else start
        before, start = self._starts[-2:]
        number = before
        for record in _records(self._path(before), before, before, start):
            if record is None:
                raise StateError(f"the log has a broken record in {self._path(before)}")
            number = record.number + 1
        return number

    def _take_back(self, error: OSError) -> None:
        """Cuts off what was written of records that did not fit."""
        message = f"the log {self.folder} cannot be written: {error.strerror}"
        try:
            os.ftruncate(self._file, self.end - self._starts[-1])
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._failed = message
        raise TocsinError(message) from None

    def _roll(self) -> None:
        file = os.open(self._path(self.end), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        _sync_folder(self.folder)
        os.close(self._file)
        self._file = file
        with self._changing:
            self._starts.append(self.end)


def records_between(folder: Path, start: int, end: int) -> Iterator[Record]:
    """The records of a range of a log that another process has open, and that is on the disk up to there."""
    starts = sorted(int(path.stem) for path in folder.glob("*.log"))
    for begin, after in zip(starts, [*starts[1:], end], strict=True):
        if after <= start or begin >= end:
            continue
        for record in _records(folder / f"{begin:020}.log", begin, max(begin, start), min(after, end)):
            if record is None:
                raise StateError(f"the log has a broken record between {start} and {end} in {folder}")
            yield record


def _header(payload: bytes | memoryview, number: int) -> bytes:
    return HEADER.pack(len(payload), _checksum(payload, number), number)


def _checksum(payload: bytes | memoryview, number: int) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<IQ", len(payload), number)))


def _records(path: Path, start: int, position: int, end: int) -> Iterator[Record | None]:
    """The records of a segment from a position up to an end; None for one that is not whole, which is the last."""
    with path.open("rb") as file:
        file.seek(position - start)
        data, at = b"", 0
        while position < end:
            if len(data) - at < HEADER.size:
                data, at = data[at:] + file.read(READ_BYTES), 0
            if len(data) - at < HEADER.size:
                yield None
                return
            length, checksum, number = HEADER.unpack_from(data, at)
            size = HEADER.size + length
            if length > RECORD_BYTES_MAX or position + size > end:
                yield None
                return
            if len(data) - at < size:
                data, at = data[at:] + file.read(max(READ_BYTES, size)), 0
            payload = memoryview(data)[at + HEADER.size : at + size]
            if len(payload) < length or _checksum(payload, number) != checksum:
                yield None
                return
            yield Record(position, position + size, number, payload)
            position, at = position + size, at + size


def _write(file: int, pieces: list[bytes]) -> None:
    data = memoryview(b"".join(pieces))
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
