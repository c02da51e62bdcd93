"""Where compiled kernels are kept. Numba looks only at the file of a function to see whether it changed, not at what
that calls, so the folder is named by the sources of all kernels: what was compiled from others is never used.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from numba import config
from numba.core import event


@contextmanager
def compiled_kernels() -> Iterator[None]:
    """Functions that are declared within are kept in the kernels' own folder."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


@contextmanager
def telling(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` when something has to be compiled within, the first time: that can take minutes."""

    class Once(event.Listener):  # type: ignore[misc]
        told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                self.told = True
                tell()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Once()):
        yield


def _folder() -> Path:
    here = Path(__file__).parent
    sources = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(here.rglob("*.py")))).hexdigest()[:16]
    places = [
        here / "__pycache__",
        Path.home() / ".cache" / "tocsin",
        Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}",
    ]
    for place in places:
        folder = place / f"kernels-{sources}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="tocsin-"))
