"""Write the rules in other engines' languages, a line for each statement.

The same answer is asked of all: an anchor sees the last (or each) event before it that is younger than the window, one
event can serve many anchors, and there is no second try. Where a language cannot say that, the way `pattern` is what a
user would write who comes closest.

Esper's pattern follows an event until another of its kind replaces it; its join keeps the last of each area. Siddhi has
that in a table, or in a window of an area's partition; once a pattern of Siddhi's has found a Smoke for its Temp it is
done, so that a second Smoke finds none. Its times are microseconds (`SiddhiPeer.java`). Patterns of Flink are a program
(`FlinkPatterns.java`) that reads types and levels.
"""

from __future__ import annotations

from collections.abc import Iterable

from floor import Filter
from workloads import FILTER_TYPES, SEQUENCE_TYPES, filters, sequences

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

SIDDHI_STREAMS = {
    "W1": (("Temp", "Smoke", "Rain"), "number int, at long, area string, value double"),
    "W2": (tuple(f"T{type}" for type in range(SEQUENCE_TYPES)), "number int, at long, value double"),
    "W3": (tuple(f"T{type}" for type in range(FILTER_TYPES)), "number int, at long, site string, a double, b double"),
}
SIDDHI_HOT = """
    @primaryKey('area') define table Hot (area string, value double, at long);
    from Temp[value > 45] select area, value, at
    update or insert into Hot set Hot.value = value, Hot.at = at on Hot.area == area;
"""
SIDDHI_FOUND = """
    from Smoke as s join Hot as h on h.area == s.area
    select s.number as number, h.value as checked, s.at - h.at as age insert into Pairs;
    from Pairs[age < 300000000L] select number, checked insert into Found;
"""
SIDDHI_FIRE = {
    "table": {
        "last": SIDDHI_HOT + SIDDHI_FOUND,
        "not": SIDDHI_HOT + "from Rain delete Hot on Hot.area == area;" + SIDDHI_FOUND,
    },
    "window": {
        "last": """
            partition with (area of Temp, area of Smoke) begin
              from Smoke as s unidirectional join Temp[value > 45]#window.length(1) as t
              on s.at - t.at < 300000000L
              select s.number as number, t.value as checked insert into Found;
            end;
        """,
        "each": """
            from Smoke as s unidirectional join Temp[value > 45]#window.time(30000 sec) as t on s.area == t.area
            select s.number as number, t.value as checked insert into Found;
        """,
        "not": """
            partition with (area of Temp, area of Smoke, area of Rain) begin
              from Smoke as s unidirectional join Temp[value > 45]#window.length(1) as t
              on s.at - t.at < 300000000L
              select s.number as number, t.value as checked, t.at as temp_at insert into #Pairs;
              from #Pairs as p unidirectional left outer join Rain#window.length(1) as r on r.at > p.temp_at
              select p.number as number, p.checked as checked, r.at as rain_at insert into #Looked;
              from #Looked[rain_at is null] select number, checked insert into Found;
            end;
        """,
    },
    "pattern": {
        "last": """
            partition with (area of Temp, area of Smoke) begin
              from every t=Temp[value > 45] -> not Temp[value > 45] and s=Smoke within 300000 sec
              select s.number as number, t.value as checked insert into Found;
            end;
        """,
        "each": """
            partition with (area of Temp, area of Smoke) begin
              from every t=Temp[value > 45] -> s=Smoke within 30000 sec
              select s.number as number, t.value as checked insert into Found;
            end;
        """,
        "not": """
            partition with (area of Temp, area of Smoke, area of Rain) begin
              from every t=Temp[value > 45] -> not Rain and s=Smoke within 300000 sec
              select s.number as number, t.value as checked insert into Found;
            end;
        """,
    },
}


def written(peer: str, way: str, workload: str) -> list[str]:
    """Return the rules of a workload in one form for one peer; empty for peers whose rules are programs."""
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
        case "siddhi", _:
            return list(_siddhi(way, family, rule))
        case "flink", "W2":
            return [" ".join(f"{type} {level}" for type, level in steps) for steps in sequences()]
        case "flink", "W3":
            return [
                " ".join((filter.type, *(str(part) for condition in filter.conditions for part in condition)))
                for filter in filters()
            ]
    return []


def _siddhi(way: str, family: str, rule: str) -> Iterable[str]:
    yield "@app:playback"
    types, columns = SIDDHI_STREAMS[family]
    yield from (f"define stream {type} ({columns});" for type in types)
    yield "define stream Found (number int, checked double);"
    if family == "W1":
        yield _line(SIDDHI_FIRE[way][rule])
    elif family == "W2":
        yield from _siddhi_sequences(way)
    else:
        for filter in filters():
            rows = _filtered(filter, " and ", "==", "[]")
            yield f"from {rows} select number, a as checked insert into Found;"


def _siddhi_sequences(way: str) -> Iterable[str]:
    for number, ((a, p), (b, q), (c, r)) in enumerate(sequences()):
        last, middle, first = f"{a}[value > {p}]", f"{b}[value > {q}]", f"{c}[value > {r}]"
        if way == "pattern":
            yield _line(f"""
                from every c={first} -> not {first} and b={middle} -> not {middle} and a={last} within 120000 sec
                select a.number as number, c.value as checked insert into Found;
            """)
        else:
            yield _line(f"""
                from {middle} as b unidirectional left outer join {first}#window.length(1) as c
                on b.at - c.at < 60000000L select b.at as at, c.value as first insert into Pair{number};
                from {last} as a unidirectional join Pair{number}#window.length(1) as pair
                on a.at - pair.at < 60000000L and not (pair.first is null)
                select a.number as number, pair.first as checked insert into Found;
            """)


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
                from {last} as a unidirectional, Pair{number}#length(1)#time(60 sec) as pair
                where pair.first is not null
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
