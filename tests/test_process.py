"""What settles is left alone by searches for garbage, and is still freed when nobody has it any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tocsin import process


class Ring:
    """Garbage that only a search finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def many() -> list[Ring]:
    return [Ring() for _ in range(2 * process.UNSETTLED_MAX)]


def test_what_is_there_settles() -> None:
    kept = many()
    process.settle()
    assert gc.get_freeze_count() > len(kept)
    assert len(gc.get_objects()) < process.UNSETTLED_MAX


def test_garbage_does_not_settle() -> None:
    process.settle()
    count = gc.get_freeze_count()
    many()
    process.settle()
    assert gc.get_freeze_count() < count + process.UNSETTLED_MAX  # others may come and go


def test_what_settled_is_freed_when_there_is_much_new() -> None:
    kept = many()
    process.settle()
    seen = weakref.ref(kept[0])
    kept = many()
    gc.collect()
    assert seen() is not None
    process.settle()
    assert seen() is None
    assert kept


def test_a_task_that_settles_yields_what_it_did() -> None:
    kept = []

    @process.settling
    def task(words: Iterator[str]) -> Iterator[str]:
        kept.append(many())
        for word in words:
            yield word.upper()

    assert list(task(iter(["a", "b"]))) == ["A", "B"]
    assert len(gc.get_objects()) < process.UNSETTLED_MAX


def test_nothing_settles_where_nobody_looks_for_garbage() -> None:
    kept = many()
    with process.uncollected():
        process.settle()
    assert gc.get_freeze_count() < len(kept)
