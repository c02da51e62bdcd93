"""Whoever waits for the compiler is told so: once, and not when what was compiled is at hand."""

from __future__ import annotations

import pytest
from numba import njit

from tocsin.cli import console
from tocsin.kernels.cache import telling


def test_compiling_is_told_once() -> None:
    double, triple = njit(lambda n: 2 * n), njit(lambda n: 3 * n)
    told: list[int] = []
    with telling(lambda: told.append(1)):
        assert (double(2), triple(2)) == (4, 6)
        assert told == [1]
    with telling(lambda: told.append(2)):
        assert double(3) == 6
    assert told == [1]
    assert triple(2.0) == 6.0  # compiled, but nobody listens any more
    assert told == [1]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_remark_is_for_people(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    console.remark("wait")
    assert capsys.readouterr().err == ("wait\n" if terminal else "")
