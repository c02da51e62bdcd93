# mypy: disable-error-code="no-untyped-def"
"""How do records in one memory stand in a list? Each names the one behind and the one before it.

A record's neighbours are words of it, at `next` and `before`; where the list begins and ends is said by the words
`head` and `tail` at the address `ends`. One record can stand in several lists, each with words of its own.
"""

from __future__ import annotations

from tocsin.engine.kernels.memory import get, put, small


@small
def link(memory, record, older, next, before, ends, head, tail):
    """Puts a record behind another; behind NONE it is the first."""
    following = get(memory, older + next) if older >= 0 else get(ends, head)
    put(memory, record + before, older)
    put(memory, record + next, following)
    if older >= 0:
        put(memory, older + next, record)
    else:
        put(ends, head, record)
    if following >= 0:
        put(memory, following + before, record)
    else:
        put(ends, tail, record)


@small
def unlink(memory, record, next, before, ends, head, tail):
    """Takes a record out of its list. It still leads to the one behind it."""
    older, following = get(memory, record + before), get(memory, record + next)
    if older >= 0:
        put(memory, older + next, following)
    else:
        put(ends, head, following)
    if following >= 0:
        put(memory, following + before, older)
    else:
        put(ends, tail, older)
