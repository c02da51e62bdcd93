"""Read, write and run recorded cases: rules, events in order of arrival, how they are fed to the engine, the answer.

=== 17 way=stream delay_us=3 sizes=4,9,2
define P() from A()
--- events
A@3[e1](n=1)
--- answer
P P@3 f1c2…  | A=A@3 e1
dead 0
"""

from __future__ import annotations

import difflib
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tocsin
from tests.guards.internals import Event, read_events, rows_of

CORPUS = Path(__file__).parent / "corpus"
LANGUAGES = ("tesla", "eps", "siddhi", "mcep")
TABLE, STREAM, RESTORED = "table", "stream", "restored"
HEADER = ("rule", "type", "ts", "id", "parts")


@dataclass(frozen=True)
class Case:
    """Rules and events of one language. `way`: how they are fed. `sizes`: how many events each batch has."""

    language: str
    number: int
    rules: str
    events: tuple[str, ...]
    way: str = TABLE
    delay_us: int = 0
    sizes: tuple[int, ...] = ()
    history_us: int | None = None
    answer: tuple[str, ...] = ()

    @property
    def batches(self) -> list[list[Event]]:
        """The events in order of arrival."""
        events, found = read_events("\n".join(self.events)), []
        for size in self.sizes or (len(events),):
            found.append(events[:size])
            events = events[size:]
        return found

    def ruleset(self) -> Any:
        return tocsin.rules(self.rules, self.language)

    def options(self) -> dict[str, Any]:
        """The keywords of `RuleSet.detect` and `RuleSet.detector` for the case."""
        return {"ts_unit": "us"} if self.history_us is None else {"ts_unit": "us", "history": self.history_us}

    def detector(self) -> Any:
        return self.ruleset().detector(delay=self.delay_us, **self.options())


def answer_of(case: Case) -> tuple[str, ...]:
    """Return the current answer of the engine."""
    if case.way == TABLE:
        found = case.ruleset().detect(read_events("\n".join(case.events)), **case.options())
        return (*lines_of(rows_of(found)), "dead 0")
    return follow(case, case.detector(), case.batches)


def follow(case: Case, detector: Any, batches: Iterable[list[Event]]) -> tuple[str, ...]:
    """Return the answer of a detector to batches and the end of the stream."""
    rows, dead = [], 0
    for batch in batches:
        rows += rows_of(detector.push(batch))
        if case.way == RESTORED:
            dead += detector.dead_letters().num_rows
            detector = case.ruleset().restore(detector.snapshot())
    rows += rows_of(detector.finish())
    return (*lines_of(rows), f"dead {dead + detector.dead_letters().num_rows}")


def lines_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Write matches as lines: rule, type, time, id, attributes without nulls, then the parts."""
    return [_line(row) for row in rows]


def _line(row: dict[str, Any]) -> str:
    named = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items() if _is_shown(name, value)]
    parts = [f"{part['role']}={part['type']}@{part['ts']} {part['id']}" for part in row.get("parts") or ()]
    head = f"{row['rule'] or '-'} {row['type']}@{row['ts']} {row['id'] or '-'}"
    return " ".join([head, *sorted(named), "|", ", ".join(parts)]).rstrip()


def _is_shown(name: str, value: Any) -> bool:
    return name not in HEADER and name[0] != "_" and value is not None


def write(cases: Sequence[Case]) -> str:
    """Write cases as text, the inverse of `read`."""
    lines = []
    for case in cases:
        head = f"=== {case.number} way={case.way}"
        head += f" delay_us={case.delay_us}" if case.delay_us else ""
        head += f" sizes={','.join(map(str, case.sizes))}" if case.sizes else ""
        head += f" history_us={case.history_us}" if case.history_us is not None else ""
        lines += [head, case.rules.rstrip("\n"), "--- events", *case.events, "--- answer", *case.answer]
    return "\n".join(lines) + "\n"


def read(language: str, text: str) -> list[Case]:
    """Parse the cases of a text."""
    found = []
    for block in f"\n{text.rstrip(chr(10))}".split("\n=== ")[1:]:
        head, _, body = block.partition("\n")
        number, *fields = head.split(" ")
        options: dict[str, str] = dict(field.partition("=")[::2] for field in fields)
        rules, _, rest = body.partition("\n--- events\n")
        # Either list may be empty, and then the marks stand next to each other.
        events, _, answer = f"\n{rest}\n".partition("\n--- answer\n")
        history, sizes = options.get("history_us"), options.get("sizes")
        found.append(
            Case(
                language, int(number), rules, tuple(events[1:].split("\n")) if events else (), options["way"],
                int(options.get("delay_us", 0)), tuple(map(int, sizes.split(","))) if sizes else (),
                None if history is None else int(history), tuple(answer.rstrip("\n").split("\n")),
            )
        )  # fmt: skip
    return found


def corpus(language: str) -> list[Case]:
    """Return the recorded cases of a language."""
    return read(language, gzip.decompress((CORPUS / f"{language}.txt.gz").read_bytes()).decode())


def compressed(text: str) -> bytes:
    """Compress a text as gzip, always to the same bytes."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def difference(case: Case, actual: Sequence[str], expected: Sequence[str] | None = None) -> str:
    """Describe the case and how the answer differs; empty if it is as recorded."""
    expected = case.answer if expected is None else expected
    if tuple(actual) == tuple(expected):
        return ""
    changed = difflib.unified_diff(expected, actual, "recorded", "now", lineterm="", n=2)
    again = f"again: python -m tests.guards.replay {case.language} {case.number}"
    how = f"way={case.way} delay_us={case.delay_us} sizes={case.sizes} history_us={case.history_us}"
    return "\n".join([f"{case.language} {case.number}, {how}", case.rules, "", *case.events, "", *changed, again])
