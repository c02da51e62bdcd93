"""Parse texts of SiddhiQL, which have queries and definitions of streams.

    define stream Trades (symbol string, price double);
    from Trades[price > 10]#window.time(1 min)
    select symbol, avg(price) as mean group by symbol having mean > 20
    insert into Averages;

The grammar is siddhi.lark. If a text uses a feature of Siddhi that is not supported, the error names the feature.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import (
    AbsentState,
    Call,
    Chain,
    Extent,
    Join,
    Output,
    Side,
    State,
    Step,
    StreamSource,
    Summary,
    Window,
)
from tocsin.language.siddhi.clauses import (
    REPEATED,
    Count,
    Link,
    Property,
    Statements,
    StreamResolver,
    UnnamedQuery,
    chained,
    check_plain,
    counted,
    named_queries,
    paired,
    repeated,
    step,
    whole_count,
)
from tocsin.language.siddhi.lexer import UNITS_OF_QUERIES, QueryLexer, unexpected_in_query
from tocsin.language.siddhi.resolve import AggregateReference, NullSubject, UnresolvedQuery
from tocsin.language.syntax import expressions
from tocsin.language.syntax.ast import Attribute, Comparison, Expression, Literal, Not, Pattern, Program
from tocsin.language.syntax.lexer import Token
from tocsin.language.syntax.parsing import Declared, Parser, TermReader, expression_of, reading

_OPERATORS = {"LESS": "COMPARE", "MORE": "COMPARE", "STAR": "MULTIPLY"}
"""The terminal that some symbols have in expressions, by the terminal that they have elsewhere.

For example, `<` is a comparison in an expression, but it begins a count such as `<2:5>` elsewhere.
"""

_SUMMARIES = {function.lower(): function for function in Summary}
_EXTENTS = {extent.lower(): extent for extent in Extent}


def parse(text: str) -> Program:
    """Parse a text into its queries and the types of its streams.

    The types do not include streams that a query of the text fills.

    >>> parse("from Trades[price > 10] select symbol insert into Dear").rules[0].emits.name
    'Dear'
    """
    with reading(text):
        statements: Statements = _automaton().read(text, "program")
        definitions = statements.definitions
        queries = StreamResolver(definitions, named_queries(statements.unresolved)).queries()
    filled = {query.emits.name for query in queries}
    types = tuple(type for type in definitions.values() if type.name not in filled)
    return Program(types, queries, source=text)


@cache
def _automaton() -> Parser:
    grammar = resources.files(__package__).joinpath("siddhi.lark").read_text("utf-8")
    return Parser(grammar, _Reader(), ("program",), QueryLexer, unexpected_in_query)


class _Annotation(NamedTuple):
    """An annotation, such as `@info(…)`."""

    name: str
    properties: list[Property]
    span: Span


class _Filter(NamedTuple):
    """A filter `[…]`, which has the tests of a stream and the tables after `in`."""

    tests: tuple[Expression, ...]
    tables: list[str]
    span: Span


class _Duration(NamedTuple):
    """A length of time, such as `1 min 30 sec`."""

    duration_us: int
    span: Span


class _Reader(TermReader):
    """Builds the nodes of queries, with one method for each production of siddhi.lark.

    The argument of a method is a list with the nodes and tokens that the production consists of.
    """

    def program(self, items: list[Any]) -> Any:
        """Add definitions and queries to the statements of the text that are already collected."""
        statements = items[0] if items and isinstance(items[0], Statements) else Statements()
        for item in items:
            if isinstance(item, Declared):
                statements.define(item)
            elif isinstance(item, UnnamedQuery):
                statements.unresolved.append(item)
        return statements

    def definition(self, children: list[Any]) -> Declared:
        annotations, _, name, fields = children
        for annotation in annotations:
            _check_annotation(annotation)
        kinds: dict[str, Kind] = {}
        for attribute, kind in fields:
            if attribute.value in kinds:
                raise RuleError(f"the attribute '{attribute.value}' is defined twice", span=attribute.span)
            kinds[attribute.value] = kind
        return Declared(name, EventType(name.value, tuple(kinds.items())))

    annotations = fields = elements = items = references = handlers = sizes = arguments = TermReader.listed

    def field(self, children: list[Token]) -> tuple[Token, Kind]:
        name, kind = children
        word = kind.value.lower()
        return name, Kind.DOUBLE if word == "float" else Kind(word)

    # ---- annotations

    def annotation(self, children: list[Any]) -> _Annotation:
        at, name, _, *elements = children
        properties = [item for item in (elements[0] if elements else ()) if isinstance(item, Property)]
        return _Annotation(name.value.lower(), properties, Span(at.start_pos, name.end_pos))

    def tag(self, children: list[Token]) -> list[Token]:
        return children

    def value(self, children: list[Token]) -> Property:
        (quoted,) = children
        return Property("", expressions.unescape(quoted.value, quoted.span), quoted.span)

    def property(self, children: list[Any]) -> Property:
        key, _, quoted = children
        return Property(key, expressions.unescape(quoted.value, quoted.span), quoted.span)

    def element(self, children: list[Any]) -> Any:
        return children[0]

    def key(self, children: list[Any]) -> str:
        return ".".join(part if isinstance(part, str) else part.value for part in children)

    # ---- queries

    def query(self, children: list[Any]) -> UnnamedQuery:
        annotations, word, query_input, (everything, items), group_by, having, (output, into) = children
        name = None
        for annotation in annotations:
            _check_annotation(annotation)
            for item in annotation.properties if annotation.name == "info" else ():
                if item.key.lower() == "name":
                    name = item
        span = Span(word.start_pos, into.end_pos if into else query_input.span.end)
        unresolved = UnresolvedQuery(
            "", query_input, everything, tuple(items), tuple(group_by), having, output, "", span
        )
        return UnnamedQuery(name, into, unresolved)

    def chain_of_states(self, children: list[Any]) -> StreamSource | Chain:
        link, within_us = children
        return chained(link, within_us)

    def within(self, children: list[Any]) -> int | None:
        return children[1].duration_us if children else None

    def on(self, children: list[Any]) -> tuple[Expression, ...]:
        return _tests(children[1]) if children else ()

    having = on

    def inner(self, children: list[Any]) -> Join:
        left, _, right, on = children
        return _join(left, right, on, Side.NEITHER)

    def joined(self, children: list[Any]) -> Join:
        left, word, *_, right, on = children
        outer = {"left": Side.LEFT, "right": Side.RIGHT, "inner": Side.NEITHER}.get(word.value.lower(), Side.BOTH)
        return _join(left, right, on, outer)

    def source(self, children: list[Any]) -> tuple[StreamSource, Token | None]:
        stream, *words = children
        alone = words[-1] if words and words[-1].type == "UNIDIRECTIONAL" else None
        if len(words) > 1 and words[0].type == "AS":
            pattern = replace(stream.pattern, alias=words[1].value)
            stream = replace(stream, pattern=pattern, span=Span(stream.span.start, words[1].end_pos))
        return stream, alone

    # ---- patterns and sequences

    def links(self, children: list[Any]) -> Link:
        if len(children) == 1:
            link: Link = children[0]
            return link
        before, separator, after = children
        span = Span(before.span.start, after.span.end)
        return Link(before.parts + after.parts, [*before.separators, separator, *after.separators], span)

    def link(self, children: list[Any]) -> Link:
        *every, state = children
        link = Link([state], [], state.span)
        return repeated(link, every[0].start_pos) if every else link

    def group_of_states(self, children: list[Any]) -> Link:
        first, *_, inner, end = children
        link = Link(inner.parts, inner.separators, Span(first.start_pos, end.end_pos))
        return repeated(link, first.start_pos) if first.type == "EVERY" else link

    def state(self, children: list[Any]) -> StreamSource | State:
        return paired(*children) if len(children) > 1 else children[0]

    def unnamed(self, children: list[Any]) -> StreamSource | Step:
        stream, *counts = children
        return step(stream, None, *counts) if counts else stream

    def named(self, children: list[Any]) -> Step:
        name, _, stream, *counts = children
        return step(stream, name, *counts)

    def absence(self, children: list[Any]) -> AbsentState:
        word, stream, *lasting = children
        check_plain(stream)
        end = lasting[1].span.end if lasting else stream.span.end
        duration_us = lasting[1].duration_us if lasting else None
        return AbsentState(stream.pattern, duration_us, span=Span(word.start_pos, end))

    def exactly(self, children: list[Token]) -> Count:
        start, number, end = children
        return counted(number, number, Span(start.start_pos, end.end_pos))

    def between(self, children: list[Token]) -> Count:
        start, least, most, end = children
        return counted(least, most, Span(start.start_pos, end.end_pos))

    def at_least(self, children: list[Token]) -> Count:
        start, least, end = children
        return counted(least, None, Span(start.start_pos, end.end_pos))

    def at_most(self, children: list[Token]) -> Count:
        start, most, end = children
        return counted(None, most, Span(start.start_pos, end.end_pos))

    def repeated(self, children: list[Token]) -> Count:
        (sign,) = children
        return Count(*REPEATED[sign.value], sign.span)

    # ---- streams

    def stream(self, children: list[Any]) -> StreamSource:
        name, handlers = children
        before: tuple[Expression, ...] = ()
        after: tuple[Expression, ...] = ()
        window: Window | None = None
        tables: list[str] = []
        end = name.end_pos
        for handler in handlers:
            end = handler.span.end
            if isinstance(handler, Window):
                if window is not None:
                    raise RuleError("a stream can have only one window", span=handler.span)
                window = handler
            elif window is None:
                before += handler.tests
                tables += handler.tables
            elif handler.tables:
                raise RuleError("'in' cannot come after a window", span=handler.span)
            else:
                after += handler.tests
        span = Span(name.start_pos, end)
        return StreamSource(Pattern(name.value, before, span=name.span), window, after, tuple(tables), span=span)

    def filter(self, children: list[Any]) -> _Filter:
        if isinstance(children[0], Token):
            del children[0]
        chain, *among, end = children
        start = chain[0].span.start
        tables = [among[1].value] if among else []
        return _Filter(_tests(chain), tables, Span(start, end.start_pos))

    def window(self, children: list[Any]) -> Window:
        start, _, name, *sizes, end = children
        span = Span(start.start_pos, end.end_pos)
        extent = _EXTENTS.get(name.value.lower())
        if extent is None:
            hint = nearest(name.value, Extent)
            raise RuleError(f"the window '{name.value}' is not supported", span=name.span, hint=hint)
        values = sizes[0] if sizes else []
        if len(values) != 1:
            raise RuleError(f"the window '{extent}' takes one number", span=span)
        return Window(extent, _size(extent, values[0]), span=span)

    def computed(self, children: list[Any]) -> Expression:
        return expression_of(children[0])

    def duration(self, children: list[Any]) -> _Duration:
        *before, number, unit = children
        length_us = expressions.whole(number.value, number.span) * UNITS_OF_QUERIES[unit.value.lower()]
        start = before[0].span.start if before else number.start_pos
        length_us += before[0].duration_us if before else 0
        span = Span(start, unit.end_pos)
        return _Duration(expressions.checked_window(length_us, span), span)

    # ---- select

    def select(self, children: list[Any]) -> tuple[bool, list[Any]]:
        return (False, children[1]) if children else (True, [])

    def everything(self, children: list[Any]) -> tuple[bool, list[Any]]:
        return True, []

    def item(self, children: list[Any]) -> tuple[str | None, Expression]:
        chain, *name = children
        value = expressions.checked(expression_of(chain))
        return (name[1].value if name else None), value

    def group(self, children: list[Any]) -> list[Attribute]:
        return children[2] if children else []

    def insert(self, children: list[Any]) -> tuple[Output, Token | None]:
        if not children:
            return Output.CURRENT, None
        words = [child for child in children if isinstance(child, Token)]
        output = next((child for child in children if isinstance(child, Output)), Output.CURRENT)
        into = next(word for word in words if word.type == "TYPE")
        return output, into

    def which(self, children: list[Token]) -> Output:
        words = [word.value.lower() for word in children if word.type in ("ALL", "CURRENT", "EXPIRED")]
        return Output(words[0]) if words else Output.CURRENT

    # ---- expressions

    def chain(self, children: list[Any]) -> list[Any]:
        if len(children) > 2:
            sign = children[1]
            sign.type = _OPERATORS.get(sign.type, sign.type)
            if sign.value == "/":
                sign.value = "//"
        return super().chain(children)

    def long(self, children: list[Token]) -> Literal:
        (digits,) = children
        return Literal(expressions.whole(digits.value[:-1], digits.span), Kind.LONG, span=digits.span)

    def double(self, children: list[Token]) -> Literal:
        (digits,) = children
        return expressions.double(float(digits.value.rstrip("dDfF")), digits.span)

    def minus(self, children: list[Any]) -> Expression:
        sign, operand = children
        span = Span(sign.start_pos, operand.span.end)
        if isinstance(operand, Literal) and operand.kind == Kind.LONG:
            return Literal(-int(operand.value), Kind.LONG, span=span)
        return expressions.minus(operand, span)

    def is_null(self, children: list[Any]) -> Expression:
        subject, _, end = children
        if isinstance(subject, Attribute) and subject.role is None:
            subject = NullSubject(subject.name, span=subject.span)
        return Not(Comparison("=", subject, subject), span=Span(subject.span.start, end.end_pos))

    def is_null_at(self, children: list[Any]) -> Expression:
        role, index, _, _, end = children
        span = Span(role.start_pos, end.end_pos)
        subject = Attribute("ts", f"{role.value}[{index}]", span=span)
        return Not(Comparison("=", subject, subject), span=span)

    def at(self, children: list[Any]) -> Attribute:
        role, index, _, name = children
        return Attribute(name.value, f"{role.value}[{index}]", span=Span(role.start_pos, name.end_pos))

    def index(self, children: list[Token]) -> str:
        first, *more = children
        if first.type == "INT":
            return str(expressions.whole(first.value, first.span))
        back = expressions.whole(more[1].value, more[1].span) if more else 0
        return f"last-{back}" if back else "last"

    def call(self, children: list[Any]) -> AggregateReference:
        name, *chains, end = children
        span = Span(name.start_pos, end.end_pos)
        function = _SUMMARIES.get(name.value.lower())
        if function is None:
            hint = nearest(name.value, Summary)
            raise RuleError(f"the function '{name.value}' is not supported", span=name.span, hint=hint)
        if chains and isinstance(chains[0], Token):
            raise RuleError("'*' is not allowed here", span=chains[0].span, hint="Write count().")
        arguments = [expressions.checked(expression_of(chain)) for chain in chains[0]] if chains else []
        if len(arguments) > 1 or (not arguments and function != Summary.COUNT):
            raise RuleError(f"'{function}' takes one value", span=span)
        for argument in arguments:
            inner = next((node for node in expressions.walk(argument) if isinstance(node, AggregateReference)), None)
            if inner is not None:
                raise RuleError("an aggregate cannot contain an aggregate", span=inner.span)
        call = Call(function, arguments[0] if arguments else None, span=span)
        return AggregateReference("", call=call, span=span)


def _check_annotation(annotation: _Annotation) -> None:
    if annotation.name not in ("app", "info"):
        message = f"the annotation '@{annotation.name}' is not supported"
        raise RuleError(message, span=annotation.span, hint="Supported: @info(name = '…').")


def _tests(chain: list[Any]) -> tuple[Expression, ...]:
    return tuple(expressions.conjuncts([expressions.checked(expression_of(chain))]))


def _join(
    left: tuple[StreamSource, Token | None],
    right: tuple[StreamSource, Token | None],
    on: tuple[Expression, ...],
    outer: Side,
) -> Join:
    (first, first_alone), (second, second_alone) = left, right
    if first_alone and second_alone:
        raise RuleError("only one side of a join can be unidirectional", span=second_alone.span)
    for source in (first, second):
        if source.after:
            span, hint = source.after[0].span, "Put it before the window, or after 'on'."
            raise RuleError("in a join, a test cannot come after a window", span=span, hint=hint)
    triggers = Side.LEFT if first_alone else Side.RIGHT if second_alone else Side.BOTH
    assert first.span
    assert second.span
    return Join(first, second, on, outer, triggers, span=Span(first.span.start, second.span.end))


def _size(extent: Extent, size: Expression | _Duration) -> int:
    if isinstance(size, _Duration):
        if extent.timed:
            return size.duration_us
        raise RuleError(f"the window '{extent}' takes a number of events", span=size.span)
    if not isinstance(size, Literal) or not size.kind.integral:
        kind = "a length of time" if extent.timed else "a number of events"
        raise RuleError(f"the window '{extent}' takes {kind}", span=size.span, hint="Write it as a constant.")
    if extent.timed:
        return expressions.checked_window(int(size.value) * UNITS_OF_QUERIES["millisec"], size.span)
    return whole_count(int(size.value), size.span)
