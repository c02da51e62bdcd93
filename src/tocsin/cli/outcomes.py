"""What has a run found? The same for every engine, and as JSON for scripts; and how the engine in this process runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tocsin.cli import showing
from tocsin.cli.showing import console, found_by_rule, rate
from tocsin.errors import TocsinError

if TYPE_CHECKING:
    import pyarrow as pa

    from tocsin.engine.detector import Detector
    from tocsin.engine.moving.detector import MovingDetector
    from tocsin.events.files import EventFiles, TableWriter
    from tocsin.events.lines import BadLine

EXAMPLES = 3
CHUNK_ROWS = 100_000
"""No more than a detector keeps dead letters, so that none is lost if all events are bad."""


@dataclass
class Outcome:
    """Counts, the first matches, and examples of what was set aside."""

    counts: dict[str, int]
    by_rule: Counter[str]
    shown: pa.Table | None
    dead: int
    examples: list[str]
    seconds: float
    reasons: Counter[str] = field(default_factory=Counter)
    """How many dead letters there are for each reason."""
    span: tuple[int, int] | None = None
    """The first and the last time of the events (µs)."""


def as_json(outcome: Outcome, matches: str | None, dead_letters: str | None) -> dict[str, Any]:
    """The outcome for scripts."""
    from tocsin.events.files import records

    return {
        "counts": outcome.counts,
        "by_rule": dict(outcome.by_rule),
        "seconds": round(outcome.seconds, 6),
        "events_per_second": round(outcome.counts["events"] / max(outcome.seconds, 1e-9)),
        "matches": matches or (records(outcome.shown) if outcome.shown is not None else None),
        "dead_letters": dead_letters or outcome.examples,
        "reasons": dict(outcome.reasons.most_common()),
        "span": outcome.span and [showing.moment(ts) for ts in outcome.span],
    }


def embedded(
    detector: Detector | MovingDetector,
    source: EventFiles,
    matches: Path | None,
    dead_letters: Path | None,
    *,
    limit: int,
    ts_unit: str | None,
    locations: EventFiles | None = None,
) -> Outcome:
    """Runs in this process, and writes or keeps what comes out."""
    from tocsin.engine.moving.detector import MovingDetector
    from tocsin.events.files import TableWriter

    for path in (matches, dead_letters):
        if path is not None and path.resolve() in {file.resolve() for file in source.paths}:
            raise TocsinError(f"{path} is one of the files of events; write somewhere else")
    with ExitStack() as stack:
        taking = Taking(
            limit,
            stack.enter_context(TableWriter(matches)) if matches else None,
            stack.enter_context(TableWriter(dead_letters)) if dead_letters else None,
        )
        if locations is not None:
            assert isinstance(detector, MovingDetector)
            for chunk in locations.chunks(CHUNK_ROWS):
                taking.take(detector.locate(chunk.table))
                taking.set_aside(detector.dead_letters(), chunk.bad)
        seconds = _drive(detector, source, taking, ts_unit)
    counts = {**detector.counts, "bad_lines": taking.bad_lines}
    return Outcome(
        counts, taking.by_rule, taking.shown(), taking.dead, taking.examples, seconds, taking.reasons, taking.span
    )


@dataclass
class Taking:
    """What a run in this process has found so far."""

    limit: int
    matches_to: TableWriter | None
    dead_to: TableWriter | None
    matches: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    bad_lines: int = 0
    dead: int = 0
    examples: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    span: tuple[int, int] | None = None
    kept: list[pa.Table] = field(default_factory=list)

    def take(self, table: pa.Table) -> None:
        """Takes matches as they become certain."""
        if not self.kept or (table.num_rows and self.matches < self.limit):
            self.kept.append(table.slice(0, max(0, self.limit - self.matches)))
        found = found_by_rule(table)
        self.matches += sum(found.values())
        self.by_rule.update(found)
        if self.matches_to:
            self.matches_to.write(table)

    def set_aside(self, letters: pa.Table, bad: list[BadLine]) -> None:
        """Takes late and bad events, and lines that are no events."""
        import pyarrow as pa

        from tocsin.events.letters import count_reasons

        if bad:
            rows = [(f"{line.path}, line {line.line}: {line.reason}", None, None, line.text) for line in bad]
            columns = [pa.array(column, letters.schema.types[at]) for at, column in enumerate(zip(*rows, strict=True))]
            letters = pa.concat_tables([pa.table(columns, schema=letters.schema), letters])
        self.bad_lines += len(bad)
        self.dead += letters.num_rows
        self.reasons.update(count_reasons(letters))
        for row in letters.slice(0, EXAMPLES - len(self.examples)).to_pylist():
            self.examples.append(f"{row['reason']}: {row['event'][:120]}")
        if self.dead_to:
            self.dead_to.write(letters)

    def at(self, ts: Any) -> None:
        """Takes the times of events (µs)."""
        if len(ts):
            first, last = int(ts.min()), int(ts.max())
            self.span = (first, last) if self.span is None else (min(self.span[0], first), max(self.span[1], last))

    def shown(self) -> pa.Table:
        """The first matches."""
        import pyarrow as pa

        return pa.concat_tables(self.kept)


def _drive(detector: Detector | MovingDetector, source: EventFiles, taking: Taking, ts_unit: str | None) -> float:
    """Sends all events through the detector, with a progress bar on a terminal. Returns the seconds it took."""
    from tocsin.events.batches import times_us

    start = perf_counter()
    with _progress(source.bytes_total) as advance:
        for chunk in source.chunks(CHUNK_ROWS):
            taking.at(times_us(chunk.table[source.names["ts"]], ts_unit))
            taking.take(detector.push(chunk.table))
            taking.set_aside(detector.dead_letters(), chunk.bad)
            advance(chunk.bytes_read, detector.counts["events"], taking.matches)
        taking.take(detector.finish())
        taking.set_aside(detector.dead_letters(), [])
    return perf_counter() - start


@contextmanager
def _progress(bytes_total: int) -> Iterator[Any]:
    """A function to call with the bytes read, events and matches so far."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    stderr = console(stderr=True)
    what = TextColumn("{task.fields[events]:,} events  {task.fields[rate]}  {task.fields[matches]:,} matches")
    bar = Progress(
        BarColumn(), TaskProgressColumn(), what, console=stderr, transient=True, disable=not stderr.is_terminal
    )
    start = perf_counter()
    with bar:
        task = bar.add_task("", total=max(1, bytes_total), events=0, rate="", matches=0)

        def advance(bytes_read: int, events: int, matches: int) -> None:
            so_far = rate(events, perf_counter() - start)
            bar.update(task, completed=bytes_read, events=events, rate=so_far, matches=matches)

        yield advance
