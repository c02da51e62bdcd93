"""Rows by number equal the rows of the table, and sent events are remembered."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tocsin.overlay.codec import decode, encode
from tocsin.overlay.decisions import sort_matches
from tocsin.overlay.messages import Base, Rows, concatenate
from tocsin.overlay.routes import SentEvents


def table(rng: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            "type": pa.array([rng.choice("ABC") for _ in range(count)], pa.string()),
            "ts": pa.array([rng.randrange(9) for _ in range(count)], pa.int64()),
            "seq": pa.array([rng.randrange(2) for _ in range(count)], pa.int64()),
            "id": pa.array([f"e{rng.randrange(99)}" for _ in range(count)], pa.string()),
            "rule": pa.array([rng.choice(["", "P", "Q"]) for _ in range(count)], pa.string()),
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_rows_equal_the_table_of_the_same_numbers(seed: int) -> None:
    rng = random.Random(seed)
    bases = [Base(table(rng, rng.choice([1, 5, 20]))) for _ in range(2)]
    pieces, expected = [], []
    for _ in range(rng.choice([1, 2, 4])):
        base = rng.choice(bases)
        rows, taken = Rows(base), base.table
        for _ in range(rng.choice([0, 1, 2])):
            picked = [rng.randrange(rows.num_rows) for _ in range(rng.choice([0, 3]) if rows.num_rows else 0)]
            if rng.random() < 0.5:
                mask = np.array([rng.random() < 0.5 for _ in range(rows.num_rows)], bool)
                rows, taken = rows.take(mask), taken.filter(pa.array(mask))
            else:
                chosen = np.array(picked, np.int64)
                rows, taken = rows.take(chosen), taken.take(chosen)
            start = rng.randrange(3)
            rows, taken = rows.slice(start, 4), taken.slice(start, 4)
        pieces.append(rows)
        expected.append(taken)
    rows, taken = concatenate(pieces), pa.concat_tables(expected)
    assert rows.num_rows == taken.num_rows
    assert rows.table.to_pylist() == taken.to_pylist() == decode(encode(rows)).table.to_pylist()
    assert rows.ts.tolist() == taken["ts"].to_pylist() == rows["ts"].to_pylist()
    names, codes = rows.types
    assert [names[code] for code in codes] == taken["type"].to_pylist()
    pairs = {*zip(taken["id"].to_pylist(), *(one.tolist() for one in rows.identities), strict=True)}
    assert len(pairs) == len(set(taken["id"].to_pylist())) == len({pair[1:] for pair in pairs})


@pytest.mark.parametrize("seed", range(20))
def test_the_root_sorts_matches(seed: int) -> None:
    rng = random.Random(seed)
    rows = Rows(table(rng, rng.choice([0, 1, 2, 30])))
    if rng.random() < 0.3:
        rows = rows.take(np.argsort(rows.ts, kind="stable"))
    at = np.array([rng.randrange(50) for _ in range(rows.num_rows)], np.int64)

    def key(row: dict[str, object]) -> tuple[object, ...]:
        plain = ("", "") if row["rule"] else (row["type"], row["id"])
        return row["ts"], row["seq"], row["rule"], *plain

    numbered = sorted(zip(rows.table.to_pylist(), at.tolist(), strict=True), key=lambda pair: key(pair[0]))
    found, when = sort_matches(rows, at)
    assert found.table.to_pylist() == [row for row, _ in numbered]
    ready = [one for _, one in numbered]
    assert when.tolist() == [max(ready[: place + 1]) for place in range(len(ready))]


@pytest.mark.parametrize("seed", range(10))
def test_sent_events_are_remembered_until_dropped(seed: int) -> None:
    rng = random.Random(seed)
    sent, known = SentEvents(), dict[tuple[int, int], int]()
    for step in range(30):
        count = rng.choice([0, 1, 10, 80])
        pairs = [(rng.randrange(8), rng.randrange(200)) for _ in range(count)]
        ts = np.array([10 * step + rng.randrange(10) for _ in pairs], np.int64)
        words = [np.array([pair[half] for pair in pairs], np.uint64) for half in range(2)]
        expected = []
        for pair, at in zip(pairs, ts.tolist(), strict=True):
            expected.append(pair not in known)
            known.setdefault(pair, at)
        assert sent.add((words[0], words[1]), ts).tolist() == expected
        if rng.random() < 0.2:
            floor = 10 * step - 50
            sent.forget(floor)
            known = {pair: at for pair, at in known.items() if at >= floor}
        if rng.random() < 0.2:
            sent = decode(encode(sent))
        assert len(sent) == len(known)
