"""Frozen objects are skipped by garbage collection, and are still freed without references."""

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
    return [Ring() for _ in range(2 * process.UNFROZEN_MAX)]


def test_existing_objects_are_frozen() -> None:
    kept = many()
    process.freeze_gc()
    assert gc.get_freeze_count() > len(kept)
    assert len(gc.get_objects()) < process.UNFROZEN_MAX


def test_garbage_is_not_frozen() -> None:
    process.freeze_gc()
    count = gc.get_freeze_count()
    many()
    process.freeze_gc()
    assert gc.get_freeze_count() < count + process.UNFROZEN_MAX  # others may come and go


def test_frozen_objects_are_freed_when_many_are_new() -> None:
    kept = many()
    process.freeze_gc()
    seen = weakref.ref(kept[0])
    kept = many()
    gc.collect()
    assert seen() is not None
    process.freeze_gc()
    assert seen() is None
    assert kept


def test_a_freezing_task_yields_the_same() -> None:
    kept = []

    @process.freezing_gc
    def task(words: Iterator[str]) -> Iterator[str]:
        kept.append(many())
        for word in words:
            yield word.upper()

    assert list(task(iter(["a", "b"]))) == ["A", "B"]
    assert len(gc.get_objects()) < process.UNFROZEN_MAX


def test_nothing_is_frozen_if_collection_is_disabled() -> None:
    kept = many()
    with process.gc_paused():
        process.freeze_gc()
    assert gc.get_freeze_count() < len(kept)
