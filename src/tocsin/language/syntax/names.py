"""Check the names of types and attributes, and put them in backquotes where a text needs it.

A name that is not an identifier, or that is a keyword, is written in backquotes, as in Spark SQL and SiddhiQL. Examples
are `` `Solar.R` ``, `` `wind speed` `` and `` `from` ``. A backquote inside a name is doubled.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from tocsin.errors import RuleError, Span

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = r"`(?:[^`\n\r\ud800-\udfff]|``)*+`"
"""The regular expression of a name in backquotes.

Such a name cannot contain a line break, so that an error for a missing backquote shows the right line.
"""
NAME_CHARACTERS_MAX = 200
_KEYWORD = re.compile(r'"([a-z]+)"i')
_FOLLOWED = frozenset(
    ("at", "every", "timestamp", "each", "first", "last", "avg", "sum", "min", "max", "count", "timeseq", "timesdf")
)
"""Words that are keywords only before certain text, such as `(`.

As attributes they need no backquotes, because this text cannot follow an attribute.
"""


@cache
def _keywords() -> frozenset[str]:
    """Return the keywords of all languages that the lexer could confuse with the name of an attribute."""
    files = ("tesla/tesla.lark", "eps/eps.lark", "siddhi/siddhi.lark", "mcep/mcep.lark", "syntax/terms.lark")
    texts = (resources.files("tocsin.language").joinpath(file).read_text("utf-8") for file in files)
    return frozenset((*(word for text in texts for word in _KEYWORD.findall(text)), "true", "false")) - _FOLLOWED


def quoted_type(name: str) -> str:
    """Return the name of a type as it is written in a text, in backquotes if necessary."""
    return f"`{name}`" if name.lower() in _FOLLOWED else quoted(name)


def quoted(name: str) -> str:
    """Return the name of an attribute or a role as it is written in a text, in backquotes if necessary.

    >>> quoted("area"), quoted("Solar.R"), quoted("from"), quoted("a`b")
    ('area', '`Solar.R`', '`from`', '`a``b`')
    """
    if IDENTIFIER.fullmatch(name) and name.lower() not in _keywords():
        return name
    return "`" + name.replace("`", "``") + "`"


def unquoted(text: str, span: Span | None = None) -> str:
    """Return the name that `text` has in backquotes. Raise if the name is not valid."""
    return checked_name(text[1:-1].replace("``", "`"), span)


def checked_name(name: object, span: Span | None = None) -> str:
    """Return `name`. Raise if `name` is not a valid name of an attribute or a type."""
    if not isinstance(name, str):
        raise RuleError(f"{name!r} is not a name", span=span, hint="A name is a string.")
    if not name.strip():
        raise RuleError("a name cannot be blank", span=span)
    if len(name) > NAME_CHARACTERS_MAX:
        raise RuleError(f"a name has at most {NAME_CHARACTERS_MAX} characters", span=span)
    if not name.isprintable():
        raise RuleError("a name must have printable characters only", span=span)
    return name
