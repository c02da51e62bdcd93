"""What are the words of a rule text? The parser gets its tokens from here.

One regular expression finds the next token. What a word *is* depends on what the parser can use at that place: `first`
is a policy where a clause begins and an attribute inside `B(first > 3)`. So each state of the parser has a `_Place`,
made when it is first met, which says what a word can be there.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.events.types import Kind
from tocsin.language.names import IDENTIFIER, QUOTED, unquoted
from tocsin.language.requests import Mode
from tocsin.language.rules import Function, Policy
from tocsin.language.terms import UNITS

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
