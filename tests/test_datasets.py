"""The fire scenario: the same from the same seed, in order, and plausible."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tocsin.datasets import fire_events, fire_rules

HOT = 45


def test_a_seed_makes_the_same_events_again() -> None:
    assert fire_events(5_000, seed=3).equals(fire_events(5_000, seed=3))
    assert not fire_events(5_000, seed=3).equals(fire_events(5_000, seed=4))


def test_columns_and_order() -> None:
    table = fire_events(20_000)
    assert table.schema == pa.schema(
        [("type", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("area", pa.string()), ("value", pa.float64())]
    )
    assert (np.diff(table["ts"].cast(pa.int64()).to_numpy()) > 0).all()
    assert table["ts"][0].as_py() > datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert pc.all(pc.equal(pc.is_valid(table["value"]), pc.equal(table["type"], "Temp"))).as_py()


@pytest.mark.parametrize("rate", [1.0, 1e6])
def test_the_rate_is_kept_and_times_stay_distinct(rate: float) -> None:
    ts = fire_events(20_000, rate=rate)["ts"].cast(pa.int64()).to_numpy()
    assert len(np.unique(ts)) == len(ts)
    seconds = (ts[-1] - ts[0]) / 1e6
    assert 0.5 < seconds * rate / 20_000 < 2


def test_most_air_is_cool_and_some_burns() -> None:
    table = fire_events(1_000_000)
    values = table["value"].drop_null().to_numpy()
    assert 0.998 < np.mean((values >= 10) & (values <= 40)) < 1
    hot = int(np.count_nonzero(values > HOT))
    counts = {row["values"]: row["counts"] for row in table["type"].value_counts().to_pylist()}
    assert 300 < hot < 3_000
    assert 1_000 < counts["Smoke"] < 5_000
    assert 1_000 < counts["Rain"] < 20_000
    assert len(pc.unique(table["area"])) == 1_000


def test_smoke_follows_heat_more_often_than_by_chance() -> None:
    table = fire_events(1_000_000)
    hot = set(table.filter(pc.greater(table["value"], HOT))["area"].to_pylist())
    smoke = table.filter(pc.equal(table["type"], "Smoke"))["area"].to_pylist()
    by_area = {area: smoke.count(area) for area in set(smoke)}
    assert max(by_area, key=by_area.__getitem__) in hot


@pytest.mark.parametrize(("events", "areas"), [(0, 1), (1, 1), (2, 5), (1_000, 1)])
def test_small_numbers_work(events: int, areas: int) -> None:
    assert fire_events(events, areas=areas).num_rows == events


@pytest.mark.parametrize("wrong", [{"events": -1}, {"areas": 0}, {"rate": 0.0}])
def test_wrong_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        fire_events(**wrong)


def test_the_rules_are_the_papers() -> None:
    bare = " ".join(line for line in fire_rules().splitlines() if not line.startswith("#")).split()
    assert " ".join(bare).startswith(
        "rule R1 define Fire(area: string, measuredTemp: double) from Smoke(area=$a) and each"
    )
    assert bare.count("define") == 3
