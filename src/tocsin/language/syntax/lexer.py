"""What are the words of a rule text? The parser gets its tokens from here.

One regular expression finds the next token. What a word *is* depends on what the parser can use at that place: `first`
is a policy where a clause begins and an attribute inside `B(first > 3)`. So each state of the parser has a `_Place`,
made when it is first met, which says what a word can be there.

What is wrong where the parser cannot go on, and what was expected there?

The parser's table has the terminals that would have fitted. Here they become words, a few at most. Where a word looks
like a slip of one that fits, or where the word before is the likelier mistake, the error says so.
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
"""The terminal at the end of a text, by the name that Lark gives it."""

NAMES = ("TYPE", "LABEL", "ATTRIBUTE", "ROLE")
"""Terminals that are any name; where two are possible, the first is meant."""

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
"""Terminals of several spellings, which the grammar only declares."""

_SKIP = r"(?:[\s\ufeff]++|(?:--|\#)[^\n]*+)*+"
# No line break in a string, so that a missing quote is found on its own line, and no half of a surrogate pair.
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
# Where a name can stand too, these are keywords only if that follows: a type may be Last, an attribute timestamp.
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
    """A word or a symbol and its place in the text."""

    __slots__ = ("end_pos", "start_pos", "type", "value")

    def __init__(self, type: str, value: str, start_pos: int, end_pos: int) -> None:
        self.type = type
        self.value = value
        self.start_pos = start_pos
        self.end_pos = end_pos

    @property
    def span(self) -> Span:
        return Span(self.start_pos, self.end_pos)


class _Place(NamedTuple):
    """What a word can be in one state of the parser."""

    keywords: dict[str, str]
    name: str
    has_name: bool
    has_role: bool
    has_nth: bool


class Lexer:
    """Finds the tokens of a text for a parser whose table is `steps`; `spelled` are the grammar's own terminals."""

    token = _TOKEN
    blank = _BLANK
    role = _DOT
    """What follows a word that can only be the name of an event."""
    followed: ClassVar[Mapping[str, re.Pattern[str]]] = _FOLLOWED
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = SPELLINGS
    advice: ClassVar[Mapping[str, str]] = _ADVICE
    """What to write for a character that has no place in a text."""

    def __init__(self, spelled: Mapping[str, tuple[str, ...]], steps: Mapping[int, Container[str]]) -> None:
        self._spellings = {**self.spellings, **spelled}
        self._symbols = {word: terminal for terminal, words in self._spellings.items() for word in words}
        self._steps = steps
        self._places: dict[int, _Place] = {}

    def tokens(self, text: str, states: Sequence[int]) -> Iterator[Token]:
        """The tokens and `END`, each found when the last of `states` is where the parser then stands."""
        symbols, places = self._symbols, self._places
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
                place = places.get(states[-1]) or self._place(states[-1])
                if place.has_role and role.match(text, end):
                    terminal = "ROLE"
                else:
                    terminal = place.keywords.get(value.lower(), place.name)
                    if place.has_name and terminal in followed and not followed[terminal].match(text, end):
                        terminal = place.name
            elif terminal == "QUOTED":
                place = places.get(states[-1]) or self._place(states[-1])
                quotable = place.has_name and place.name != "LABEL"
                if place.has_role and role.match(text, end):
                    terminal = "ROLE"
                elif quotable:
                    terminal = place.name
                start = end - len(value)
                yield Token(terminal, unquoted(value, Span(start, end)), start, end)
                continue
            elif terminal == "INT":
                place = places.get(states[-1]) or self._place(states[-1])
                if place.has_nth and (nth := _NTH.match(text, end - len(value))):
                    terminal, value, end = "NTH", nth[0], nth.end()
            yield Token(terminal, value, end - len(value), end)
        self._expect_end(text, end)
        yield Token(END, "", end, end)

    def _place(self, state: int) -> _Place:
        accepted = self._steps[state]
        keywords = {
            word: terminal for terminal, words in self._spellings.items() if terminal in accepted for word in words
        }
        name = next((name for name in NAMES if name in accepted), None)
        place = _Place(keywords, name or "WORD", name is not None, "ROLE" in accepted, "NTH" in accepted)
        self._places[state] = place
        return place

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
            hint = "A name is made of the letters A to Z, digits and '_', or stands in backquotes: `wind speed`."
        raise RuleError(f"stray character {shown}", span=Span(start, start + 1), hint=hint)


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
