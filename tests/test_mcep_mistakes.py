"""Error messages for wrong dynamic interest queries, as golden files.

A file of tests/golden/mcep_mistakes has the input, a line `---`, and the message.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import GOLDEN
from tocsin.errors import RuleError
from tocsin.language.mcep.text import parse

NAMES = sorted(path.stem for path in (GOLDEN / "mcep_mistakes").glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake(name: str, golden: Callable[[str, str], None]) -> None:
    written = (GOLDEN / "mcep_mistakes" / f"{name}.txt").read_text(encoding="utf-8").partition("\n---\n")[0]
    with pytest.raises(RuleError) as caught:
        parse(written)
    assert caught.value.line is not None
    golden(f"mcep_mistakes/{name}.txt", f"{written}\n---\n{caught.value}\n")


def test_there_are_many_mistakes() -> None:
    assert len(NAMES) >= 30
