"""How is a name written that is no word, or is a word of the language? In backquotes, as in Spark SQL and SiddhiQL.

`` `Solar.R` ``, `` `wind speed` `` and `` `from` `` name attributes and types; a backquote in a name is written twice.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from tocsin.errors import RuleError, Span

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = r"`(?:[^`\n\r\ud800-\udfff]|``)*+`"
"""A name in backquotes, as a regular expression. It ends on its line, so that a missing backquote is found there."""
NAME_CHARACTERS_MAX = 200
_KEYWORD = re.compile(r'"([a-z]+)"i')
_FOLLOWED = frozenset(
    ("at", "every", "timestamp", "each", "first", "last", "avg", "sum", "min", "max", "count", "timeseq", "timesdf")
)
"""Words of the language only where something follows that cannot follow an attribute."""


@cache
def _keywords() -> frozenset[str]:
    """The words of all languages, as far as they can be mistaken for an attribute."""
    files = ("tesla/tesla.lark", "eps/eps.lark", "siddhi/siddhi.lark", "mcep/mcep.lark", "syntax/terms.lark")
    texts = (resources.files("tocsin.language").joinpath(file).read_text("utf-8") for file in files)
    return frozenset((*(word for text in texts for word in _KEYWORD.findall(text)), "true", "false")) - _FOLLOWED


def quoted_type(name: str) -> str:
    """The name of a type as it is written in a text."""
    return f"`{name}`" if name.lower() in _FOLLOWED else quoted(name)


def quoted(name: str) -> str:
    """The name of an attribute or of a role as it is written in a text.

    >>> quoted("area"), quoted("Solar.R"), quoted("from"), quoted("a`b")
    ('area', '`Solar.R`', '`from`', '`a``b`')
    """
    if IDENTIFIER.fullmatch(name) and name.lower() not in _keywords():
        return name
    return "`" + name.replace("`", "``") + "`"


def unquoted(text: str, span: Span | None = None) -> str:
    """The name in the backquotes."""
    return checked_name(text[1:-1].replace("``", "`"), span)


def checked_name(name: object, span: Span | None = None) -> str:
    """The name, if an attribute or a type can be called so."""
    if not isinstance(name, str):
        raise RuleError(f"{name!r} is not a name", span=span, hint="A name is a text.")
    if not name.strip():
        raise RuleError("a name has at least one character that is not blank", span=span)
    if len(name) > NAME_CHARACTERS_MAX:
        raise RuleError(f"a name has at most {NAME_CHARACTERS_MAX} characters", span=span)
    if not name.isprintable():
        raise RuleError("a name is made of characters that can be printed", span=span)
    return name
