"""What do the languages have in common? Declared event types, patterns and expressions, and how a text is read.

A grammar is its own file and terms.lark behind it. The automaton of a grammar runs over the tokens of tokens.py and
calls a method of its reader for each production as soon as it is complete, so that no tree is built in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.events.types import EventType, Kind
from tocsin.garbage import uncollected
from tocsin.language import terms
from tocsin.language.chains import constraints_of, expression_of
from tocsin.language.rules import Attribute, Expression, Literal, Parameter, Pattern
from tocsin.language.tokens import Token


def grammar(name: str) -> str:
    """The whole grammar of a language."""
    folder = resources.files(__package__)
    return "".join(folder.joinpath(f"{file}.lark").read_text("utf-8") for file in (name, "terms"))


@contextmanager
def reading(text: str) -> Iterator[None]:
    """Lets an error say where in the text it is."""
    try:
        with uncollected():
            yield
    except RuleError as error:
        raise error.within(text) from None


class Declared(NamedTuple):
    """`event Temp(…)`."""

    name: Token
    type: EventType


def declared(items: Iterable[Declared]) -> tuple[EventType, ...]:
    """The types, each declared once."""
    types: dict[str, EventType] = {}
    for item in items:
        if item.type.name in types:
            raise RuleError(f"the event type '{item.type.name}' is declared twice", span=item.name.span)
        types[item.type.name] = item.type
    return tuple(types.values())


class Reader:
    """One method for each production of terms.lark; each gets what its parts became."""

    def event(self, children: list[Any]) -> Declared:
        _, name, attributes = children
        return Declared(name, EventType(name.value, attributes))

    def signature(self, children: list[list[tuple[Token, Kind]]]) -> tuple[tuple[str, Kind], ...]:
        attributes: dict[str, Kind] = {}
        for name, kind in children[0] if children else ():
            if name.value in attributes:
                raise RuleError(f"the attribute '{name.value}' is declared twice", span=name.span)
            attributes[name.value] = kind
        return tuple(attributes.items())

    def field(self, children: list[Token]) -> tuple[Token, Kind]:
        name, kind = children
        return name, Kind(kind.value.lower())

    def listed(self, children: list[Any]) -> list[Any]:
        """A list that is empty, has its first item, or has a list and the next one."""
        if len(children) < 2:
            return children
        items: list[Any] = children[0]
        items.extend(children[1:])
        return items

    fields = sum = nots = listed

    def role(self, children: list[Any]) -> Pattern:
        first, last = children[0], children[-1]
        constraints = constraints_of(children[1]) if len(children) > 1 and isinstance(children[1], list) else ()
        alias = last.value if last.type == "ROLE" else None
        return Pattern(first.value, constraints, alias, span=Span(first.start_pos, last.end_pos))

    pattern = role

    def expression(self, children: list[list[Any]]) -> Expression:
        return terms.checked(expression_of(children[0]))

    def chain(self, children: list[Any]) -> list[Any]:
        chain, *more = children
        if not isinstance(chain, list):
            return children
        for child in more:
            if isinstance(child, list):
                chain += child
            else:
                chain.append(child)
        return chain

    def attribute(self, children: list[Token]) -> Attribute:
        (name,) = children
        return Attribute(name.value, None, span=Span(name.start_pos, name.end_pos))

    def qualified(self, children: list[Token]) -> Attribute:
        role, name = children
        return Attribute(name.value, role.value, span=Span(role.start_pos, name.end_pos))

    def parameter(self, children: list[Token]) -> Parameter:
        (name,) = children
        return Parameter(name.value[1:], span=Span(name.start_pos, name.end_pos))

    def integer(self, children: list[Token]) -> Literal:
        (digits,) = children
        span = Span(digits.start_pos, digits.end_pos)
        return terms.integer(terms.whole(digits.value, span), span)

    def double(self, children: list[Token]) -> Literal:
        (digits,) = children
        return terms.double(float(digits.value), digits.span)

    def string(self, children: list[Token]) -> Literal:
        (quoted,) = children
        span = Span(quoted.start_pos, quoted.end_pos)
        return Literal(terms.unescape(quoted.value, span), Kind.STRING, span=span)

    def boolean(self, children: list[Token]) -> Literal:
        (word,) = children
        return Literal(word.value.lower() == "true", Kind.BOOL, span=word.span)

    def timestamp(self, children: list[Token]) -> Literal:
        word, quoted, end = children
        moment = terms.moment(terms.unescape(quoted.value, quoted.span), quoted.span)
        return terms.timestamp(moment, Span(word.start_pos, end.end_pos))

    def parenthesised(self, children: list[Any]) -> Expression:
        start, chain, end = children
        return replace(expression_of(chain), span=Span(start.start_pos, end.end_pos))

    def minus(self, children: list[Any]) -> Expression:
        sign, operand = children
        return terms.minus(operand, Span(sign.start_pos, operand.span.end))
