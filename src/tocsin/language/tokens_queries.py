"""What are the words of a SiddhiQL text? `#` begins a handler there, not a comment, and numbers can have a letter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from tocsin.language.names import IDENTIFIER, QUOTED
from tocsin.language.terms import UNITS
from tocsin.language.tokens import BARRED, SPELLINGS, Lexer

_DAY_US = UNITS["d"]
UNITS_OF_QUERIES: Mapping[str, int] = {
    **dict.fromkeys(("millisec", "millisecond", "milliseconds"), UNITS["ms"]),
    **{spelling: worth for spelling, worth in UNITS.items() if spelling not in ("s", "h", "d")},
    **dict.fromkeys(("week", "weeks"), 7 * _DAY_US),
    **dict.fromkeys(("month", "months"), 30 * _DAY_US),
    **dict.fromkeys(("year", "years"), 365 * _DAY_US),
}
"""Units of time, in microseconds. A month is 30 days and a year 365, as Siddhi has it."""

KINDS_OF_QUERIES = ("int", "long", "float", "double", "string", "bool")

_SKIP = r"(?>(?:[\s\ufeff]|--[^\n]*+|/\*(?:[^*]|\*(?!/))*\*/)*)"
_FRACTION = r"(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
_LETTER_ENDS = r"(?![A-Za-z0-9_])"


class QueryLexer(Lexer):
    """Finds the tokens of SiddhiQL."""

    token = re.compile(
        rf"""{_SKIP}(?:
        (?P<WORD>{IDENTIFIER.pattern})
        |(?P<QUOTED>{QUOTED})
        |(?P<DOUBLE>(?:{_FRACTION})(?:[dDfF]{_LETTER_ENDS})?|[0-9]+[dDfF]{_LETTER_ENDS})
        |(?P<LONG>[0-9]+[lL]{_LETTER_ENDS})
        |(?P<INT>[0-9]+)
        |(?P<STRING>"(?:[^"\\{BARRED}]|\\[^{BARRED}])*+"|'(?:[^'\\{BARRED}]|\\[^{BARRED}])*+')
        |(?P<SYMBOL>[!<>=]=|->|[-(),;:.+*%=<>?@\[\]]|/(?!\*)|\#)
        )""",
        re.VERBOSE,
    )
    blank = re.compile(_SKIP)
    role = re.compile(rf"{_SKIP}[.\[]")
    followed: ClassVar[Mapping[str, re.Pattern[str]]] = {}
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "BOOLEAN": SPELLINGS["BOOLEAN"],
        "KIND": KINDS_OF_QUERIES,
        "UNIT": tuple(UNITS_OF_QUERIES),
        "COMPARE": ("!=", "<=", ">="),
        "EQUAL": ("==",),
        "MULTIPLY": ("/", "%"),
    }
    advice: ClassVar[Mapping[str, str]] = {
        "&": "Write 'and'.",
        "|": "Write 'or'.",
        "!": "Write 'not' or '!='.",
        "/": "This comment does not end: write */.",
        "{": "Scripts are not supported.",
        "$": "A query has no parameters.",
    }
