"""How is it shown? Matches as a table on stdout; counts, rates and what was set aside in a few lines on stderr."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.text import Text

    from tocsin.cli.run import Outcome

WIDE = 160
REASONS = 3
EPOCH = datetime(1970, 1, 1)
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that change the direction of text, other line breaks, and halves of characters."""


def plain(text: object) -> str:
    r"""A value as text that does nothing to a terminal: control characters are escaped.

    Whatever comes from rules, events, files or options is shown through this.

    >>> print(plain("a\x1b[31mb\n"))
    a\x1b[31mb\n
    """
    return _UNSEEN.sub(_escaped, str(text))


def lines(text: object) -> str:
    """The same for a text of several lines."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t" else _escaped(found), str(text))


def as_json(data: object) -> str:
    """Data as JSON that does nothing to a terminal."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(data, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def say(text: object, err: bool = False) -> None:
    """Prints a text of one or several lines on stdout or stderr."""
    typer.echo(lines(text), err=err)


def summary(outcome: Outcome, matches: str | None, dead_letters: str | None) -> None:
    """What happened, in a few lines on stderr."""
    rules = f" ({', '.join(f'{plain(name)} {found:,}' for name, found in sorted(outcome.by_rule.items())[:8])})"
    where = f", in {matches}" if matches else ""
    found = count(outcome.counts["matches"], "match")
    say(f"{found}{rules if outcome.by_rule else ''}{where}", err=True)
    if outcome.examples:
        say("rejected, the first:", err=True)
        for example in outcome.examples:
            say(f"  {plain(example)}", err=True)
    events = outcome.counts["events"]
    parts = [f"{count(events, 'event')} in {outcome.seconds:.2f} s: {rate(events, outcome.seconds)}"]
    if outcome.span is not None:
        parts.append(f"from {moment(outcome.span[0])} to {moment(outcome.span[1])}")
    parts.append(rejected(outcome, dead_letters))
    say("; ".join(parts), err=True)


def rejected(outcome: Outcome, dead_letters: str | None) -> str:
    """How many rows were rejected, the most frequent reasons, and where the rows are."""
    if not outcome.dead:
        return "none rejected"
    reasons = [f"{plain(reason)} ({found:,})" for reason, found in outcome.reasons.most_common(REASONS)]
    if len(outcome.reasons) > REASONS:
        reasons.append("…")
    where = f"see {dead_letters}" if dead_letters else "--dead-letters PATH keeps them"
    return f"{outcome.dead:,} rejected: {', '.join(reasons)}; {where}"


def moment(ts: int) -> str:
    """A time (µs) as a person reads it.

    >>> moment(1_782_907_200_000_000), moment(1_782_907_200_500_000)
    ('2026-07-01T12:00:00Z', '2026-07-01T12:00:00.500000Z')
    """
    try:
        return f"{(EPOCH + timedelta(microseconds=ts)).isoformat()}Z"
    except OverflowError:
        return f"{ts} µs"


def show(table: pa.Table, total: int) -> None:
    """Matches as a table on stdout."""
    from rich.table import Column, Table

    from tocsin.events.files import records

    if not total:
        say("no matches")
        return
    here = sum(found_by_rule(table).values())
    title = count(total, "match") if total == here else f"the first {here:,} of {count(total, 'match')}"
    names = [name for name in table.column_names if name not in ("id", "parts")]
    columns = [Column(plain(name), overflow="fold") for name in (*names, "made of")]
    shown = Table(*columns, title=title, title_justify="left")
    for record in records(table):
        parts = ", ".join(f"{part['role']} {_clock(part['ts'])}" for part in record["parts"] or ())
        shown.add_row(*("" if record[name] is None else plain(record[name]) for name in names), plain(parts))
    console().print(shown)


def remark(text: str) -> None:
    """A word to whoever is waiting: to a person at a terminal, not to a script."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)  # and not by typer, which would write across a progress bar


def console(stderr: bool = False) -> Console:
    """A terminal for tables and progress, to which strings are text and never markup."""
    from rich.console import Console

    class Terminal(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(lines(text), **{**options, "markup": False, "emoji": False})

    stream = sys.stderr if stderr else sys.stdout
    return Terminal(file=stream, width=None if stream.isatty() else WIDE, soft_wrap=False)


def waiting(text: str) -> Text:
    """What a status line says: rich would take a string for markup."""
    from rich.text import Text

    return Text(plain(text))


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "match"), count(2000, "match"), count(2, "event")
    ('1 match', '2,000 matches', '2 events')
    """
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"


def rate(events: int, seconds: float) -> str:
    """Events for each second.

    >>> rate(3_000_000, 2), rate(10, 2)
    ('1.50 M events/s', '5 events/s')
    """
    rate = events / max(seconds, 1e-9)
    return f"{rate / 1e6:.2f} M events/s" if rate >= 1e5 else f"{rate:,.0f} events/s"


def found_by_rule(matches: pa.Table) -> dict[str, int]:
    """How many matches each rule has. Markers of ranges have none."""
    counted: Any = matches["rule"].drop_null().value_counts()
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def _clock(ts: str | int) -> str:
    """The time of day of an ISO time; a number as it is."""
    return ts[11:23] if isinstance(ts, str) else str(ts)
