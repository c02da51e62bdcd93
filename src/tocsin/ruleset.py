"""What a user calls: rules from text, then detection on a table or on a stream."""

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
from tocsin.engine.detector import Detector, identifies
from tocsin.engine.moving.detector import MovingDetector
from tocsin.engine.moving.ranges import HISTORY_US
from tocsin.engine.plan_cache import Shelf
from tocsin.engine.prefetch import Coming, at_its_turn
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
from tocsin.process import uncollected
from tocsin.why.evidence import Evidence, check_explicable
from tocsin.why.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
Duration = int | str | timedelta
Frames: TypeAlias = "DataFrame | Mapping[str, DataFrame]"


class DeadLetterWarning(UserWarning):
    """Some events could not be used."""


class RuleSet:
    """Rules that are deployed together, or queries that move (`interests`) with the rules that they are made of."""

    def __init__(self, program: Program) -> None:
        check_used(program)
        self.program = program
        self._shelf = Shelf()
        self._plan = plan(program.rules, Catalog(types=self.types, closed=bool(self.types)))

    @property
    def rules(self) -> tuple[Statement, ...]:
        return self.program.rules

    @property
    def interests(self) -> tuple[Interest, ...]:
        """The queries that move. If there are any, they alone deliver, and not the rules by themselves."""
        return self.program.interests

    @property
    def types(self) -> dict[str, EventType]:
        """The event types that the text declares."""
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
        """What the rules mean, as far as it is known before any event."""
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
        """All matches in the events: an Arrow table (or a mapping of type to table, or Event objects), which is held in
        memory and sorted by time, so that no event is late; or a Spark DataFrame (or a mapping of type to DataFrame),
        which gives a DataFrame; a stream gives a stream.

        Of a table, rows that cannot be used are left out with a `DeadLetterWarning`; take a `detector` to get hold of
        them. Of a DataFrame, they are in the `report`; how many there were and why is logged after an action, as a
        warning of the logger `tocsin`.

        `select`: the columns that matches have, if not all. Where there are many matches, `parts`, the events that a
        match is made of, costs as much as all others together.

        For queries that move, rows have `query` and `range` besides; before the matches of a range stands its marker, a
        row of type `Marker` without a rule, whose `ts` is the start of the range and whose `error` says why there is
        nothing, if that is so.

        `locations`: location updates, if they are not among the events: as the events are, the type may be left out.
        `history`: how far back from a range's start events are kept (of a stream whose rules consume: an hour).

        For DataFrames:

        `delay`: how much later than the newest an event of a stream may come (µs, "5 s" or a timedelta).
        `slots`: over how many partitions the rules are laid out (default: the shuffle partitions).
        `control`: a stream of control rows, with the columns `add`, `remove`, `at`, `advance`.
        `keep`: rules come and go while the stream runs, and may use these types besides those used or declared now.
        """
        columns = Columns(type, ts, seq, id, ts_unit)
        select = None if select is None else tuple(select)
        if _is_frames(events):
            from tocsin.spark import matches
            from tocsin.spark.names import col, exact

            found = matches(
                self._report(events, columns, delay, slots, control, keep, select, locations, history, telling=True)
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
            self._check_at_rest(locations, history)
            detector = Detector(self._plan, self.types, delay_us=2**60, columns=columns)
            if select is not None:
                detector.select, detector.nameless = select, not identifies(self._plan, select)
            detector.ahead, detector.shelf = _on_another_core, self._shelf
            detector.push(events)
            found = detector.finish()
            names = ["seq", *match_table.schema(detector.plan, times=False).names]
        if select is not None:
            found = found.select(list(match_table.checked(select, names)))
        dead = detector.dead_letters()
        if dead.num_rows:
            first = f"{dead['reason'][0].as_py()}: {dead['event'][0].as_py()}"
            told = rejected_text(max(dead.num_rows, detector.counts["dead"]), count_reasons(dead), first)
            warnings.warn(told, DeadLetterWarning, stacklevel=2)
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
        """Everything that detection in DataFrames has to say: matches, dead letters and metrics, told apart by `_kind`.

        `tocsin.spark.matches`, `dead_letters` and `metrics` are its parts. The options are those of `detect`.
        """
        columns = Columns(type, ts, seq, id, ts_unit)
        return self._report(events, columns, delay, slots, control, keep, None, locations, history)

    def rekey(self, events: Frames, old: str | Path, new: str | Path, **options: Any) -> None:
        """Makes the checkpoint `new` for these rules, with the state and the source offsets of the checkpoint `old`.

        For another number of slots, or for rules that have to run elsewhere than before. `events` is the stream that
        the query reads, and the options are those of `detect`. The query must be stopped; `old` stays as it is.
        """
        names = {name: options.pop(name) for name in ("type", "ts", "seq", "id", "ts_unit") if name in options}
        columns, delay_us = Columns(**names), duration_us(options.pop("delay", 0))
        slots, control = options.pop("slots", None), options.pop("control", None)
        if self.interests:
            from tocsin.spark import moving_batch, rescale

            locations, history_us = options.pop("locations", None), _or_none(options.pop("history", None))
            _check_none_left(options)
            source, _, moving = moving_batch.prepare(
                self.interests, self.types, events, columns,
                locations=locations, delay_us=delay_us, history_us=history_us, slots=slots,
            )  # fmt: skip
            rescale.rekey_moving(source.frame.sparkSession, old, new, moving)
            return
        from tocsin.spark.rescale import rekey
        from tocsin.spark.source import prepare

        keep = options.pop("keep", None)
        _check_none_left(options)
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
        telling: bool = False,
    ) -> DataFrame:
        if slots is not None and (not isinstance(slots, int) or slots < 1):
            raise EventError(f"slots is a whole number from 1 on, not {slots!r}")
        if self.interests:
            from tocsin.spark.moving_batch import detect as detect_moving

            if keep is not None:
                raise EventError("queries that move do not come and go while a stream runs: leave keep out")
            return detect_moving(
                self.interests, self.types, events, columns,
                locations=locations, delay_us=duration_us(delay), history_us=_or_none(history),
                slots=slots, control=control, select=select, telling=telling,
            )  # fmt: skip
        from tocsin.spark.source import detect

        self._check_at_rest(locations, history)
        return detect(
            self._plan, events, columns,
            delay_us=duration_us(delay), slots=slots, control=control, keep=keep, select=select, telling=telling,
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
        """A `Detector` for a stream, or a `MovingDetector` for queries that move.

        `delay`: how much later than the newest an event may come (µs, "5 s" or a timedelta).
        `ordered`: events come in canonical order (ts, seq, type, id), so that nothing waits.
        `history`: for queries that move whose rules consume, how long events are kept (default: an hour).
        """
        delay_us = duration_us(delay)
        if ordered and delay_us:
            raise EventError("an ordered source has no delay: say ordered=True or delay=…, not both")
        columns = Columns(type, ts, seq, id, ts_unit)
        if self.interests:
            if ordered:
                raise EventError("queries that move put events in order themselves: leave ordered out")
            consuming = any(interest.consumes for interest in self.interests)
            return self._moving(columns, delay_us, HISTORY_US if history is None and consuming else history)
        self._check_at_rest(None, history)
        detector = Detector(self._plan, self.types, delay_us=delay_us, ordered=ordered, columns=columns)
        detector.ahead = _on_another_core
        return detector

    def _moving(self, columns: Columns, delay_us: int, history: Duration | None) -> MovingDetector:
        history_us = _or_none(history)
        return MovingDetector(self.interests, self.types, delay_us=delay_us, columns=columns, history_us=history_us)

    @staticmethod
    def _check_at_rest(locations: object, history: object) -> None:
        """Fails if what is for queries that move is given without any."""
        for name, value in (("locations", locations), ("history", history)):
            if value is not None:
                raise EventError(f"{name} is for queries that move, and there is no interest here")

    def restore(self, snapshot: bytes) -> Any:
        """A detector that goes on where the snapshot was taken: a `Detector`, or a `MovingDetector` for queries that
        move. New and changed rules see events from there on."""
        if self.interests:
            return MovingDetector.restore(snapshot, self.interests, self.types)
        return Detector.restore(snapshot, self.rules, self.types)

    def why(self, events: Data, id: str, /, **names: Any) -> Reason:
        """What made the match of that id in these events: each thing that its rule asks, and what was found.

        `names` are those of `detect`: what the columns are called, `id` among them.

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
        """What became of the rules, or of one of them, at an event, that of an id or those of a time (µs): what was
        asked and met, and the first thing that was not, with the candidate that came nearest.

        >>> fire = rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke")
        >>> from tocsin.events.types import Event
        >>> events = [Event("Temp", 1_000_000, {"value": 44.0}), Event("Smoke", 3_000_000)]
        >>> (reason,) = fire.why_not(events, at=3_000_000)
        >>> reason.failed.asked, reason.failed.found
        ('value>45', 'value is 44.0')
        """
        if (id is None) == (at is None):
            raise EventError("say which event is meant: by its id, or by its time (at)")
        return self.evidence(events, **names).why_not(id, at, rule)

    def evidence(self, events: Data, **names: Any) -> Evidence:
        """These events with what the rules find in them, for several questions why and why not."""
        if _is_frames(events):
            raise EventError(
                "why and why not look at events in this process: give an Arrow table, such as df.toArrow()"
            )
        if self.interests:
            check_explicable(self.interests)
        return Evidence(self._plan, self.types, events, Columns(**names))

    def explain(self, events: Frames | None = None, **options: Any) -> str:
        """What will be done for these rules, as text: types and columns, filters, buffers, keys, state, cost.

        With DataFrames also what is pushed into Spark, and what runs in which slot; the options are those of `detect`.
        """
        if events is None:
            told = [print_interest(interest) for interest in self.interests]
            return "\n\n".join([explain(self._plan), *told])
        remedy = "what Spark does is shown for rules, requests and queries; use `explain()` without events"
        check_supported("`explain` with events", self.program, Rule, Request, Query, remedy=remedy, verb="explain")
        from tocsin.spark.source import explain_frames

        names = {name: options.pop(name) for name in ("type", "ts", "seq", "id", "ts_unit") if name in options}
        if "delay" in options:
            options["delay_us"] = duration_us(options.pop("delay"))
        return explain_frames(self._plan, events, Columns(**names), **options)

    def explain_svg(self) -> str:
        """The shared operator graph, as a picture."""
        remedy = "the picture shows rules, requests and queries; use `explain` for text"
        check_supported("`explain_svg`", self.program, Rule, Request, Query, remedy=remedy, verb="draw")
        return picture(self._plan)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "tocsin-ahead")


if hasattr(os, "register_at_fork"):  # a thread does not live on in a process that was forked
    os.register_at_fork(after_in_child=_threads.cache_clear)


def _on_another_core(work: Callable[[], T]) -> Coming[T]:
    """Lets another core do some work, such as to sift the events that come next, if there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _threads().submit(work) if cores > 1 else at_its_turn(work)


def _is_frames(events: object) -> TypeGuard[Frames]:
    """Whether events are DataFrames; without importing Spark for what are none."""
    some = next(iter(events.values()), None) if isinstance(events, Mapping) else events
    return type(some).__module__.startswith("pyspark.")


@uncollected()
def rules(source: str | Path | Iterable[Statement | Interest], language: str | None = None) -> RuleSet:
    """Rules from their text or from a file (a `Path`, or a string that names a file), or from rules made by the
    builder.

    >>> len(rules("define Fire() from Smoke() and last Temp(value > 45) within 5 min from Smoke"))
    1
    """
    if isinstance(source, str | Path):
        text = _text(source)
        program = parse(text, language)
        if not program.rules:
            raise RuleError("there is no rule here", hint="A rule starts with: define Name(…) from …")
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
    """A duration in microseconds.

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


def _check_none_left(options: Mapping[str, Any]) -> None:
    if options:
        raise EventError(f"rekey has no option {min(options)}")


def _or_none(duration: Duration | None) -> int | None:
    return None if duration is None else duration_us(duration)


def _is_statement(line: str) -> bool:
    """Whether a line without parentheses is a request or a query, and not the name of a file."""
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
