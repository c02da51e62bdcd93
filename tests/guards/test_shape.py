"""The source is within its size limits, apart from listed exceptions that are still needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.shape import LIMITS, exceptions, problems, recorded


def test_the_source_is_within_its_limits() -> None:
    found = problems(exceptions(), recorded())
    if found:
        pytest.fail("\n".join(found), pytrace=False)


OVER = {
    "modules": {f"part{number // 20}/m{number}.py": "" for number in range(LIMITS["modules"] + 1)},
    "lines": {"long.py": "\n" * (LIMITS["lines"] + 1)},
    "folder": {f"m{number}.py": "" for number in range(LIMITS["folder"] + 1)},
    "parameters": {"m.py": f"def f({', '.join(f'a{number}' for number in range(9))}): pass\n"},
    "attributes": {
        "m.py": "class C:\n def __init__(self):\n" + "".join(f"  self.a{number} = 0\n" for number in range(16))
    },
    "name": {"m.py": "class Same: pass\n", "n.py": "class Same: pass\n"},
}


@pytest.mark.parametrize("check", OVER)
def test_a_value_over_a_limit_is_reported(check: str, tmp_path: Path) -> None:
    for name, text in OVER[check].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    actual = exceptions(tmp_path)
    assert [key[0] for key in actual] == [check]
    assert len(problems(actual, {})) == 1
    assert problems(actual, actual) == []
    assert len(problems({}, actual)) == 1
