from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tocsin.errors import StateError
from tocsin.language import parse
from tocsin.overlay import messages as m
from tocsin.overlay.codec import decode, encode
from tocsin.overlay.messages import Rows
from tocsin.overlay.tree_parts import Timing
from tocsin.plans.splitting import split

(RULE,) = parse("define P() from A(v=$x) and last B(v=$x) within 5 s from A and last C() within 5 s from B").rules
PARTS = [use.partial for use in split(RULE, {"1": {"A", "B"}, "2": {"C"}}).uses]
ROWS = pa.table({"id": ["a", "b"], "ts": pa.array([1, 2], pa.int64())})
AT = np.array([5, 6])


@pytest.mark.parametrize(
    "message",
    [
        m.Elect((-3, 5, "a")),
        m.CreateTree("a", 5),
        m.DeployRule("a", 2, (RULE,), ("P",), tuple(m.RequestedPartial(part, False, 7) for part in PARTS)),
        m.Awaken("a", PARTS[0], 3, (m.WindowRequest(1, 2, (("v", "x"),)),), AT, AT),
        m.Progress("a", 5, 1, Timing(3, AT, AT), ((PARTS[1], 4),)),
        m.Events(("a", "b"), Rows(ROWS).take(np.array([1, 0])), np.array([1, 3], np.uint64), AT),
    ],
    ids=lambda message: type(message).__name__,
)
def test_decoding_reverses_encoding(message: m.Message) -> None:
    back = decode(encode(message))
    assert type(back) is type(message)
    assert encode(back) == encode(message)
    if isinstance(message, m.DeployRule):
        assert back == message


def test_an_unknown_message_is_an_error() -> None:
    data = encode(m.Ack("a")).replace(b'"Ack"', b'"Bad"')
    with pytest.raises(StateError, match="unknown kind of message: Bad"):
        decode(data)
    with pytest.raises(StateError, match="cannot be encoded"):
        encode(object())
