"""Identities must never change: they are stored with matches and compared over hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.events.types import (
    MASK,
    content_words,
    fold,
    hexadecimal,
    match_words,
    mix,
    occurrence_words,
    text_words,
    value_words,
)

WORDS = st.integers(0, MASK)
PAIRS = st.tuples(WORDS, WORDS)


def test_identities_are_those_of_every_release() -> None:
    assert hexadecimal(text_words("")) == "f30b13be1031c2b8e4519f085f853265"
    assert hexadecimal(text_words("zwölf Zeichen und mehr 𝄞")) == "1a2089ea23300e7e85199de5026c0d36"
    assert (
        hexadecimal(content_words("Temp", 10, 0, {"area": "A1", "value": 24.5})) == "cc00fc1fc1ad52e6a22fb4c16456ee0a"
    )
    assert hexadecimal(content_words("A", -1, 2, {"f": True, "n": -5, "z": None})) == "5d4a1aecd0ef31f737fbc063ebd32fa3"
    assert hexadecimal(match_words("Fire", [text_words("a"), text_words("b")])) == "415d4de6f21ae582de3b6aefc2969cc2"


def test_content_is_by_name_and_without_nulls() -> None:
    content = content_words("A", 1, 2, {"x": 1, "y": "s"})
    assert content == content_words("A", 1, 2, {"y": "s", "x": 1})
    assert content == content_words("A", 1, 2, {"y": "s", "x": 1, "z": None})


def test_everything_in_an_event_counts() -> None:
    contents = [
        content_words("A", 1, 2, {"x": 1}),
        content_words("B", 1, 2, {"x": 1}),
        content_words("A", 2, 1, {"x": 1}),
        content_words("A", 1, 0, {"x": 1}),
        content_words("A", 1, 2, {"y": 1}),
        content_words("A", 1, 2, {"x": 1.0}),
        content_words("A", 1, 2, {"x": "1"}),
        content_words("A", 1, 2, {"x": 1, "y": 1}),
        content_words("A", 1, 2, {}),
    ]
    assert len(set(contents)) == len(contents)


def test_values_are_signed_words_or_the_bits_of_a_double() -> None:
    assert value_words(-1) == (MASK,)
    assert value_words(-(2**63)) == (1 << 63,)
    assert value_words(True) == (1,)
    assert value_words(1.0) == (0x3FF0000000000000,)
    assert value_words(-0.0) == value_words(0.0) == (0,)
    assert value_words("id7") == text_words("id7")


def test_texts_that_share_padding_differ() -> None:
    texts = ["", "\0", "a", "a\0", "a" * 8, "a" * 8 + "\0", "a" * 16, "ab" * 8, "ä", "ae"]
    assert len({text_words(text) for text in texts}) == len(texts)


def test_occurrences_count_up_with_carry() -> None:
    assert occurrence_words((5, 7), 0) == (5, 7)
    assert occurrence_words((5, 7), 3) == (5, 10)
    assert occurrence_words((5, MASK), 1) == (6, 0)
    assert occurrence_words((MASK, MASK), 1) == (0, 0)


def test_a_match_is_its_rule_and_its_parts_in_order() -> None:
    a, b = text_words("a"), text_words("b")
    identities = [
        match_words("R", [a, b]),
        match_words("R", [b, a]),
        match_words("S", [a, b]),
        match_words("R", [a]),
        match_words("R", [a, a]),
    ]
    assert len(set(identities)) == len(identities)


def test_hexadecimal_keeps_leading_zeros() -> None:
    assert hexadecimal((1, 2)) == "00000000000000010000000000000002"


@given(WORDS, WORDS)
def test_mixing_loses_nothing(one: int, other: int) -> None:
    assert (mix(one) == mix(other)) == (one == other)


@given(PAIRS, WORDS, WORDS)
def test_a_word_more_is_another_identity(state: tuple[int, int], one: int, other: int) -> None:
    assert (fold(state, one) == fold(state, other)) == (one == other)
    assert all(0 <= word <= MASK for word in fold(state, one))


def test_small_worlds_have_no_collisions() -> None:
    identities = {
        content_words(type, ts, seq, {"n": n}) for type in "AB" for ts in range(50) for seq in (0, 1) for n in range(50)
    }
    assert len(identities) == 2 * 50 * 2 * 50
