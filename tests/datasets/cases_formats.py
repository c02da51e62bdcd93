"""Formats: CSV, JSON lines, Parquet and the event notation, as spreadsheets, pandas and others write them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from io import BytesIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.datasets.shapes import BOTH, NO_LINE, SECOND, Case, Files, at, text, times

OUT = "define Out(n: long, s: string) from A() where n = A.n, s = A.s"
N = "define Out(n: long) from A() where n = A.n"
PAIR = "define Pair(a: long, b: long) from B() and last A() within 10 s from B where a = A.n, b = B.n"
HEAD = "type,ts,n,s\n"


def line(n: int, s: str, type: str = "A") -> str:
    return f"{type},2026-07-01T12:00:{n:02}Z,{n},{s}\n"


def out(n: int, s: str | None = None) -> tuple[str, int, dict[str, object]]:
    return "Out", at(n), {"n": n, "s": s}


def parquet(table: pa.Table, rows: int | None = None) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue()


def pandas_parquet(frame: pd.DataFrame, **options: object) -> bytes:
    sink = BytesIO()
    frame.to_parquet(sink, **options)  # type: ignore[call-overload]
    return sink.getvalue()


def differing(ts: list[pa.Array], **values: list[pa.Array]) -> Files:
    """Parquet files with a row each, whose columns are of different types."""
    tables = [
        pa.table({"type": ["A"], "ts": ts[row], "n": [row], **{name: column[row] for name, column in values.items()}})
        for row in range(len(ts))
    ]
    return Files({f"{row}.parquet": parquet(table) for row, table in enumerate(tables)})


_HOW = "files of different types are joined by `open_events`"
_APART = {"embedded": _HOW, "service": _HOW, "stream": "files that are followed have the same columns"}
_TWO = [times(0), times(1)]
_NUMBERS = list(range(40))
_MANY = pa.table({"type": ["A"] * 40, "ts": times(*_NUMBERS), "n": _NUMBERS})
_FRAME = pd.DataFrame(
    {
        "type": ["A", "A"],
        "ts": pd.to_datetime(["2026-07-01T12:00:01.0000005", "2026-07-01T12:00:02.0000000"]),
        "n": [1, 2],
        "s": ["x", None],
    }
)
_FOUND = [("Out", at(1), {"n": 1, "s": "x"}), ("Out", at(2), {"n": 2})]

FORMATS = [
    Case("CSV", OUT, text("e.csv", HEAD + line(1, "x") + line(2, "y")), [out(1, "x"), out(2, "y")]),
    Case(
        "CSV with a byte order mark",
        OUT,
        Files({"e.csv": (HEAD + line(1, "x")).encode("utf-8-sig")}),
        [out(1, "x")],
    ),
    Case(
        "CSV with lines that end as on Windows",
        OUT,
        Files({"e.csv": (HEAD + line(1, "x") + line(2, "y")).replace("\n", "\r\n").encode()}),
        [out(1, "x"), out(2, "y")],
    ),
    Case(
        "CSV with quotes and commas",
        OUT,
        text("e.csv", HEAD + line(1, '"a,b"') + line(2, '"say ""hi"""') + line(3, "größe 😀")),
        [out(1, "a,b"), out(2, 'say "hi"'), out(3, "größe 😀")],
        core=BOTH,
    ),
    Case(
        "CSV with a line break in quotes",
        OUT,
        text("e.csv", HEAD + line(1, "x") + line(2, '"two\nlines"') + line(3, "y")),
        [out(1, "x"), out(3, "y")],
        dead=[NO_LINE] * 2,
        unlike={"embedded": "pyarrow reads it", "service": "it gets what pyarrow reads"},
    ),
    Case(
        "CSV with empty cells and blank lines",
        OUT,
        text("e.csv", HEAD + line(1, "") + "\n" + line(2, "y") + "\n\n"),
        [out(1), out(2, "y")],
    ),
    Case(
        "CSV without a line break at its end",
        OUT,
        text("e.csv", (HEAD + line(1, "x") + line(2, "y")).rstrip()),
        [out(1, "x"), out(2, "y")],
    ),
    Case(
        "CSV with a line of too few cells",
        OUT,
        text("e.csv", HEAD + line(1, "x") + "A,2026-07-01T12:00:02Z\n" + line(3, "y")),
        [out(1, "x"), out(3, "y")],
        dead=[NO_LINE],
        unlike={"embedded": "pyarrow does not read it", "service": "pyarrow does not read it"},
    ),
    Case(
        "CSV with a header alone",
        OUT,
        text("e.csv", HEAD),
        unlike={"service": "a body of no events is no request"},
        core=["batch"],
    ),
    Case(
        "CSV with null types",
        N,
        text("e.csv", "type,ts,n\nA,1,1\n,2,2\nA,3,3\n"),
        [("Out", 1, {"n": 1}), ("Out", 3, {"n": 3})],
        dead=["type is null"],
    ),
    Case(
        "CSV in several files of a folder",
        PAIR,
        Files(
            {
                "a.csv": b"type,ts,n\nB,2026-07-01T12:00:05Z,3\n",
                "b.csv": b"type,ts,n\nA,2026-07-01T12:00:04Z,2\nA,2026-07-01T12:00:01Z,1\n",
            }
        ),
        [("Pair", at(5), {"a": 2, "b": 3})],
    ),
    Case(
        "CSV in several files with columns in another order",
        PAIR,
        Files(
            {
                "a.csv": b"type,ts,n\nB,2026-07-01T12:00:05Z,3\n",
                "b.csv": b"n,extra,ts,type\n2,x,2026-07-01T12:00:04Z,A\n",
            }
        ),
        [("Pair", at(5), {"a": 2, "b": 3})],
        unlike={"stream": "files that are followed have the same columns"},
    ),
    Case(
        "JSON lines with missing fields",
        OUT,
        text(
            "e.jsonl",
            """\
{"type": "A", "ts": "2026-07-01T12:00:01Z", "n": 1}
{"n": 2, "ts": "2026-07-01T12:00:02Z", "type": "A", "s": "y", "more": {"x": [1]}}
{"type": "Other", "ts": "2026-07-01T12:00:03Z", "z": false}
""",
        ),
        [out(1), out(2, "y")],
    ),
    Case(
        "JSON lines that are none",
        OUT,
        text(
            "e.jsonl",
            """\
{"type": "A", "ts": "2026-07-01T12:00:01Z", "n": 1, "s": "x"}
nonsense

{"type": "A", "ts": "2026-07-01T12:00:02Z", "n": 2, "s": "y"}
""",
        ),
        [out(1, "x"), out(2, "y")],
        dead=[NO_LINE],
        core=BOTH,
        unlike={"embedded": "pyarrow does not read it"},
    ),
    Case(
        "JSON lines without a type or a time",
        OUT,
        text(
            "e.jsonl",
            """\
{"type": "A", "ts": "2026-07-01T12:00:01Z", "n": 1, "s": "x"}
{"ts": "2026-07-01T12:00:02Z", "n": 2, "s": "y"}
{"type": "A", "n": 3, "s": "z"}
""",
        ),
        [out(1, "x")],
        dead=["type is null", "ts is null"],
        unlike={"service": "an event without ts happens now"},
    ),
    Case(
        "JSON lines as on Windows, with escapes",
        OUT,
        Files(
            {
                "e.jsonl": (
                    '\ufeff{"type": "A", "ts": "2026-07-01T12:00:01Z", "n": 1, "s": "gr\\u00fc\\n\\"x\\""}\r\n'
                    '{"type": "A", "ts": "2026-07-01T12:00:02Z", "n": 2, "s": "😀"}\r\n'
                ).encode()
            }
        ),
        [out(1, 'grü\n"x"'), out(2, "😀")],
        unlike={"embedded": "pyarrow does not read a byte order mark"},
        core=["service"],
    ),
    Case("Parquet by pandas", OUT, Files({"e.parquet": pandas_parquet(_FRAME)}), _FOUND, core=BOTH),
    Case(
        "Parquet by pandas, with a zone and an index",
        OUT,
        Files(
            {
                "e.parquet": pandas_parquet(
                    _FRAME.assign(ts=_FRAME["ts"].dt.tz_localize("UTC").dt.tz_convert("America/New_York")).set_index(
                        "n"
                    )
                )
            }
        ),
        _FOUND,
    ),
    Case(
        "Parquet by pandas, in microseconds",
        OUT,
        Files({"e.parquet": pandas_parquet(_FRAME, coerce_timestamps="us", allow_truncated_timestamps=True)}),
        _FOUND,
    ),
    Case(
        "Parquet by pandas, with categories",
        OUT,
        Files(
            {"e.parquet": pandas_parquet(_FRAME.astype({"type": "category", "s": "category", "ts": "datetime64[us]"}))}
        ),
        _FOUND,
    ),
    Case(
        "Parquet of several row groups",
        N,
        Files({"e.parquet": parquet(_MANY, 7)}),
        [("Out", at(n), {"n": n}) for n in _NUMBERS],
    ),
    Case(
        "Parquet in several files of a folder",
        N,
        Files({f"{part}.parquet": parquet(_MANY.slice(part * 10, 10)) for part in (3, 1, 2, 0)}),
        [("Out", at(n), {"n": n}) for n in _NUMBERS],
    ),
    Case(
        "Parquet in files with different columns",
        PAIR,
        Files(
            {
                "a.parquet": parquet(pa.table({"type": ["A"], "ts": times(1), "n": pa.array([1], pa.int32())})),
                "b.parquet": parquet(
                    pa.table({"ts": times(2), "type": ["B"], "x": ["y"], "n": pa.array([2], pa.int32())})
                ),
            }
        ),
        [("Pair", at(2), {"a": 1, "b": 2})],
    ),
    Case(
        "Parquet in files with times of different types",
        N,
        differing(
            [
                pa.array([at(0)], pa.timestamp("us")),
                pa.array([at(1) * 1000 + 999], pa.timestamp("ns")),
                pa.array([at(2) * 1000], pa.timestamp("ns", "UTC")),
                pa.array([at(3) // 1000], pa.timestamp("ms", "Asia/Tokyo")),
                pa.array([at(4) // SECOND], pa.timestamp("s")),
                pa.array([date(2026, 7, 1)]),
            ]
        ),
        [*(("Out", at(n), {"n": n}) for n in range(5)), ("Out", at(-43_200), {"n": 5})],
        unlike=_APART,
        core=["batch"],
    ),
    Case(
        "Parquet in files with numbers of different types",
        "define Out(n: long, v: double, w: long) from A(v > 0, d > 0) where n = A.n, v = A.v, w = A.w",
        differing(
            [times(0), times(1), times(2)],
            v=[pa.array([1]), pa.array([2.5]), pa.array([3.5], pa.float32())],
            w=[pa.array([1], pa.int32()), pa.array([2**63 - 1]), pa.array([7], pa.uint64())],
            d=[pa.array([1]), pa.array([Decimal("0.50")]), pa.array([Decimal("0.500")])],
        ),
        [("Out", at(n), {"n": n, "v": v, "w": w}) for n, v, w in ((0, 1, 1), (1, 2.5, 2**63 - 1), (2, 3.5, 7))],
        unlike=_APART,
        core=["batch"],
    ),
    Case(
        "Parquet in files with text held in different ways",
        OUT,
        differing(_TWO, s=[pa.array(["x"]), pa.array(["y"]).dictionary_encode()]),
        [out(0, "x"), out(1, "y")],
        unlike={"embedded": _HOW, "service": _HOW},
    ),
    Case(
        "Parquet in files with unread columns that differ in kind",
        N,
        differing(
            _TWO,
            a=[pa.array([1]), pa.array(["x"])],
            b=[pa.array([1]), pa.array([{"x": 1}])],
            c=[pa.array([1], pa.timestamp("us")), pa.array([True])],
            d=[pa.array([1], pa.time64("us")), pa.array([1], pa.duration("us"))],
        ),
        [("Out", at(0), {"n": 0}), ("Out", at(1), {"n": 1})],
        unlike={"embedded": _HOW, "service": _HOW},
        core=BOTH,
    ),
    Case(
        "Parquet in files of which some hold times and some numbers",
        N,
        differing([times(0), pa.array([5])]),
        error="disagree about the column 'ts'",
        unlike={"embedded": _HOW, "service": _HOW},
    ),
    Case(
        "Parquet with a nested seq",
        N,
        Files({"e.parquet": parquet(pa.table({"type": ["A"], "ts": times(0), "n": [1], "seq": [[1]]}))}),
        error="list<",
    ),
    Case("an empty table", N, _MANY.slice(0, 0), core=BOTH),
    Case("an empty file", N, Files({"e.parquet": parquet(_MANY.slice(0, 0))})),
    Case(
        "a file of no bytes",
        N,
        text("e.csv", ""),
        error="is empty",
        unlike={"embedded": "pyarrow does not read it", "service": "pyarrow does not read it"},
    ),
    Case("one row", N, _MANY.slice(5, 1), [("Out", at(5), {"n": 5})]),
    Case(
        "a table in many pieces",
        N,
        pa.concat_tables([_MANY.slice(n, 1) for n in _NUMBERS]),
        [("Out", at(n), {"n": n}) for n in _NUMBERS],
    ),
    Case(
        "event notation",
        PAIR,
        text(
            "e.events",
            """\
-- a comment
A@2026-07-01T12:00:01Z(n=1, s="x")
B@2026-07-01T12:00:02Z(n=2, v=1.5, b=true)
B@2026-07-01T12:00:01Z(n=9)
""",
        ),
        [("Pair", at(2), {"a": 1, "b": 2})],
        unlike={"stream": "event notation cannot be followed"},
    ),
    Case(
        "event notation with seq and ids",
        PAIR,
        text("e.events", "A@5#1[x](n=1)\nB@5#2[x](n=2)\nB@5(n=3)\n"),
        [("Pair", 5, {"a": 1, "b": 2})],
        unlike={"stream": "event notation cannot be followed"},
    ),
]
