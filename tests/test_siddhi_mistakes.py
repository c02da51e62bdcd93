"""Error messages for wrong or unsupported SiddhiQL, as golden files.

A file of tests/golden/siddhi_mistakes has the input, a line `---`, and the message.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import GOLDEN
from tocsin.errors import RuleError
from tocsin.language import parse

NAMES = sorted(path.stem for path in (GOLDEN / "siddhi_mistakes").glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake(name: str, golden: Callable[[str, str], None]) -> None:
    written = (GOLDEN / "siddhi_mistakes" / f"{name}.txt").read_text(encoding="utf-8").partition("\n---\n")[0]
    with pytest.raises(RuleError) as caught:
        parse(written, "siddhi")
    assert caught.value.line is not None
    golden(f"siddhi_mistakes/{name}.txt", f"{written}\n---\n{caught.value}\n")


def test_there_are_many_mistakes() -> None:
    assert len(NAMES) >= 80
