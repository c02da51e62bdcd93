"""Parse and print the languages of Tocsin, and build their statements in Python.

TESLA has rules, EPS has requests for notification, SiddhiQL has queries, and MCEP has interests (moving queries).
`parse` reads a text in any of these languages, and `print_rule` and `print_program` convert the result back to text.
The `builder` modules build the same objects without text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tocsin.errors import RuleError, nearest
from tocsin.language.eps import text as eps
from tocsin.language.mcep import text as mcep
from tocsin.language.siddhi import parser
from tocsin.language.syntax.ast import Pattern, Program, Rule
from tocsin.language.syntax.expressions import print_expression, print_pattern, print_program, print_rule, print_window
from tocsin.language.tesla import text as tesla
from tocsin.language.tesla.text import parse_expression, parse_pattern

LANGUAGES: dict[str, Callable[[str], Program]] = {
    "tesla": tesla.parse,
    "eps": eps.parse,
    "siddhi": parser.parse,
    "mcep": mcep.parse,
}
"""The `parse` function of each language, by the name of the language."""

_REQUEST = re.compile(r"^[ \t]*request\s+[A-Za-z_]", re.IGNORECASE | re.MULTILINE)
_INTEREST = re.compile(r"\binterest\s+[A-Za-z_]\w*\s+of\s", re.IGNORECASE)
_SKIP = r"(?>(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*\*/)*)"
_QUERY = re.compile(
    rf"{_SKIP}(?:@|from\b|partition\b|define\s+(?:stream|table|window|trigger|function)\s+[\w`])", re.IGNORECASE
)


def parse(text: str, language: str | None = None) -> Program:
    """Parse a text into its statements and event types. Without `language`, use the language that `guess` returns.

    >>> parse("define Hot() from Temp(value > 45)").rules[0].name
    'Hot'
    """
    if language is None:
        language = guess(text)
    if language not in LANGUAGES:
        raise RuleError(f"unknown language '{language}'", hint=nearest(language, LANGUAGES))
    return LANGUAGES[language](text)


def guess(text: str) -> str:
    """Return the name of the most likely language of a text.

    A request begins with the word `request`, and an interest with `interest`. A text of SiddhiQL begins with `from`,
    with an annotation or with a definition. Any other text is TESLA.

    >>> guess("request Both on A & B"), guess("from A select x insert into B")
    ('eps', 'siddhi')
    """
    if _QUERY.match(text):
        return "siddhi"
    if _INTEREST.search(text):
        return "mcep"
    return "eps" if _REQUEST.search(text) else "tesla"


__all__ = [
    "LANGUAGES",
    "Pattern",
    "Program",
    "Rule",
    "guess",
    "parse",
    "parse_expression",
    "parse_pattern",
    "print_expression",
    "print_pattern",
    "print_program",
    "print_rule",
    "print_window",
]
