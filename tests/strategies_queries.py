"""Generate small SiddhiQL definitions, queries and events of all constructs with Hypothesis, as text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st

from tocsin.events.types import Event

STREAMS = {"A": ("x", "int"), "B": ("y", "long"), "C": ("z", "double")}
"""Each type has a number and a key `k`."""


@dataclass(frozen=True)
class Case:
    """Generate a text with one query into O, and events in canonical order."""

    definitions: str
    asked: str
    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        return self.definitions + self.asked

    def inserting(self, which: str) -> str:
        """Return the text of a query that emits `all`, `current` or `expired` events."""
        return self.definitions + re.sub(r"insert .*into O", f"insert {which} events into O", self.asked)


def definitions() -> str:
    return "".join(f"define stream {name} ({number} {kind}, k string);\n" for name, (number, kind) in STREAMS.items())


@st.composite
def conditions(draw: st.DrawFn, number: str, others: tuple[str, ...] = ()) -> str:
    """Generate a test of a number, `k`, and perhaps values of other events."""
    value = draw(st.sampled_from(["1", "2", "3", "2L", "1.5", *others]))
    sign = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    simple = draw(
        st.sampled_from(
            [
                f"{number} {sign} {value}",
                "k == 'a'",
                f"{number} is null",
                f"{number} * 2 - 1 {sign} {value}",
                *(f"k == {other.partition('.')[0]}.k" for other in others),
            ]
        )
    )
    return draw(
        st.sampled_from([simple, f"not ({simple})", f'{simple} or k == "b"', f"{simple} and {number} % 2 == 0"])
    )


@st.composite
def filters(draw: st.DrawFn, number: str, others: tuple[str, ...] = ()) -> str:
    return f"[{draw(conditions(number, others))}]" if draw(st.booleans()) else ""


@st.composite
def windows(draw: st.DrawFn) -> str:
    size = draw(st.integers(1, 4))
    unit = draw(st.sampled_from(["length({})", "lengthBatch({})", "time({} us)", "timeBatch({} us)"]))
    return f"#window.{unit.format(size)}"


@st.composite
def selections(draw: st.DrawFn, number: str, role: str = "") -> str:
    """`select … group by … having …`."""
    value = f"{role}{number}"
    plain = draw(
        st.lists(st.sampled_from([f"{value} as v", f"{value} / 2 as h", f"{role}k as k"]), min_size=1, unique=True)
    )
    calls = [f"{function}({value}) as {function}1" for function in ("sum", "avg", "min", "max", "count", "stdDev")]
    called = draw(
        st.lists(st.sampled_from([*calls, "count() as n", f"sum({value} + 1) * 2 as s2"]), max_size=3, unique=True)
    )
    text = f"select {', '.join(plain + called)}"
    if draw(st.booleans()):
        text += " group by " + draw(st.sampled_from([f"{role}k", f"{role}k", f"{role}ts", f"{role}k, {role}seq"]))
    if called and draw(st.booleans()):
        text += f" having {called[0].rpartition(' ')[2]} > 1"
    return text


@st.composite
def single(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(STREAMS)))
    number = STREAMS[name][0]
    window = draw(st.one_of(st.just(""), windows()))
    after = draw(filters(number)) if window else ""
    return f"from {name}{draw(filters(number))}{window}{after} {draw(selections(number))}"


@st.composite
def joins(draw: st.DrawFn) -> str:
    left, right = draw(st.sampled_from(sorted(STREAMS))), draw(st.sampled_from(sorted(STREAMS)))
    kind = draw(
        st.sampled_from(["join", "inner join", "left outer join", "right outer join", "full outer join", "outer join"])
    )
    alone = draw(st.sampled_from(["", "", "left", "right"]))
    a, b = STREAMS[left][0], STREAMS[right][0]
    first = f"{left}{draw(filters(a))}{draw(st.one_of(st.just(''), windows()))} as a"
    second = f"{right}{draw(filters(b))}{draw(windows())} as b"
    on = draw(st.sampled_from(["", " on a.k == b.k", f" on a.{a} < b.{b} and a.k == 'a'"]))
    sides = f"{first}{' unidirectional' * (alone == 'left')} {kind} {second}{' unidirectional' * (alone == 'right')}"
    return f"from {sides}{on} {draw(selections(a, 'a.'))}"


@st.composite
def steps(draw: st.DrawFn, number: int, before: tuple[str, ...]) -> tuple[str, str]:
    """Generate `e1=A[…]`, and the attribute that later states refer to."""
    name = draw(st.sampled_from(sorted(STREAMS)))
    attribute = STREAMS[name][0]
    return f"e{number}={name}{draw(filters(attribute, before))}", f"e{number}.{attribute}"


@st.composite
def chains(draw: st.DrawFn) -> str:
    """Generate a pattern or a sequence of up to three states, with counts, pairs and absences."""
    sequence = draw(st.booleans())
    length = draw(st.integers(2 if sequence else 1, 3))
    states: list[str] = []
    known: list[str] = []
    spoken: list[str] = []
    for place in range(length):
        number = 2 * place + 1
        text, value = draw(steps(number, tuple(spoken)))
        kind = draw(st.sampled_from(["one", "one", "count", "pair", "absence", "not and"]))
        role, _, attribute = value.partition(".")
        if kind == "count":
            counts = ["<2>", "<1:2>", "<1:>", "<2:3>"]
            counts += ["<:2>", "<0:1>"] * (place + 1 < length)
            counts += ["+", "*", "?"] * (sequence and place + 1 < length)
            states.append(text + draw(st.sampled_from(counts)))
            known += [f"{role}[0].{attribute}", f"{role}[last].{attribute}", f"{role}[last-1].{attribute}"]
        elif kind == "pair":
            other, other_value = draw(steps(number + 1, tuple(spoken)))
            states.append(f"{text} {draw(st.sampled_from(['and', 'or']))} {other}")
            known += [value, other_value]
        elif kind == "not and":
            absent = draw(steps(number + 1, tuple(spoken)))[0].partition("=")[2]
            states.append(draw(st.sampled_from([f"not {absent} and {text}", f"{text} and not {absent}"])))
            known.append(value)
            spoken.append(value)
        elif kind == "absence" and not (sequence and place == 0):
            states.append(f"not {text.partition('=')[2]} for {draw(st.integers(1, 4))} us")
        else:
            states.append(text)
            known.append(value)
            spoken.append(value)
    text = _repeated(draw, states, sequence=sequence)
    within = f" within {draw(st.integers(2, 9))} us" if draw(st.booleans()) else ""
    listed = ", ".join(f"{value} as v{number}" for number, value in enumerate(known)) or "count() as n"
    text = f"from {text}{within} select {listed}"
    if known and draw(st.booleans()):
        text += f", sum({known[0]}) as s, max({known[-1]}) as m, count() as c"
        if spoken and draw(st.booleans()):
            text += f" group by {spoken[0].partition('.')[0]}.k"
        if draw(st.booleans()):
            text += " having c > 1"
    return text


def _repeated(draw: st.DrawFn, states: list[str], *, sequence: bool) -> str:
    """Join the states, with `every` before some, all or none."""
    where = draw(st.sampled_from(["first", "first", "all", "none"]))
    joined = list(states)
    if where == "first" or (where == "all" and sequence):
        bare = " and " in joined[0] or " or " in joined[0]
        joined[0] = f"every ({joined[0]})" if bare and not sequence else f"every {joined[0]}"
    text = (", " if sequence else " -> ").join(joined)
    return f"every ({text})" if where == "all" and not sequence else text


def queries() -> st.SearchStrategy[str]:
    inserted = st.sampled_from(["insert into O", "insert all events into O", "insert expired events into O"])
    return st.builds("{} {}".format, st.one_of(single(), joins(), chains()), inserted)


@st.composite
def events(draw: st.DrawFn) -> tuple[Event, ...]:
    """Generate up to ten events in canonical order, some at the same time."""
    count = draw(st.integers(1, 10))
    ts, made = 0, []
    for seq in range(count):
        name = draw(st.sampled_from(sorted(STREAMS)))
        number, kind = STREAMS[name]
        value = draw(st.one_of(st.none(), st.integers(0, 4)))
        attributes = {number: float(value) / 2 if kind == "double" and value is not None else value}
        made.append(Event(name, ts, {**attributes, "k": draw(st.sampled_from(["a", "b"]))}, seq))
        ts += draw(st.integers(0, 3))
    return tuple(made)


def cases() -> st.SearchStrategy[Case]:
    return st.builds(Case, st.just(definitions()), queries(), events())
