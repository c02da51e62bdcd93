"""Rows by number are the rows that taking them gives, and what was sent is known again."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.decisions import in_order
from tocsin.overlay.messages import Base, Rows, joined
from tocsin.overlay.routes import Sent


def table(chance: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            "type": pa.array([chance.choice("ABC") for _ in range(count)], pa.string()),
            "ts": pa.array([chance.randrange(9) for _ in range(count)], pa.int64()),
            "seq": pa.array([chance.randrange(2) for _ in range(count)], pa.int64()),
            "id": pa.array([f"e{chance.randrange(99)}" for _ in range(count)], pa.string()),
            "rule": pa.array([chance.choice(["", "P", "Q"]) for _ in range(count)], pa.string()),
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_what_taking_them_gives(seed: int) -> None:
    chance = random.Random(seed)
    bases = [Base(table(chance, chance.choice([1, 5, 20]))) for _ in range(2)]
    pieces, right = [], []
    for _ in range(chance.choice([1, 2, 4])):
        base = chance.choice(bases)
        rows, taken = Rows(base), base.table
        for _ in range(chance.choice([0, 1, 2])):
            picked = [chance.randrange(rows.num_rows) for _ in range(chance.choice([0, 3]) if rows.num_rows else 0)]
            if chance.random() < 0.5:
                mask = np.array([chance.random() < 0.5 for _ in range(rows.num_rows)], bool)
                rows, taken = rows.take(mask), taken.filter(pa.array(mask))
            else:
                chosen = np.array(picked, np.int64)
                rows, taken = rows.take(chosen), taken.take(chosen)
            start = chance.randrange(3)
            rows, taken = rows.slice(start, 4), taken.slice(start, 4)
        pieces.append(rows)
        right.append(taken)
    rows, taken = joined(pieces), pa.concat_tables(right)
    assert rows.num_rows == taken.num_rows
    assert rows.table.to_pylist() == taken.to_pylist() == decode(encode(rows)).table.to_pylist()
    assert rows.ts.tolist() == taken["ts"].to_pylist() == rows["ts"].to_pylist()
    names, codes = rows.types
    assert [names[code] for code in codes] == taken["type"].to_pylist()
    pairs = {*zip(taken["id"].to_pylist(), *(one.tolist() for one in rows.identities), strict=True)}
    assert len(pairs) == len(set(taken["id"].to_pylist())) == len({pair[1:] for pair in pairs})


@pytest.mark.parametrize("seed", range(20))
def test_what_reached_a_root_is_put_in_order(seed: int) -> None:
    chance = random.Random(seed)
    rows = Rows(table(chance, chance.choice([0, 1, 2, 30])))
    if chance.random() < 0.3:
        rows = rows.take(np.argsort(rows.ts, kind="stable"))
    at = np.array([chance.randrange(50) for _ in range(rows.num_rows)], np.int64)

    def key(row: dict[str, object]) -> tuple[object, ...]:
        plain = ("", "") if row["rule"] else (row["type"], row["id"])
        return row["ts"], row["seq"], row["rule"], *plain

    numbered = sorted(zip(rows.table.to_pylist(), at.tolist(), strict=True), key=lambda pair: key(pair[0]))
    found, when = in_order(rows, at)
    assert found.table.to_pylist() == [row for row, _ in numbered]
    ready = [one for _, one in numbered]
    assert when.tolist() == [max(ready[: place + 1]) for place in range(len(ready))]


@pytest.mark.parametrize("seed", range(10))
def test_what_was_sent_is_known_until_it_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    sent, known = Sent(), dict[tuple[int, int], int]()
    for step in range(30):
        count = chance.choice([0, 1, 10, 80])
        pairs = [(chance.randrange(8), chance.randrange(200)) for _ in range(count)]
        ts = np.array([10 * step + chance.randrange(10) for _ in pairs], np.int64)
        words = [np.array([pair[lane] for pair in pairs], np.uint64) for lane in range(2)]
        right = []
        for pair, at in zip(pairs, ts.tolist(), strict=True):
            right.append(pair not in known)
            known.setdefault(pair, at)
        assert sent.add((words[0], words[1]), ts).tolist() == right
        if chance.random() < 0.2:
            floor = 10 * step - 50
            sent.forget(floor)
            known = {pair: at for pair, at in known.items() if at >= floor}
        if chance.random() < 0.2:
            sent = decode(encode(sent))
        assert len(sent) == len(known)
