"""Record the data that the guards compare with.

    python -m tests.guards.record corpus [tesla eps siddhi mcep]
    python -m tests.guards.record states
    python -m tests.guards.record messages
    python -m tests.guards.record shape
    python -m tests.guards.record all

Recorded answers change only on purpose: an issue that changes answers records the corpus again in a commit of its own,
with the reason. The answers of the engine must be those of the reference, or nothing is written.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from dataclasses import replace

from tests.guards import shape, states, traces
from tests.guards.cases import CORPUS, LANGUAGES, TABLE, Case, answer_of, compressed, difference, lines_of, write
from tests.guards.generated import generated
from tests.guards.internals import Event, parse, read_events, reference_rows

CASES = 2500
LINES_MAX = 80
"""Cases with a longer answer are skipped, to limit the size of the files."""
EMPTY_MAX = CASES // 4
"""At most this many cases have no match."""


def record_corpus(language: str) -> None:
    """Write the cases of a language with the answers of the engine, after comparing them with the reference."""
    began = time.monotonic()
    kept: list[Case] = []
    left_out: Counter[str] = Counter()
    empty = 0
    for case in generated(language, 10 * CASES):
        if len(kept) == CASES:
            break
        answer = answer_of(case)
        is_empty = all(line.startswith(("- ", "dead ")) for line in answer)
        if len(answer) > LINES_MAX:
            left_out["too long"] += 1
        elif is_empty and empty == EMPTY_MAX:
            left_out["without a match"] += 1
        elif (reason := _unfit(case, answer)) is not None:
            left_out[reason] += 1
        else:
            empty += is_empty
            kept.append(replace(case, number=len(kept), answer=answer))
    data = compressed(write(kept))
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{language}.txt.gz").write_bytes(data)
    ways = Counter(case.way for case in kept)
    late = sum(not case.answer[-1].endswith(" 0") for case in kept)
    print(
        f"{language}: {len(kept)} cases ({empty} without a match, {late} with late events, {dict(ways)}), "
        f"{sum(len(case.answer) - 1 for case in kept)} matches, {len(data):,} bytes, left out {dict(left_out)}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def _unfit(case: Case, answer: tuple[str, ...]) -> str | None:
    """Return why the reference cannot judge a case, or None if it agrees; fail if it gives another answer."""
    events = read_events("\n".join(case.events))
    dead = int(answer[-1].removeprefix("dead "))
    if dead:
        accepted = _accepted(case)
        if accepted is None:
            return "late events that were not recognized"
        events = accepted
    rows = reference_rows(case.rules, case.language, events, _history_us(case))
    right = lines_of(rows)
    found = list(answer[:-1])
    if case.language == "mcep":  # queries deliver independently of each other
        right, found = _by_query(right), _by_query(found)
    if found != right:
        raise AssertionError(difference(case, found, right))
    return None


def _history_us(case: Case) -> int | None:
    if case.language != "mcep" or case.history_us is not None or case.way == TABLE:
        return case.history_us
    hour_us = 3_600_000_000
    return hour_us if any(one.consumes for one in parse(case.rules, "mcep").interests) else None


def _by_query(lines: list[str]) -> list[str]:
    """Group lines by query and drop the ids of markers, which the reference lacks."""
    plain = [re.sub(r"^(- Marker@-?\d+) \w+ ", r"\1 - ", line) for line in lines]
    return sorted(plain, key=lambda line: next(word for word in line.split() if word.startswith("query=")))


def _accepted(case: Case) -> list[Event] | None:
    """Return the events that were not late; None if a dead letter prints a late event differently."""
    detector, late = case.detector(), Counter[str]()
    for batch in case.batches:
        detector.push(batch)
        late.update(detector.dead_letters()["event"].to_pylist())
    events = Counter(case.events)
    if any(events[text] != count for text, count in late.items()):
        return None
    return read_events("\n".join(text for text in case.events if text not in late))


def main(arguments: list[str]) -> None:
    what = arguments[0] if arguments else "all"
    if what not in ("all", "corpus", "states", "messages", "shape"):
        raise SystemExit(__doc__)
    if what in ("all", "corpus"):
        for language in arguments[1:] or LANGUAGES:
            record_corpus(language)
    if what in ("all", "states"):
        states.record()
    if what in ("all", "messages"):
        traces.record()
    if what in ("all", "shape"):
        shape.record()


if __name__ == "__main__":
    main(sys.argv[1:])
