"""The driver program that is killed in `test_exactly_once.py`.

`python exactly_once_job.py MASTER FOLDER` runs the query over the files that arrive in `FOLDER/input`, with output in
`FOLDER/output` and checkpoint in `FOLDER/checkpoint`, until there is a file `FOLDER/complete` and all input is
processed. Then it reads the committed output into one file, `FOLDER/committed.parquet`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tocsin

FILES_PER_BATCH = 4
SETTINGS = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
    # Snapshots come often, so that a recovery starts from one and changes after it.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": 5,
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
}


EVENTS = "type string, ts long, area string, value double"
RULES = """
    rule Fire
    define Fire(area: string, temp: double)
    from   Smoke(area=$a) and last Temp(area=$a, value>45) within 20 s from Smoke
           and not Rain(area=$a) between Temp and Smoke
    where  area = Smoke.area, temp = Temp.value

    rule Once
    define    Alarm(area: string, temp: double)
    from      Smoke(area=$a) and first Temp(area=$a, value>60) within 20 s from Smoke
    where     area = Smoke.area, temp = Temp.value
    consuming Temp

    rule Spread
    define Spread(temp: double)
    from   Fire(temp > 80) and last Alarm(temp > 80) within 2 s from Fire
    where  temp = Fire.temp
"""
"""Rules by key and one over all, consumption, absence, and composite events of composite events."""


def query(spark: SparkSession, folder: Path) -> DataFrame:
    """The matches in what comes into the folder; one file of `control` ends it."""
    events = (
        spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(folder / "input"))
    )
    control = spark.readStream.schema("advance long").json(str(folder / "control"))
    matches = tocsin.rules(RULES).detect(events, ts_unit="us", delay="2 s", slots=4, control=control)
    return matches.select("rule", "ts", "id", "area", "temp", F.to_json("parts").alias("parts"))


def run(spark: SparkSession, folder: Path) -> None:
    stream = (
        query(spark, folder)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while not (folder / "complete").exists():
        stream.awaitTermination(1)
    stream.processAllAvailable()
    hidden = folder / "control" / ".end"
    hidden.write_text('{"advance": 4000000000000000}\n')
    hidden.rename(folder / "control" / "end.json")
    stream.processAllAvailable()
    stream.stop()


def main(master: str, folder: Path) -> None:
    builder = SparkSession.builder.master(master).appName("exactly-once")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    run(spark, folder)
    pq.write_table(spark.read.parquet(str(folder / "output")).toArrow(), folder / "committed.parquet")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
