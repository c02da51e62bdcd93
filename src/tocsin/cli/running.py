"""How does `tocsin run` run? In this process, on Spark over what is there, or on Spark following what comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tocsin.cli import outcomes, showing
from tocsin.errors import RuleError, TocsinError

if TYPE_CHECKING:
    from tocsin.api import RuleSet
    from tocsin.cli.outcomes import Outcome
    from tocsin.engine.reasons import Reason
    from tocsin.events.batches import Columns
    from tocsin.events.types import Kind


ALL_US = 2**59
"""A delay within which all events are."""
LOCATIONS_OPTIONAL = ("type", "seq", "id")
"""Columns that location updates need not have."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the options of `tocsin run` say."""

    rules: Path
    events: str
    matches: str | None
    dead_letters: str | None
    names: dict[str, Any]
    """What the columns type, ts, seq and id are called."""
    ts_unit: str | None
    delay: str | None
    limit: int
    master: str
    slots: int | None
    checkpoint: str | None
    changes: str | None
    metrics: str | None
    as_json: bool
    strict: bool = False
    locations: str | None = None
    history: str | None = None

    @property
    def columns(self) -> Columns:
        from tocsin.events.batches import Columns

        return Columns(**self.names, ts_unit=self.ts_unit)

    def tell(self, outcome: Outcome) -> int:
        """Prints what was found, and returns the exit code: 1 if rows were rejected that must not be."""
        if self.as_json:
            showing.say(showing.as_json(outcomes.as_json(outcome, self.matches, self.dead_letters)))
        else:
            if self.matches is None and self.limit and outcome.shown is not None:
                showing.show(outcome.shown, outcome.counts["matches"])
            showing.summary(outcome, self.matches, self.dead_letters)
        return 1 if self.strict and outcome.dead else 0


def embedded(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run in this process. Returns the exit code."""
    from tocsin.engine.kernels.cache import telling

    with telling(lambda: showing.remark("compiling the engine: once, for a minute or two")):
        return _embedded(ruleset, wanted)


def _embedded(ruleset: RuleSet, wanted: Wanted) -> int:
    from tocsin.events.files import open_events

    for address in (wanted.events, wanted.locations, wanted.matches, wanted.dead_letters):
        if address is not None and "://" in address:
            raise TocsinError(f"{address} is for Spark: --engine embedded reads and writes files")
    source = open_events(wanted.events, declared=declared_kinds(ruleset), ts_unit=wanted.ts_unit, **wanted.names)
    with showing.console(stderr=True).status("looking at the columns and times of the events"):
        disorder_us = source.disorder_us(wanted.ts_unit)
    names: dict[str, Any] = {**wanted.names, "ts_unit": wanted.ts_unit}
    locations = None
    if ruleset.interests:
        # Ranges need location updates before the events in them, in whichever files these are: all are put in order.
        detector = ruleset.detector(delay=ALL_US, history=wanted.history or ALL_US, **names)
        if wanted.locations is not None:
            declared, optional = declared_kinds(ruleset), LOCATIONS_OPTIONAL
            locations = open_events(wanted.locations, declared=declared, optional=optional, **names)
    else:
        # Files are sorted: events wait for as long as the files are out of order, and none is late.
        detector = ruleset.detector(delay=disorder_us, **names)
    places = [Path(path) if path else None for path in (wanted.matches, wanted.dead_letters)]
    with named(wanted.rules):
        outcome = outcomes.embedded(
            detector, source, *places, limit=wanted.limit, ts_unit=wanted.ts_unit, locations=locations
        )
    return wanted.tell(outcome)


def reasons(
    ruleset: RuleSet,
    path: Path,
    events: str,
    id: str | None,
    at: int | None,
    rule: str | None,
    names: Mapping[str, Any],
    ts_unit: str | None,
) -> list[Reason]:
    """Why the match of an id was found, or what became of the rules at an event."""
    import pyarrow as pa

    from tocsin.events.files import open_events

    source = open_events(events, declared=declared_kinds(ruleset), ts_unit=ts_unit, **names)
    chunks = list(source.chunks())
    with named(path):
        evidence = ruleset.evidence(pa.concat_tables([chunk.table for chunk in chunks]), **names, ts_unit=ts_unit)
        if rejected := sum(len(chunk.bad) for chunk in chunks) + evidence.rejected.num_rows:
            told = f"{showing.count(rejected, 'row')} of {events} rejected: tocsin run says why, with --dead-letters"
            showing.say(told, err=True)
        if id is not None and evidence.has_match(id):
            return [evidence.why(id)]
        return evidence.why_not(id, at, rule)


def once(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run on Spark over what is there. Returns the exit code."""
    from tocsin.spark import errors, runs, sources
    from tocsin.spark.names import exact

    _check_places(wanted)
    with errors.plainly(), named(wanted.rules), showing.console(stderr=True).status("starting Spark") as status:
        session = runs.connect(wanted.master, wanted.slots, (wanted.events, wanted.locations, wanted.matches))
        with exact(session):
            status.update(showing.waiting(f"reading {wanted.events}"))
            source = sources.table(session, wanted.events, wanted.columns, ruleset.types)
            locations = None
            if wanted.locations is not None:
                types, optional = ruleset.types, LOCATIONS_OPTIONAL
                locations = sources.table(session, wanted.locations, wanted.columns, types, optional)
            found = runs.once(
                ruleset,
                source,
                wanted.columns,
                locations=locations,
                history=wanted.history,
                slots=wanted.slots,
                matches=wanted.matches,
                dead_letters=wanted.dead_letters,
                limit=wanted.limit,
            )
    return wanted.tell(
        outcomes.Outcome(
            found.counts, found.by_rule, found.shown, found.dead, found.examples, found.seconds, found.reasons,
            found.span,
        )
    )  # fmt: skip


def follow(ruleset: RuleSet, wanted: Wanted) -> int:
    """The run on Spark that goes on. Returns the exit code."""
    from tocsin.api import duration_us
    from tocsin.cli import following
    from tocsin.spark import errors, runs
    from tocsin.spark.names import exact

    _check_places(wanted)
    checkpoint = wanted.checkpoint or default_checkpoint(wanted.rules, wanted.matches)
    showing.say(f"checkpoint: {checkpoint}", err=True)
    what = runs.Follow(
        wanted.events,
        wanted.columns,
        checkpoint,
        delay_us=duration_us(wanted.delay or 0),
        slots=wanted.slots,
        matches=wanted.matches,
        dead_letters=wanted.dead_letters,
        changes=wanted.changes,
        locations=wanted.locations,
        history=wanted.history,
        printed=None if wanted.as_json else following.print_matches,
        said=lambda text: showing.say(text, err=True),
    )
    with errors.plainly(), named(wanted.rules):
        session = runs.connect(wanted.master, wanted.slots, (wanted.events, wanted.locations, wanted.matches))
        with exact(session):
            outcome, code = following.follow(runs.Followed(ruleset, session, what), wanted.metrics)
    return wanted.tell(outcome) or code


def default_checkpoint(rules: Path, matches: str | None) -> str:
    """Where a run that follows keeps its state if nobody says.

    >>> default_checkpoint(Path("rules/fire.tesla"), "fires/"), default_checkpoint(Path("rules/fire.tesla"), None)
    ('fires/.checkpoint', '.tocsin/fire')
    """
    if matches is None or "://" in matches:
        return f".tocsin/{rules.stem}"
    return f"{matches.rstrip('/')}/.checkpoint"


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Says in which file a mistake in the rules is."""
    try:
        yield
    except RuleError as error:
        raise TocsinError(f"{path}: {error}") from None


def _check_places(wanted: Wanted) -> None:
    """Fails if something is to be written among the events."""
    for path in (wanted.matches, wanted.dead_letters):
        if path is None or "://" in path or "://" in wanted.events:
            continue
        source, place = Path(wanted.events).resolve(), Path(path).resolve()
        if source == place and source.is_file():
            raise TocsinError(f"{path} is one of the files of events; write somewhere else")
        if source.is_dir() and place.is_relative_to(source):
            raise TocsinError(f"{path} is in the folder of events; write somewhere else")


def declared_kinds(ruleset: RuleSet) -> dict[str, Kind]:
    """What the attributes hold that the rules declare with one kind for all types."""
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for type in ruleset.types.values():
        for name, kind in type.attributes:
            kinds[name].add(kind)
    return {name: kind for name, (kind, *others) in kinds.items() if not others}
