"""The parts of the comparison with peers that need no peer: the file of events, the rules' texts, the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers import files, queries
from peers.engines import ALL, ENGINES
from peers.orders import checked, latency
from peers.report import EMBEDDED, POLARS, Bound, Pace, Report, Row, bounds, markdown, ms, table
from workloads import filter_events, fire_events, sequence_events, sequences

ROW = Row("W1 last", EMBEDDED, "1", False, 1_000, 0.5, 0.4, 10, 10, True, 100.0)
events = st.lists(
    st.tuples(st.sampled_from("ABC"), st.integers(1, 2**40), st.none() | st.text(), st.none() | st.floats(-1e9, 1e9))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


@given(events)
def test_file_gives_back_what_was_written(folder: Path, given: list[tuple]) -> None:
    path = folder / "events"
    ts = [sum(gap for _, gap, _, _ in given[: at + 1]) for at in range(len(given))]
    written = pa.table(
        {
            "type": pa.array([type for type, _, _, _ in given], pa.string()),
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "area": pa.array([text for _, _, text, _ in given], pa.string()),
            "value": pa.array([value for _, _, _, value in given], pa.float64()),
        }
    )
    files.write(path, written, files.LAYOUTS["W1"])
    assert files.read(path, files.LAYOUTS["W1"]).equals(written)


@pytest.mark.parametrize("workload", ALL)
def test_every_workload_fits_the_file(workload: str, tmp_path: Path) -> None:
    made = {"W1": fire_events, "W2": sequence_events, "W3": filter_events}[workload.split()[0]](500)
    files.write(tmp_path / "events", made, files.layout(workload))
    assert files.read(tmp_path / "events", files.layout(workload)).equals(made)


def test_times_that_do_not_increase_are_refused(tmp_path: Path) -> None:
    twice = pa.concat_tables([fire_events(1), fire_events(1)])
    with pytest.raises(ValueError, match="increase strictly"):
        files.write(tmp_path / "events", twice, files.LAYOUTS["W1"])


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"PAR1 and so on")
    with pytest.raises(ValueError, match="no file of events"):
        files.read(tmp_path / "other", files.LAYOUTS["W1"])
    files.write(tmp_path / "events", fire_events(5), files.LAYOUTS["W1"])
    with pytest.raises(ValueError, match="1 columns of values, 2 were asked for"):
        files.read(tmp_path / "events", files.LAYOUTS["W3"])


def test_rules_of_all_engines_are_one_statement_a_line() -> None:
    for engine in ENGINES:
        for workload in engine.workloads:
            lines = queries.written(engine.peer, engine.way, workload)
            assert not any("\n" in line for line in lines)
            if engine.peer in ("esper", "siddhi"):
                found = [line for line in lines if "insert into Found" in line or line.startswith("@name('found")]
                assert len(found) == {"W1": 1, "W2": 100, "W3": 1_000}[workload.split()[0]]


def test_each_sequence_is_written_with_its_levels() -> None:
    (a, p), (b, q), (c, r) = sequences()[0]
    (line, *_) = queries.written("esper", "pattern", "W2")
    assert f"every c={c}(value > {r}) -> (every b={b}(value > {q}) and not {c}(value > {r}))" in line
    assert f"(every a={a}(value > {p}) and not {b}(value > {q}))" in line
    assert queries.written("flink", "cep-2", "W2")[0] == f"{a} {p} {b} {q} {c} {r}"


def test_engines_have_names_of_their_own_and_the_first_is_the_judge() -> None:
    assert len({engine.name for engine in ENGINES}) == len(ENGINES)
    assert ENGINES[0].name == EMBEDDED
    assert ENGINES[0].workloads == ALL


def test_table() -> None:
    assert table(("a", "b"), [("x|y", "1")]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_wrong_counts_are_shown() -> None:
    peer = replace(ROW, engine="Slow", is_cep=True, events=500, seconds=5.0, matches=7, is_right=False)
    others = replace(peer, engine="Odd", matches=10)
    text = markdown(Report("a machine", [ROW, peer, others], [Pace("Slow", 100.0, 1_500.0, 20_000.0, 7)], ["none"]))
    assert "| Slow | 100 | 0.05 | 800.00 | 7: **wrong**, 10 are right | 500 | 100 |" in text
    assert "10: as many as right, but **others**" in text
    assert "| Slow | 100 | 1.5 | 20 | 7 |" in text
    assert "- none" in text


def test_bounds_are_of_the_fastest_engine() -> None:
    slow = replace(ROW, engine="Slow", is_cep=True, seconds=50.0)
    fast = replace(ROW, engine="Fast", is_cep=True, seconds=4.0)
    polars = replace(ROW, engine=POLARS, seconds=0.1)
    assert bounds([ROW, slow, fast, polars]) == [
        Bound("W1 last: embedded to the fastest CEP engine (Fast)", 8.0, 10.0),
        Bound(f"W1 last: {EMBEDDED} to {POLARS}", 0.2, 0.25),
    ]
    assert not bounds([ROW])


def test_numbers() -> None:
    assert checked([45.1, 0.29]) == 4_539
    assert latency([1.0, 2.0, 3.0])["p50_us"] == 2.0
    assert latency([])["matches"] == 0
    assert [ms(us) for us in (12.3, 1_500, 99_900)] == ["0.012", "1.5", "100"]
