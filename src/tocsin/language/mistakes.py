"""What is wrong where the parser cannot go on, and what was expected there?

The parser's table has the terminals that would have fitted. Here they become words, a few at most. Where a word looks
like a slip of one that fits, or where the word before is the likelier mistake, the error says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from tocsin.errors import RuleError, nearest
from tocsin.events.types import UNITS_US
from tocsin.language.names import IDENTIFIER
from tocsin.language.rules import Function
from tocsin.language.tokens import END, NAMES, SPELLINGS, Token

_VALUES = {"ATTRIBUTE", "ROLE", "PARAMETER", "INT", "DOUBLE", "STRING", "BOOLEAN", "TIMESTAMP", "LPAR", "MINUS"}
_CLAUSES = _VALUES | {"NTH", "POLICY", "NOT", "TYPE", "FUNCTION"}
_OPERATORS = {"COMPARE", "EQUAL", "ADD", "MINUS", "MULTIPLY", "OR"}
_NEXT_RULE = {"DEFINE", "RULE", "EVENT", "SEMICOLON", END}

_KEYWORDS = ("as", "and", "or", "not", "within", "between", "from", "where", "consuming", "define", "rule", "event")
_NEVER_NAMES = set(_KEYWORDS) - {"rule", "event"}
_KEYWORDS_OF_REQUESTS = ("on", "if", "mode", "notify", "request")

_CONDITION = "A comparison or a condition stands in parentheses here."

_WORDS = {
    "TYPE": "a type name",
    "LABEL": "a name for the rule",
    "ATTRIBUTE": "an attribute",
    "ROLE": "the name of an event",
    "KIND": "a kind (" + ", ".join(SPELLINGS["KIND"]) + ")",
    "UNIT": "a unit (" + ", ".join(UNITS_US) + ")",
    "INT": "a number",
    "STRING": "a string",
    "LPAR": "'('",
    "COMMA": "','",
    "COLON": "':'",
    "DOT": "'.'",
    "EQUAL": "'='",
    "RPAR": "')'",
    "AT": "a timer",
    "TIMES": "a repetition",
    "CONTEXT": "a mode (" + ", ".join(SPELLINGS["CONTEXT"]) + ")",
    "_BOTH": "'&'",
    "_EITHER": "'||'",
    "_THEN": "';'",
    **{word.upper(): f"'{word}'" for word in (*_KEYWORDS, *_KEYWORDS_OF_REQUESTS)},
}
"""Terminals in words, in the order in which they are listed."""


def unexpected(token: Token, terminals: set[str], stack: Sequence[Any]) -> RuleError:
    """The error for a token that does not fit, given the terminals that would and what the parser had read."""
    if token.type == END:
        return RuleError(f"the text ends too early; expected {expectation(terminals)}", span=token.span)
    before = stack[-1] if stack and isinstance(stack[-1], Token) and stack[-1].type in NAMES else None
    return (
        _unknown_function(token, before, stack)
        or _unknown_word(token, terminals)
        or (before and _wrong_before(before, token))
        or RuleError(
            f"unexpected {shown(token)}; expected {expectation(terminals)}",
            span=token.span,
            hint=slip(token.value, _fitting_words(terminals)) or _parentheses(token, terminals),
        )
    )


def expectation(terminals: set[str]) -> str:
    """The terminals in words.

    >>> expectation({"WITHIN", "BETWEEN"})
    "'within' or 'between'"
    """
    left = set(terminals)
    words, last = [], []
    if "NTH" in left:
        words = ["an event", "'each'", "'first'", "'last'", "'not'", "an aggregate"]
        left -= _CLAUSES
    elif "PARAMETER" in left:
        words = ["a constraint" if "NOT" in left else "a value"] + ["an aggregate"] * ("FUNCTION" in left)
        left -= _CLAUSES
    elif "ADD" in left:
        words = ["an operator"]
        left -= _OPERATORS | ({"AND"} if "OR" in left else set())
    if "SEMICOLON" in left:
        last = ["the next rule"]
        left -= _NEXT_RULE
    elif "REQUEST" in left and len(left) > 3:
        last = ["the next request"]
        left -= {"REQUEST", "EVENT", END}
    elif END in left and "DEFINE" not in left and "REQUEST" not in left:
        last = ["the end"]
    words += [text for terminal, text in _WORDS.items() if terminal in left] + last
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _unknown_function(token: Token, before: Token | None, stack: Sequence[Any]) -> RuleError | None:
    """`Average(Temp().value …)` or `45 < Average(…)`, which the grammar takes for a type or an attribute."""
    called = before if token.value == "(" else None
    if token.value.lower() in ("(", "within", "between"):
        for word, name in pairwise(stack[-6:]):
            opens = isinstance(word, Token) and word.type == "AND" and isinstance(name, Token)
            if opens and name.type == "TYPE" and slip(name.value, Function):
                called = name
    if called is None:
        return None
    return RuleError(f"unknown function '{called.value}'", span=called.span, hint=nearest(called.value, Function))


def _unknown_word(token: Token, terminals: set[str]) -> RuleError | None:
    word, span = token.value, token.span
    if not IDENTIFIER.fullmatch(word) or word.lower() in _NEVER_NAMES:
        return None
    if terminals == {"UNIT"}:
        return RuleError(f"unknown unit '{word}'", span=span, hint=nearest(word, UNITS_US))
    if terminals == {"KIND"}:
        return RuleError(f"unknown kind of attribute '{word}'", span=span, hint=nearest(word, SPELLINGS["KIND"]))
    return None


def _wrong_before(before: Token, token: Token) -> RuleError | None:
    """A keyword that had to be read as a name, as in `each within`, or a slip of a policy, as in `lst Temp()`."""
    word = before.value.lower()
    if word == "not":
        return RuleError("unexpected 'not'; expected a value", span=before.span, hint=_CONDITION)
    if word in _NEVER_NAMES:
        return RuleError(f"unexpected '{word}'; expected {_WORDS[before.type]}", span=before.span)
    hint = slip(word, (*SPELLINGS["POLICY"], "not"))
    if before.type == "TYPE" and hint and IDENTIFIER.fullmatch(token.value):
        return RuleError(f"unexpected '{before.value}'", span=before.span, hint=hint)
    return None


def _parentheses(token: Token, terminals: set[str]) -> str | None:
    condition = token.type in ("COMPARE", "EQUAL") or token.value.lower() == "or"
    return _CONDITION if condition and "ADD" in terminals and "OR" not in terminals else None


def _fitting_words(terminals: set[str]) -> list[str]:
    known = [word for word in (*_KEYWORDS, *_KEYWORDS_OF_REQUESTS) if word.upper() in terminals]
    several = ("POLICY", "FUNCTION", "BOOLEAN", "TIMES", "CONTEXT")
    return known + [word for name in several if name in terminals for word in SPELLINGS[name]]


def slip(word: str, known: Iterable[str]) -> str | None:
    """A hint if the word is close to a known one."""
    hint = nearest(word, known) if len(word) > 2 and IDENTIFIER.fullmatch(word) else None
    return hint if hint and hint.startswith("Did you mean") else None


def shown(token: Token) -> str:
    """A token in quotes, cut where it is long."""
    text = token.value if len(token.value) <= 30 else token.value[:29] + "…"
    return text if token.type == "STRING" else f"'{text}'"
