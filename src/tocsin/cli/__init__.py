"""What does a shell see? The commands of `tocsin`: `commands`, `commands_sites`, `commands_service`.

Results go to stdout, all else to stderr. Exit codes: 0 fine, 1 a mistake in the rules or the events (one block of text
says where), 2 wrong usage, 130 stopped by Ctrl-C. Whatever is slow to import is imported when a command needs it.
"""

from __future__ import annotations

from tocsin.cli.commands import app, main

__all__ = ["app", "main"]
