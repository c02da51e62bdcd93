"""Split texts of TESLA and EPS into tokens, and describe syntax errors.

One regular expression matches the next token. A *terminal* is the class of a token in the grammar. The terminal of a
word depends on the state of the parser. For example, `first` is a policy at the start of a clause, but it is an
attribute in `B(first > 3)`. The lexer computes the possible terminals of words for a state when the parser is first in
this state.

`unexpected` builds the error for a token that the parser cannot accept. The error names the expected terminals. It has
a hint if the token looks like a misspelt keyword. If the word before the token is more likely the mistake, the error
points to that word.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import UNITS_US, Kind
from tocsin.language.eps.ast import Mode
from tocsin.language.syntax.ast import Function, Policy
from tocsin.language.syntax.expressions import UNITS
from tocsin.language.syntax.names import IDENTIFIER, QUOTED, unquoted

END = "$END"
"""The terminal at the end of a text, as Lark names it."""

NAMES = ("TYPE", "LABEL", "ATTRIBUTE", "ROLE")
"""Terminals that match any name. If several are possible, the lexer uses the first of them in this order."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "POLICY": tuple(Policy),
    "FUNCTION": tuple(name.lower() for name in Function),
    "KIND": tuple(Kind),
    "UNIT": tuple(UNITS),
    "BOOLEAN": ("true", "false"),
    "COMPARE": ("!=", "<>", "<", "<=", ">", ">="),
    "EQUAL": ("=", "=="),
    "MULTIPLY": ("*", "/"),
    "TIMES": ("timeseq", "timesdf"),
    "CONTEXT": tuple(Mode),
}
"""The spellings of the terminals that have several spellings. The grammar declares these terminals without text."""

_SKIP = r"(?:[\s\ufeff]++|(?:--|\#)[^\n]*+)*+"
# Strings cannot contain lone surrogates, or line breaks, so that errors show the line of a missing quote.
BARRED = r"\n\r\ud800-\udfff"
_TOKEN = re.compile(
    rf"""{_SKIP}(?:
    (?P<WORD>{IDENTIFIER.pattern})
    |(?P<QUOTED>{QUOTED})
    |(?P<PARAMETER>\${IDENTIFIER.pattern})
    |(?P<DOUBLE>(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<INT>[0-9]+)
    |(?P<STRING>"(?:[^"\\{BARRED}]|\\[^{BARRED}])*+"|'(?:[^'\\{BARRED}]|\\[^{BARRED}])*+')
    |(?P<SYMBOL>[!<>=]=|<>|\|\||[-(),;:.+*/=<>&])
    )""",
    re.VERBOSE,
)
_BLANK = re.compile(_SKIP)
_DOT = re.compile(rf"{_SKIP}\.")
_NTH = re.compile(rf"[0-9]+{_SKIP}-?{_SKIP}(?:first|last)(?![A-Za-z0-9_])(?!{_SKIP}\.)", re.IGNORECASE)
# In a state where a name is also possible, these words are keywords only before the given text. So a type can be called
# Last, and an attribute timestamp.
_FOLLOWED = {
    "TIMESTAMP": re.compile(rf"{_SKIP}\("),
    "FUNCTION": re.compile(rf"{_SKIP}\("),
    "POLICY": re.compile(rf"{_SKIP}[A-Za-z_`]"),
    "TIMES": re.compile(rf"{_SKIP}\("),
    "AT": re.compile(rf"{_SKIP}\("),
    "EVERY": re.compile(rf"{_SKIP}\("),
}

_ADVICE = {
    "&": "Write 'and'.",
    "|": "Write 'or'.",
    "!": "Write 'not' or '!='.",
    "≤": "Write '<='.",
    "≥": "Write '>='.",
    "≠": "Write '!='.",
    "“": 'Write ".',
    "”": 'Write ".',
    "$": "A parameter is '$' and a name.",
}


class Token:
    """A word, number, string or symbol of a text, with its terminal (`type`) and its position."""

    __slots__ = ("end_pos", "start_pos", "type", "value")

    def __init__(self, type: str, value: str, start_pos: int, end_pos: int) -> None:
        self.type = type
        self.value = value
        self.start_pos = start_pos
        self.end_pos = end_pos

    @property
    def span(self) -> Span:
        return Span(self.start_pos, self.end_pos)


class _WordRoles(NamedTuple):
    """The terminals that the parser accepts for a word in one state.

    `keywords` maps keywords to their terminals, and `name` is the terminal of any other word. The flags say whether a
    name, a `ROLE` or an `NTH` (such as `3-last`) is possible.
    """

    keywords: dict[str, str]
    name: str
    has_name: bool
    has_role: bool
    has_nth: bool


class Lexer:
    """Splits a text into tokens for a parser.

    `spelled` has the spellings of the terminals that the grammar itself defines. `steps` has the accepted terminals of
    each state of the parser.
    """

    token = _TOKEN
    blank = _BLANK
    role = _DOT
    """The text that follows a word if the word is the name of an event, such as the dot in `Smoke.area`."""
    followed: ClassVar[Mapping[str, re.Pattern[str]]] = _FOLLOWED
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = SPELLINGS
    advice: ClassVar[Mapping[str, str]] = _ADVICE
    """Hints for characters that are not allowed in a text."""

    def __init__(self, spelled: Mapping[str, tuple[str, ...]], steps: Mapping[int, Container[str]]) -> None:
        self._spellings = {**self.spellings, **spelled}
        self._symbols = {word: terminal for terminal, words in self._spellings.items() for word in words}
        self._steps = steps
        self._word_roles_of: dict[int, _WordRoles] = {}

    def tokens(self, text: str, states: Sequence[int]) -> Iterator[Token]:
        """Yield the tokens of `text`, and then a token `END`.

        The parser keeps its current state as the last item of `states` while it consumes the tokens.
        """
        symbols, word_roles_of = self._symbols, self._word_roles_of
        pattern, role, followed = self.token, self.role, self.followed
        end = 0
        while match := pattern.match(text, end):
            terminal = match.lastgroup or ""
            value, end = match[terminal], match.end()
            if terminal == "SYMBOL":
                terminal = symbols.get(value, "")
                if not terminal:
                    self._expect_end(text, end - len(value))
            elif terminal == "WORD":
                word_roles = word_roles_of.get(states[-1]) or self._word_roles(states[-1])
                if word_roles.has_role and role.match(text, end):
                    terminal = "ROLE"
                else:
                    terminal = word_roles.keywords.get(value.lower(), word_roles.name)
                    if word_roles.has_name and terminal in followed and not followed[terminal].match(text, end):
                        terminal = word_roles.name
            elif terminal == "QUOTED":
                word_roles = word_roles_of.get(states[-1]) or self._word_roles(states[-1])
                quotable = word_roles.has_name and word_roles.name != "LABEL"
                if word_roles.has_role and role.match(text, end):
                    terminal = "ROLE"
                elif quotable:
                    terminal = word_roles.name
                start = end - len(value)
                yield Token(terminal, unquoted(value, Span(start, end)), start, end)
                continue
            elif terminal == "INT":
                word_roles = word_roles_of.get(states[-1]) or self._word_roles(states[-1])
                if word_roles.has_nth and (nth := _NTH.match(text, end - len(value))):
                    terminal, value, end = "NTH", nth[0], nth.end()
            yield Token(terminal, value, end - len(value), end)
        self._expect_end(text, end)
        yield Token(END, "", end, end)

    def _word_roles(self, state: int) -> _WordRoles:
        accepted = self._steps[state]
        keywords = {
            word: terminal for terminal, words in self._spellings.items() if terminal in accepted for word in words
        }
        name = next((name for name in NAMES if name in accepted), None)
        word_roles = _WordRoles(keywords, name or "WORD", name is not None, "ROLE" in accepted, "NTH" in accepted)
        self._word_roles_of[state] = word_roles
        return word_roles

    def _expect_end(self, text: str, end: int) -> None:
        blank = self.blank.match(text, end)
        start = blank.end() if blank else end
        if start == len(text):
            return
        character = text[start]
        if character in "\"'`":
            line_end = text.find("\n", start)
            span = Span(start, len(text) if line_end < 0 else line_end)
            raise RuleError(f"this {'name' if character == '`' else 'string'} does not end", span=span)
        shown = f"'{character}'" if character.isprintable() else f"U+{ord(character):04X}"
        hint = self.advice.get(character)
        if hint is None and character.isalpha():
            hint = "A name has the letters A to Z, digits and '_', or is in backquotes: `wind speed`."
        raise RuleError(f"stray character {shown}", span=Span(start, start + 1), hint=hint)


_VALUES = {"ATTRIBUTE", "ROLE", "PARAMETER", "INT", "DOUBLE", "STRING", "BOOLEAN", "TIMESTAMP", "LPAR", "MINUS"}
_CLAUSES = _VALUES | {"NTH", "POLICY", "NOT", "TYPE", "FUNCTION"}
_OPERATORS = {"COMPARE", "EQUAL", "ADD", "MINUS", "MULTIPLY", "OR"}
_NEXT_RULE = {"DEFINE", "RULE", "EVENT", "SEMICOLON", END}

_KEYWORDS = ("as", "and", "or", "not", "within", "between", "from", "where", "consuming", "define", "rule", "event")
_NEVER_NAMES = set(_KEYWORDS) - {"rule", "event"}
_KEYWORDS_OF_REQUESTS = ("on", "if", "mode", "notify", "request")

_CONDITION = "Put a comparison or a condition in parentheses here."

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
"""The description of each terminal in errors. Errors list terminals in this order."""


def unexpected(token: Token, terminals: set[str], stack: Sequence[Any]) -> RuleError:
    """Return the error for an unexpected token.

    `terminals` are the terminals that the parser expected, and `stack` has the tokens and values that it has read.
    """
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
    """Describe the expected terminals in words.

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
    """Return an error if the mistake is an unknown function, such as `Average(…)`.

    The grammar parses the name of an unknown function as a type or an attribute, so the error appears only later.
    """
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
    """Return an error if the word before the token is the mistake.

    This word is a keyword in the place of a name, as in `each within`, or a misspelt policy, as in `lst Temp()`.
    """
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
    """Return a hint with the most similar word of `known`, or None if no word is similar to `word`."""
    hint = nearest(word, known) if len(word) > 2 and IDENTIFIER.fullmatch(word) else None
    return hint if hint and hint.startswith("Did you mean") else None


def shown(token: Token) -> str:
    """Return the text of a token in quotes, truncated if the text is long."""
    text = token.value if len(token.value) <= 30 else token.value[:29] + "…"
    return text if token.type == "STRING" else f"'{text}'"
