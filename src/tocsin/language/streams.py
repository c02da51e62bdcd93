"""What streams does a SiddhiQL text have, and how are its queries called?

A stream is defined by the text, or by the query that fills it. A query's stream is known once the query is settled,
and its streams are settled before it, so the queries of a text can stand in any order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import EventType
from tocsin.language.queries import Query
from tocsin.language.reading import Declared
from tocsin.language.scopes import Asked, settled
from tocsin.language.tokens import Token


class Property(NamedTuple):
    """`name = 'q1'` of an annotation, or a value alone."""

    key: str
    value: str
    span: Span


class Unnamed(NamedTuple):
    """A query that has no name yet: other queries of the text may have taken it."""

    label: Property | None
    into: Token | None
    asked: Asked


class Statements:
    """The statements of a text so far."""

    def __init__(self) -> None:
        self.definitions: dict[str, EventType] = {}
        self.asked: list[Unnamed] = []

    def define(self, item: Declared) -> None:
        if self.definitions.setdefault(item.type.name, item.type) != item.type:
            raise RuleError(f"the stream '{item.type.name}' is defined in two ways", span=item.name.span)


class Streams:
    """What is known of the streams of a text: a query's is known when the query is settled, in any order."""

    def __init__(self, definitions: dict[str, EventType], asked: list[Asked]) -> None:
        self._definitions = definitions
        self._asked = asked
        self._settled: dict[str, Query] = {}
        self._begun: set[str] = set()

    def queries(self) -> tuple[Query, ...]:
        return tuple(map(self._query, self._asked))

    def _query(self, asked: Asked) -> Query:
        if asked.name not in self._settled:
            self._begun.add(asked.name)
            self._settled[asked.name] = settled(asked, self._type, self._made(asked.into, asked))
        return self._settled[asked.name]

    def _made(self, name: str, asked: Asked) -> EventType | None:
        """What the stream that a query fills is known to be before: as defined, or as another query fills it."""
        if name in self._definitions:
            return self._definitions[name]
        return next((query.emits for query in self._settled.values() if query.emits.name == name), None)

    def _type(self, name: str, span: Span | None) -> EventType | None:
        if name in self._definitions:
            return self._definitions[name]
        makers = [asked for asked in self._asked if asked.into == name]
        if makers:
            known = self._made(name, makers[0])
            if known is None and makers[0].name in self._begun:
                raise RuleError(f"{name} is made of itself", span=span, hint=f"Write define stream {name} (…).")
            return known or self._query(makers[0]).emits
        if self._definitions.keys() - {asked.into for asked in self._asked}:
            known_names = [*self._definitions, *(asked.into for asked in self._asked)]
            raise RuleError(f"there is no stream {name}", span=span, hint=nearest(name, known_names))
        return None


def named_queries(unnamed: list[Unnamed]) -> list[Asked]:
    """The queries with the names that the text gives, else numbered by their place in it."""
    labels = Counter(item.label.value for item in unnamed if item.label)
    named = []
    for number, item in enumerate(unnamed, start=1):
        if item.label:
            name = item.label.value
            if labels[name] > 1:
                raise RuleError(f"two queries are called '{name}'", span=item.label.span)
        else:
            name = f"query{number}"
            while name in labels:
                name += "_"
        # Without `insert into`, as in Table 1 of the paper on VISIRI, a query fills a stream of its own name.
        named.append(replace(item.asked, name=name, into=item.into.value if item.into else name))
    return named
