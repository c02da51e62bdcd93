"""How do the states of a pattern or a sequence become a chain? The reader of SiddhiQL builds it here, bottom up.

A stream with tests is read as a `Source`. Where it turns out to stand in a chain it becomes a `Step`.

What streams does a SiddhiQL text have, and how are its queries called?

A stream is defined by the text, or by the query that fills it. A query's stream is known once the query is settled,
and its streams are settled before it, so the queries of a text can stand in any order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import EventType
from tocsin.language.siddhi.ast import Absence, Chain, Every, Pair, Query, Source, State, Step
from tocsin.language.siddhi.resolve import Asked, settled
from tocsin.language.syntax import expressions
from tocsin.language.syntax.lexer import Token
from tocsin.language.syntax.parsing import Declared

COUNTS = range(1 << 31)
"""How many events a window can hold and a step can take."""

REPEATED: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Count(NamedTuple):
    """`<2:5>`."""

    least: int
    most: int | None
    span: Span


class Link(NamedTuple):
    """States one after another and what stands between them."""

    parts: list[Source | State | Every]
    separators: list[Token]
    span: Span


def chained(link: Link, within_us: int | None) -> Source | Chain:
    """What a query reads: one stream, a pattern or a sequence."""
    if len(link.parts) == 1 and isinstance(link.parts[0], Source):
        if within_us is not None:
            raise RuleError("'within' belongs to a pattern or a sequence", span=link.span)
        return link.parts[0]
    kinds = {separator.type for separator in link.separators}
    if len(kinds) > 1:
        first = link.separators[0].type
        other = next(separator for separator in link.separators if separator.type != first)
        raise RuleError("'->' and ',' cannot be mixed", span=other.span, hint="A pattern has '->', a sequence ','.")
    sequence = kinds == {"COMMA"}
    parts = tuple(part if isinstance(part, Every) else _stateful(part) for part in link.parts)
    chain = Chain(parts, sequence, within_us, span=link.span)
    for place, part in enumerate(parts):
        if isinstance(part, Every) and sequence and (place or len(part.states) > 1):
            hint = "Write from every e1=A, e2=B."
            raise RuleError("in a sequence, 'every' stands before the first state", span=part.span, hint=hint)
    if sequence and isinstance(chain.states[0], Absence):
        message = "a sequence that begins with 'not … for' is not supported"
        raise RuleError(message, span=chain.states[0].span, hint="Write not … for 5 sec -> ….")
    last = chain.states[-1]
    if isinstance(last, Step) and last.least == 0:
        raise RuleError("the last event cannot be one that may not come", span=last.span, hint="Write <1:> or <1:5>.")
    for state in chain.states:
        if isinstance(state, Absence) and state.duration_us is None:
            raise RuleError("say for how long it is absent", span=state.span, hint="Write not … for 5 sec.")
    return chain


def repeated(link: Link, start: int) -> Link:
    """`every (…)`, from that place of the text."""
    states = []
    for part in link.parts:
        if isinstance(part, Every):
            raise RuleError("'every' cannot stand within 'every'", span=part.span)
        states.append(_stateful(part))
    span = Span(start, link.span.end)
    return Link([Every(tuple(states), span=span)], link.separators, span)


def paired(left: Source | State, word: Token, right: Source | State) -> Pair:
    """`… and …`, `… or …`."""
    both = word.type == "AND"
    first, second = _stateful(left), _stateful(right)
    assert not isinstance(first, Pair)
    assert not isinstance(second, Pair)
    for side in (first, second):
        if isinstance(side, Step) and not side.single:
            raise RuleError(f"a count cannot stand beside '{word.value}'", span=side.span)
        if isinstance(side, Absence) and side.duration_us is not None:
            hint = "Write … -> not … for 5 sec."
            raise RuleError(f"'not … for' beside '{word.value}' is not supported", span=side.span, hint=hint)
        if isinstance(side, Absence) and not both:
            raise RuleError("what is absent cannot stand beside 'or'", span=side.span)
    if isinstance(first, Absence) and isinstance(second, Absence):
        raise RuleError("one of the two must come", span=second.span)
    return Pair(first, second, both, span=_over(first, second))


def step(source: Source, name: Token | None, count: Count | None = None) -> Step:
    """`e1=A[…]<2:5>`."""
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
    """How many events `<2:5>`, `<2:>`, `<:5>` ask for."""
    few = whole_count(expressions.whole(least.value, least.span), least.span, 0) if least else 0
    many = whole_count(expressions.whole(most.value, most.span), most.span) if most else None
    if many is not None and few > many:
        raise RuleError(f"there is no number from {few} to {many}", span=span)
    return Count(few, many, span)


def whole_count(number: int, span: Span | None, least: int = 1) -> int:
    """The number of events, if there can be so many."""
    if number not in COUNTS or number < least:
        raise RuleError(f"a number of events is from {least} to {COUNTS[-1]}", span=span)
    return number


def check_plain(source: Source) -> None:
    """Fails if a stream in a chain has a window."""
    if source.window is not None:
        raise RuleError("a window cannot stand in a pattern or a sequence", span=source.window.span)
    if source.tables:
        raise RuleError("'in' cannot stand in a pattern or a sequence", span=source.span)


def _stateful(part: Source | State) -> State:
    return step(part, None) if isinstance(part, Source) else part


def _over(first: Step | Absence, last: Step | Absence) -> Span:
    assert first.span
    assert last.span
    return Span(first.span.start, last.span.end)


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
