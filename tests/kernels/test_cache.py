"""Compilation of kernels is reported once, and not at all if the compiled code is in the cache."""

from __future__ import annotations

import pytest
from numba import njit

from tocsin.cli import console
from tocsin.kernels.cache import on_compile


def test_compilation_is_reported_once() -> None:
    double, triple = njit(lambda n: 2 * n), njit(lambda n: 3 * n)
    calls: list[int] = []
    with on_compile(lambda: calls.append(1)):
        assert (double(2), triple(2)) == (4, 6)
        assert calls == [1]
    with on_compile(lambda: calls.append(2)):
        assert double(3) == 6
    assert calls == [1]
    assert triple(2.0) == 6.0  # compiled after the listener was removed
    assert calls == [1]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_notice_is_only_for_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    console.notice("wait")
    assert capsys.readouterr().err == ("wait\n" if terminal else "")
