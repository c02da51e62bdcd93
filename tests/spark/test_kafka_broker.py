"""A broker returns to Spark what Spark wrote, also after it was killed, and invalid addresses are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.kafka import broker, session
from tocsin.errors import TocsinError
from tocsin.spark import kafka

ROWS = 1000


def write(spark: SparkSession, topic: kafka.Topic, first: int, count: int) -> None:
    rows = spark.range(first, first + count).selectExpr("cast(id AS string) AS key", "concat('row ', id) AS value")
    rows.write.format("kafka").options(**kafka.writing(topic)).save()


def read(spark: SparkSession, topic: kafka.Topic) -> list[tuple[str, str]]:
    rows = spark.read.format("kafka").options(**kafka.reading(topic)).load()
    return sorted(map(tuple, rows.selectExpr("cast(key AS string)", "cast(value AS string)").collect()))


def read_stream(spark: SparkSession, topic: kafka.Topic, folder: Path) -> tuple[list[tuple[str, str]], int]:
    """What a stream adds until it has all there is, and in how many batches."""
    source = spark.readStream.format("kafka").options(**kafka.reading(topic, batch_events_max=300)).load()
    rows = source.selectExpr("cast(key AS string)", "cast(value AS string)")
    batches: list[int] = []
    found: list[tuple[str, str]] = []

    def take(batch: DataFrame, number: int) -> None:
        batches.append(number)
        found.extend(map(tuple, batch.collect()))

    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder))
    assert query.trigger(availableNow=True).start().awaitTermination(300)
    return sorted(found), len(batches)


def expected(first: int, count: int) -> list[tuple[str, str]]:
    return sorted((str(number), f"row {number}") for number in range(first, first + count))


def test_rows_outlive_a_killed_broker(tmp_path: Path) -> None:
    with broker(tmp_path / "broker") as kafka_broker, session() as spark:
        topic = kafka_broker.topic("rows")
        spark.run(write, topic, 0, ROWS)

        kafka_broker.kill()
        kafka_broker.restart()
        assert spark.run(read, topic) == expected(0, ROWS)
        assert spark.run(read_stream, topic, tmp_path / "checkpoint") == (expected(0, ROWS), 4)

        # The stream goes on where it was, after an orderly restart too.
        spark.run(write, topic, ROWS, 10)
        kafka_broker.restart()
        assert spark.run(read_stream, topic, tmp_path / "checkpoint") == (expected(ROWS, 10), 1)
        assert spark.run(read, topic) == expected(0, ROWS + 10)


@pytest.mark.parametrize(
    ("address", "servers"),
    [
        ("kafka://localhost:9092/a", ("localhost:9092",)),
        ("kafka://one.example:9092,two.example:9093/a", ("one.example:9092", "two.example:9093")),
        ("kafka://[::1]:9092/a", ("[::1]:9092",)),
    ],
)
def test_an_address_names_brokers_and_a_topic(address: str, servers: tuple[str, ...]) -> None:
    topic = kafka.topic(address)
    assert topic == kafka.Topic(servers, "a")
    assert str(topic) == address


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("localhost:9092/a", "write kafka://host:port/topic"),
        ("http://localhost:9092/a", "write kafka://host:port/topic"),
        ("kafka://localhost:9092", "a topic is missing"),
        ("kafka://localhost:9092/", "a topic is missing"),
        ("kafka:///a", "a host is missing"),
        ("kafka://one:9092,/a", "a host is missing"),
        ("kafka://localhost/a", "'localhost' is not host:port"),
        ("kafka://one:9092, two:9092/a", "' two:9092' is not host:port"),
        ("kafka://::1:9092/a", "'::1:9092' is not host:port"),
        ("kafka://localhost:0/a", "0 is not a port"),
        ("kafka://localhost:70000/a", "70000 is not a port"),
        ("kafka://me:secret@localhost:9092/a", "names and passwords"),
        ("kafka://localhost:9092/a/b", "'a/b' cannot be a topic"),
        ("kafka://localhost:9092/..", "'..' cannot be a topic"),
        ("kafka://localhost:9092/a?start=latest", "'a?start=latest' cannot be a topic"),
        ("kafka://localhost:9092/" + "a" * 250, "cannot be a topic"),
    ],
)
def test_a_wrong_address_is_explained(address: str, complaint: str) -> None:
    with pytest.raises(TocsinError) as error:
        kafka.topic(address)
    assert complaint in str(error.value)


def test_the_connector_is_that_of_this_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.delenv(kafka.VARIABLE, raising=False)
    assert kafka.packages() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    monkeypatch.setenv(kafka.VARIABLE, "a:b:1")
    assert kafka.packages() == "a:b:1"


def test_a_connector_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TocsinError, match=r"^'a:b' is not the Maven coordinate of a connector: .*\.$"):
        kafka.jars("a:b")
    with pytest.raises(TocsinError, match=r"^Spark's Kafka connector tocsin:no-such:1 cannot be downloaded: .*\.$"):
        kafka.jars("tocsin:no-such:1")
    assert list((tmp_path / "tocsin").iterdir()) == []
