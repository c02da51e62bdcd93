"""What is wrong where a text of dynamic interest queries cannot be read on?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.errors import RuleError, nearest
from tocsin.language import mistakes
from tocsin.language.mistakes import shown, slip
from tocsin.language.names import IDENTIFIER
from tocsin.language.tokens import END, Token
from tocsin.language.tokens_interests import WORDS

_KEYWORDS = (
    "interest",
    "of",
    "around",
    "range",
    "rectangle",
    "circle",
    "polygon",
    "by",
    "space",
    "lifetime",
    "update",
    "each",
    "every",
    "semantics",
)
_OTHERS = {
    "LENGTH": "a unit of length (m, km)",
    "COORDINATES": "a space (" + ", ".join(WORDS["COORDINATES"]) + ")",
    "DELIVERY": "a semantics (" + ", ".join(WORDS["DELIVERY"]) + ")",
}
_WHAT = {"LENGTH": "unit of length", "COORDINATES": "space", "DELIVERY": "semantics"}


def unexpected(token: Token, terminals: set[str], stack: Sequence[Any]) -> RuleError:
    """The error for a token that does not fit, given the terminals that would and what the parser had read."""
    own = [word for word in _KEYWORDS if word.upper() in terminals and word != "interest"]
    units = [name for name in _OTHERS if name in terminals]
    if not own and not units:
        return mistakes.unexpected(token, terminals, stack)
    if len(terminals) == 1 and units and IDENTIFIER.fullmatch(token.value):
        (name,) = units
        return RuleError(
            f"unknown {_WHAT[name]} '{token.value}'", span=token.span, hint=nearest(token.value, WORDS[name])
        )
    words = [f"'{word}'" for word in own] + [_OTHERS[name] for name in units]
    if "UNIT" in terminals:
        words.append("a unit of time (us, ms, s, sec, min, h, d)")
    if "INT" in terminals:
        words.append("a number")
    if "LPAR" in terminals:
        words.append("'('")
    if "COMMA" in terminals:
        words.append("','")
    if "DEFINE" in terminals:
        words.append("the next interest or rule")
    expected = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
    if token.type == END:
        return RuleError(f"the text ends too early; expected {expected}", span=token.span)
    hint = slip(token.value, [*own, *(word for name in units for word in WORDS[name])])
    return RuleError(f"unexpected {shown(token)}; expected {expected}", span=token.span, hint=hint)
