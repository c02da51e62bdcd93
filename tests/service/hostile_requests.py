"""Invalid requests: bodies, headers, queries, paths and texts of rules."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
NOW = 1_790_000_000_000_000
GOOD = f'{{"type": "Good", "ts": {NOW}, "v": 1.5}}'
SURROGATE = "\\ud800"
DIGITS = "9" * 5_000

VALUES = {
    "lone surrogate": f'"{SURROGATE}"',
    "low surrogate first": '"\\udc00\\ud800"',
    "null character": '"a\\u0000b"',
    "long text": '"' + "x" * 5_000 + '"',
    "2**53 + 1": "9007199254740993",
    "2**63": "9223372036854775808",
    "2**64": "18446744073709551616",
    "-2**63 - 1": "-9223372036854775809",
    "-2**63": "-9223372036854775808",
    "30 digits": "9" * 30,
    "5,000 digits": DIGITS,
    "-5,000 digits": "-" + DIGITS,
    "1e308": "1e308",
    "1e400": "1e400",
    "-1e400": "-1e400",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "list": "[1]",
    "object": '{"a": 1}',
    "lists, nested": "[" * 50 + "]" * 50,
    "true": "true",
    "null": "null",
    "empty text": '""',
    "year 0": '"0000-01-01T00:00:00Z"',
    "year 1, east": '"0001-01-01T00:00:00+23:59"',
    "year 9999, west": '"9999-12-31T23:59:59-23:59"',
    "year 9999, 9 digits": '"9999-12-31T23:59:59.999999999Z"',
    "year 10000": '"10000-01-01T00:00:00Z"',
    "30 February": '"2026-02-30T00:00:00Z"',
    "second 60": '"2026-02-28T23:59:60Z"',
}
"""Values of attributes, as JSON."""

NAMES = {
    "lone surrogate": SURROGATE,
    "empty": "",
    "blank": " ",
    "null character": "\\u0000",
    "arrival": "\\u0000at",
    "colon": "a:b",
    "a name and a kind": "v:double",
    "a column of batches": "type:int",
    "label": "$id",
    "emoji": "😀",
    "300 characters": "n" * 300,
    "quote": '\\"',
    "_reason": "_reason",
    "number": "number",
}
"""Names of attributes, as JSON."""

TYPES = ('""', "1", "null", "true", '"a b"', '"ü"', f'"{SURROGATE}"', '"' + "A" * 300 + '"', "[]", "{}", '"A\\u0000"')


def _events() -> dict[str, str]:
    found = {f"value: {name}": f'{{"type": "Odd", "ts": {NOW}, "v": {value}}}' for name, value in VALUES.items()}
    found |= {f"ts: {name}": f'{{"type": "Odd", "ts": {value}}}' for name, value in VALUES.items()}
    found |= {f"seq: {name}": f'{{"type": "Odd", "ts": {NOW}, "seq": {value}}}' for name, value in VALUES.items()}
    found |= {f"id: {name}": f'{{"type": "Odd", "ts": {NOW}, "key": {value}}}' for name, value in VALUES.items()}
    found |= {f"name: {name}": f'{{"type": "Odd", "ts": {NOW}, "{text}": 1}}' for name, text in NAMES.items()}
    found |= {f"type: {type}"[:40]: f'{{"type": {type}, "ts": {NOW}}}' for type in TYPES}
    found |= {
        "no type": f'{{"ts": {NOW}}}',
        "nothing": "{}",
        "a number": "1",
        "a null": "null",
        "a text": '"x"',
        "a list": "[]",
        "type twice": f'{{"type": "Odd", "type": 1, "ts": {NOW}}}',
        "a value twice": f'{{"type": "Odd", "ts": {NOW}, "v": 1, "v": "x"}}',
        "text beside numbers": f'{{"type": "Good", "ts": {NOW}, "v": "x"}}',
        "2,000 attributes": '{"type": "Odd"' + "".join(f', "a{n}": {n}' for n in range(2_000)) + "}",
    }
    return found


EVENTS = _events()
"""Events as JSON. Each may be accepted or rejected, without effect on others."""

LINES = {
    "not closed": b'{"type": "Odd"',
    "no UTF-8": b'{"type": "Odd", "v": "\xff"}',
    "a surrogate as UTF-8": b'{"type": "Odd", "v": "\xed\xa0\x80"}',
    "a name that is no UTF-8": b'{"type": "Odd", "\xff": 1}',
    "a null byte": b"\0",
    "a null byte in a text": b'{"type": "Odd", "v": "\0"}',
    "nested deeply": b'{"type": "Odd", "v": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "nested deeply, not closed": b'{"v":' * 20_000,
    "a mark": b'\xef\xbb\xbf{"type": "Odd"}',
    "two objects": b'{"type": "Odd"} {"type": "Odd"}',
    "a comma": b'{"type": "Odd"},',
    "UTF-16": '{"type": "Odd"}'.encode("utf-16"),
    "a tab": b"\t",
    "a return": b"\r",
    "a bracket": b"[",
}
"""Lines of NDJSON that are invalid or unusual JSON."""


@dataclass(frozen=True)
class Hostile:
    """A request."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, Any] = field(default_factory=dict)


def publishing(body: bytes, format: str, query: str = "", **headers: Any) -> Hostile:
    return Hostile("POST", f"/events{query}", body, {"Content-Type": format, **headers})


def asking(path: str, text: bytes | dict[str, Any]) -> Hostile:
    body = text if isinstance(text, bytes) else json.dumps(text).encode()
    return Hostile("POST", path, body, {"Content-Type": JSON})


def stream(table: pa.Table, **options: Any) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def odd_columns() -> dict[str, pa.Array]:
    """Columns of Arrow with three rows, of which the second is odd."""
    big = 2**63 - 1
    return {
        "nan": pa.array([1.0, float("nan"), 1.0]),
        "infinity": pa.array([1.0, float("inf"), 1.0]),
        "half": pa.array([1.0, float("-inf"), 1.0], pa.float16()),
        "uint64": pa.array([1, 2**64 - 1, 1], pa.uint64()),
        "seconds": pa.array([1, big, 1], pa.timestamp("s")),
        "milliseconds": pa.array([1, -big, 1], pa.timestamp("ms", "UTC")),
        "nanoseconds": pa.array([1, -big, 1], pa.timestamp("ns", "Europe/Berlin")),
        "microseconds": pa.array([1, big, 1], pa.timestamp("us")),
        "no zone of this world": pa.array([1, 2, 1], pa.timestamp("us", "Nowhere/Else")),
        "date32": pa.array([1, 2**31 - 1, 1], pa.date32()),
        "date64": pa.array([1, big, 1], pa.int64()).cast(pa.date64(), safe=False),
        "time": pa.array([1, 2, 1], pa.time64("us")),
        "duration": pa.array([1, big, 1], pa.duration("s")),
        "decimal": pa.array([1, 10**37, 1], pa.decimal128(38, 0)),
        "decimal256": pa.array([1, 10**70, 1], pa.decimal256(76, 0)),
        "binary": pa.array([b"a", b"\xff", b"a"]),
        "binary of fixed size": pa.array([b"a", b"\xff", b"a"], pa.binary(1)),
        "text view": pa.array(["a", None, "a"], pa.string_view()),
        "large text": pa.array(["a", None, "a"], pa.large_string()),
        "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
        "dictionary of numbers": pa.array([1, None, 1]).dictionary_encode(),
        "dictionary of dictionaries": pa.array([[1], None, [1]]),
        "struct": pa.array([{"a": 1}, None, {"a": 1}]),
        "map": pa.array([[("a", 1)], None, [("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", "b"])),
        "union": pa.UnionArray.from_sparse(
            pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
        ),
        "nulls": pa.nulls(3),
        "null texts": pa.array([None, None, None], pa.string()),
    }


def arrow_events() -> dict[str, bytes]:
    """Streams of three events of which the second is odd, in its attribute, its time, its number or its id."""
    found = {}
    types = pa.array(["Good", "Odd", "Good"])
    for name, column in odd_columns().items():
        ts = pa.array([NOW] * 3)
        found[f"value: {name}"] = stream(pa.table({"type": types, "ts": ts, "o" + name.replace(" ", "_"): column}))
        found[f"ts: {name}"] = stream(pa.table({"type": types, "ts": column}))
        found[f"seq: {name}"] = stream(pa.table({"type": types, "ts": ts, "seq": column}))
        found[f"id: {name}"] = stream(pa.table({"type": types, "ts": ts, "key": column}))
        found[f"type: {name}"] = stream(pa.table({"type": column, "ts": ts}))
    one = pa.array([1, 1, 1])
    for name in ("", " ", "\0at", "a:b", "n" * 300, "😀", "v:double"):
        found[f"name: {name[:20]!r}"] = stream(pa.table({"type": types, "ts": ts, name: one}))
    found["a name twice"] = stream(pa.Table.from_arrays([types, ts, one, one], ["type", "ts", "a", "a"]))
    found["ts twice"] = stream(pa.Table.from_arrays([types, ts, ts], ["type", "ts", "ts"]))
    found["no rows"] = stream(pa.table({"type": types, "ts": ts}).slice(0, 0))
    found["no columns"] = stream(pa.table({}))
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 1, 4, 5))
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"a\xed\xa0\x80a"))
    found["no UTF-8"] = stream(pa.table({"type": types, "ts": ts, "v": texts}))
    return found


BODIES = {
    "nothing": b"",
    "a blank": b" ",
    "a bracket": b"[",
    "many brackets": b"[" * 100_000,
    "many brackets, closed": b"[" * 100_000 + b"]" * 100_000,
    "many braces": b'{"a":' * 100_000,
    "null": b"null",
    "a number": b"1",
    "many digits": DIGITS.encode(),
    "NaN": b"NaN",
    "a surrogate": f'"{SURROGATE}"'.encode(),
    "no UTF-8": b"\xff\xfe\xfd",
    "UTF-16": '{"type": "A"}'.encode("utf-16"),
    "UTF-32": '{"type": "A"}'.encode("utf-32"),
    "a surrogate as UTF-8": b'{"type": "A", "v": "\xed\xa0\x80"}',
    "a mark": b'\xef\xbb\xbf{"type": "A"}',
    "a null byte": b"\0",
    "a list of lists": b"[[[]]]",
    "an empty list": b"[]",
    "an empty object": b"{}",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\3",
    "a stream's mark": b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    "the end of a stream": b"\xff\xff\xff\xff\0\0\0\0",
    "a file of Arrow": b"ARROW1\0\0",
    "lines": b"\n" * 1_000,
    "returns": b"\r" * 1_000,
}
"""Bodies for every route that reads one, and every content type."""

RULE_TEXTS = {
    "a surrogate": "define O() from A(x = '\ud800')",
    "a surrogate alone": "\ud800",
    "a surrogate in a comment": "-- \udfff\ndefine O() from A()",
    "a surrogate in a name": "define O\ud800() from A()",
    "a null": "define O\0() from A()",
    "an emoji": "define O() from A(x = '😀')",
    "a name of an emoji": "define 😀() from A()",
    "digits": f"define O() from A(x = {DIGITS})",
    "digits and a fraction": f"define O() from A(x = {DIGITS}.{DIGITS})",
    "an exponent": "define O() from A(x = 1e99999)",
    "a long window": f"define O() from A() and last B() within {DIGITS} s from A",
    "a window of 2**62": "define O() from A() and last B() within 4611686018427387904 s from A",
    "an odd number": "define O() from A(x = 1_000)",
    "other digits": "define O() from A(x = ١٢٣)",
    "powers": "define O() from A(x = ²)",
    "a division by zero": "define O(v: double) from A() where v = A.x / 0",
    "a timestamp of the year 0": "define O() from A(x = timestamp '0000-01-01')",
    "a timestamp of the year 99999": "define O() from A(x = timestamp '99999-01-01')",
    "parentheses": "define O() from A(" + "(" * 20_000 + "x = 1" + ")" * 20_000 + ")",
    "blank": " ",
    "other blanks": "\u2028\u00a0\ufeff",
    "EPS: a surrogate": "request R on A as a & B as b if a.x = '\ud800'",
    "EPS: digits": f"request R on every({DIGITS} s) & A",
    "SiddhiQL: a surrogate": "from A[x == '\ud800'] select x insert into O",
    "SiddhiQL: digits": f"from A#window.length({DIGITS}) select sum(x) as x insert into O",
    "SiddhiQL: a count": f"from every e1=A<1:{DIGITS}> -> e2=B select e2.x as x insert into O",
    "MCEP: a surrogate": "define Hot() from A(x > 1) interest I of Hot around Me(x = '\ud800') range circle 1 m",
    "MCEP: digits": f"define Hot() from A(x > 1) interest I of Hot around Me() range circle {DIGITS} m",
    "MCEP: a circle of 0": "define Hot() from A(x > 1) interest I of Hot around Me() range circle 0 m",
}

QUERIES = (
    "since=0001-01-01T00:00:00Z", "since=0001-01-01T00:00:00%2B23:59", "since=9999-12-31T23:59:59-23:59",
    "since=99999-01-01", "since=-1", "since=1e400", "since=NaN", "since=Infinity", "since=9223372036854775808",
    "since=-9223372036854775809", "since=99999999999999999999999999", f"since={'9' * 400}", "until=253402300800",
    "until=-62135596801", "until=-99999999999", "until=%ED%A0%80", "until=%00", "since=", "since=2026-02-30",
    "since=2026-01-01T00:00:00%2B99:99", "since=-inf", "until=1e308", "until=0000-01-01",
    "after=-1", "after=9007199254740993", "after=9999999999999999999", "after=1e5", f"after={'9' * 5_000}", "after=NaN",
    "after=%D9%A1", "after=", "limit=0", "limit=1001", "limit=9999999999999999999", "limit=", "limit=1.5",
    "rule=%ED%A0%80", "rule=%00", "rule=%FF", "rule=a%20b", "rule=%22", "rule=", "rule=" + "a" * 300, "type=%ED%A0%80",
    "type=%22%3A", "latest=maybe", "latest=%FF",
    "%FF=%FF", "a=b" * 500, "&&&&", "=", "%", "%zz", "since=%", "after=1&after=x",
    "since=2026-01-01T00:00:00.0000000000000001Z", "ts_unit=h", "ts_unit=%ED%A0%80", "id=%ED%A0%80", "id=a%00",
)  # fmt: skip

GET_ROUTES = ("/matches", "/events", "/dead-letters", "/types", "/status", "/matches/stream", "/graph")

IDS = (
    "0", "1", "01", "-1", "9" * 15, "9" * 18, "9" * 19, "9" * 20, "9" * 32, "9" * 33, "f" * 32, "F" * 32, "٣", "²",
    "%D9%A3", "%C2%B2", "%ED%A0%80", "%00", "%FF", "a%22", "%22%2C%22", "1e5", "0x1", "1.5", "a" * 300, "%", "%zz",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "%0A", "1%0A",
)  # fmt: skip

HEADERS: tuple[tuple[str, bytes], ...] = (
    *(("Host", host) for host in (
        b"[zz]", b"[", b"]", b"[]", b"[::1", b"::1]", b"[::1]", b"[v1.x]", b"[fe80::1%25eth0]", b"127.0.0.1:",
        b"127.0.0.1:x",
        b"127.0.0.1:99999999", b"127.0.0.1@evil.example", b"evil.example", b"127.0.0.1/..", b"127.0.0.1?x",
        b"127.0.0.1#x",
        b"\xff", b"\xc3\xbc", b"", b"a" * 5_000, b"user:pass@127.0.0.1", b"//", b"\\", 
        b"127.0.0.1, evil.example", b"%31",
        b"\xe2\x84\x80.example",
    )),
    *(("Origin", origin) for origin in (
        b"null", b"", b"://", b"http://[zz]", b"http://[", b"\xff", b"http://evil.example", b"127.0.0.1", b"x" * 5_000,
        b"http://127.0.0.1:1",
    )),
    *(("Authorization", value) for value in (
        b"", b"Bearer", b"Bearer \xff", b"Bearer \xed\xa0\x80", b"Basic x", b"Bearer a b", b"bearer x",
        b"\xff",
        b"Bearer " + b"x" * 10_000, b"Digest realm=\"",
    )),
    *(("Content-Type", value) for value in (
        b"", b"\xff", b";", b"application/json;charset=\xff", b"application/json; charset=utf-7",
        b"multipart/form-data",
        b"multipart/form-data; boundary=", b"application/x-www-form-urlencoded", b"text/plain",
        b"application/" + b"x" * 5_000,
    )),
    *(("Content-Encoding", value) for value in (b"gzip", b"", b"identity, gzip", b"\xff")),
    *(("Idempotency-Key", value) for value in (b"", b"\xff", b"\xed\xa0\x80", b"x" * 201, b"x" * 10_000, b'"',
    b"\\ud800")),
    *(("Last-Event-ID", value) for value in (b"", b"-1", b"9" * 16, b"9" * 17, b"9" * 19, b"9" * 5_000, b"\xb2",
    b"1e5", b"x")),
    *(("Accept", value) for value in (b"", b"\xff", b"application/xml")),
    *(("Range", value) for value in (b"bytes=", b"bytes=-1", b"bytes=9-1", b"bytes=0-0," * 100, b"x",
    b"bytes=" + b"9" * 5_000)),
    *(("If-Modified-Since", value) for value in (b"x", b"Thu, 99 Jan 99999 00:00:00 GMT", b"\xff")),
    *(("If-None-Match", value) for value in (b"*", b"\xff")),
    *(("X-Forwarded-For", value) for value in (b"\xff", b"a" * 5_000)),
    *(("Expect", value) for value in (b"200-ok", b"100-continue")),
    *(("Upgrade", value) for value in (b"websocket", b"h2c", b"\xff")),
    *(("Connection", value) for value in (b"upgrade", b"\xff", b"close, keep-alive")),
)  # fmt: skip

RAW: dict[str, bytes] = {
    name: head.replace(b"@", b"Host: 127.0.0.1\r\n")
    for name, head in {
        "no Host": b"GET /health HTTP/1.1\r\n\r\n",
        "two Hosts": b"GET /health HTTP/1.1\r\n@@\r\n",
        "another Host first": b"GET /health HTTP/1.1\r\nHost: evil.example\r\n@\r\n",
        "a negative length": b"POST /events HTTP/1.1\r\n@Content-Length: -1\r\n\r\n",
        "a length with a sign": b"POST /events HTTP/1.1\r\n@Content-Length: +1\r\n\r\nx",
        "a length that is no number": b"POST /events HTTP/1.1\r\n@Content-Length: ten\r\n\r\n",
        "an empty length": b"POST /events HTTP/1.1\r\n@Content-Length: \r\n\r\n",
        "a length of 19 digits": b"POST /events HTTP/1.1\r\n@Content-Length: 9999999999999999999\r\n\r\n",
        "a length of 20 digits": b"POST /events HTTP/1.1\r\n@Content-Length: 99999999999999999999\r\n\r\n",
        "a length of 5,000 digits": b"POST /events HTTP/1.1\r\n@Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        "a length that is a power": b"POST /events HTTP/1.1\r\n@Content-Length: \xb2\r\n\r\n",
        "two lengths": b"POST /events HTTP/1.1\r\n@Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "a list of lengths": b"POST /events HTTP/1.1\r\n@Content-Length: 1, 1\r\n\r\nx",
        "a length and chunks": b"POST /events HTTP/1.1\r\n@Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n",
        "a chunk that is too large": b"POST /events HTTP/1.1\r\n@Transfer-Encoding: chunked\r\n\r\n"
        b"fffffffffffffffff\r\n",
        "a chunk that is no number": b"POST /events HTTP/1.1\r\n@Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "a coding that is not known": b"POST /events HTTP/1.1\r\n@Transfer-Encoding: gzip\r\n\r\n",
        "a method that is not known": b"BREW /health HTTP/1.1\r\n@\r\n",
        "a small method": b"get /health HTTP/1.1\r\n@\r\n",
        "TRACE": b"TRACE /health HTTP/1.1\r\n@\r\n",
        "CONNECT": b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n@\r\n",
        "PRI": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "an asterisk": b"OPTIONS * HTTP/1.1\r\n@\r\n",
        "no path": b"GET  HTTP/1.1\r\n@\r\n",
        "no slash": b"GET health HTTP/1.1\r\n@\r\n",
        "a whole URL": b"GET http://127.0.0.1/health HTTP/1.1\r\n@\r\n",
        "a whole URL that is none": b"GET http://[zz/health HTTP/1.1\r\n@\r\n",
        "a scheme alone": b"GET http:// HTTP/1.1\r\n@\r\n",
        "a port that is too large": b"GET http://127.0.0.1:99999/ HTTP/1.1\r\n@\r\n",
        "two slashes": b"GET //health HTTP/1.1\r\n@\r\n",
        "a path that is no ASCII": b"GET /\xff HTTP/1.1\r\n@\r\n",
        "a path in UTF-8": "GET /ü HTTP/1.1\r\n".encode() + b"@\r\n",
        "a path of surrogates": b"GET /rules/%ED%A0%80 HTTP/1.1\r\n@\r\n",
        "a null byte in a path": b"GET /\0 HTTP/1.1\r\n@\r\n",
        "a null byte in a file": b"GET /static/%00 HTTP/1.1\r\n@\r\n",
        "a file with a long name": b"GET /static/" + b"a" * 300 + b" HTTP/1.1\r\n@\r\n",
        "a file above": b"GET /static/..%2f..%2fcore.py HTTP/1.1\r\n@\r\n",
        "a folder": b"GET /static/ HTTP/1.1\r\n@\r\n",
        "a query that is no ASCII": b"GET /matches?rule=\xff HTTP/1.1\r\n@\r\n",
        "a fragment": b"GET /health#x HTTP/1.1\r\n@\r\n",
        "a header without a colon": b"GET /health HTTP/1.1\r\n@nothing\r\n\r\n",
        "a header without a name": b"GET /health HTTP/1.1\r\n@: x\r\n\r\n",
        "a folded header": b"GET /health HTTP/1.1\r\n@X: a\r\n b\r\n\r\n",
        "a null byte in a header": b"GET /health HTTP/1.1\r\n@X: a\0b\r\n\r\n",
        "a blank before the colon": b"GET /health HTTP/1.1\r\n@X : a\r\n\r\n",
        "10,000 headers": b"GET /health HTTP/1.1\r\n@" + b"X: y\r\n" * 10_000 + b"\r\n",
        "a long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n@\r\n",
        "HTTP/0.9": b"GET /health\r\n\r\n",
        "HTTP/1.0": b"GET /health HTTP/1.0\r\n@\r\n",
        "HTTP/9.9": b"GET /health HTTP/9.9\r\n@\r\n",
        "no HTTP": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        "nonsense": b"\xff" * 100 + b"\r\n\r\n",
    }.items()
}
"""Raw requests that no HTTP library would send."""

ROUTES_WITH_BODY = ("/events", "/rules", "/rules/check", "/rules/dry-run", "/why-not", "/webhooks")


def table() -> dict[str, Hostile]:
    """Return requests to all routes, by what is wrong with them."""
    found: dict[str, Hostile] = {}
    for name, body in BODIES.items():
        for path in ROUTES_WITH_BODY:
            for format in (JSON, NDJSON, ARROW) if path == "/events" else (JSON,):
                found[f"{path} {format.rpartition('/')[2]} body: {name}"] = Hostile(
                    "POST", path, body, {"Content-Type": format}
                )
    for name, text in RULE_TEXTS.items():
        for path in ("/rules/check", "/rules/dry-run", "/rules"):
            found[f"{path} text: {name}"] = asking(path, {"text": text})
        for language in ("tesla", "eps", "siddhi", "mcep"):
            found[f"/rules/check {language} text: {name}"] = asking(
                "/rules/check", {"text": text, "language": language}
            )
    for query in QUERIES:
        for path in GET_ROUTES:
            if path != "/matches/stream" or _refused_by(query):
                found[f"{path}?{query[:60]}"] = Hostile("GET", f"{path}?{query}")
    for unit in ("s", "ms", "us", "ns"):
        for name in ("30 digits", "2**63", "1e308", "NaN", "Infinity", "-2**63", "year 0", "lone surrogate", "true"):
            event = f'{{"type": "Odd", "ts": {VALUES[name]}}}'.encode()
            for format in (JSON, NDJSON):
                found[f"ts in {unit}, {format.rpartition('/')[2]}: {name}"] = publishing(
                    event, format, f"?ts_unit={unit}"
                )
    for id in IDS:
        for path in ("/matches/%s", "/matches/%s/why", "/rules/%s", "/webhooks/%s", "/webhooks/%s/dead-letters"):
            found[f"GET {path % id[:50]}"] = Hostile("GET", path % id)
        for path in ("/rules/%s", "/webhooks/%s"):
            found[f"DELETE {path % id[:50]}"] = Hostile("DELETE", path % id)
    good = {"Content-Type": JSON}
    for name, value in HEADERS:
        for method, path, body in (
            ("GET", "/health", None), ("GET", "/matches", None), ("GET", "/static/dom.js", None),
            ("POST", "/events", GOOD.encode()), ("POST", "/rules/check", b'{"text": "define O() from A()"}'),
        ):  # fmt: skip
            headers = {**(good if body else {}), name: value}
            found[f"{method} {path} {name}: {value[:40]!r}"] = Hostile(method, path, body, headers)
    for name, value in VALUES.items():
        for field_name in ("ts_us", "id", "rule"):
            question = {"rule": '"Quotient"', field_name: value}
            body = "{" + ", ".join(f'"{key}": {one}' for key, one in question.items()) + "}"
            found[f"/why-not {field_name}: {name}"] = asking("/why-not", body.encode())
        for path, key in (("/rules/check", "text"), ("/rules/check", "language"), ("/webhooks", "url")):
            found[f"{path} {key}: {name}"] = asking(path, f'{{"text": "x", "{key}": {value}}}'.encode())
        found[f"/webhooks rules: {name}"] = asking(
            "/webhooks", f'{{"url": "https://example.invalid", "rules": [{value}]}}'.encode()
        )
        found[f"/rules replace: {name}"] = asking("/rules", f'{{"text": "x", "replace": {value}}}'.encode())
    for name, text in NAMES.items():
        found[f"/rules/check name: {name}"] = asking("/rules/check", f'{{"text": "x", "{text}": 1}}'.encode())
    for url in (
        "http://\ud800/", "http://[zz]/", "http://[/", "http://a:99999/", "http://a:-1/", "http://a:x/",
        "http://" + "a" * 300,
        "http://xn--a/", "http://\0/", "http://ａ/", "http://a.-/", "http://.", "http://..", "http://a..b/",
        "http://%00/",
        "http://127.0.0.1\n/", "http://%5b::1%5d/", "http://℀/", "https://" + "a." * 900, "HTTP://LOCALHOST", "http:a",
    ):  # fmt: skip
        found[f"/webhooks url: {url[:40]!r}"] = asking("/webhooks", {"url": url})
    for method in ("PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "POST", "GET"):
        for path in (
            "/events",
            "/health",
            "/rules",
            "/matches/1",
            "/static/dom.js",
            "/",
            "/docs",
            "/openapi.json",
            "/nothing",
        ):
            found[f"{method} {path}"] = Hostile(method, path)
    return found


def _refused_by(query: str) -> bool:
    """Return whether the stream route would refuse a query."""
    name, _, value = query.partition("=")
    used = ("after", "rule")
    return name in used and (not value.isdecimal() or len(value) > 15 or value == "0") and value != "1&after=x"
