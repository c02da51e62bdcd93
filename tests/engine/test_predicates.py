"""String dictionaries, the predicate index, prefetching and projections agree with simple implementations."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tocsin
from tests.budget import examples
from tocsin.engine import compile, pipeline, predicate_index
from tocsin.engine.batch_columns import hexadecimal
from tocsin.engine.strings import StringDictionary, StringIndex

WORDS = st.one_of(
    st.sampled_from(["", "a", "abcdefgh", "abcdefgi", "abcdefghi", "abcdefghj", "ä", "\0", "a\0"]),
    st.sampled_from(["abcdefgh--abcdefgh", "abcdefgh-+abcdefgh", "abcdefghabcdefgh", "abcdefgh" * 3]),
    st.text(max_size=40),
)


@given(known=st.lists(WORDS, unique=True, max_size=40), column=st.lists(st.none() | WORDS, max_size=40), at=st.data())
def test_a_string_index_is_a_dictionary(known: list[str], column: list[str | None], at: st.DataObject) -> None:
    numbers = {text: number for number, text in enumerate(known)}
    index = StringIndex(numbers, -1, np.int32)
    begin = at.draw(st.integers(0, len(column)))
    array = pa.array(column, pa.string()).slice(begin)
    expected = [numbers.get(text, -1) for text in column[begin:] if text is not None]
    for strings in (array, array.dictionary_encode()):
        detected, present = index.find_all(strings)
        is_valid = np.array([text is not None for text in column[begin:]], bool)
        assert detected[is_valid].tolist() == expected
        assert present >= set(expected) - {-1}
        assert (index.find(strings)[is_valid] == detected[is_valid]).all()


@given(batches=st.lists(st.lists(st.none() | WORDS, max_size=30), max_size=6), remove=st.booleans())
def test_strings_keep_their_codes(batches: list[list[str | None]], remove: bool) -> None:
    strings = StringDictionary()
    pinned = strings.pin("abcdefghi")
    used: dict[str, int] = {}
    for batch in batches:
        numbers = strings.encode(pa.array(batch, pa.string()))
        for text, number in zip(batch, numbers.tolist(), strict=True):
            if text is not None:
                assert used.setdefault(text, number) == number
                assert strings.string(number) == text
        if remove:
            strings.retain([])
            used = {"abcdefghi": pinned}
    assert strings.encode(pa.array(["abcdefghi"]))[0] == pinned


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=9))
def test_ids_are_printed_in_hexadecimal(words: list[tuple[int, int]]) -> None:
    first, second = (np.array([pair[k] for pair in words], np.uint64) for k in range(2))
    assert hexadecimal(first, second).to_pylist() == [f"{one:016x}{two:016x}" for one, two in words]


RULES = {
    "constants": """
        define X(k: string, v: double)
        from   A(k = $k, s = "on") and last B(k = $k, v > 3.5, n != 2) within 1 s from A
        where  k = $k, v = B.v
    """,
    "programs": """
        define X(k: string, v: double)
        from   A(k = $k, s < "p" or n + 1 = 3) and each B(k = $k, v > n) within 100 ms from A
        where  k = $k, v = B.v
    """,
    "ids": 'define X(v: double) from A(id != "7", n > 1) and last B(v > 3.5) within 1 s from A where v = B.v',
}


def table(seed: int, events: int, with_ids: bool = False) -> pa.Table:
    random = np.random.default_rng(seed)
    missing = random.random((4, events)) < 0.1
    double = np.round(random.uniform(0, 8, events), 1)
    double[random.random(events) < 0.05] = np.nan
    columns = {
        "type": pa.array(["A", "B", "C"]).take(random.integers(0, 3, events)),
        "ts": pa.array(np.sort(random.integers(0, 20 * events, events) * 1_000), pa.int64()),
        "k": pa.array(random.choice(["x", "yy", "a longer key"], events), mask=missing[0]),
        "s": pa.array(random.choice(["on", "off", "out of order"], events), mask=missing[1]),
        "n": pa.array(random.integers(0, 4, events), pa.int32(), mask=missing[2]),
        "v": pa.array(double, mask=missing[3]),
    }
    if with_ids:
        columns["id"] = pa.array([str(number) for number in range(events)])
    return pa.table(columns)


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), chunk=st.integers(1, 40), with_ids=st.booleans(), offset=st.integers(0, 9))
def test_prefetched_chunks_give_the_same_matches(
    rules: str, seed: int, chunk: int, with_ids: bool, offset: int
) -> None:
    events = table(seed, 120, with_ids).slice(offset)
    plain = tocsin.rules(RULES[rules])
    expected = plain.detect(events, ts_unit="us")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "CHUNK", chunk)
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        assert plain.detect(events, ts_unit="us").equals(expected)
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        assert plain.detect(events, ts_unit="us").equals(expected)
    names = ["v", "ts", "seq"]
    assert plain.detect(events, ts_unit="us", select=names).column_names == names
    assert plain.detect(events, ts_unit="us", select=["v"])["v"].equals(expected["v"])


QUERIES = """
    define stream A (k string, s string, n int, v double);
    define stream B (k string, s string, n int, v double);
    @info(name='q2') from A[v > 2.5 and n < 3]#window.length(4) select max(v) as m, sum(n) as t insert into O;
    @info(name='q10') from A#window.lengthBatch(3) select avg(v) as m, count() as t insert into P;
    @info(name='q3') from B[s == 'on' and v <= 6.0] select v as m, n as u insert into Q;
    @info(name='q4') from B[v > 1.0] select k, v insert into R;
    @info(name='q5') from B[v > 1.0]#window.length(3) select min(v) as m, min(n) as u insert into S;
    @info(name='q7') from A select s, n as u insert into U;
    @info(name='q8') from A[n > 1] select k, n as u insert into V;
    @info(name='q6') from O[m > 4.0]#window.lengthBatch(2) select sum(m) as m insert into T;
"""


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), chunk=st.integers(1, 40), with_ids=st.sampled_from([0, 70, 150]),
    instants=st.sampled_from([None, 300, 15, 2]), cut=st.integers(0, 150),
)  # fmt: skip
def test_projections_give_the_same_rows_in_pieces(
    seed: int, chunk: int, with_ids: int, instants: int | None, cut: int
) -> None:
    """Projections in place or on stored events, with ties and equal events, in pieces and after a restart, agree.

    `with_ids`: the number of events with ids.
    """
    rules, events, random = tocsin.rules(QUERIES, language="siddhi"), table(seed, 150), np.random.default_rng(seed)
    times = np.arange(150) if instants is None else np.sort(random.integers(0, instants, 150))
    events = events.take(random.integers(0, random.choice([50, 150]), 150)).set_column(1, "ts", pa.array(times * 1_000))
    if random.random() < 0.3:  # read all events in place, and store all of them as well
        events = events.set_column(0, "type", pa.array(["A"] * 150))
    parts = [events.slice(0, with_ids), events.slice(with_ids)]
    parts[0] = parts[0].append_column("id", pa.array(random.permutation(with_ids).astype(str)))
    parts = [part for part in parts if part.num_rows]

    def detected(select: list[str] | None = None) -> pa.Table:
        if len(parts) == 1:
            return rules.detect(parts[0], ts_unit="us", select=select)
        detector = rules.detector(delay="1 h", ts_unit="us")
        pieces = [*map(detector.push, parts), detector.finish()]
        return pa.concat_tables(pieces) if select is None else pa.concat_tables(pieces).select(select)

    with pytest.MonkeyPatch.context() as patch:  # store all events, and index each filter
        patch.setattr(compile, "reads_in_place", lambda _: False)
        patch.setattr(predicate_index, "SCAN_MAX", 0)
        expected = detected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "CHUNK", chunk)
        assert detected().equals(expected)
        assert detected(["rule", "m"]).equals(expected.select(["rule", "m"]))
        if len(parts) > 1:
            return
        first = rules.detector(delay="1 h", ts_unit="us")
        pieces = [
            first.push(parts[0].slice(0, cut)),
            first.advance(int(events["ts"][cut - 1].as_py()) if cut else 0),
        ]
        second = rules.restore(first.snapshot())
        pieces += [second.push(parts[0].slice(cut)), second.finish()]
        assert pa.concat_tables(pieces).equals(expected)


@settings(max_examples=examples(15), deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=4), doubles=st.booleans())
def test_cached_rules_give_the_same_matches(seeds: list[int], doubles: bool) -> None:
    """Use compiled rules with other strings and, if `doubles`, with other kinds every other time."""
    kept = tocsin.rules(RULES["constants"])
    for number, seed in enumerate(seeds):
        events = table(seed, 80)
        events = events.set_column(2, "k", pa.array([f"{text}{number}" for text in events["k"].to_pylist()]))
        if doubles and number % 2:
            events = events.set_column(4, "n", events["n"].cast(pa.float64()))
        fresh = tocsin.rules(RULES["constants"]).detect(events, ts_unit="us")
        assert kept.detect(events, ts_unit="us").equals(fresh)


NUMBERS = st.sampled_from([-(2**63), -3, 0, 1, 2, 2**63 - 1])
DOUBLES = st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5, 1e308, float("inf"), float("nan")])
RELATIONS = {
    "<": np.less, "<=": np.less_equal, "=": np.equal, "!=": np.not_equal, ">=": np.greater_equal, ">": np.greater,
}  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), types=st.sampled_from([1, 3, 12]), filters=st.sampled_from([1, 5, 70, 600]))
def test_filters_select_matching_events(data: st.DataObject, types: int, filters: int) -> None:
    """Few and many types; filters for part of a mask word, for two words, for two blocks."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    numbers, doubles = data.draw(st.lists(NUMBERS, min_size=1)), data.draw(st.lists(DOUBLES, min_size=1))
    size = 60
    type_of = random.integers(0, types, size)
    n, v = random.choice(np.array(numbers), size), random.choice(doubles, size)
    present = random.random((2, size)) < 0.8
    asked = [
        (
            int(random.integers(types)),
            random.choice([*RELATIONS]),
            int(random.choice([-3, 0, 1, 2])),
            random.choice([*RELATIONS]),
            float(random.choice([-1.5, 0.0, 1.0, 2.5])),
        )
        for _ in range(filters)
    ]
    text = "".join(
        f"define X{number}() from T{type}(n {one} {whole}, v {other} {double!r})\n"
        for number, (type, one, whole, other, double) in enumerate(asked)
    )
    events = pa.table(
        {
            "type": [f"T{type}" for type in type_of],
            "ts": np.arange(size),
            "n": pa.array(n, pa.int64(), mask=~present[0]),
            "v": pa.array(v, pa.float64(), mask=~present[1]),
        }
    )
    detected = tocsin.rules(text).detect(events, ts_unit="us", select=["rule", "ts"])
    pairs = set(zip(detected["rule"].to_pylist(), detected["ts"].to_pylist(), strict=True))
    assert len(pairs) == detected.num_rows
    expected = set()
    for number, (type, one, whole, other, double) in enumerate(asked):
        holds = (type_of == type) & present.all(axis=0) & np.isfinite(v)
        holds &= RELATIONS[one](n, whole) & RELATIONS[other](v, double)
        expected |= {(f"X{number}", int(ts)) for ts in np.flatnonzero(holds)}
    assert pairs == expected
