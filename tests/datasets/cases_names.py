"""Names, ids, types and order: columns of any name, repeated ids, types that no rule uses, rows in any order."""

from __future__ import annotations

import pyarrow as pa

from tests.datasets.shapes import ALL, BOTH, Case, at, text, times

OUT = "define Out(n: long) from A() where n = A.n"
PAIR = "define Pair(a: long, b: long) from B() and last A() within 10 s from B where a = A.n, b = B.n"
EACH = "define Pair(a: long, b: long) from B() and each A() within 10 s from B where a = A.n, b = B.n"


def pair(ts: float, a: int, b: int) -> tuple[str, int, dict[str, int]]:
    return "Pair", at(ts), {"a": a, "b": b}


ORDER = [
    Case(
        "a sorted table",
        PAIR,
        pa.table({"type": ["A", "A", "B"], "ts": times(0, 1, 2), "n": [1, 2, 3]}),
        [pair(2, 2, 3)],
    ),
    Case(
        "a table in no order",
        PAIR,
        pa.table({"type": ["B", "A", "A", "B"], "ts": times(2, 1, 0, 12), "n": [3, 2, 1, 4]}),
        [pair(2, 2, 3)],
        core=ALL,
    ),
    Case(
        "a file in no order",
        PAIR,
        text(
            "e.csv",
            "type,ts,n\nB,2026-07-01T12:00:02Z,3\nA,2026-07-01T12:00:01Z,2\n"
            "A,2026-07-01T12:00:00Z,1\nB,2026-07-01T11:59:59Z,4\n",
        ),
        [pair(2, 2, 3)],
        core=BOTH,
    ),
    Case(
        "events of one moment do not precede each other",
        PAIR,
        pa.table({"type": ["A", "B"], "ts": times(1, 1), "n": [1, 2]}),
    ),
    Case(
        "seq orders events of one moment",
        PAIR,
        pa.table({"type": ["B", "A", "A"], "ts": times(1, 1, 1), "seq": [3, 1, 4], "n": [1, 2, 3]}),
        [pair(1, 2, 1)],
        core=BOTH,
    ),
    Case(
        "a seq of another name, and null",
        PAIR,
        pa.table({"type": ["B", "A"], "ts": times(1, 1), "line": pa.array([1, None], pa.int32()), "n": [1, 2]}),
        [pair(1, 2, 1)],
        options={"seq": "line"},
    ),
    Case(
        "a seq that is no number",
        PAIR,
        pa.table({"type": ["B", "A"], "ts": times(1, 1), "seq": ["x", "y"], "n": [1, 2]}),
        error="seq must hold whole numbers",
    ),
    Case(
        "an event exactly as old as the window is not in it",
        PAIR,
        pa.table({"type": ["A", "B", "B"], "ts": times(0, 9.999999, 10), "n": [1, 2, 3]}),
        [pair(9.999999, 1, 2)],
    ),
]

IDS = [
    Case(
        "id is a number that repeats",
        EACH,
        pa.table({"type": ["A", "A", "B", "B"], "ts": times(0, 1, 2, 3), "id": [7, 7, 7, 8], "n": [1, 2, 3, 4]}),
        [pair(2, 1, 3), pair(2, 2, 3), pair(3, 1, 4), pair(3, 2, 4)],
    ),
    Case(
        "id is text that repeats",
        EACH,
        pa.table({"type": ["A", "A", "B"], "ts": times(0, 1, 2), "id": ["u1", "u1", None], "n": [1, 2, 3]}),
        [pair(2, 1, 3), pair(2, 2, 3)],
    ),
    Case(
        "id is an attribute like others",
        "define Same(who: long) from B(id = $i) and last A(id = $i) within 10 s from B where who = A.id",
        pa.table({"type": ["A", "A", "B", "B"], "ts": times(0, 1, 2, 3), "id": [7, 8, 7, 9]}),
        [("Same", at(2), {"who": 7})],
    ),
    Case(
        "id is text like any other",
        "define Same(who: string) from B(id = $i) and last A(id = $i) within 10 s from B where who = A.id",
        pa.table({"type": ["A", "A", "B", "B"], "ts": times(0, 1, 2, 3), "id": ["u7", "u8", "u7", None]}),
        [("Same", at(2), {"who": "u7"})],
        core=BOTH,
    ),
    Case(
        "Id is an attribute too",
        "define Out(who: string) from A() where who = A.Id",
        pa.table({"type": ["A", "A"], "ts": times(0, 1), "Id": ["x", "x"]}),
        [("Out", at(0), {"who": "x"}), ("Out", at(1), {"who": "x"})],
    ),
    Case(
        "ids of the source that repeat",
        EACH,
        pa.table({"type": ["A", "A", "B"], "ts": times(0, 0, 2), "key": ["e1", "e1", "e2"], "n": [1, 2, 3]}),
        [pair(2, 1, 3), pair(2, 2, 3)],
        options={"id": "key"},
        core=ALL,
    ),
    Case(
        "equal rows with equal ids of the source",
        EACH,
        pa.table({"type": ["A", "A", "B"], "ts": times(0, 0, 2), "key": [5, 5, 6], "n": [1, 1, 3]}),
        [pair(2, 1, 3), pair(2, 1, 3)],
        options={"id": "key"},
    ),
    Case(
        "ids of the source that are null",
        EACH,
        pa.table({"type": ["A", "A", "B"], "ts": times(0, 0, 2), "id": ["e1", None, None], "n": [1, 2, 3]}),
        [pair(2, 1, 3), pair(2, 2, 3)],
        options={"id": "id"},
    ),
    Case(
        "ids that are floats",
        OUT,
        pa.table({"type": ["A"], "ts": times(0), "key": [0.5], "n": [1]}),
        error="ids must be strings or whole numbers",
        options={"id": "key"},
        unlike={"service": "an id column is an attribute there"},
    ),
    Case(
        "equal rows are as many events",
        EACH,
        pa.table({"type": ["A", "A", "A", "B"], "ts": times(0, 0, 0, 1), "n": [1, 1, 1, 2]}),
        [pair(1, 1, 2)] * 3,
        core=BOTH,
    ),
    Case(
        "many equal rows",
        "define Sum(count: long) from B() and $c = Count(A() within 10 s from B) where count = $c",
        pa.table({"type": ["A"] * 1000 + ["B"], "ts": times(*[0] * 1000, 1), "n": [1] * 1001}),
        [("Sum", at(1), {"count": 1000})],
    ),
    Case(
        "CSV with an id that repeats",
        EACH,
        text(
            "e.csv",
            "id,type,ts,n\n7,A,2026-07-01T12:00:00Z,1\n7,A,2026-07-01T12:00:00Z,2\n8,B,2026-07-01T12:00:02Z,3\n",
        ),
        [pair(2, 1, 3), pair(2, 2, 3)],
    ),
    Case(
        "JSON with ids of the source",
        EACH,
        text(
            "e.jsonl",
            '{"key": "x", "type": "A", "ts": "2026-07-01T12:00:00Z", "n": 1}\n'
            '{"key": "x", "type": "A", "ts": "2026-07-01T12:00:00Z", "n": 1}\n'
            '{"type": "B", "ts": "2026-07-01T12:00:02Z", "n": 3}\n',
        ),
        [pair(2, 1, 3)] * 2,
        options={"id": "key"},
    ),
]

_ODD_NAMES = [
    "a.b", "a b", "größe", "x:y", "x:long", "`tick`", "a\"quote", "_kind", "_reason", "_line", "slot", "payload",
    "温度", "naïve (m/s)", "100", "-", "a,b", "select", "%", "$", "#", "[0]", "{}", "\\",
]  # fmt: skip

NAMES = [
    Case(
        "attributes called as columns of matches are",
        """
        define Out(a: string, b: string, c: string, d: string)
        from   A(rule = "r", parts > 1)
        where  a = A.rule, b = A.role, c = A.query, d = A.range
        """,
        pa.table(
            {
                "type": ["A", "A"],
                "ts": times(0, 1),
                "rule": ["r", "s"],
                "parts": [2, 2],
                "role": ["x", "y"],
                "query": ["q", "p"],
                "range": ["w", "v"],
            }
        ),
        [("Out", at(0), {"a": "r", "b": "x", "c": "q", "d": "w"})],
        core=BOTH,
    ),
    Case(
        "attributes called type and ts",
        'define Out(t: string, when: long) from Click(type = "x") where t = Click.type, when = Click.n',
        pa.table({"kind": ["Click", "Click"], "when": times(0, 1), "type": ["x", "y"], "n": [5, 6]}),
        [("Out", at(0), {"t": "x", "when": 5})],
        options={"type": "kind", "ts": "when"},
        unlike={"service": "the names of its columns are fixed, so that two would be called type"},
    ),
    Case(
        "a column ts beside the time",
        OUT,
        pa.table({"type": ["A"], "when": times(3), "ts": ["not a time"], "n": [1]}),
        [("Out", at(3), {"n": 1})],
        options={"ts": "when"},
        unlike={"service": "the names of its columns are fixed, so that two would be called ts"},
    ),
    Case(
        "a rule reads a column ts beside the time",
        'define Out(n: long, t: string) from A(ts = "x") where n = A.n, t = A.ts',
        pa.table({"type": ["A", "A"], "when": times(3, 4), "ts": ["x", "y"], "n": [1, 2]}),
        [("Out", at(3), {"n": 1, "t": "x"})],
        options={"ts": "when"},
        unlike={"service": "the names of its columns are fixed, so that two would be called ts"},
    ),
    Case(
        "a column seq that is not asked for",
        PAIR,
        pa.table({"type": ["B", "A"], "ts": times(1, 1), "seq": ["x", "y"], "place": [2, 1], "n": [1, 2]}),
        [pair(1, 2, 1)],
        options={"seq": "place"},
        unlike={"service": "the names of its columns are fixed, so that two would be called seq"},
    ),
    Case(
        "matches with attributes called role and query",
        "define Out(role: string, query: long) from A() where role = A.s, query = A.n",
        pa.table({"type": ["A"], "ts": times(0), "s": ["x"], "n": [1]}),
        [("Out", at(0), {"role": "x", "query": 1})],
    ),
    Case(
        "unread columns with odd names",
        OUT,
        pa.table({"type": ["A"], "ts": times(0), "n": [1], **{name: ["v"] for name in _ODD_NAMES}}),
        [("Out", at(0), {"n": 1})],
        core=ALL,
    ),
    Case(
        "columns that differ in case alone",
        OUT,
        pa.table({"type": ["A"], "ts": times(0), "n": [1], "N": [2], "TYPE": ["B"], "Ts": ["x"]}),
        [("Out", at(0), {"n": 1})],
        unlike={"stream": "Spark does not write such columns into files"},
        core=BOTH,
    ),
    Case(
        "a type column and a time column with odd names",
        OUT,
        pa.table({"event.type": ["A"], "the time": times(0), "n": [1]}),
        [("Out", at(0), {"n": 1})],
        options={"type": "event.type", "ts": "the time"},
        core=BOTH,
    ),
    Case(
        "CSV with odd names",
        OUT,
        text("e.csv", 'type,ts,n,a.b,"c,d",größe,x:y,N\nA,2026-07-01T12:00:00Z,1,2,3,4,5,6\n'),
        [("Out", at(0), {"n": 1})],
    ),
    Case(
        "JSON with odd names",
        OUT,
        text("e.jsonl", '{"type": "A", "ts": "2026-07-01T12:00:00Z", "n": 1, "a.b": 1, "c d": "x", "größe": true}\n'),
        [("Out", at(0), {"n": 1})],
    ),
    Case(
        "no column for the time",
        OUT,
        pa.table({"type": ["A"], "time": times(0), "n": [1]}),
        error="'ts'",
        unlike={"service": "an event without ts happens now"},
    ),
    Case("no column for the type", OUT, pa.table({"kind": ["A"], "ts": times(0), "n": [1]}), error="'type'"),
    Case(
        "no column for the id that was asked for",
        OUT,
        pa.table({"type": ["A"], "ts": times(0), "n": [1]}),
        error="'key'",
        options={"id": "key"},
        unlike={"service": "ids are not asked for there"},
    ),
    Case(
        "an attribute that no column has",
        "define Out(n: long) from A() where n = A.m",
        pa.table({"type": ["A"], "ts": times(0), "n": [1]}),
        error="A has no attribute m",
        unlike={"service": "events to come may have it"},
    ),
]

TYPES = [
    Case(
        "a dictionary of types",
        PAIR,
        pa.table({"type": pa.array(["A", "B", "C"]).dictionary_encode(), "ts": times(0, 1, 2), "n": [1, 2, 3]}),
        [pair(1, 1, 2)],
    ),
    Case(
        "types that are null",
        PAIR,
        pa.table({"type": ["A", None, "B"], "ts": times(0, 1, 2), "n": [1, 2, 3]}),
        [pair(2, 1, 3)],
        dead=["type is null"],
        core=ALL,
    ),
    Case(
        "types that no rule names",
        PAIR,
        pa.table({"type": ["A", "Other", "B"], "ts": times(0, 1, 2), "n": [1, 9, 3]}),
        [pair(2, 1, 3)],
    ),
    Case(
        "types that are no names",
        PAIR,
        pa.table({"type": ["A", "an odd type", "", "größe", "B"], "ts": times(0, 1, 1, 1, 2), "n": [1, 9, 9, 9, 3]}),
        [pair(2, 1, 3)],
        unlike={"service": "it keeps a list of types, and takes names only"},
    ),
    Case("only types that no rule names", PAIR, pa.table({"type": ["X", "Y"], "ts": times(0, 1), "n": [1, 2]})),
    Case(
        "types that are numbers",
        PAIR,
        pa.table({"type": [1, 2], "ts": times(0, 1), "n": [1, 2]}),
        error="must hold names of event types",
        core=["batch"],
    ),
    Case(
        "a type that a rule defines",
        "define Out(n: long) from A() where n = A.n",
        pa.table({"type": ["A", "Out"], "ts": times(0, 1), "n": [1, 2]}),
        [("Out", at(0), {"n": 1})],
        dead=["Out is defined by a rule"],
        core=BOTH,
    ),
    Case(
        "a table for each type",
        PAIR,
        {
            "A": pa.table({"ts": times(0, 1), "n": [1, 2]}),
            "B": pa.table({"n": pa.array([3], pa.int32()), "ts": times(2), "extra": ["x"]}),
        },
        [pair(2, 2, 3)],
        core=BOTH,
    ),
    Case(
        "a table for each type, and one of them unknown and one empty",
        PAIR,
        {
            "A": pa.table({"ts": times(0), "n": [1]}),
            "B": pa.table({"ts": times(1), "n": [2]}),
            "C": pa.table({"ts": times(), "n": pa.array([], pa.int64())}),
            "D": pa.table({"ts": times(5), "m": ["x"]}),
        },
        [pair(1, 1, 2)],
    ),
    Case(
        "one name with two kinds in two types",
        'define Out(a: string, b: long) from B(v > 1) and last A(v = "x") within 10 s from B where a = A.v, b = B.v',
        {"A": pa.table({"ts": times(0), "v": ["x"]}), "B": pa.table({"ts": times(1), "v": [2]})},
        [("Out", at(1), {"a": "x", "b": 2})],
        unlike={"command": "one file cannot hold one column with two kinds", "service": "the same"},
    ),
]
