"""Print queries as SiddhiQL, with one clause per line. `parser.parse` converts the text back to an equal query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tocsin.events.types import EventType, Kind
from tocsin.language.siddhi.ast import (
    AbsentState,
    Call,
    Chain,
    Every,
    Join,
    Output,
    Pair,
    Query,
    Side,
    State,
    Step,
    StreamSource,
    Window,
    indexed,
)
from tocsin.language.syntax.ast import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Negative,
    Not,
    Or,
    Parameter,
    Pattern,
)
from tocsin.language.syntax.expressions import print_expression
from tocsin.language.syntax.names import quoted, quoted_type

_UNITS: Mapping[str, int] = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "min": 60_000_000,
    "sec": 1_000_000,
    "millisec": 1_000,
    "us": 1,
}
_COUNTS: Mapping[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _ATOM = range(7)


def print_definition(event_type: EventType) -> str:
    """Return the definition of a stream as text, such as `define stream Trades (price double);`."""
    attributes = ", ".join(f"{quoted(name)} {kind}" for name, kind in event_type.attributes)
    return f"define stream {quoted_type(event_type.name)} ({attributes});"


def print_query(query: Query) -> str:
    """Return a query as text.

    The text has the name of the query and the definition of its output stream, so that it can be parsed by itself.
    """
    lines = [print_definition(query.emits), f"@info(name = {_string(query.name)})", f"from {_input(query.input)}"]
    lines.append("select " + ", ".join(_selected(name, value) for name, value in query.select))
    if query.group_by:
        lines.append("group by " + ", ".join(map(print_term, query.group_by)))
    if query.having:
        lines.append("having " + _conjunction(query.having))
    which = {Output.CURRENT: "", Output.EXPIRED: "expired events ", Output.ALL: "all events "}[query.output]
    lines.append(f"insert {which}into {quoted_type(query.emits.name)};")
    return "\n".join(lines)


def print_call(call: Call) -> str:
    """Return an aggregate as text. This text is also the name by which expressions refer to the aggregate.

    >>> from tocsin.language.siddhi.ast import Summary
    >>> print_call(Call(Summary.AVG, Attribute("price", "e1")))
    'avg(e1.price)'
    """
    return f"{call.function}({'' if call.argument is None else print_term(call.argument)})"


def print_term(expression: Expression) -> str:
    """Return an expression as SiddhiQL, with the necessary parentheses only."""
    return _term(expression, _OR)


def print_duration(duration_us: int) -> str:
    """Return a length of time as text, in the largest unit that gives a whole number.

    >>> print_duration(90_000_000)
    '90 sec'
    """
    unit, worth = next((unit, worth) for unit, worth in _UNITS.items() if duration_us % worth == 0)
    return f"{duration_us // worth} {unit}"


def _input(query_input: StreamSource | Join | Chain) -> str:
    match query_input:
        case StreamSource():
            return print_source(query_input)
        case Join(left, right, on, outer, triggers):
            word = "join" if outer == Side.NEITHER else f"{outer} outer join"
            first = " unidirectional" if triggers == Side.LEFT else ""
            second = " unidirectional" if triggers == Side.RIGHT else ""
            condition = f"\non {_conjunction(on)}" if on else ""
            return f"{print_source(left)}{first}\n{word} {print_source(right)}{second}{condition}"
        case Chain(parts, sequence, within_us):
            joined = (", " if sequence else " -> ").join(map(_part, parts))
            return joined + (f"\nwithin {print_duration(within_us)}" if within_us is not None else "")


def print_source(source: StreamSource) -> str:
    """Return an input stream as text, with its tests, its window and its alias."""
    text = quoted_type(source.pattern.type) + _tests(source.pattern.constraints, source.tables)
    if source.window is not None:
        text += _window(source.window) + _tests(source.after, ())
    return text + (f" as {quoted(source.pattern.alias)}" if source.pattern.alias else "")


def _tests(tests: tuple[Expression, ...], tables: Iterable[str]) -> str:
    among = "".join(f" in {quoted(table)}" for table in tables)
    return f"[{_conjunction(tests)}{among}]" if tests else ""


def _window(window: Window) -> str:
    size = print_duration(window.size) if window.extent.timed else str(window.size)
    return f"#window.{window.extent}({size})"


def _part(part: State | Every) -> str:
    if not isinstance(part, Every):
        return print_state(part)
    states = " -> ".join(map(print_state, part.states))
    return f"every {states}" if len(part.states) == 1 and not isinstance(part.states[0], Pair) else f"every ({states})"


def print_state(state: State) -> str:
    """Return a state of a pattern or sequence as text."""
    match state:
        case Step(pattern, least, most):
            return _named(pattern) + ("" if state.single else _count(least, most))
        case AbsentState(pattern, duration_us):
            lasting = f" for {print_duration(duration_us)}" if duration_us is not None else ""
            return f"not {_filtered(pattern)}{lasting}"
        case Pair(left, right, both):
            return f"{print_state(left)} {'and' if both else 'or'} {print_state(right)}"


def _named(pattern: Pattern) -> str:
    return (f"{quoted(pattern.alias)}=" if pattern.alias else "") + _filtered(pattern)


def _filtered(pattern: Pattern) -> str:
    return quoted_type(pattern.type) + _tests(pattern.constraints, ())


def _count(least: int, most: int | None) -> str:
    if (least, most) in _COUNTS:
        return _COUNTS[least, most]
    return f"<{least}>" if least == most else f"<{least}:{'' if most is None else most}>"


def _role(role: str) -> str:
    """Return a role such as `e1` or `e1[0]` as text. Only the name is put in backquotes, not the index."""
    name, index = indexed(role)
    return quoted(name) + (role[len(name) :] if index is not None else "")


def _selected(name: str, value: Expression) -> str:
    if isinstance(value, Attribute) and value.name == name:
        return print_term(value)
    return f"{print_term(value)} as {quoted(name)}"


def _conjunction(tests: tuple[Expression, ...]) -> str:
    return print_term(tests[0] if len(tests) == 1 else And(tests))


def _string(text: str) -> str:
    return print_expression(Literal(text, Kind.STRING))


def _term(node: Expression, level: int) -> str:
    text, own = _text(node)
    return text if own >= level else f"({text})"


def _text(node: Expression) -> tuple[str, int]:
    """Return the text of an expression and the precedence of its outermost operator."""
    match node:
        case Literal(value, Kind.LONG):
            return f"{value}L", _ATOM
        case Literal():
            return print_expression(node), _ATOM
        case Parameter(name):
            return name, _ATOM
        case Attribute(name, role):
            return f"{_role(role)}.{quoted(name)}" if role else quoted(name), _ATOM
        case Negative(operand):
            return f"-{_term(operand, _ATOM)}", _ATOM
        case Arithmetic(operator, left, right):
            own = _SUM if operator in "+-" else _PRODUCT
            return f"{_term(left, own)} {operator.replace('//', '/')} {_term(right, own + 1)}", own
        case Not(Comparison("=", Attribute() | Parameter() as left, right)) if left == right:
            return f"{_term(left, _ATOM)} is null", _ATOM
        case Comparison(operator, left, right):
            sign = "==" if operator == "=" else operator
            return f"{_term(left, _SUM)} {sign} {_term(right, _SUM)}", _COMPARISON
        case Not(operand):
            return f"not {_term(operand, _ATOM)}", _NOT
        case And(operands):
            return " and ".join(_term(operand, _NOT) for operand in operands), _AND
        case Or(operands):
            return " or ".join(_term(operand, _AND) for operand in operands), _OR
