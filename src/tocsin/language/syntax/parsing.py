"""Parse all languages with one LALR(1) parser, and build the nodes that the languages share.

A grammar is a Lark file. Most languages add terms.lark, which has declared types, patterns and expressions. As soon as
the parser has read a production of the grammar, it calls the method of its reader with the same name. This method
builds a node of the syntax tree, so there is no intermediate parse tree.

Lark builds the LALR(1) table of a grammar, but the loop over the table is in `Parser.read`. There are two reasons: the
lexer needs the state of the parser, and Lark's loop takes a third longer. Ten thousand rules parse in a few seconds.

The grammar parses `a + 1 < b and not c` as a *chain*, which is a flat list of operands and operators. `_fold` builds
expressions from a chain by precedence. The comma between constraints binds least, followed by `or`, `and`, `not`,
comparisons, `+ -` and `* /`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from typing import Any, NamedTuple

from tocsin.errors import RuleError, Span
from tocsin.events.types import EventType, Kind
from tocsin.language.syntax import expressions
from tocsin.language.syntax.ast import Arithmetic, Attribute, Comparison, Expression, Literal, Not, Parameter, Pattern
from tocsin.language.syntax.lexer import END, Lexer, Token, unexpected
from tocsin.process import gc_paused

_Reduction = tuple[Callable[[list[Any]], Any], int, str]
"""A reduction of the parser: the function that builds a value, the number of its children, and the resulting symbol."""


_Mistake = Callable[[Token, set[str], Sequence[Any]], RuleError]
"""A function that returns the error for an unexpected token, given the expected terminals and the stack of values."""


class Parser:
    """A parser for one grammar.

    `reader` has a method for each production, which builds its value. Each call of `read` begins with one of the
    symbols `starts`. `mistake` returns the error for an unexpected token.
    """

    def __init__(
        self,
        grammar: str,
        reader: object,
        starts: Sequence[str],
        lexer: type[Lexer] = Lexer,
        mistake: _Mistake = unexpected,
    ) -> None:
        from lark import Lark

        lark = Lark(
            grammar, parser="lalr", lexer="basic", start=list(starts), transformer=reader, maybe_placeholders=False
        )
        self._starts: dict[str, int] = {}
        self._steps: dict[int, dict[str, int | _Reduction]] = {}
        """What the parser does in a state at a terminal: shift, with the number of the next state, or a reduction."""
        self._returns: dict[int, dict[str, int]] = {}
        """The next state (goto) after a reduction, by the state before it and the symbol that it results in."""
        for start in starts:
            table: Any = lark.parse_interactive(start=start).parser_state.parse_conf
            self._starts[start] = table.start_state
            for state, actions in table.states.items():
                self._steps.setdefault(state, {})
                self._returns.setdefault(state, {})
                for symbol, (_, step) in actions.items():
                    if not symbol.isupper():
                        self._returns[state][str(symbol)] = step
                    elif isinstance(step, int):
                        self._steps[state][symbol] = step
                    else:
                        self._steps[state][symbol] = _reduction(step, table.callbacks)
            # The end state of Lark's table has no actions. Here it shifts the end of the text like any other token.
            self._steps[table.end_state][END] = table.end_state
        spelled = {item.name: (item.pattern.value,) for item in lark.terminals if item.pattern.type == "str"}
        self._lexer = lexer(spelled, self._steps)
        self._mistake = mistake

    def read(self, text: str, start: str) -> Any:
        """Parse a text as the symbol `start`, and return the value of this symbol. Raise `RuleError` if this fails."""
        steps, returns = self._steps, self._returns
        states = [self._starts[start]]
        values: list[Any] = []
        for token in self._lexer.tokens(text, states):
            terminal = token.type
            step = steps[states[-1]].get(terminal)
            while isinstance(step, tuple):
                make, size, symbol = step
                parts = []
                if size:
                    parts = values[-size:]
                    del values[-size:], states[-size:]
                values.append(make(parts))
                states.append(returns[states[-1]][symbol])
                step = steps[states[-1]].get(terminal)
            if step is None:
                raise self._mistake(token, self._fitting(states), values)
            states.append(step)
            values.append(token)
        return values[-2]

    def _fitting(self, states: list[int]) -> set[str]:
        """Return the terminals that can come next.

        The LALR table of the current state also has terminals that the parser would reject after a reduction. They are
        left out.
        """
        return {terminal for terminal in self._steps[states[-1]] if self._fits(terminal, states)}

    def _fits(self, terminal: str, states: list[int]) -> bool:
        states = list(states)
        step = self._steps[states[-1]].get(terminal)
        while isinstance(step, tuple):
            _, size, symbol = step
            del states[len(states) - size :]
            states.append(self._returns[states[-1]][symbol])
            step = self._steps[states[-1]].get(terminal)
        return step is not None


def _reduction(production: Any, makers: Any) -> _Reduction:
    return makers[production], len(production.expansion), str(production.origin.name)


_LEVELS = {"COMMA": 0, "OR": 1, "AND": 2, "NOT": 3, "COMPARE": 4, "EQUAL": 4, "ADD": 5, "MINUS": 5, "MULTIPLY": 6}
"""The precedence of each operator, by its terminal. Operators with a larger number bind more strongly."""

_COMPARISON = _LEVELS["COMPARE"]
_NORMAL = {"==": "=", "<>": "!="}


def constraints_of(chain: list[Any]) -> tuple[Expression, ...]:
    """Return the constraints of an event from a chain. Both a comma and a top-level `and` separate constraints."""
    return tuple(expressions.conjuncts(map(expressions.checked, _fold(chain))))


def expression_of(chain: list[Any]) -> Expression:
    """Return the expression of a chain. Raise if the chain has a comma."""
    expression, *more = _fold(chain)
    if more:
        comma = next(item for item in chain if isinstance(item, Token) and item.type == "COMMA")
        raise RuleError("a comma is not allowed here", span=comma.span, hint="Write 'and'.")
    return expression


def _fold(chain: list[Any]) -> list[Expression]:
    """Build the expressions of a chain by operator precedence. Commas separate the expressions."""
    operands: list[Expression] = []
    waiting: list[tuple[int, Token]] = []
    for item in chain:
        if not isinstance(item, Token):
            operands.append(item)
            continue
        level = _LEVELS[item.type]
        # A series of `and` or `or` is joined at its end: to join it in pairs would copy the operands each time.
        joined = item.type in ("AND", "OR")
        while waiting and item.type != "NOT" and waiting[-1][0] >= level + joined:
            if waiting[-1][0] == level == _COMPARISON:
                raise RuleError("comparisons do not chain", span=item.span, hint="Join two comparisons with 'and'.")
            _apply_last(waiting, operands)
        if level:
            waiting.append((level, item))
    while waiting:
        _apply_last(waiting, operands)
    return operands


def _apply_last(waiting: list[tuple[int, Token]], operands: list[Expression]) -> None:
    """Apply the last waiting operator to its operands. Join a series of `and` or of `or` in one step."""
    _, token = waiting.pop()
    if token.type not in ("AND", "OR"):
        _apply(token, operands)
        return
    count = 2
    while waiting and waiting[-1][1].type == token.type:
        waiting.pop()
        count += 1
    some = operands[-count:]
    assert some[0].span
    assert some[-1].span
    join = expressions.conjunction if token.type == "AND" else expressions.disjunction
    operands[-count:] = [join(some, Span(some[0].span.start, some[-1].span.end))]


def _apply(token: Token, operands: list[Expression]) -> None:
    right = operands.pop()
    assert right.span
    if token.type == "NOT":
        operands.append(Not(right, span=Span(token.start_pos, right.span.end)))
        return
    left = operands.pop()
    assert left.span
    span = Span(left.span.start, right.span.end)
    if token.type in ("COMPARE", "EQUAL"):
        operands.append(Comparison(comparison_of(token), left, right, span=span))
    else:
        operands.append(Arithmetic(token.value, left, right, span=span))


def comparison_of(token: Token) -> str:
    """Return the comparison operator of a token, with `==` as `=` and `<>` as `!=`."""
    return _NORMAL.get(token.value, token.value)


def grammar(name: str) -> str:
    """Return the grammar of the language `name`, followed by the shared terms."""
    folder = resources.files("tocsin.language")
    return "".join(folder.joinpath(file).read_text("utf-8") for file in (f"{name}/{name}.lark", "syntax/terms.lark"))


@contextmanager
def reading(text: str) -> Iterator[None]:
    """Parse `text` in the block of a `with` statement, without garbage collection.

    A `RuleError` that the block raises gets the text, so that the error shows the line of its position.
    """
    try:
        with gc_paused():
            yield
    except RuleError as error:
        raise error.within(text) from None


class Declared(NamedTuple):
    """A declaration, such as `event Temp(…)`."""

    name: Token
    type: EventType


def declared(items: Iterable[Declared]) -> tuple[EventType, ...]:
    """Return the types of declarations. Raise if a type is declared twice."""
    types: dict[str, EventType] = {}
    for item in items:
        if item.type.name in types:
            raise RuleError(f"the event type '{item.type.name}' is declared twice", span=item.name.span)
        types[item.type.name] = item.type
    return tuple(types.values())


class TermReader:
    """Builds the nodes of the syntax tree, with one method for each production of terms.lark.

    The argument of a method is a list with the nodes and tokens that the production consists of.
    """

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
        """Return a list that is empty, has its first item, or is an earlier list with the next items added."""
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
        return expressions.checked(expression_of(children[0]))

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
        return expressions.integer(expressions.whole(digits.value, span), span)

    def double(self, children: list[Token]) -> Literal:
        (digits,) = children
        return expressions.double(float(digits.value), digits.span)

    def string(self, children: list[Token]) -> Literal:
        (quoted,) = children
        span = Span(quoted.start_pos, quoted.end_pos)
        return Literal(expressions.unescape(quoted.value, span), Kind.STRING, span=span)

    def boolean(self, children: list[Token]) -> Literal:
        (word,) = children
        return Literal(word.value.lower() == "true", Kind.BOOL, span=word.span)

    def timestamp(self, children: list[Token]) -> Literal:
        word, quoted, end = children
        moment = expressions.moment(expressions.unescape(quoted.value, quoted.span), quoted.span)
        return expressions.timestamp(moment, Span(word.start_pos, end.end_pos))

    def parenthesised(self, children: list[Any]) -> Expression:
        start, chain, end = children
        return replace(expression_of(chain), span=Span(start.start_pos, end.end_pos))

    def minus(self, children: list[Any]) -> Expression:
        sign, operand = children
        return expressions.minus(operand, Span(sign.start_pos, operand.span.end))
