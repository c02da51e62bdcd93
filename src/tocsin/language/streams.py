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
    """What is known of the streams of a text."""

    def __init__(self, definitions: dict[str, EventType], asked: list[Asked]) -> None:
        self._known = dict(definitions)
        """Streams by name: defined, or filled by a query that is settled."""
        self._asked = asked
        self._settled: dict[str, Query] = {}
        self._begun: set[str] = set()
        self._makers: dict[str, Asked] = {}
        for query in asked:
            self._makers.setdefault(query.into, query)
        self._closed = bool(definitions.keys() - self._makers.keys())
        """Whether the text defines where its events come from, so that there are no others."""

    def queries(self) -> tuple[Query, ...]:
        """The queries of the text, in its order."""
        return tuple(map(self._query, self._asked))

    def _query(self, asked: Asked) -> Query:
        if asked.name not in self._settled:
            self._begun.add(asked.name)
            query = settled(asked, self._type, self._known.get(asked.into))
            self._settled[asked.name] = query
            self._known[asked.into] = query.emits
        return self._settled[asked.name]

    def _type(self, name: str, span: Span | None) -> EventType | None:
        if name in self._known:
            return self._known[name]
        maker = self._makers.get(name)
        if maker is not None:
            if maker.name in self._begun:
                raise RuleError(f"{name} is made of itself", span=span, hint=f"Write define stream {name} (…).")
            return self._query(maker).emits
        if self._closed:
            raise RuleError(f"there is no stream {name}", span=span, hint=nearest(name, [*self._known, *self._makers]))
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
