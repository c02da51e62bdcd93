"""The language of a text is guessed, and the parser is loaded lazily."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tocsin.errors import RuleError
from tocsin.language import parse
from tocsin.language.tesla import text

TEXT = "define X() from A()"


def test_a_language_is_named_or_guessed() -> None:
    assert parse(TEXT) == parse(TEXT, "tesla") == text.parse(TEXT)


def test_an_unknown_language_has_a_hint() -> None:
    with pytest.raises(RuleError, match="unknown language 'telsa'") as caught:
        parse(TEXT, "telsa")
    assert caught.value.hint == "Did you mean 'tesla'?"


def test_the_parser_is_loaded_on_first_use() -> None:
    script = "import sys, tocsin.language, tocsin.language.builder; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
