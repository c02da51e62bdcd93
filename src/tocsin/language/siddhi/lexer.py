"""Split texts of SiddhiQL into tokens, and describe syntax errors.

In contrast to the other languages, `#` begins a handler (a filter or a window) instead of a comment, and numbers can
have a suffix. If a text uses a feature of Siddhi that is not supported, the error names the feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tocsin.errors import RuleError, nearest
from tocsin.language.syntax.expressions import UNITS
from tocsin.language.syntax.lexer import BARRED, END, NAMES, SPELLINGS, Lexer, Token, shown, slip
from tocsin.language.syntax.names import IDENTIFIER, QUOTED

_DAY_US = UNITS["d"]
UNITS_OF_QUERIES: Mapping[str, int] = {
    **dict.fromkeys(("millisec", "millisecond", "milliseconds"), UNITS["ms"]),
    **{spelling: worth for spelling, worth in UNITS.items() if spelling not in ("s", "h", "d")},
    **dict.fromkeys(("week", "weeks"), 7 * _DAY_US),
    **dict.fromkeys(("month", "months"), 30 * _DAY_US),
    **dict.fromkeys(("year", "years"), 365 * _DAY_US),
}
"""The length of each unit of time in microseconds. As in Siddhi, a month has 30 days, and a year has 365 days."""

KINDS_OF_QUERIES = ("int", "long", "float", "double", "string", "bool")

_SKIP = r"(?>(?:[\s\ufeff]|--[^\n]*+|/\*(?:[^*]|\*(?!/))*\*/)*)"
_FRACTION = r"(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
_LETTER_ENDS = r"(?![A-Za-z0-9_])"


class QueryLexer(Lexer):
    """Splits a text of SiddhiQL into tokens."""

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


_VALUES = {"ATTRIBUTE", "ROLE", "INT", "LONG", "DOUBLE", "STRING", "BOOLEAN", "LPAR", "MINUS"}
_OPERATORS = {"COMPARE", "LESS", "MORE", "EQUAL", "ADD", "MINUS", "STAR", "MULTIPLY", "AND", "OR"}
_COUNTS = {"LESS", "STAR", "ADD", "QUESTION"}
_HANDLERS = {"HASH", "LSQB"}
_RARE = {
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "OUTER",
    "UNIDIRECTIONAL",
    "AS",
    "GROUP",
    "HAVING",
    "INSERT",
    "WITHIN",
    "ASSIGN",
}

_UNSUPPORTED = {
    "partition": "partitions are",
    "table": "tables are",
    "trigger": "triggers are",
    "function": "functions defined in a text are",
    "aggregation": "incremental aggregations are",
    "window": "windows with a name of their own are",
    "output": "limiting the rate of the output is",
    "order": "'order by' is",
    "limit": "'limit' is",
    "offset": "'offset' is",
    "delete": "tables are",
    "update": "tables are",
    "return": "'return' is",
    "in": "'in' anywhere but at the end of a filter is",
    "per": "incremental aggregations are",
    "object": "attributes of the kind 'object' are",
}
"""The start of the error for each unsupported feature of Siddhi, by the word that the feature begins with."""

_WORDS = {
    "TYPE": "a name",
    "ATTRIBUTE": "an attribute",
    "KIND": "a kind (" + ", ".join(KINDS_OF_QUERIES) + ")",
    "UNIT": "a unit (millisec, sec, min, hour, day, week, month, year)",
    "INT": "a number",
    "STRING": "a string",
    "LPAR": "'('",
    "LSQB": "'['",
    "HASH": "'#window'",
    "ARROW": "'->'",
    "COMMA": "','",
    "COLON": "':'",
    "DOT": "'.'",
    "ASSIGN": "'='",
    "MORE": "'>'",
    "STAR": "'*'",
    "RBRACKET": "']'",
    "RPAR": "')'",
}
_KEYWORDS = (
    *("stream", "define", "from", "every", "not", "for", "and", "or", "within"),
    *("join", "inner", "left", "right", "full", "outer", "unidirectional", "as", "on", "window"),
    *("select", "group", "by", "having", "insert", "into", "events", "all", "current", "expired"),
    *("is", "null", "last"),
)
_WORDS |= {word.upper(): f"'{word}'" for word in _KEYWORDS}
"""The description of each terminal in errors. Errors list terminals in this order."""


def unexpected_in_query(token: Token, terminals: set[str], stack: Sequence[Any]) -> RuleError:
    """Return the error for an unexpected token.

    `terminals` are the terminals that the parser expected, and `stack` has the tokens and values that it has read.
    """
    if token.type == END:
        return RuleError(f"the text ends too early; expected {_expectation(terminals)}", span=token.span)
    word = token.value.lower()
    before = stack[-1] if stack and isinstance(stack[-1], Token) else None
    hint = slip(token.value, _fitting_words(terminals))
    if word in _UNSUPPORTED and not hint:
        return RuleError(f"{_UNSUPPORTED[word]} not supported", span=token.span)
    if before is not None and before.type == "HASH" and IDENTIFIER.fullmatch(token.value):
        return RuleError("functions of streams are not supported", span=token.span, hint=hint)
    if token.value == ":" and before is not None and before.type == "ATTRIBUTE":
        return RuleError(f"functions of '{before.value}' are not supported", span=before.span)
    if token.value == "=" and "EQUAL" in terminals:
        return RuleError("unexpected '='; expected an operator", span=token.span, hint="Write '=='.")
    if terminals == {"RBRACKET"} and word in ("and", "or"):
        return RuleError(f"{_UNSUPPORTED['in']} not supported", span=token.span, hint="Put the other tests before it.")
    if "UNIT" in terminals and IDENTIFIER.fullmatch(token.value):
        return RuleError(f"unknown unit '{token.value}'", span=token.span, hint=nearest(token.value, UNITS_OF_QUERIES))
    if terminals == {"KIND"} and IDENTIFIER.fullmatch(token.value):
        hint = nearest(token.value, KINDS_OF_QUERIES)
        return RuleError(f"unknown kind of attribute '{token.value}'", span=token.span, hint=hint)
    if before is not None and before.type in NAMES and before.value.lower() in ("select", "insert", "from", "group"):
        return RuleError(f"unexpected '{before.value}'; expected {_WORDS[before.type]}", span=before.span)
    return RuleError(f"unexpected {shown(token)}; expected {_expectation(terminals)}", span=token.span, hint=hint)


def _expectation(terminals: set[str]) -> str:
    left = set(terminals)
    words = []
    if "DOUBLE" in left:
        words = ["a condition" if "NOT" in left and "STAR" not in left and "RPAR" not in left else "a value"]
        left -= _VALUES | {"NOT"}
    elif "COMPARE" in left:
        words = ["an operator"]
        left -= _OPERATORS
    if left >= _HANDLERS:
        left -= _COUNTS
    if {"JOIN", "SELECT"} <= left:
        left -= _RARE
    last = []
    if "_END_OF_STATEMENT" in left:
        last = ["';'"]
        left -= {"FOR"}
    elif END in left:
        last = ["the end"]
    words += [text for terminal, text in _WORDS.items() if terminal in left] + last
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _fitting_words(terminals: set[str]) -> list[str]:
    return [word for word in _KEYWORDS if word.upper() in terminals]
