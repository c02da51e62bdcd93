"""Values: nulls, numbers at the ends of their ranges, text of all kinds, and columns that no attribute can be."""

from __future__ import annotations

from collections.abc import Collection
from datetime import time, timedelta
from decimal import Decimal

import pyarrow as pa

from tests.datasets.shapes import BOTH, Case, at, text, times

OUT = "define Out(n: long) from A() where n = A.n"
LONG = 2**63 - 1
TEXT = "define Out(n: long, s: string) from A() where n = A.n, s = A.s"
NUMBER = "define Out(n: long, v: double) from A() where n = A.n, v = A.v"
ODD_TEXTS = [
    "",
    " ",
    "null",
    "[/nope]",
    "[bold]x[/bold]",
    "a\tb\x01\x7f",
    "line\nbreak",
    'quote " and \\ backslash',
    "grüße 😀👩‍👩‍👧 日本語",
    "e\u0301",
    "\u00e9",
    "\u202eright to left",
    "NaN",
    "1e5",
    "true",
    "2026-07-01",
    "x" * 100_000,
]


def texts(name: str, column: pa.Array, core: Collection[str] = ()) -> Case:
    """A table with this column of text, which all come out as they went in."""
    values = column.to_pylist()
    table = pa.table(
        {"type": ["A"] * len(values), "ts": times(*range(len(values))), "n": range(len(values)), "s": column}
    )
    return Case(name, TEXT, table, [("Out", at(n), {"n": n, "s": s}) for n, s in enumerate(values)], core=core)


def numbers(name: str, column: pa.Array, right: list[float | None], core: Collection[str] = ()) -> Case:
    """A table with this column of numbers, and what it is as doubles."""
    table = pa.table(
        {"type": ["A"] * len(column), "ts": times(*range(len(column))), "n": range(len(column)), "v": column}
    )
    return Case(name, NUMBER, table, [("Out", at(n), {"n": n, "v": v}) for n, v in enumerate(right)], core=core)


VALUES = [
    Case(
        "attributes that are null",
        """
        rule   Is
        define Is(n: long) from A(s = "x", v > 1, b) where n = A.n
        rule   IsNot
        define IsNot(n: long) from A(not (v > 1)) where n = A.n
        rule   Joined
        define Joined(n: long, m: long)
        from   A(s = $s) as one and each A(s = $s) as other within 1 h from one
        where  n = one.n, m = other.n
        """,
        pa.table(
            {
                "type": ["A", "A", "A"],
                "ts": times(0, 1, 2),
                "n": [1, 2, 3],
                "s": ["x", None, None],
                "v": [2.0, None, 3.0],
                "b": [True, None, None],
            }
        ),
        [("Is", at(0), {"n": 1}), ("IsNot", at(1), {"n": 2})],
        core=BOTH,
    ),
    numbers(
        "doubles that are no number are null",
        pa.array([1.5, float("nan"), float("inf"), -float("inf"), None]),
        [1.5, None, None, None, None],
        core=BOTH,
    ),
    numbers(
        "doubles at their ends",
        pa.array([1.7976931348623157e308, 5e-324, 0.1 + 0.2, -0.0]),
        [1.7976931348623157e308, 5e-324, 0.30000000000000004, 0.0],
    ),
    numbers("floats of 32 bits", pa.array([1.5, 0.1], pa.float32()), [1.5, 0.10000000149011612]),
    numbers("decimals", pa.array([Decimal("1.50"), Decimal("-2.25"), None]), [1.5, -2.25, None]),
    Case(
        "a column of nothing that a rule reads",
        "define Out(n: long, v: double) from A(not (v > 1)) where n = A.n, v = A.v",
        pa.table({"type": ["A"], "ts": times(0), "n": [1], "v": pa.nulls(1)}),
        [("Out", at(0), {"n": 1})],
    ),
    Case(
        "whole numbers where doubles are declared",
        "event A(v: double)\ndefine Out(v: double) from A(v > 1.5) where v = A.v",
        pa.table({"type": ["A", "A"], "ts": times(0, 1), "v": [1, 2]}),
        [("Out", at(1), {"v": 2.0})],
    ),
    Case(
        "text where doubles are declared",
        "event A(v: double)\ndefine Out(v: double) from A(v > 1.5) where v = A.v",
        pa.table({"type": ["A"] * 6, "ts": times(0, 1, 2, 3, 4, 5), "v": ["1", "2.5", "x", "1e3", None, ""]}),
        [("Out", at(1), {"v": 2.5}), ("Out", at(3), {"v": 1000.0})],
        dead=["v: x", "v: "],
        core=BOTH,
    ),
    Case(
        "text where numbers are not declared",
        "define Out(v: double) from A(v > 1.5) where v = A.v",
        pa.table({"type": ["A"], "ts": times(0), "v": ["2.5"]}),
        error="string",
        unlike={"service": "a rule that cannot use an event rejects it, and others go on"},
    ),
    Case(
        "booleans",
        "define Out(n: long, b: bool) from A(b) where n = A.n, b = A.b",
        pa.table({"type": ["A"] * 3, "ts": times(0, 1, 2), "n": [1, 2, 3], "b": [True, False, None]}),
        [("Out", at(0), {"n": 1, "b": True})],
    ),
    Case(
        "whole numbers of all widths",
        "define Out(a: int, b: int, c: int, d: long) from A() where a = A.a, b = A.b, c = A.c, d = A.d",
        pa.table(
            {
                "type": ["A"],
                "ts": times(0),
                "a": pa.array([-128], pa.int8()),
                "b": pa.array([32767], pa.int16()),
                "c": pa.array([2**31 - 1], pa.int32()),
                "d": pa.array([LONG], pa.int64()),
            }
        ),
        [("Out", at(0), {"a": -128, "b": 32767, "c": 2**31 - 1, "d": LONG})],
    ),
    Case(
        "unsigned whole numbers",
        "define Out(a: int, b: int, c: long) from A() where a = A.a, b = A.b, c = A.c",
        pa.table(
            {
                "type": ["A"],
                "ts": times(0),
                "a": pa.array([255], pa.uint8()),
                "b": pa.array([65535], pa.uint16()),
                "c": pa.array([2**32 - 1], pa.uint32()),
            }
        ),
        [("Out", at(0), {"a": 255, "b": 65535, "c": 2**32 - 1})],
        unlike={"batch": "Spark has no unsigned integers", "stream": "Spark has no unsigned integers"},
    ),
    Case(
        "whole numbers beyond 64 bits",
        OUT,
        pa.table({"type": ["A", "A"], "ts": times(0, 1), "n": pa.array([LONG, LONG + 1], pa.uint64())}),
        [("Out", at(0), {"n": LONG})],
        dead=[f"n: {LONG + 1}"],
        unlike={"batch": "Spark has no unsigned integers", "stream": "Spark has no unsigned integers"},
    ),
    Case(
        "whole numbers beyond the declared 32 bits",
        "event A(n: int)\ndefine Out(n: int) from A() where n = A.n",
        pa.table({"type": ["A", "A"], "ts": times(0, 1), "n": [2**31 - 1, 2**31]}),
        [("Out", at(0), {"n": 2**31 - 1})],
        dead=[f"n: {2**31}"],
    ),
    Case(
        "whole numbers that no double holds",
        "define Same(n: long) from B(n = $n) and last A(n = $n) within 10 s from B where n = B.n",
        pa.table({"type": ["A", "B", "B"], "ts": times(0, 1, 2), "n": [2**53 + 1, 2**53, 2**53 + 1]}),
        [("Same", at(2), {"n": 2**53 + 1})],
    ),
    texts("text of all kinds", pa.array(ODD_TEXTS), core=BOTH),
    texts("text in a dictionary, as an attribute", pa.array(["x", None, "", "x"]).dictionary_encode()),
    texts("large text, as an attribute", pa.array(["x", None, ""], pa.large_string())),
    texts("text as views", pa.array(["x", None, "longer than a view holds inline"], pa.string_view())),
    Case(
        "empty text is not null",
        'define Out(n: long) from A(s = "") where n = A.n',
        pa.table({"type": ["A"] * 3, "ts": times(0, 1, 2), "n": [1, 2, 3], "s": ["", None, " "]}),
        [("Out", at(0), {"n": 1})],
    ),
    Case(
        "text that only looks the same is not joined",
        "define Same(n: long) from B(s = $s) and last A(s = $s) within 10 s from B where n = B.n",
        pa.table(
            {"type": ["A", "B", "B"], "ts": times(0, 1, 2), "n": [1, 2, 3], "s": ["e\u0301", "\u00e9", "e\u0301"]}
        ),
        [("Same", at(2), {"n": 3})],
    ),
    Case(
        "unread columns that are nested",
        OUT,
        pa.table(
            {
                "type": ["A", "A"],
                "ts": times(0, 1),
                "n": [1, 2],
                "struct": [{"x": 1}, None],
                "list": [[1, 2], []],
                "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
                "binary": [b"\x00\xff", None],
            }
        ),
        [("Out", at(0), {"n": 1}), ("Out", at(1), {"n": 2})],
        core=BOTH,
    ),
    Case(
        "unread columns of rare types",
        OUT,
        pa.table(
            {
                "type": ["A"],
                "ts": times(0),
                "n": [1],
                "decimal": [Decimal("1.5")],
                "nothing": pa.nulls(1),
                "dictionary": pa.array(["x"]).dictionary_encode(),
                "large": pa.array(["x"], pa.large_string()),
                "view": pa.array(["x"], pa.string_view()),
                "seconds": pa.array([time(1, 2, 3)], pa.time32("s")),
                "micros": pa.array([time(1, 2, 3)], pa.time64("us")),
                "duration": pa.array([timedelta(seconds=5)]),
                "fixed": pa.array([b"abcd"], pa.binary(4)),
            }
        ),
        [("Out", at(0), {"n": 1})],
        core=BOTH,
    ),
    Case(
        "a nested column that a rule reads",
        "define Out(n: long) from A(list = 1) where n = A.n",
        pa.table({"type": ["A"], "ts": times(0), "n": [1], "list": [[1]]}),
        error="A has no attribute list",
        unlike={"service": "the column is left out, and events to come may have it"},
    ),
    Case(
        "CSV with numbers that are none",
        "event A(n: long, v: double)\ndefine Out(n: long) from A(v > 1) where n = A.n",
        text("e.csv", "type,ts,n,v\nA,1,1,2.5\nA,2,x,2.5\nA,3,3,much\nA,4,4,\nA,5,5,NaN\nA,6,6,1e3\n"),
        [("Out", 1, {"n": 1}), ("Out", 6, {"n": 6})],
        dead=["n: x", "v: much"],
    ),
    Case(
        "JSON with values that do not fit",
        "event A(n: long, v: double)\ndefine Out(n: long) from A(v > 1) where n = A.n",
        text(
            "e.jsonl",
            """\
{"type": "A", "ts": 1, "n": 1, "v": 2}
{"type": "A", "ts": 2, "n": "x", "v": 2.5}
{"type": "A", "ts": 3, "n": 3, "v": "much"}
{"type": "A", "ts": 4, "n": 4}
{"type": "A", "ts": 5, "n": 5, "v": null}
{"type": "A", "ts": 6, "n": 6, "v": 1e3}
""",
        ),
        [("Out", 1, {"n": 1}), ("Out", 6, {"n": 6})],
        dead=["n: x", "v: much"],
        core=BOTH,
        unlike={"embedded": "pyarrow does not read a column of two kinds"},
    ),
]
