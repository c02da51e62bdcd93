"""The `tocsin` command.

Results are printed on stdout, and everything else on stderr. The exit code is 0 for success, 1 for an error in rules or
events (which is printed with its position), 2 for wrong usage, and 130 after Ctrl-C. Slow imports happen only in the
commands that need them.
"""

from __future__ import annotations

from tocsin.cli.commands import app, main

__all__ = ["app", "main"]
