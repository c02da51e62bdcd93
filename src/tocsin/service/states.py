"""Where does detection go on after a restart? Snapshots in a folder, each named by its position in the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
