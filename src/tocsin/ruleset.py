"""Parse rules, and detect their matches in tables and streams. This module is the public API.

`rules` returns a `RuleSet`, whose `detect` returns the matches in an Arrow table, a DataFrame or a stream. An
*interest* is a moving query: it detects the matches of rules around a moving object.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

from tocsin.engine import match_table
from tocsin.engine.detector import Detector, needs_ids
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.moving.ranges import HISTORY_US
from tocsin.engine.plan_cache import PlanCache
from tocsin.engine.prefetch import PrefetchedResult, inline
from tocsin.errors import EventError, RuleError
from tocsin.events.dead_letters import count_reasons, rejected_text
from tocsin.events.reader import Columns, Data
from tocsin.events.types import UNITS_US, EventType
from tocsin.language import guess, parse
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.mcep.ast import Interest, check_rules_alone
from tocsin.language.mcep.text import print_interest
from tocsin.language.siddhi.ast import Query
from tocsin.language.supported import KINDS, check_supported, check_used
from tocsin.language.syntax.ast import Program, Rule
from tocsin.plans.explain import explain, picture
from tocsin.plans.plan import Plan, plan
from tocsin.plans.typing import Catalog
from tocsin.process import gc_paused
from tocsin.why.evidence import Evidence, check_explicable
from tocsin.why.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
Duration = int | str | timedelta
Frames: TypeAlias = "DataFrame | Mapping[str, DataFrame]"


class DeadLetterWarning(UserWarning):
    """The warning of `RuleSet.detect` that some events could not be used."""


class RuleSet:
    """Rules that are deployed together, or moving queries (`interests`) with the rules that they use."""

    def __init__(self, program: Program) -> None:
        check_used(program)
        self.program = program
        self._plan_cache = PlanCache()
        self._plan = plan(program.rules, Catalog(types=self.types, closed=bool(self.types)))

    @property
    def rules(self) -> tuple[Statement, ...]:
        return self.program.rules

    @property
    def interests(self) -> tuple[Interest, ...]:
        """The moving queries. If there are any, matches come from these queries only, and not from their rules."""
        return self.program.interests

    @property
    def types(self) -> dict[str, EventType]:
        """The event types that the text of the rules declares, by name."""
        return {type.name: type for type in self.program.types}

    def __iter__(self) -> Iterator[Statement]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __repr__(self) -> str:
        names = ", ".join(rule.name for rule in self.rules[:8]) + (", …" if len(self) > 8 else "")
        moving = "; interests: " + ", ".join(interest.name for interest in self.interests) if self.interests else ""
        return f"<RuleSet of {len(self)}: {names}{moving}>"

    @property
    def plan(self) -> Plan:
        """The plan of the rules, before any events are known."""
        return self._plan

    def detect(
        self,
        events: Data | Frames,
        *,
        type: str = "type",
        ts: str = "ts",
        seq: str = "seq",
        id: str | None = None,
        ts_unit: str | None = None,
        delay: Duration = 0,
        slots: int | None = None,
        control: DataFrame | None = None,
        keep: Iterable[str] | None = None,
        select: Iterable[str] | None = None,
        locations: Any = None,
        history: Duration | None = None,
    ) -> Any:
        """Return all matches in the events.

        An Arrow table (or a mapping of type to table, or Event objects) is held in memory and sorted by time, so that
        no event is late. For a Spark DataFrame (or a mapping of type to DataFrame), the result is a DataFrame; for a
        stream, it is a stream.

        If rows of a table cannot be used, `detect` leaves them out and warns with a `DeadLetterWarning`; a `detector`
        returns such rows. The unusable rows of a DataFrame are in its `report`. After an action, their number and
        reasons are logged as a warning of the logger `tocsin`.

        `select` names the columns of matches to return; by default, all columns are returned. If there are many
        matches, `parts`, the events of a match, costs as much as all other columns together.

        For moving queries, rows also have `query` and `range`. The matches of each range follow a *marker*, which is a
        row of type `Marker` without a rule. The `ts` of the marker is the start of the range. If the range cannot be
        evaluated, the `error` of the marker says why.

        `locations` are the location updates in the same form as `events`, if `events` does not contain them. They need
        no column of types. `history` is the time before the start of a range for which events are kept (default for a
        stream whose rules consume: an hour).

        These options are for DataFrames:

        `delay`: how much older than the newest event of a stream an event may be (µs, "5 s" or a timedelta).
        `slots`: the number of partitions that rules are assigned to (default: the shuffle partitions).
        `control`: a stream of control rows, with the columns `add`, `remove`, `at`, `advance`.
        `keep`: event types that later rules may use, besides the types that the rules use or declare. If it is given,
        rules can be added and removed while the stream runs.
        """
        columns = Columns(type, ts, seq, id, ts_unit)
        select = None if select is None else tuple(select)
        if _is_frames(events):
            from tocsin.spark import matches
            from tocsin.spark.names import col, exact

            found = matches(
                self._report(
                    events, columns, delay, slots, control, keep, select, locations, history, log_rejected=True
                )
            )
            with exact(found.sparkSession, found.columns):
                return found if select is None else found.select(*(col(name) for name in select))
        detector: Detector | MovingDetector
        if self.interests:
            detector = self._moving(columns, 2**60, history)
            detector.push(events, locations)
            found = detector.finish()
            names = found.column_names
        else:
            self._check_no_interests(locations, history)
            detector = Detector(self._plan, self.types, delay_us=2**60, columns=columns)
            if select is not None:
                detector.select, detector.without_ids = select, not needs_ids(self._plan, select)
            detector.prefetch, detector.plan_cache = _in_background, self._plan_cache
            detector.push(events)
            found = detector.finish()
            names = ["seq", *match_table.schema(detector.plan, times=False).names]
        if select is not None:
            found = found.select(list(match_table.checked_select(select, names)))
        dead = detector.dead_letters()
        if dead.num_rows:
            first = f"{dead['reason'][0].as_py()}: {dead['event'][0].as_py()}"
            message = rejected_text(max(dead.num_rows, detector.counts["dead"]), count_reasons(dead), first)
            warnings.warn(message, DeadLetterWarning, stacklevel=2)
        return found

    def report(
        self,
        events: Frames,
        *,
        type: str = "type",
        ts: str = "ts",
        seq: str = "seq",
        id: str | None = None,
        ts_unit: str | None = None,
        delay: Duration = 0,
        slots: int | None = None,
        control: DataFrame | None = None,
        keep: Iterable[str] | None = None,
        locations: DataFrame | None = None,
        history: Duration | None = None,
    ) -> DataFrame:
        """Return one DataFrame with the matches, dead letters and metrics of detection; `_kind` is the kind of a row.

        `tocsin.spark.matches`, `dead_letters` and `metrics` select the rows of one kind. The options are the same as
        for `detect`.
        """
        columns = Columns(type, ts, seq, id, ts_unit)
        return self._report(events, columns, delay, slots, control, keep, None, locations, history)

    def rekey(self, events: Frames, old: str | Path, new: str | Path, **options: Any) -> None:
        """Create the checkpoint `new` for these rules, with the state and the source offsets of the checkpoint `old`.

        This is needed if the number of slots changes, or if rules must run in other slots than before. `events` is the
        stream that the query reads, and the options are the same as for `detect`. Stop the query first; `old` is not
        changed.
        """
        names = {name: options.pop(name) for name in ("type", "ts", "seq", "id", "ts_unit") if name in options}
        columns, delay_us = Columns(**names), duration_us(options.pop("delay", 0))
        slots, control = options.pop("slots", None), options.pop("control", None)
        if self.interests:
            from tocsin.spark import moving_batch, rescale

            locations, history_us = options.pop("locations", None), _optional_us(options.pop("history", None))
            _check_no_options(options)
            source, _, moving = moving_batch.prepare(
                self.interests, self.types, events, columns,
                locations=locations, delay_us=delay_us, history_us=history_us, slots=slots,
            )  # fmt: skip
            rescale.rekey_moving(source.frame.sparkSession, old, new, moving)
            return
        from tocsin.spark.rescale import rekey
        from tocsin.spark.source import prepare

        keep = options.pop("keep", None)
        _check_no_options(options)
        source, job = prepare(self._plan, events, columns, delay_us, slots, control, keep)
        rekey(source.frame.sparkSession, old, new, job)

    def _report(
        self,
        events: Frames,
        columns: Columns,
        delay: Duration,
        slots: int | None,
        control: DataFrame | None,
        keep: Iterable[str] | None,
        select: Iterable[str] | None,
        locations: DataFrame | None,
        history: Duration | None,
        log_rejected: bool = False,
    ) -> DataFrame:
        if slots is not None and (not isinstance(slots, int) or slots < 1):
            raise EventError(f"slots is a whole number from 1 on, not {slots!r}")
        if self.interests:
            from tocsin.spark.moving_batch import detect as detect_moving

            if keep is not None:
                raise EventError("moving queries cannot be added or removed while a stream runs: leave keep out")
            return detect_moving(
                self.interests, self.types, events, columns,
                locations=locations, delay_us=duration_us(delay), history_us=_optional_us(history),
                slots=slots, control=control, select=select, log_rejected=log_rejected,
            )  # fmt: skip
        from tocsin.spark.source import detect

        self._check_no_interests(locations, history)
        return detect(
            self._plan, events, columns,
            delay_us=duration_us(delay), slots=slots, control=control, keep=keep, select=select,
            log_rejected=log_rejected,
        )  # fmt: skip

    def detector(
        self,
        *,
        delay: Duration = 0,
        ordered: bool = False,
        type: str = "type",
        ts: str = "ts",
        seq: str = "seq",
        id: str | None = None,
        ts_unit: str | None = None,
        history: Duration | None = None,
    ) -> Any:
        """Return a `Detector` for a stream, or a `MovingDetector` for moving queries.

        `delay`: how much older than the newest event an event may be (µs, "5 s" or a timedelta).
        `ordered`: whether events arrive in canonical order (ts, seq, type, id), so that no event waits.
        `history`: how long events are kept for moving queries whose rules consume (default: an hour).
        """
        delay_us = duration_us(delay)
        if ordered and delay_us:
            raise EventError("an ordered source has no delay: pass ordered=True or delay=…, not both")
        columns = Columns(type, ts, seq, id, ts_unit)
        if self.interests:
            if ordered:
                raise EventError("moving queries sort events themselves: leave ordered out")
            consuming = any(interest.consumes for interest in self.interests)
            return self._moving(columns, delay_us, HISTORY_US if history is None and consuming else history)
        self._check_no_interests(None, history)
        detector = Detector(self._plan, self.types, delay_us=delay_us, ordered=ordered, columns=columns)
        detector.prefetch = _in_background
        return detector

    def _moving(self, columns: Columns, delay_us: int, history: Duration | None) -> MovingDetector:
        history_us = _optional_us(history)
        return MovingDetector(self.interests, self.types, delay_us=delay_us, columns=columns, history_us=history_us)

    @staticmethod
    def _check_no_interests(locations: object, history: object) -> None:
        """Raise if `locations` or `history` is given, although there are no moving queries."""
        for name, value in (("locations", locations), ("history", history)):
            if value is not None:
                raise EventError(f"{name} is for moving queries, and there is no interest")

    def restore(self, snapshot: bytes) -> Any:
        """Return a detector that continues from the snapshot: a `Detector`, or a `MovingDetector` for moving queries.

        Rules that are new or changed since the snapshot see later events only.
        """
        if self.interests:
            return MovingDetector.restore(snapshot, self.interests, self.types)
        return Detector.restore(snapshot, self.rules, self.types)

    def why(self, events: Data, id: str, /, **names: Any) -> Reason:
        """Explain the match `id` in `events`. For each condition of the rule, the reason has the events that met it.

        `names` are the names of columns, as for `detect`. The column of ids is named by the keyword `id`.

        >>> fire = rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke")
        >>> from tocsin.events.types import Event
        >>> events = [Event("Temp", 1_000_000, {"value": 51.0}), Event("Smoke", 3_000_000)]
        >>> print(fire.why(events, fire.detect(events)["id"][0].as_py()))
        Fire matched at Smoke@3000000()
          Smoke()
            ✓ Smoke: any will do
          last Temp(value>45) within 5 min from Smoke
            ✓ within 5 min from Smoke: Temp@1000000(value=51.0), 2 s before Smoke
            ✓ value>45: value is 51.0
            ✓ last: no other fits
        """
        return self.evidence(events, **names).why(id)

    def why_not(
        self, events: Data, id: str | None = None, /, *, at: int | None = None, rule: str | None = None, **names: Any
    ) -> list[Reason]:
        """Explain why rules did not match at the event `id`, or at the events of the time `at` (µs).

        Each reason has the conditions that were met, and the first condition that was not met, with the closest
        candidate for it. If `rule` is given, only the rule of that name is explained. `names` are the names of columns,
        as for `detect`.

        >>> fire = rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke")
        >>> from tocsin.events.types import Event
        >>> events = [Event("Temp", 1_000_000, {"value": 44.0}), Event("Smoke", 3_000_000)]
        >>> (reason,) = fire.why_not(events, at=3_000_000)
        >>> reason.failed.asked, reason.failed.found
        ('value>45', 'value is 44.0')
        """
        if (id is None) == (at is None):
            raise EventError("name the event by its id, or by its time (at)")
        return self.evidence(events, **names).why_not(id, at, rule)

    def evidence(self, events: Data, **names: Any) -> Evidence:
        """Return the events with their matches, to ask `why` and `why_not` several times."""
        if _is_frames(events):
            raise EventError("why and why not need events in this process: pass an Arrow table, such as df.toArrow()")
        if self.interests:
            check_explicable(self.interests)
        return Evidence(self._plan, self.types, events, Columns(**names))

    def explain(self, events: Frames | None = None, **options: Any) -> str:
        """Return the plan of these rules as text: types and columns, filters, buffers, keys, state, cost.

        If `events` are DataFrames, the text also has the conditions that Spark evaluates, and the rules of each slot.
        The options are the same as for `detect`.
        """
        if events is None:
            interests = [print_interest(interest) for interest in self.interests]
            return "\n\n".join([explain(self._plan), *interests])
        remedy = "Spark plans are shown for rules, requests and queries; use `explain()` without events"
        check_supported("`explain` with events", self.program, Rule, Request, Query, remedy=remedy, verb="explain")
        from tocsin.spark.source import explain_frames

        names = {name: options.pop(name) for name in ("type", "ts", "seq", "id", "ts_unit") if name in options}
        if "delay" in options:
            options["delay_us"] = duration_us(options.pop("delay"))
        return explain_frames(self._plan, events, Columns(**names), **options)

    def explain_svg(self) -> str:
        """Return the operator graph of the rules as an SVG picture. Rules share the nodes that they have in common."""
        remedy = "the picture shows rules, requests and queries; use `explain` for text"
        check_supported("`explain_svg`", self.program, Rule, Request, Query, remedy=remedy, verb="draw")
        return picture(self._plan)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "tocsin-ahead")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_threads.cache_clear)


def _in_background(work: Callable[[], T]) -> PrefetchedResult[T]:
    """Run `work` in a background thread, for example to evaluate predicates on the next events.

    If there is only one core, run `work` at once in this thread.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _threads().submit(work) if cores > 1 else inline(work)


def _is_frames(events: object) -> TypeGuard[Frames]:
    """Return whether events are DataFrames, without importing Spark."""
    some = next(iter(events.values()), None) if isinstance(events, Mapping) else events
    return type(some).__module__.startswith("pyspark.")


@gc_paused()
def rules(source: str | Path | Iterable[Statement | Interest], language: str | None = None) -> RuleSet:
    """Return the rules of a text, of a file (a `Path`, or a string that names a file), or of the builder.

    `language` is the language of the text; by default, it is inferred.

    >>> len(rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"))
    1
    """
    if isinstance(source, str | Path):
        text = _text(source)
        program = parse(text, language)
        if not program.rules:
            raise RuleError("there is no rule", hint="A rule starts with: define Name(…) from …")
        return RuleSet(replace(program, rules=tuple(replace(rule, source=text) for rule in program.rules)))
    given = tuple(source) if isinstance(source, Iterable) else (source,)
    moving = tuple(one for one in given if isinstance(one, Interest))
    if moving:
        if len(moving) < len(given):
            check_supported("`rules` with interests", given, Interest, remedy="interests have the rules that they use")
        check_rules_alone(moving)
        needed: tuple[Statement, ...] = tuple(dict.fromkeys(rule for one in moving for rule in one.rules))
        return RuleSet(Program((), needed, moving))
    check_supported("`rules`", given, *KINDS, remedy="")
    return RuleSet(Program((), tuple(one for one in given if not isinstance(one, Interest))))


def duration_us(duration: Duration) -> int:
    """Convert `duration` to microseconds. A number is in microseconds already.

    >>> duration_us("1.5 s"), duration_us(timedelta(minutes=5))
    (1500000, 300000000)
    """
    if isinstance(duration, timedelta):
        micros = round(duration / timedelta(microseconds=1))
    elif isinstance(duration, str):
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\.?\s*", duration.lower())
        if match is None or (match[2] or "us") not in UNITS_US:
            raise EventError(f"'{duration}' is not a duration; write 500 ms, 5 s, 2 min, 1 h or 1 d")
        micros = round(float(match[1]) * UNITS_US[match[2] or "us"])
    elif isinstance(duration, int):
        micros = duration
    else:
        raise EventError(f"{duration!r} is not a duration; write 500 ms, 5 s, 2 min, 1 h or 1 d")
    if micros < 0:
        raise EventError("a delay cannot be negative")
    return micros


def _check_no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise EventError(f"rekey has no option {min(options)}")


def _optional_us(duration: Duration | None) -> int | None:
    return None if duration is None else duration_us(duration)


def _is_statement(line: str) -> bool:
    """Return whether a line without parentheses is a request or a query, not the name of a file."""
    language = guess(line)
    return language == "eps" or (language == "siddhi" and " " in line.strip())


def _text(source: str | Path) -> str:
    looks_like_path = isinstance(source, Path) or (
        "\n" not in source and "(" not in source and source.strip() != "" and not _is_statement(source)
    )
    if not looks_like_path:
        return str(source)
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        undecoded = isinstance(error, UnicodeDecodeError)
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text" if undecoded else str(error)
        raise RuleError(f"cannot read the rules in {source}: {reason}") from error
