"""Errors of Spark become one sentence, and errors of this package keep their message."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tocsin
from tocsin.errors import EventError, StateError, TocsinError
from tocsin.spark import sessions
from tocsin.spark.sessions import plain_errors

RULES = "define Heat() from Temp(area = $a) and last Smoke(area = $a) within 5 s from Temp"
ROWS = "type string, ts bigint, area string, value double"


def said(error: pytest.ExceptionInfo[TocsinError]) -> str:
    text = str(error.value)
    assert "\tat " not in text
    assert "Traceback" not in text
    assert "SQLSTATE" not in text
    assert "org.apache" not in text
    return text


def test_a_missing_path(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TocsinError) as error, plain_errors():
        spark.read.parquet(str(tmp_path / "none"))
    assert said(error) == f"there is no file or folder {tmp_path / 'none'}"


@pytest.mark.parametrize("schema", [None, "ts bigint"])
def test_a_file_that_is_no_parquet(spark: SparkSession, tmp_path: Path, schema: str | None) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet at all" * 10)
    reader = spark.read if schema is None else spark.read.schema(schema)
    with pytest.raises(TocsinError) as error, plain_errors():
        reader.parquet(str(tmp_path / "bad.parquet")).collect()
    assert said(error).startswith(f"{tmp_path / 'bad.parquet'} cannot be read: ")
    assert "not a Parquet file" in said(error) or "of another format" in said(error)


def test_another_number_of_slots_on_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([("Temp", 1, "A1", 60.0)], ROWS).write.parquet(str(tmp_path / "in"))

    def run(slots: int) -> None:
        report = tocsin.rules(RULES).report(spark.readStream.schema(ROWS).parquet(str(tmp_path / "in")), slots=slots)
        writer = report.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    run(2)
    spark.createDataFrame([("Temp", 2, "A1", 60.0)], ROWS).write.mode("append").parquet(str(tmp_path / "in"))
    with pytest.raises(StateError) as error, plain_errors():
        run(3)
    assert re.match(r"the checkpoint keeps its state in (2|another number of) slots, not in 3: ", said(error))


def test_the_placer_is_a_setting(spark: SparkSession) -> None:
    text = "\n".join(
        f"@info(name='Q{n}') from S{n % 4}[v > {n}]#window.length(4) select sum(v) as t insert into T{n};"
        for n in range(12)
    )
    streams = "".join(f"define stream S{n} (v int);\n" for n in range(4))
    queries = tocsin.rules(streams + text, language="siddhi")
    events = spark.createDataFrame([("S0", 1, 2)], "type string, ts bigint, v int")
    layouts = {}
    try:
        for name in ("even", "visiri", "random"):
            spark.conf.set("spark.tocsin.placer", name)
            layouts[name] = queries.explain(events, slots=3)
        spark.conf.set("spark.tocsin.placer", "radnom")
        with pytest.raises(TocsinError, match=r"there is no placer 'radnom'.*random"):
            queries.detect(events, slots=3)
    finally:
        spark.conf.unset("spark.tocsin.placer")
    assert queries.explain(events, slots=3) == layouts["even"] != layouts["random"]


def test_an_error_in_user_code(spark: SparkSession) -> None:
    broken = F.udf(lambda x: [][x], "int")
    with pytest.raises(TocsinError) as error, plain_errors():
        spark.range(1).select(broken("id")).collect()
    assert said(error) == "Spark says: IndexError: list index out of range"
    with pytest.raises(TocsinError) as error, plain_errors():
        spark.range(1).select("none").collect()
    assert said(error).startswith("Spark says: A column, variable, or function parameter with name `none` cannot be")


def test_no_connector_for_kafka(spark: SparkSession) -> None:
    with pytest.raises(TocsinError) as error, plain_errors():
        spark.read.format("kafka").option("subscribe", "t").load()
    assert said(error).startswith("Spark was started without its Kafka connector")


def test_java_that_is_gone() -> None:
    with pytest.raises(TocsinError, match=r"^Spark has ended: its Java process is gone$"), plain_errors():
        raise Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(TocsinError, match=r"^Spark has ended: its Java process is gone$"), plain_errors():
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1: Connection refused"),
        ("spark://127.0.0.1", "no Spark master answers at spark://127.0.0.1: '127.0.0.1' is not host:port"),
    ],
)
def test_a_master_that_does_not_answer(master: str, message: str) -> None:
    with pytest.raises(TocsinError) as error:
        sessions.check_master(master)
    assert str(error.value) == message
    sessions.check_master("local[2]")


def test_no_java(tmp_path: Path) -> None:
    code = "from tocsin.spark.runs import connect; connect('local[1]', None, ())"
    hidden = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    for tool in ("bash", "dirname", "env", "ps", "rm", "sh", "cat", "mktemp"):
        found = next((p for p in (Path("/bin") / tool, Path("/usr/bin") / tool) if p.exists()), None)
        if found is not None:
            (tmp_path / tool).symlink_to(found)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=hidden, check=False)
    assert "tocsin.errors.TocsinError: Spark needs Java 17 or newer, which was not found" in done.stderr


def test_other_errors_pass() -> None:
    with pytest.raises(EventError, match=r"^mine$"), plain_errors():
        raise EventError("mine")
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("not Spark's")
