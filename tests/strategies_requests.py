"""Generate requests for notification with Hypothesis, over the types of `strategies`."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.strategies import KINDS, LITERALS, Case, pick, streams
from tocsin.events.types import Event, Kind
from tocsin.language.eps.ast import (
    After,
    All,
    Either,
    EventExpression,
    Mode,
    Moment,
    Occurs,
    Period,
    Request,
    Then,
    Times,
    leaves,
)
from tocsin.language.syntax.ast import And, Attribute, Comparison, Expression, Literal, Not, Or, Pattern

LEAVES_MAX = 4


@st.composite
def request_cases(
    draw: st.DrawFn, modes: tuple[Mode, ...] = (Mode.GENERIC,), events_max: int = 10, timers: bool = False
) -> Case:
    """Generate requests and a stream for them. Few events, as the reference tries all combinations."""
    alphabet = pick(draw, ["AB", "A", "ABC"])
    events = draw(streams(alphabet, events_max))
    count = draw(st.integers(1, 3))
    return Case(tuple(draw(requests(f"N{n}", alphabet, modes, timers)) for n in range(count)), tuple(events))


@st.composite
def requests(
    draw: st.DrawFn,
    name: str,
    alphabet: str = "AB",
    modes: tuple[Mode, ...] = (Mode.GENERIC,),
    timers: bool = False,
) -> Request:
    """Generate a request whose events have unique names."""
    expression = draw(expressions(alphabet, LEAVES_MAX, timers))
    expression = _named(expression, iter("abcdefghijklmnopqrstuvwxyz"))
    if not Request(name, expression).uses:
        expression = All((expression, Occurs(Pattern("A", alias="z"))))
    roles = [leaf.role for leaf in leaves(expression) if isinstance(leaf.node, Occurs)]
    common = {leaf.role: leaf.node.attribute for leaf in leaves(expression) if isinstance(leaf.node, Times)}
    same = [leaf.role for leaf in leaves(expression) if isinstance(leaf.node, Times) and leaf.node.same]
    tests = draw(st.lists(_conditions(roles, {role: common[role] for role in same}), max_size=2)) if roles else []
    return Request(
        name,
        expression,
        tuple(tests),
        draw(st.sampled_from([5, 10, 30, 1])),
        pick(draw, modes),
        draw(st.sampled_from([None, "hello"])),
    )


@st.composite
def crowded_cases(draw: st.DrawFn, leaves_max: int = 6) -> Case:
    """Generate requests with many events of one or two types, and few times, as an event then fits several leaves."""
    alphabet = pick(draw, ["A", "AB"])
    row = st.tuples(st.sampled_from(alphabet), st.integers(0, 4), st.sampled_from([0, 0, 0, 1]), st.integers(0, 2))
    events = [Event(type, ts, {"n": n}, seq) for type, ts, seq, n in draw(st.lists(row, max_size=14))]
    requests = []
    for number in range(draw(st.integers(1, 2))):
        expression = _named(draw(expressions(alphabet, leaves_max, constrained=False)), iter("abcdefgh"))
        requests.append(Request(f"N{number}", expression, window_us=draw(st.sampled_from([5, 1, 2]))))
    return Case(tuple(requests), tuple(events))


@st.composite
def linked_cases(draw: st.DrawFn, leaves_max: int = 5) -> Case:
    """Generate a request whose events are joined in pairs, chains or stars, often several of one type, with events."""
    alphabet = pick(draw, ["ABCDE", "AB", "ABC"])
    count = draw(st.integers(3, leaves_max))
    types = [draw(st.sampled_from(alphabet)) for _ in range(count)]
    roles = "abcdefgh"[:count]
    nodes: list[EventExpression] = []
    for type, role in zip(types, roles, strict=True):
        kept = (Comparison("=", Attribute("i"), Literal(draw(st.integers(0, 2)), Kind.INT)),)
        nodes.append(Occurs(Pattern(type, kept if draw(st.integers(0, 3)) == 3 else (), alias=role)))
    while len(nodes) > 1:
        at = draw(st.integers(0, len(nodes) - 2))
        left, right = nodes[at : at + 2]
        both = [part for one in (left, right) for part in (one.operands if isinstance(one, All) else (one,))]
        nodes[at : at + 2] = [All(tuple(both)) if draw(st.booleans()) else Then(left, right)]
    shape = draw(st.sampled_from(["pairs", "chain", "star", "any"]))
    pairs = {
        "pairs": [(n, n + 1) for n in range(0, count - 1, 2)],
        "chain": [(n, n + 1) for n in range(count - 1)],
        "star": [(0, n) for n in range(1, count)],
        "any": draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=4)),
    }[shape]
    names = st.sampled_from(["n", "k"])
    tests = []
    for one, other in pairs:
        name = draw(names)
        tests.append(Comparison("=", Attribute(name, roles[one]), Attribute(name, roles[other])))
    request = Request("N", nodes[0], tuple(tests), draw(st.sampled_from([30, 10])))
    return Case((request,), tuple(draw(streams(alphabet, 13))))


def expressions(
    alphabet: str, leaves_max: int, timers: bool = False, constrained: bool = True
) -> st.SearchStrategy[EventExpression]:
    """Generate event expressions of at most this many events."""
    leaf = _occurrences(alphabet) if constrained else st.builds(Occurs, st.builds(Pattern, st.sampled_from(alphabet)))
    if timers:
        leaf = leaf | leaf | leaf | _timers(alphabet, leaves_max)
    if leaves_max < 2:
        return leaf
    repeated = st.builds(
        Times,
        st.integers(2, min(3, leaves_max)),
        st.builds(Pattern, st.sampled_from(alphabet)),
        st.sampled_from(["n", "k", "i"]),
        st.booleans(),
    )

    @st.composite
    def joined(draw: st.DrawFn) -> EventExpression:
        left_max = draw(st.integers(1, leaves_max - 1))
        left = draw(expressions(alphabet, left_max, timers, constrained))
        right = draw(expressions(alphabet, leaves_max - left_max, timers, constrained))
        operator = draw(st.sampled_from([All, Then, Either]))
        if operator is Then:
            return Then(left, right)
        parts = [part for one in (left, right) for part in (one.operands if isinstance(one, operator) else (one,))]
        return operator(tuple(parts))

    return leaf | repeated | joined() | joined()


@st.composite
def _timers(draw: st.DrawFn, alphabet: str, leaves_max: int) -> EventExpression:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Moment(draw(st.integers(0, 25)))
    if kind == 1:
        return Period(draw(st.integers(2, 9)), draw(st.none() | st.integers(0, 20)))
    return After(draw(expressions(alphabet, min(leaves_max, 2), timers=True)), draw(st.integers(1, 8)))


@st.composite
def _occurrences(draw: st.DrawFn, alphabet: str) -> Occurs:
    constraints: tuple[Expression, ...] = ()
    if draw(st.integers(0, 3)) == 3:
        constraints = (Comparison(draw(st.sampled_from(["=", ">", "!="])), Attribute("i"), Literal(1, Kind.INT)),)
    return Occurs(Pattern(draw(st.sampled_from(alphabet)), constraints))


def _named(node: EventExpression, names: object) -> EventExpression:
    if isinstance(node, Occurs | Times):
        return replace(node, pattern=replace(node.pattern, alias=next(names)))  # type: ignore[call-overload]
    if isinstance(node, Moment | Period):
        return replace(node, alias=next(names))  # type: ignore[call-overload]
    if isinstance(node, After):
        return replace(node, event=_named(node.event, names), alias=next(names))  # type: ignore[call-overload]
    if isinstance(node, Then):
        return Then(_named(node.left, names), _named(node.right, names))
    assert isinstance(node, All | Either)
    return replace(node, operands=tuple(_named(operand, names) for operand in node.operands))


@st.composite
def _conditions(draw: st.DrawFn, roles: list[str], common: dict[str, str]) -> Expression:
    if draw(st.integers(0, 5)) == 5:
        operands = (draw(_comparisons(roles, common)), draw(_comparisons(roles, common)))
        return draw(st.sampled_from([Or(operands), Not(operands[0]), Not(And(operands))]))
    return draw(_comparisons(roles, common))


@st.composite
def _comparisons(draw: st.DrawFn, roles: list[str], common: dict[str, str]) -> Comparison:
    operator = draw(st.sampled_from(["=", "=", "=", "!=", "<", ">="]))
    name = draw(st.sampled_from(["n", "k", "i", "v"]))
    left = Attribute(name, draw(st.sampled_from(roles)))
    others = [role for role, attribute in common.items() if attribute == name]
    if len(roles) + len(others) > 1 and draw(st.integers(0, 3)):
        return Comparison(operator, left, Attribute(name, draw(st.sampled_from(roles + others))))
    kind = KINDS[name]
    value = draw(st.sampled_from(LITERALS[Kind.INT if kind == Kind.LONG else kind]))
    return Comparison(operator, left, Literal(value, Kind.INT if kind == Kind.LONG else kind))
