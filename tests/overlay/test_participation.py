"""Who has part in what a partial rule finds: two passes over times, beside the detector that lists everything."""

from __future__ import annotations

import random

import pytest

from tests.conformance.overlay import DECLARED, table
from tocsin.events.types import Event
from tocsin.language import parse
from tocsin.overlay import evaluation
from tocsin.overlay.deployment import Item
from tocsin.overlay.evaluation import Instants, evaluators, first_heads, participants
from tocsin.overlay.messages import Rows
from tocsin.plans.splitting import Partial


def case(chance: random.Random) -> tuple[Partial, list[Event]]:
    """A partial rule whose roles hang on each other at random, and events that often come together."""
    letters = chance.sample("ABCDE", chance.choice([2, 3, 4]))
    text = [f"define P() from {letters[0]}({chance.choice(['', 'n>1'])})"]
    for number, letter in enumerate(letters[1:], 1):
        policy, test = chance.choice(["last", "each"]), chance.choice(["", "", "n<3"])
        origin = chance.choice(letters[:number])
        text.append(f"and {policy} {letter}({test}) within {chance.choice([2, 5, 9])} us from {origin}")
    (rule,) = parse(" ".join(text)).rules
    sends = tuple(chance.sample(letters, chance.randint(1, len(letters))))
    events = [
        Event(chance.choice("ABCDE"), chance.randrange(chance.choice([20, 60])), {"n": chance.randrange(4)},
              chance.choice([0, 0, 1]), f"e{number}")
        for number in range(chance.choice([5, 30]))
    ]  # fmt: skip
    return Partial(rule, sends), sorted(events, key=lambda event: event.ts)


@pytest.mark.parametrize("base", range(0, 200, 50))
def test_the_same_events_with_the_same_heads_as_the_detector(base: int) -> None:
    told_apart = 0
    for seed in range(base, base + 50):
        part, events = case(random.Random(seed))
        assert evaluation.plain(part)
        history = Rows(table(events))
        since, upto = 5, 40
        quick = evaluation.fast_participants(part, Instants(history, DECLARED), since, upto)
        if quick is None:
            told_apart += 1
            continue
        (evaluator,) = evaluators([Item(part, (part.rule,), (), ordered=False, pullable=False)], DECLARED)
        found = evaluator.detect(history, history, since, upto)
        if not found.num_rows:
            assert [len(column) for column in quick] == [0, 0, 0], f"seed {seed}"
            continue
        rows, heads, every = participants(part, found, history)
        rows, heads = first_heads(rows, heads)
        for ours, right in zip(quick, (rows, heads, every), strict=True):
            assert ours.tolist() == right.tolist(), f"seed {seed}"
    assert told_apart < 25


@pytest.mark.parametrize("clause", ["first B()", "2-last B()", "last B(k=$k)"])
def test_what_more_than_time_decides_is_not_plain(clause: str) -> None:
    (rule,) = parse(f"define P() from A(k=$k) and {clause} within 5 us from A").rules
    assert not evaluation.plain(Partial(rule, ("A", "B")))
