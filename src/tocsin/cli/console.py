"""Print the output of commands on a terminal.

Matches are printed as a table on stdout. Counts, rates and rejected events are printed on stderr. All text from rules,
events and files has its control characters escaped.
"""

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

    from tocsin.cli.run import RunReport

WIDE = 160
REASONS = 3
EPOCH = datetime(1970, 1, 1)
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""The characters to escape: control characters, bidirectional controls, unusual line breaks, and lone surrogates."""


def plain(text: object) -> str:
    r"""Return a value as text with control characters escaped.

    Output that comes from rules, events, files or options must go through this function or `lines`.

    >>> print(plain("a\x1b[31mb\n"))
    a\x1b[31mb\n
    """
    return _UNSEEN.sub(_escaped, str(text))


def lines(text: object) -> str:
    """Return a value as text with control characters escaped, except line breaks and tabs."""
    return _UNSEEN.sub(lambda match: match[0] if match[0] in "\n\t" else _escaped(match), str(text))


def as_json(data: object) -> str:
    """Return data as JSON with control characters escaped."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(data, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def say(text: object, err: bool = False) -> None:
    """Print a text of one or several lines on stdout or, if `err` is true, on stderr."""
    typer.echo(lines(text), err=err)


def summary(report: RunReport, matches: str | None, dead_letters: str | None) -> None:
    """Print a summary of a run on stderr."""
    rules = f" ({', '.join(f'{plain(name)} {number:,}' for name, number in sorted(report.by_rule.items())[:8])})"
    where = f", in {matches}" if matches else ""
    matched = count(report.counts["matches"], "match")
    say(f"{matched}{rules if report.by_rule else ''}{where}", err=True)
    if report.examples:
        say("first rejected events:", err=True)
        for example in report.examples:
            say(f"  {plain(example)}", err=True)
    events = report.counts["events"]
    parts = [f"{count(events, 'event')} in {report.seconds:.2f} s: {rate(events, report.seconds)}"]
    if report.span is not None:
        parts.append(f"from {moment(report.span[0])} to {moment(report.span[1])}")
    parts.append(rejected(report, dead_letters))
    say("; ".join(parts), err=True)


def rejected(report: RunReport, dead_letters: str | None) -> str:
    """Return a text that says how many events were rejected, why, and where the rejected events are."""
    if not report.dead:
        return "none rejected"
    reasons = [f"{plain(reason)} ({number:,})" for reason, number in report.reasons.most_common(REASONS)]
    if len(report.reasons) > REASONS:
        reasons.append("…")
    where = f"see {dead_letters}" if dead_letters else "write them with --dead-letters PATH"
    return f"{report.dead:,} rejected: {', '.join(reasons)}; {where}"


def moment(ts: int) -> str:
    """Return a time (µs) in ISO 8601.

    >>> moment(1_782_907_200_000_000), moment(1_782_907_200_500_000)
    ('2026-07-01T12:00:00Z', '2026-07-01T12:00:00.500000Z')
    """
    try:
        return f"{(EPOCH + timedelta(microseconds=ts)).isoformat()}Z"
    except OverflowError:
        return f"{ts} µs"


def show(table: pa.Table, total: int) -> None:
    """Print the matches in `table` on stdout. `total` is the number of matches of the whole run."""
    from rich.table import Column, Table

    from tocsin.events.files import records

    if not total:
        say("no matches")
        return
    shown_count = sum(matches_by_rule(table).values())
    title = count(total, "match") if total == shown_count else f"first {shown_count:,} of {count(total, 'match')}"
    names = [name for name in table.column_names if name not in ("id", "parts")]
    columns = [Column(plain(name), overflow="fold") for name in (*names, "events")]
    shown = Table(*columns, title=title, title_justify="left")
    for record in records(table):
        parts = ", ".join(f"{part['role']} {_clock(part['ts'])}" for part in record["parts"] or ())
        shown.add_row(*("" if record[name] is None else plain(record[name]) for name in names), plain(parts))
    console().print(shown)


def notice(text: str) -> None:
    """Print a notice if stderr is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)  # typer would write across a progress bar


def console(stderr: bool = False) -> Console:
    """Return a rich console for tables and progress. It never interprets strings as markup."""
    from rich.console import Console

    class Terminal(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(lines(text), **{**options, "markup": False, "emoji": False})

    stream = sys.stderr if stderr else sys.stdout
    return Terminal(file=stream, width=None if stream.isatty() else WIDE, soft_wrap=False)


def status_text(text: str) -> Text:
    """Convert `text` for a status line of rich, which would interpret a plain string as markup."""
    from rich.text import Text

    return Text(plain(text))


def count(number: int, noun: str) -> str:
    """Return `number` followed by `noun`, in the plural if necessary.

    >>> count(1, "match"), count(2000, "match"), count(2, "event")
    ('1 match', '2,000 matches', '2 events')
    """
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"


def rate(events: int, seconds: float) -> str:
    """Return the number of events per second as text.

    >>> rate(3_000_000, 2), rate(10, 2)
    ('1.50 M events/s', '5 events/s')
    """
    rate = events / max(seconds, 1e-9)
    return f"{rate / 1e6:.2f} M events/s" if rate >= 1e5 else f"{rate:,.0f} events/s"


def matches_by_rule(matches: pa.Table) -> dict[str, int]:
    """Count the matches of each rule.

    Rows without a rule are markers, which begin a range of a moving query, and are not counted.
    """
    counted: Any = matches["rule"].drop_null().value_counts()
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def _clock(ts: str | int) -> str:
    """Return the time of day of a time in ISO 8601. Return a number as text."""
    return ts[11:23] if isinstance(ts, str) else str(ts)
