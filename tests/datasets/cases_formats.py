"""Formats: CSV, JSON lines, Parquet and the event notation, as spreadsheets, pandas and others write them."""

from __future__ import annotations

from io import BytesIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.datasets.shapes import BOTH, NO_LINE, Case, Files, at, text, times

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
