"""Store records in an append-only log that survives crashes, and snapshots of the state of detection.

A log is a folder of *segments*: files that are named by the position of their first byte. Positions are byte offsets
that continue from one segment to the next. A record is a header (length, checksum, number of the record) and a payload.

`append` returns when all records are on disk. A crash can leave an incomplete record only at the end of the log. When
the log is opened, this record is cut off and saved in a file of its own. `delete_before` deletes old segments.

A snapshot is a file that is named by a position in the log. After a restart, detection continues at this position.
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

SNAPSHOTS_RETAINED = 2
"""The number of snapshots that are kept: more than one, because the newest may be damaged."""


class SnapshotFolder:
    """The snapshots in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def newest_first(self) -> Iterator[tuple[int, Path]]:
        """Yield the position and the file of each snapshot, the newest first."""
        for path in sorted(self.folder.glob("*.state"), reverse=True):
            yield int(path.stem), path

    def save(self, position: int, data: bytes) -> int:
        """Write a snapshot atomically, and delete old snapshots. Return the position of the oldest remaining one."""
        replace_file(self.folder / f"{position:020}.state", data)
        positions = list(self.newest_first())
        for _, path in positions[SNAPSHOTS_RETAINED:]:
            path.unlink()
        return positions[:SNAPSHOTS_RETAINED][-1][0]


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of the file `path` by `data` atomically, and wait until it is on disk."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


log = logging.getLogger("tocsin.service")

HEADER = struct.Struct("<IIQ")
SEGMENT_BYTES = 64 << 20
RECORD_BYTES_MAX = 1 << 30
READ_BYTES = 4 << 20


class Record(NamedTuple):
    """A record of a log, with the positions of its start and of its end, its number from 0, and its payload."""

    position: int
    end: int
    number: int
    payload: memoryview


class Log:
    """A log of records in a folder.

    Any thread may call `read`, but only one thread at a time may call `append` or `delete_before`.
    """

    def __init__(self, folder: str | Path, *, segment_bytes: int = SEGMENT_BYTES, begin: int = 0) -> None:
        """Open the log in `folder`, or create it. A new log starts at position and number `begin`."""
        self.folder = Path(folder)
        self.segment_bytes = segment_bytes
        self._changing = threading.Lock()
        self._failed: str | None = None
        self.end = begin
        """The position at which the next record will start."""
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
        """The positions of the segments, in ascending order."""
        for start, next_start in pairwise(starts):
            if start + self._path(start).stat().st_size != next_start:
                raise StateError(f"the log {self.folder} has a gap after {self._path(start).name}")
        self._recover()

    # ---- reading

    @property
    def begin(self) -> int:
        """The position of the first record that the log still has."""
        return self._starts[0]

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    def read(self, position: int, limit_bytes: int | None = None) -> Iterator[Record]:
        """Yield the records from `position` to the current end of the log.

        If `limit_bytes` is given, stop after the record that reaches this number of bytes.
        """
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
        """Return the record that starts at `position`."""
        with self._changing:
            start = max((one for one in self._starts if one <= position), default=None)
        try:
            with self._path(-1 if start is None else start).open("rb") as file:
                file.seek(position - (start or 0))
                length, checksum, number = HEADER.unpack(file.read(HEADER.size))
                payload = memoryview(file.read(length))
        except (FileNotFoundError, struct.error):
            raise StateError(f"position {position} is no longer in the log {self.folder}") from None
        if len(payload) < length or _checksum(payload, number) != checksum:
            raise StateError(f"the log has a broken record at {position} in {self.folder}")
        return Record(position, position + HEADER.size + length, number, payload)

    # ---- writing

    def append(self, payloads: Iterable[bytes]) -> list[int]:
        """Append a record for each payload, and wait until they are on disk. Return the end position of each record."""
        if self._failed is not None:
            raise StateError(self._failed)
        ends: list[int] = []
        buffers: list[bytes] = []
        end, number = self.end, self._number
        for payload in payloads:
            if len(payload) > RECORD_BYTES_MAX:
                raise TocsinError(f"a record has at most {RECORD_BYTES_MAX >> 20} MB")
            buffers += [_header(payload, number), payload]
            end += HEADER.size + len(payload)
            number += 1
            ends.append(end)
        if not buffers:
            return ends
        try:
            _write(self._file, buffers)
        except OSError as error:
            self._undo_append(error)
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # The content of the disk is unknown now: a second fsync may succeed although data was lost.
            self._failed = f"the log {self.folder} could not be written to disk: {error.strerror}"
            raise StateError(self._failed) from None
        self.end, self._number = end, number
        if end - self._starts[-1] >= self.segment_bytes:
            self._roll()
        return ends

    def delete_before(self, before: int) -> None:
        """Delete the segments whose records all end at or before the position `before`."""
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
        """Lock the folder for this process. Raise if another process has opened the log."""
        import fcntl

        self._locked = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._locked)
            raise StateError(f"{self.folder} is in use by another process") from None

    def _recover(self) -> None:
        """Find the end of the last segment, and cut off an incomplete record there."""
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
            log.warning("%s: %d bytes at the end are incomplete, moved to %s", path, size - whole, torn.name)
            with path.open("rb") as file:
                file.seek(whole)
                torn.write_bytes(file.read())
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        os.lseek(self._file, 0, os.SEEK_END)

    def _first_number(self) -> int:
        """Return the number of the first record of the last segment."""
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

    def _undo_append(self, error: OSError) -> None:
        """Cut off records that were written only in part, and raise the error."""
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
    """Yield the records from position `start` to `end` of a log that another process has open.

    All records before `end` must be on disk.
    """
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
    """Yield the records between two positions of the segment that begins at `start`.

    For an incomplete or damaged record, yield None and stop.
    """
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


def _write(file: int, buffers: list[bytes]) -> None:
    data = memoryview(b"".join(buffers))
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
