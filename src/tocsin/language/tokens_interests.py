"""What words do texts of dynamic interest queries have besides those of rules?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tocsin.language.interests import Semantics, Space
from tocsin.language.tokens import SPELLINGS, Lexer

LENGTHS_M = {"m": 1.0, "km": 1000.0, "metre": 1.0, "metres": 1.0, "meter": 1.0, "meters": 1.0}
"""Every spelling of a unit of length, in metres."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "LENGTH": tuple(LENGTHS_M),
    "COORDINATES": tuple(Space),
    "DELIVERY": tuple(Semantics),
}


class InterestLexer(Lexer):
    """Finds the tokens of a text of interests."""

    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {**SPELLINGS, **WORDS}
