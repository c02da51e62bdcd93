"""Each batch is in its folder once and complete, whatever was there before, and repeated matches count once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tocsin
from tocsin.errors import EventError, StateError
from tocsin.spark import sinks

RULES = "define Heat(area: string) from Temp(value > 50) where area = Temp.area"
ROWS = "type string, ts bigint, area string, value double"


def report(spark: SparkSession, *areas: str) -> DataFrame:
    rows = [("Temp", at, area, 60.0) for at, area in enumerate(areas)] + [(None, 0, "A", 1.0)]
    return tocsin.rules(RULES).report(spark.createDataFrame(rows, ROWS))


def areas(spark: SparkSession, path: Path) -> list[tuple[str, int]]:
    return sorted((row["area"], row["batch"]) for row in spark.read.parquet(str(path)).collect())


def test_a_batch_that_comes_again_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    write = sinks.folders(str(tmp_path / "m"), str(tmp_path / "d"))
    write(report(spark, "A1", "A2"), 0)
    write(report(spark, "A3"), 1)
    write(report(spark, "A3"), 1)
    assert areas(spark, tmp_path / "m") == [("A1", 0), ("A2", 0), ("A3", 1)]
    assert spark.read.parquet(str(tmp_path / "d")).count() == 2
    assert sorted(path.name for path in (tmp_path / "m").iterdir() if path.name[0] != ".") == ["batch=0", "batch=1"]


def test_what_a_killed_run_left_is_no_part_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """Killed before the rename, after that of the matches, and before the note of whose folder it is."""
    folder, dead = tmp_path / "m", tmp_path / "d"
    folder.mkdir()
    (folder / ".query.half").write_text("so")
    half = folder / ".batch=0.half"
    half.mkdir()
    (half / "part-0.parquet").write_bytes(b"PAR1 and no more")
    write = sinks.folders(str(folder), str(dead))
    write(report(spark, "A1"), 0)
    assert areas(spark, folder) == [("A1", 0)]
    assert not half.exists()
    for path in (dead / "batch=0").iterdir():
        path.unlink()
    (dead / "batch=0").rmdir()
    sinks.folders(str(folder), str(dead))(report(spark, "A1"), 0)
    assert areas(spark, folder) == [("A1", 0)]
    assert spark.read.parquet(str(dead)).count() == 1


def test_empty_batches_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sinks.folders(str(tmp_path / "m"))(report(spark), 0)
    assert [path.name for path in (tmp_path / "m").iterdir() if "batch" in path.name] == []


def test_a_folder_is_of_one_run(spark: SparkSession, tmp_path: Path) -> None:
    sinks.claim(spark, str(tmp_path / "m"), "one")
    sinks.claim(spark, str(tmp_path / "m"), "one")
    with pytest.raises(StateError, match="has the matches of another run"):
        sinks.claim(spark, str(tmp_path / "m"), "two")
    (tmp_path / "n" / "batch=0").mkdir(parents=True)
    with pytest.raises(StateError, match="has batches that belong to no run"):
        sinks.claim(spark, str(tmp_path / "n"), "one")


def test_a_stream_writes_each_match_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also after a failure between the two folders, in a new query on the same checkpoint."""
    source = tmp_path / "in"
    spark.createDataFrame([("Temp", 1_000_000, "A1", 60.0), ("Temp", 9_000_000, "A9", 1.0)], ROWS).write.parquet(
        str(source)
    )
    broken = [True]

    def fail(report: DataFrame, batch: int) -> None:
        if broken.pop():
            (tmp_path / "m" / "batch=0").mkdir()
            raise RuntimeError("power cut")

    for attempt in range(2):
        rows = tocsin.rules(RULES).report(spark.readStream.schema(ROWS).parquet(str(source)), slots=2)
        write = sinks.folders(str(tmp_path / "m"), None, [fail] if attempt == 0 else [])
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c")).start()
        if attempt == 0:
            with pytest.raises(Exception, match="power cut"):
                query.processAllAvailable()
            (tmp_path / "m" / "batch=0").rmdir()
        else:
            query.processAllAvailable()
        query.stop()
    assert [area for area, _ in areas(spark, tmp_path / "m")] == ["A1"]


def test_deduplicated_table(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", 2), ("a", 1)], "id string, ts bigint")
    assert sorted(row["id"] for row in sinks.deduplicated(rows).collect()) == ["a", "b"]
    with pytest.raises(EventError, match="there is no column 'key'; the columns are id, ts"):
        sinks.deduplicated(rows, "key")


@pytest.mark.parametrize("kind", ["timestamp", "bigint", "string"])
def test_deduplicated_stream(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    ts = {"timestamp": "timestamp_micros(at)", "bigint": "at", "string": "string(timestamp_micros(at))"}[kind]
    schema = f"id string, ts {kind}"
    found = []
    hour = 3_600_000_000
    for batch in ([("a", 10 * hour), ("b", 10 * hour), ("a", 10 * hour)], [("b", 10 * hour), ("c", 9 * hour)]):
        rows = spark.createDataFrame(batch, "id string, at bigint").selectExpr("id", f"{ts} AS ts")
        rows.write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
        query = (
            sinks.deduplicated(stream, horizon="2 hours")
            .writeStream.foreachBatch(lambda frame, n: found.extend((r["id"], len(r)) for r in frame.collect()))
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )
        query.processAllAvailable()
        query.stop()
    assert sorted(found) == [("a", 2), ("b", 2), ("c", 2)]
