"""What do the languages have in common? Declared event types, patterns and expressions, and how a text is read.

A grammar is its own file and terms.lark behind it. The automaton of a grammar runs over the tokens of tokens.py and
calls a method of its reader for each production as soon as it is complete, so that no tree is built in between.

How does a text become what it says, by the tables that Lark makes of a grammar?

Lark turns the grammar into an LALR(1) table and wraps a reader's methods, one for each production. The loop over the
table is here and not Lark's own, for two reasons: the lexer has to see the state of the parser, and ten thousand rules
have to parse in a few seconds, which takes Lark's loop a third longer.

What expression does a chain of operands and operators make?

The grammar reads `a + 1 < b and not c` as a flat list. It gets its shape here, by precedence: the comma between
constraints binds least, then `or`, `and`, `not`, comparisons, `+ -`, `* /`.
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
from tocsin.process import uncollected

_Reduction = tuple[Callable[[list[Any]], Any], int, str]
"""What makes a value of a production's parts, how many parts there are, and the symbol that they become."""


_Mistake = Callable[[Token, set[str], Sequence[Any]], RuleError]
"""What to say of a token that does not fit, given the terminals that would and what had been read."""


class Automaton:
    """A parser for texts of a grammar, from one of its `starts`; `reader` makes the values."""

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
        """By state and terminal: the state that comes next, or what is to be reduced first."""
        self._returns: dict[int, dict[str, int]] = {}
        """By state and symbol: the state that comes next when such a symbol has been made."""
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
            # Lark leaves the last state without a way out; here it takes the end like any other token.
            self._steps[table.end_state][END] = table.end_state
        spelled = {item.name: (item.pattern.value,) for item in lark.terminals if item.pattern.type == "str"}
        self._lexer = lexer(spelled, self._steps)
        self._mistake = mistake

    def read(self, text: str, start: str) -> Any:
        """What the text says; a `RuleError` where it makes no sense."""
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
        """The terminals that can come next: the table alone also names some that a reduction would lead astray."""
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
"""How tightly an operator binds."""

_COMPARISON = _LEVELS["COMPARE"]
_NORMAL = {"==": "=", "<>": "!="}


def constraints_of(chain: list[Any]) -> tuple[Expression, ...]:
    """The constraints of an event: what stands between the commas of a chain, and a top-level `and` split."""
    return tuple(expressions.conjuncts(map(expressions.checked, _fold(chain))))


def expression_of(chain: list[Any]) -> Expression:
    """The one expression of a chain that has no commas."""
    expression, *more = _fold(chain)
    if more:
        comma = next(item for item in chain if isinstance(item, Token) and item.type == "COMMA")
        raise RuleError("a comma cannot stand here", span=comma.span, hint="Write 'and'.")
    return expression


def _fold(chain: list[Any]) -> list[Expression]:
    """The expressions between commas: each operator takes what binds more tightly, from left to right."""
    operands: list[Expression] = []
    waiting: list[tuple[int, Token]] = []
    for item in chain:
        if not isinstance(item, Token):
            operands.append(item)
            continue
        level = _LEVELS[item.type]
        # Operands of `and` and `or` wait for the last one: joined one by one, they would be copied each time.
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
    """Applies the last operator that waits, with all before it that are the same `and` or `or`."""
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
    """The operator in its one spelling."""
    return _NORMAL.get(token.value, token.value)


def grammar(name: str) -> str:
    """The whole grammar of a language."""
    folder = resources.files("tocsin.language")
    return "".join(folder.joinpath(file).read_text("utf-8") for file in (f"{name}/{name}.lark", "syntax/terms.lark"))


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
