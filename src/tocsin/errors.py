"""The errors of Tocsin, with messages that help to fix their cause.

Every error that a user's rule or event can cause is a `TocsinError`. A `TextError` has a position in the text of the
rules or events, and its message shows the line at this position with a caret.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a text, given by the character offsets of its `start` and its `end` (exclusive)."""

    start: int
    end: int


class TocsinError(Exception):
    """An error that the caller can fix."""


class StateError(TocsinError):
    """A snapshot cannot be restored, or a limit was exceeded."""


class TextError(TocsinError):
    """A text cannot be used. If the position of the mistake is known, it is the `span` of the text `source`."""

    def __init__(
        self, message: str, *, source: str | None = None, span: Span | None = None, hint: str | None = None
    ) -> None:
        self.message = message
        self.source = source
        self.span = span
        self.hint = hint
        super().__init__(message)

    @property
    def line(self) -> int | None:
        """The number of the line with the mistake, from 1."""
        if self.source is None or self.span is None:
            return None
        return self.source.count("\n", 0, self.span.start) + 1

    @property
    def column(self) -> int | None:
        """The number of the column where the mistake begins, from 1."""
        if self.source is None or self.span is None:
            return None
        return self.span.start - (self.source.rfind("\n", 0, self.span.start) + 1) + 1

    def within(self, source: str) -> Self:
        """Return a copy of this error whose position is in the text `source`."""
        return type(self)(self.message, source=source, span=self.span, hint=self.hint)

    def __str__(self) -> str:
        lines = [self.message]
        if self.source is not None and self.span is not None and self.line is not None and self.column is not None:
            lines[0] = f"line {self.line}, column {self.column}: {self.message}"
            text = self.source.split("\n")[self.line - 1]
            width = max(1, min(self.span.end, self.span.start + len(text) - self.column + 1) - self.span.start)
            before = "".join("\t" if character == "\t" else " " for character in text[: self.column - 1])
            lines += [f"  {text}", f"  {before}{'^' * width}"]
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class RuleError(TextError):
    """A rule cannot be parsed or deployed."""


class EventError(TextError):
    """Events cannot be read."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the name in `known` that is closest to `name`. If none is close, the hint lists `known`.

    >>> nearest("valeu", ["area", "value"])
    "Did you mean 'value'?"
    """
    names = sorted(known)
    folded = {candidate.lower(): candidate for candidate in reversed(names)}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{folded[close[0]]}'?"
    if names:
        return "Known here: " + ", ".join(names[:12]) + (", …" if len(names) > 12 else "") + "."
    return None
