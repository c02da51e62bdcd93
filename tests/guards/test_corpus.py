"""The engine gives the recorded answers of all cases."""

from __future__ import annotations

import gzip

import pytest

from tests.guards.cases import CORPUS, LANGUAGES, Case, answer_of, corpus, difference, read, write

PARTS = 10
SHARE = 5
"""`make test` runs one in this many cases; `make slow` runs all."""
SHOWN = 3
SIZE_MAX = 1_500_000


def check(cases: list[Case]) -> None:
    """Fail with the first wrong cases, and the numbers of all wrong ones."""
    wrong = {case.number: text for case in cases if (text := difference(case, _answer(case)))}
    if wrong:
        texts = list(wrong.values())[:SHOWN]
        listed = ", ".join(map(str, wrong))
        pytest.fail("\n\n".join([f"{len(wrong)} of {len(cases)} answers differ: {listed}", *texts]), pytrace=False)


def _answer(case: Case) -> tuple[str, ...]:
    try:
        return answer_of(case)
    except Exception as error:
        return (f"{type(error).__name__}: {error}",)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_are_as_recorded(language: str, part: int) -> None:
    check(corpus(language)[::SHARE][part::PARTS])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("language", LANGUAGES)
def test_all_answers_are_as_recorded(language: str, part: int) -> None:
    check([case for case in corpus(language) if case.number % SHARE][part::PARTS])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_corpus_is_complete(language: str) -> None:
    path = CORPUS / f"{language}.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    cases = read(language, text)
    assert [case.number for case in cases] == list(range(2500))
    assert sum(len(case.answer) > 1 for case in cases) > 1800
    assert write(cases) == text
    assert path.stat().st_size < SIZE_MAX
