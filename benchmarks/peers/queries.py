"""How are the rules written in other engines' languages? A line for each statement.

The same answer is asked of all: an anchor sees the last (or each) event before it that is younger than the window, one
event can serve many anchors, and there is no second try. Where a language cannot say that, the way `pattern` is what a
user would write who comes closest.

Esper's pattern follows an event until another of its kind replaces it; its join keeps the last of each area in a window.
"""

from __future__ import annotations

from collections.abc import Iterable

from floor import Filter
from workloads import filters, sequences

EQUALS = {"siddhi": "=="}

ESPER_FIRE = {
    "pattern": {
        "last": """
            select s.number as number, t.value as checked from pattern [
              every t=Temp(value > 45)
              -> (every s=Smoke(area = t.area) and not Temp(area = t.area, value > 45)) where timer:within(5 min)]
        """,
        "each": """
            select s.number as number, t.value as checked from pattern [
              every t=Temp(value > 45) -> (every s=Smoke(area = t.area)) where timer:within(30 sec)]
        """,
        "not": """
            select s.number as number, t.value as checked from pattern [
              every t=Temp(value > 45)
              -> (every s=Smoke(area = t.area) and not Temp(area = t.area, value > 45) and not Rain(area = t.area))
                 where timer:within(5 min)]
        """,
    },
    "join": {
        "last": """
            select s.number as number, t.value as checked
            from Smoke as s unidirectional, Temp(value > 45)#unique(area)#time(5 min) as t where s.area = t.area
        """,
        "each": """
            select s.number as number, t.value as checked
            from Smoke as s unidirectional, Temp(value > 45)#time(30 sec) as t where s.area = t.area
        """,
        "not": """
            select s.number as number, t.value as checked
            from Smoke as s unidirectional, Temp(value > 45)#unique(area)#time(5 min) as t
            where s.area = t.area and not exists (
              select * from Rain#unique(area)#time(5 min) as r where r.area = s.area and r.number > t.number)
        """,
    },
}


def written(peer: str, way: str, workload: str) -> list[str]:
    """The rules of a workload, written in one way for one peer; nothing for those that are programs."""
    family, _, rule = workload.partition(" ")
    match peer, family:
        case "esper", "W1":
            return [_line(f"@name('found') {ESPER_FIRE[way][rule]}")]
        case "esper", "W2":
            return list(_esper_sequences(way))
        case "esper", "W3":
            return [
                f"@name('found{number}') select number, a as checked from {_filtered(filter, ', ')}"
                for number, filter in enumerate(filters())
            ]
    return []


def _esper_sequences(way: str) -> Iterable[str]:
    for number, ((a, p), (b, q), (c, r)) in enumerate(sequences()):
        last, middle, first = f"{a}(value > {p})", f"{b}(value > {q})", f"{c}(value > {r})"
        if way == "pattern":
            yield _line(f"""
                @name('found{number}') select a.number as number, c.value as checked from pattern [
                  every c={first} -> (every b={middle} and not {first}) where timer:within(60 sec)
                  -> (every a={last} and not {middle}) where timer:within(60 sec)]
            """)
        else:
            yield _line(f"""
                @name('pair{number}') insert into Pair{number}
                select (select value from {first}#length(1)#time(60 sec)) as first from {middle}
            """)
            yield _line(f"""
                @name('found{number}') select a.number as number, pair.first as checked
                from {last} as a unidirectional, Pair{number}#length(1)#time(60 sec) as pair where pair.first is not null
            """)


def _filtered(filter: Filter, joined: str, equals: str = "=", brackets: str = "()") -> str:
    tests = (
        f"{column} {equals if operator == '=' else operator} {_constant(value)}"
        for column, operator, value in filter.conditions
    )
    return f"{filter.type}{brackets[0]}{joined.join(tests)}{brackets[1]}"


def _constant(value: str | float) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _line(text: str) -> str:
    return " ".join(text.split())
