"""The cache folder of compiled kernels.

Numba recompiles a function if its own file changes, but not if the files of the functions that it calls change. The
folder is therefore named after a hash of all kernel sources, so that code compiled from other sources is never loaded.
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
    """Cache on disk, in the folder of the kernels, the functions that the body of the `with` statement declares."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


@contextmanager
def on_compile(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` when Numba first compiles a function in the body of the `with` statement.

    Compiling can take minutes.
    """

    class Once(event.Listener):  # type: ignore[misc]
        called = False

        def on_start(self, event: object) -> None:
            if not self.called:
                self.called = True
                callback()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Once()):
        yield


def _cache_folder() -> Path:
    """Return the first writable folder of three: in the package, in the user's cache folder, or a temporary folder."""
    here = Path(__file__).parent
    sources = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(here.rglob("*.py")))).hexdigest()[:16]
    parents = [
        here / "__pycache__",
        Path.home() / ".cache" / "tocsin",
        Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}",
    ]
    for parent in parents:
        folder = parent / f"kernels-{sources}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="tocsin-"))
