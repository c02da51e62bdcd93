"""Build the patterns and sequences of SiddhiQL queries, and resolve the streams and names of the queries.

A chain is a pattern or a sequence, and its elements are states. The parser builds chains from their parts. It parses
each stream with tests as a `StreamSource`, which becomes a `Step` if it is part of a chain.

A stream is defined by a definition in the text, or by the query that fills the stream. `StreamResolver` resolves a
query after the queries that fill its input streams, so that the queries of a text can be in any order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import EventType
from tocsin.language.siddhi.ast import AbsentState, Chain, Every, Pair, Query, State, Step, StreamSource
from tocsin.language.siddhi.resolve import UnresolvedQuery, resolve_query
from tocsin.language.syntax import expressions
from tocsin.language.syntax.lexer import Token
from tocsin.language.syntax.parsing import Declared

COUNTS = range(1 << 31)
"""The valid numbers of events in a window or a step."""

REPEATED: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Count(NamedTuple):
    """How many events a step matches, such as `<2:5>`. If `most` is None, there is no upper limit."""

    least: int
    most: int | None
    span: Span


class Link(NamedTuple):
    """Consecutive states of a chain, with the separators between the states."""

    parts: list[StreamSource | State | Every]
    separators: list[Token]
    span: Span


def chained(link: Link, within_us: int | None) -> StreamSource | Chain:
    """Return the input of a query, which is a `Chain` or, if `link` has one stream only, this stream."""
    if len(link.parts) == 1 and isinstance(link.parts[0], StreamSource):
        if within_us is not None:
            raise RuleError("'within' belongs to a pattern or a sequence", span=link.span)
        return link.parts[0]
    kinds = {separator.type for separator in link.separators}
    if len(kinds) > 1:
        first = link.separators[0].type
        other = next(separator for separator in link.separators if separator.type != first)
        raise RuleError("'->' and ',' cannot be mixed", span=other.span, hint="A pattern has '->', a sequence ','.")
    sequence = kinds == {"COMMA"}
    parts = tuple(part if isinstance(part, Every) else _state(part) for part in link.parts)
    chain = Chain(parts, sequence, within_us, span=link.span)
    for position, part in enumerate(parts):
        if isinstance(part, Every) and sequence and (position or len(part.states) > 1):
            hint = "Write from every e1=A, e2=B."
            raise RuleError("in a sequence, 'every' must be before the first state", span=part.span, hint=hint)
    if sequence and isinstance(chain.states[0], AbsentState):
        message = "a sequence that begins with 'not … for' is not supported"
        raise RuleError(message, span=chain.states[0].span, hint="Write not … for 5 sec -> ….")
    last = chain.states[-1]
    if isinstance(last, Step) and last.least == 0:
        raise RuleError("the last event cannot be optional", span=last.span, hint="Write <1:> or <1:5>.")
    for state in chain.states:
        if isinstance(state, AbsentState) and state.duration_us is None:
            raise RuleError("'not' needs a duration here", span=state.span, hint="Write not … for 5 sec.")
    return chain


def repeated(link: Link, start: int) -> Link:
    """Put the states of `link` into `every (…)`, whose text begins at the position `start`."""
    states = []
    for part in link.parts:
        if isinstance(part, Every):
            raise RuleError("'every' cannot contain 'every'", span=part.span)
        states.append(_state(part))
    span = Span(start, link.span.end)
    return Link([Every(tuple(states), span=span)], link.separators, span)


def paired(left: StreamSource | State, word: Token, right: StreamSource | State) -> Pair:
    """Return the state `left and right` or `left or right`, depending on `word`."""
    both = word.type == "AND"
    first, second = _state(left), _state(right)
    assert not isinstance(first, Pair)
    assert not isinstance(second, Pair)
    for side in (first, second):
        if isinstance(side, Step) and not side.single:
            raise RuleError(f"an operand of '{word.value}' cannot have a count", span=side.span)
        if isinstance(side, AbsentState) and side.duration_us is not None:
            hint = "Write … -> not … for 5 sec."
            raise RuleError(f"'not … for' as an operand of '{word.value}' is not supported", span=side.span, hint=hint)
        if isinstance(side, AbsentState) and not both:
            raise RuleError("an operand of 'or' cannot be 'not'", span=side.span)
    if isinstance(first, AbsentState) and isinstance(second, AbsentState):
        raise RuleError("one operand of 'and' must be without 'not'", span=second.span)
    return Pair(first, second, both, span=_over(first, second))


def step(source: StreamSource, name: Token | None, count: Count | None = None) -> Step:
    """Return the step of a stream, such as `e1=A[…]<2:5>`. The name and the count are optional."""
    check_plain(source)
    pattern, span = source.pattern, source.span
    assert span
    if name is not None:
        span = Span(name.start_pos, span.end)
        pattern = replace(pattern, alias=name.value, span=span)
    if count is None:
        return Step(pattern, span=span)
    return Step(pattern, count.least, count.most, span=Span(span.start, count.span.end))


def counted(least: Token | None, most: Token | None, span: Span) -> Count:
    """Return the count of `<2:5>`, `<2:>` or `<:5>` from its limits. Raise if the range between them is empty."""
    least_count = whole_count(expressions.whole(least.value, least.span), least.span, 0) if least else 0
    most_count = whole_count(expressions.whole(most.value, most.span), most.span) if most else None
    if most_count is not None and least_count > most_count:
        raise RuleError(f"the range from {least_count} to {most_count} is empty", span=span)
    return Count(least_count, most_count, span)


def whole_count(number: int, span: Span | None, least: int = 1) -> int:
    """Return `number`, which is a number of events. Raise if `number` is out of range."""
    if number not in COUNTS or number < least:
        raise RuleError(f"a number of events must be from {least} to {COUNTS[-1]}", span=span)
    return number


def check_plain(source: StreamSource) -> None:
    """Raise if `source`, which is part of a chain, has a window or a table."""
    if source.window is not None:
        raise RuleError("a pattern or a sequence cannot have a window", span=source.window.span)
    if source.tables:
        raise RuleError("a pattern or a sequence cannot have 'in'", span=source.span)


def _state(part: StreamSource | State) -> State:
    return step(part, None) if isinstance(part, StreamSource) else part


def _over(first: Step | AbsentState, last: Step | AbsentState) -> Span:
    assert first.span
    assert last.span
    return Span(first.span.start, last.span.end)


class Property(NamedTuple):
    """A property in an annotation, such as `name = 'q1'`. A value without a name has an empty key."""

    key: str
    value: str
    span: Span


class UnnamedQuery(NamedTuple):
    """A parsed query that has no name yet, because its name depends on the other queries of the text."""

    label: Property | None
    into: Token | None
    unresolved: UnresolvedQuery


class Statements:
    """The definitions and queries of a text that the parser has read so far."""

    def __init__(self) -> None:
        self.definitions: dict[str, EventType] = {}
        self.unresolved: list[UnnamedQuery] = []

    def define(self, item: Declared) -> None:
        if self.definitions.setdefault(item.type.name, item.type) != item.type:
            raise RuleError(f"the stream '{item.type.name}' has two different definitions", span=item.name.span)


class StreamResolver:
    """Resolves the queries of a text, and finds the types of the streams that the queries read."""

    def __init__(self, definitions: dict[str, EventType], unresolved: list[UnresolvedQuery]) -> None:
        self._types = dict(definitions)
        """The type of each known stream, which has a definition or is filled by a resolved query."""
        self._asked = unresolved
        self._resolved: dict[str, Query] = {}
        self._started: set[str] = set()
        self._producers: dict[str, UnresolvedQuery] = {}
        for query in unresolved:
            self._producers.setdefault(query.into, query)
        self._closed = bool(definitions.keys() - self._producers.keys())
        """Whether the text defines a stream that no query fills. Then each input stream must be defined or filled."""

    def queries(self) -> tuple[Query, ...]:
        """Return the resolved queries, in the order of the text."""
        return tuple(map(self._query, self._asked))

    def _query(self, unresolved: UnresolvedQuery) -> Query:
        if unresolved.name not in self._resolved:
            self._started.add(unresolved.name)
            query = resolve_query(unresolved, self._type, self._types.get(unresolved.into))
            self._resolved[unresolved.name] = query
            self._types[unresolved.into] = query.emits
        return self._resolved[unresolved.name]

    def _type(self, name: str, span: Span | None) -> EventType | None:
        if name in self._types:
            return self._types[name]
        producer = self._producers.get(name)
        if producer is not None:
            if producer.name in self._started:
                raise RuleError(f"{name} depends on itself", span=span, hint=f"Write define stream {name} (…).")
            return self._query(producer).emits
        if self._closed:
            raise RuleError(
                f"there is no stream {name}", span=span, hint=nearest(name, [*self._types, *self._producers])
            )
        return None


def named_queries(unnamed: list[UnnamedQuery]) -> list[UnresolvedQuery]:
    """Give each query its name: the name in the text, or else `query` and its position in the text."""
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
        named.append(replace(item.unresolved, name=name, into=item.into.value if item.into else name))
    return named
