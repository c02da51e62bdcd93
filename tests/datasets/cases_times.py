"""Times: what integers, floats, timestamps, dates and text mean, in which unit and zone, and which are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from tests.datasets.shapes import ALL, BOTH, NOON, SECOND, Case, at, text, times, us

OUT = "define Out(n: long) from A() where n = A.n"
NOON_US = us(NOON)
NOON_S = NOON_US // SECOND
ISO = "2026-07-01T12:00:00Z"
FIRST, LAST = us(datetime(1, 1, 1, tzinfo=UTC)), us(datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC))
OUT_OF_RANGE = "ts is out of range"


def timed(name: str, column: pa.Array, right: Sequence[int | None], **more: Any) -> Case:
    """A table with these times; each row has a match at the time that is right for it, or is rejected (None)."""
    table = pa.table({"type": ["A"] * len(column), "ts": column, "n": range(len(column))})
    found = [("Out", ts, {"n": n}) for n, ts in enumerate(right) if ts is not None]
    return Case(name, OUT, table, found, **more)


TIMES = [
    timed("times in microseconds", pa.array([NOON_US, NOON_US + 1]), [NOON_US, NOON_US + 1]),
    timed(
        "times in milliseconds",
        pa.array([NOON_US // 1000, NOON_US // 1000 + 1]),
        [NOON_US, NOON_US + 1000],
        options={"ts_unit": "ms"},
    ),
    timed("times in seconds", pa.array([NOON_S, NOON_S + 1]), [at(0), at(1)], options={"ts_unit": "s"}),
    timed(
        "times in nanoseconds are floored",
        pa.array([NOON_US * 1000 + 999, -1, 1999]),
        [NOON_US, -1, 1],
        options={"ts_unit": "ns"},
    ),
    timed(
        "32-bit times in seconds",
        pa.array([NOON_S, 5], pa.int32()),
        [at(0), 5 * SECOND],
        options={"ts_unit": "s"},
    ),
    timed(
        "times in unsigned integers",
        pa.array([NOON_US, 7], pa.uint64()),
        [NOON_US, 7],
        unlike={"batch": "Spark has no unsigned integers", "stream": "Spark has no unsigned integers"},
    ),
    # What looks like seconds, milliseconds or nanoseconds of today is not guessed to be that.
    timed("small integers are microseconds", pa.array([1_000_000_000, 5_000_000_000]), [10**9, 5 * 10**9], core=BOTH),
    timed("integers like milliseconds are microseconds", pa.array([10**12, 2 * 10**12]), [10**12, 2 * 10**12]),
    timed("integers like nanoseconds are microseconds", pa.array([10**17, 2 * 10**17]), [10**17, 2 * 10**17]),
    timed(
        "floats with a unit",
        pa.array([NOON_S + 0.5, NOON_S + 0.25, -0.5, None]),
        [at(0.5), at(0.25), -SECOND // 2, None],
        dead=["ts is null"],
        options={"ts_unit": "s"},
        unlike={"service": "an event without ts happens now"},
    ),
    timed(
        "floats that are no number",
        pa.array([NOON_S + 0.5, float("nan"), float("inf"), 1e300]),
        [at(0.5), None, None, None],
        dead=["ts: nan", "ts: inf", OUT_OF_RANGE],
        options={"ts_unit": "s"},
    ),
    timed("floats without a unit", pa.array([1.5, 2.5]), [], error="ts_unit", core=BOTH),
    timed(
        "a unit that does not exist",
        pa.array([1, 2]),
        [],
        error="ts_unit",
        options={"ts_unit": "min"},
        unlike={"command": "a choice of the shell: exit code 2", "service": "a choice of the interface"},
    ),
    timed("timestamps in seconds", pa.array([NOON_S], pa.timestamp("s")), [NOON_US]),
    timed("timestamps in milliseconds", pa.array([NOON_S * 1000 + 1], pa.timestamp("ms")), [NOON_US + 1000]),
    timed("timestamps without a zone are UTC", pa.array([NOON_US], pa.timestamp("us")), [NOON_US], core=BOTH),
    timed(
        "timestamps in nanoseconds are floored",
        pa.array([NOON_US * 1000 + 999, -1], pa.timestamp("ns")),
        [NOON_US, -1],
    ),
    timed(
        "timestamps in nanoseconds with a zone", pa.array([NOON_US * 1000 + 1], pa.timestamp("ns", "UTC")), [NOON_US]
    ),
    timed(
        "timestamps of another zone",
        pa.array([NOON_US, NOON_US + 1], pa.timestamp("us", "Europe/Berlin")),
        [NOON_US, NOON_US + 1],
        core=BOTH,
    ),
    timed("timestamps of a fixed offset", pa.array([NOON_US], pa.timestamp("us", "-03:30")), [NOON_US]),
    timed("dates are midnight UTC", pa.array([date(2026, 7, 1), date(1969, 12, 31)]), [at(-43_200), -86_400 * SECOND]),
    timed("dates of 64 bits", pa.array([date(2026, 7, 1)], pa.date64()), [at(-43_200)]),
    timed(
        "text in ISO 8601",
        pa.array(
            [
                "2026-07-01T12:00:00Z",
                "2026-07-01T14:00:01+02:00",
                "2026-07-01 12:00:02",
                "2026-07-01T12:00:03",
                "2026-07-01T12:00:04.123456789Z",
                "2026-07-01T12:00:05.5",
                "2026-07-01",
                "2026-07-01T12:01",
                "1969-12-31T23:59:59.5Z",
            ]
        ),
        [at(0), at(1), at(2), at(3), at(4) + 123_456, at(5.5), at(-43_200), at(60), -SECOND // 2],
        core=BOTH,
    ),
    timed(
        "text that is no time",
        pa.array(["2026-07-01T12:00:00Z", "soon", "", "2026-13-01T00:00:00Z", "2026-07-01T25:00:00Z", None]),
        [at(0), None, None, None, None, None],
        dead=["ts: soon", "ts: ", "ts: 2026-13-01T00:00:00Z", "ts: 2026-07-01T25:00:00Z", "ts is null"],
        core=ALL,
        unlike={"service": "an event without ts happens now"},
    ),
    timed(
        "text that is no time, and all have one",
        pa.array(["2026-07-01T12:00:00Z", "soon", "12"]),
        [at(0), None, None],
        dead=["ts: soon", "ts: 12"],
    ),
    timed("text in a dictionary", pa.array(["2026-07-01T12:00:00Z"] * 2).dictionary_encode(), [at(0), at(0)]),
    timed("large text", pa.array(["2026-07-01T12:00:00Z"], pa.large_string()), [at(0)]),
    timed(
        "times that are null",
        pa.array([NOON_US, None, NOON_US], pa.timestamp("us", "UTC")),
        [NOON_US, None, NOON_US],
        dead=["ts is null"],
        unlike={"service": "an event without ts happens now"},
    ),
    timed(
        "integers that are null",
        pa.array([NOON_US, None]),
        [NOON_US, None],
        dead=["ts is null"],
        unlike={"service": "an event without ts happens now"},
    ),
    timed(
        "all times are null",
        pa.nulls(2),
        [None, None],
        dead=["ts is null"] * 2,
        unlike={"service": "an event without ts happens now"},
    ),
    timed(
        "the first and the last moment",
        pa.array([FIRST, LAST, FIRST - 1, LAST + 1, 2**62, -(2**62)]),
        [FIRST, LAST, None, None, None, None],
        dead=[OUT_OF_RANGE] * 4,
        core=BOTH,
    ),
    timed(
        "timestamps beyond the last year",
        pa.array([NOON_S, LAST // SECOND + 1, FIRST // SECOND - 1, 2**50], pa.timestamp("s")),
        [NOON_US, None, None, None],
        dead=[OUT_OF_RANGE] * 3,
        unlike={"batch": "Spark makes no DataFrame of it", "stream": "Spark makes no DataFrame of it"},
    ),
    timed(
        "seconds beyond 64 bits of microseconds",
        pa.array([NOON_S, 2**62, -(2**62)]),
        [at(0), None, None],
        dead=[OUT_OF_RANGE] * 2,
        options={"ts_unit": "s"},
    ),
    timed("before 1970", pa.array([-1, -86_400 * SECOND, 0], pa.timestamp("us", "UTC")), [-1, -86_400 * SECOND, 0]),
    timed("times that are true", pa.array([True, False]), [], error="ts"),
    Case(
        "times as attributes",
        """
        define Wait(since: timestamp, long: long)
        from   Done(id2 = $i) and last Begun(id2 = $i) within 1 d from Done
        where  since = Begun.opened, long = Done.closed - Begun.opened
        """,
        pa.table(
            {
                "type": ["Begun", "Done"],
                "ts": times(0, 60),
                "id2": [7, 7],
                "opened": pa.array([NOON_US * 1000 + 1, None], pa.timestamp("ns")),
                "closed": pa.array([None, NOON_US + 90 * SECOND], pa.timestamp("us", "Asia/Tokyo")),
            }
        ),
        [("Wait", at(60), {"since": NOON_US, "long": 90 * SECOND})],
    ),
    Case(
        "CSV with seconds",
        OUT,
        text("e.csv", f"type,ts,n\nA,{NOON_S},1\nA,{NOON_S + 1},2\n"),
        [("Out", at(0), {"n": 1}), ("Out", at(1), {"n": 2})],
        options={"ts_unit": "s"},
    ),
    Case(
        "CSV with fractions of seconds",
        OUT,
        text("e.csv", f"type,ts,n\nA,{NOON_S}.5,1\nA,{NOON_S + 1}.25,2\n"),
        [("Out", at(0.5), {"n": 1}), ("Out", at(1.25), {"n": 2})],
        options={"ts_unit": "s"},
    ),
    Case(
        "CSV with small integers",
        OUT,
        text("e.csv", "type,ts,n\nA,1500000000,1\nA,1500000001,2\n"),
        [("Out", 1_500_000_000, {"n": 1}), ("Out", 1_500_000_001, {"n": 2})],
    ),
    Case(
        "CSV with dates",
        OUT,
        text("e.csv", "type,ts,n\nA,2026-07-01,1\nA,2026-07-02,2\n"),
        [("Out", at(-43_200), {"n": 1}), ("Out", at(43_200), {"n": 2})],
    ),
    Case(
        "CSV with times of several forms",
        OUT,
        text(
            "e.csv",
            "type,ts,n\nA,2026-07-01T14:00:00+02:00,1\nA,2026-07-01 12:00:01,2\nA,2026-07-01T12:00:02.123456789Z,3\n",
        ),
        [("Out", at(0), {"n": 1}), ("Out", at(1), {"n": 2}), ("Out", at(2) + 123_456, {"n": 3})],
        core=BOTH,
    ),
    Case(
        "CSV with a line whose time is none",
        OUT,
        text("e.csv", "type,ts,n\n" + "".join(f"A,2026-07-01T12:00:0{n}Z,{n}\n" for n in range(10)) + "A,soon,10\n"),
        [("Out", at(n), {"n": n}) for n in range(10)],
        dead=["ts: soon"],
        core=ALL,
    ),
    Case(
        "JSON with times of several forms",
        OUT,
        text(
            "e.jsonl",
            """\
{"type": "A", "ts": "2026-07-01T12:00:00Z", "n": 1}
{"type": "A", "ts": "2026-07-01T12:00:01.25", "n": 2}
{"type": "A", "ts": "2026-07-01 14:00:02+02:00", "n": 3}
""",
        ),
        [("Out", at(0), {"n": 1}), ("Out", at(1.25), {"n": 2}), ("Out", at(2), {"n": 3})],
        core=BOTH,
    ),
    Case(
        "JSON with milliseconds",
        OUT,
        text("e.jsonl", f'{{"type": "A", "ts": {NOON_S}000, "n": 1}}\n{{"type": "A", "ts": 5, "n": 2}}\n'),
        [("Out", at(0), {"n": 1}), ("Out", 5000, {"n": 2})],
        options={"ts_unit": "ms"},
    ),
    Case(
        "JSON with text and microseconds",
        OUT,
        text("e.jsonl", f'{{"type": "A", "ts": "{ISO}", "n": 1}}\n{{"type": "A", "ts": {NOON_US + 1}, "n": 2}}\n'),
        [("Out", at(0), {"n": 1}), ("Out", NOON_US + 1, {"n": 2})],
        unlike={"embedded": "pyarrow does not read a column of two kinds"},
        core=BOTH,
    ),
    Case(
        "JSON with text and seconds",
        OUT,
        text("e.jsonl", f'{{"type": "A", "ts": "{ISO}", "n": 1}}\n{{"type": "A", "ts": {NOON_S + 1}, "n": 2}}\n'),
        [("Out", at(0), {"n": 1}), ("Out", at(1), {"n": 2})],
        options={"ts_unit": "s"},
        unlike={"embedded": "pyarrow does not read a column of two kinds"},
        core=BOTH,
    ),
    Case(
        "CSV with text and seconds",
        OUT,
        text("e.csv", f"type,ts,n\nA,{ISO},1\nA,{NOON_S + 1}.5,2\nA,soon,3\n"),
        [("Out", at(0), {"n": 1}), ("Out", at(1.5), {"n": 2})],
        dead=["ts: soon"],
        options={"ts_unit": "s"},
    ),
]
