"""Participants of partial rules: two passes over times, compared with the detector that lists all matches."""

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


def case(rng: random.Random) -> tuple[Partial, list[Event]]:
    """A partial rule with random clauses, and events that often have the same time."""
    letters = rng.sample("ABCDE", rng.choice([2, 3, 4]))
    text = [f"define P() from {letters[0]}({rng.choice(['', 'n>1'])})"]
    for number, letter in enumerate(letters[1:], 1):
        policy, test = rng.choice(["last", "each"]), rng.choice(["", "", "n<3"])
        origin = rng.choice(letters[:number])
        text.append(f"and {policy} {letter}({test}) within {rng.choice([2, 5, 9])} us from {origin}")
    (rule,) = parse(" ".join(text)).rules
    sends = tuple(rng.sample(letters, rng.randint(1, len(letters))))
    events = [
        Event(rng.choice("ABCDE"), rng.randrange(rng.choice([20, 60])), {"n": rng.randrange(4)},
              rng.choice([0, 0, 1]), f"e{number}")
        for number in range(rng.choice([5, 30]))
    ]  # fmt: skip
    return Partial(rule, sends), sorted(events, key=lambda event: event.ts)


@pytest.mark.parametrize("base", range(0, 200, 50))
def test_fast_participants_equal_those_of_the_detector(base: int) -> None:
    distinguished = 0
    for seed in range(base, base + 50):
        part, events = case(random.Random(seed))
        assert evaluation.is_plain(part)
        history = Rows(table(events))
        since, upto = 5, 40
        quick = evaluation.fast_participants(part, Instants(history, DECLARED), since, upto)
        if quick is None:
            distinguished += 1
            continue
        (evaluator,) = evaluators([Item(part, (part.rule,), (), ordered=False, pullable=False)], DECLARED)
        found = evaluator.detect(history, history, since, upto)
        if not found.num_rows:
            assert [len(column) for column in quick] == [0, 0, 0], f"seed {seed}"
            continue
        rows, heads, every = participants(part, found, history)
        rows, heads = first_heads(rows, heads)
        for ours, expected in zip(quick, (rows, heads, every), strict=True):
            assert ours.tolist() == expected.tolist(), f"seed {seed}"
    assert distinguished < 25


@pytest.mark.parametrize("clause", ["first B()", "2-last B()", "last B(k=$k)"])
def test_rules_with_more_than_time_are_not_plain(clause: str) -> None:
    (rule,) = parse(f"define P() from A(k=$k) and {clause} within 5 us from A").rules
    assert not evaluation.is_plain(Partial(rule, ("A", "B")))
