"""The metrics of a stream are correct, in Prometheus's format."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tocsin
from tocsin.errors import TocsinError
from tocsin.spark.listener import CONTENT, Counters, Listener, published, write_text

RULES = """
    rule Hot  define Heat(area: string) from Temp(value > 50) where area = Temp.area
    rule Cold define Frost(area: string) from Temp(value < 0) where area = Temp.area
"""
ROWS = "type string, ts bigint, area string, value double"
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"\})? (\S+)')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """The samples of a text by name and label. Each has a help and a type before it, and no sample comes twice."""
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    helped = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split()[2]
            assert helped not in kinds
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == helped
            assert kind in ("counter", "gauge")
            assert (kind == "counter") == name.endswith("_total")
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == helped
            key = match[1], match[3] or ""
            assert key not in found
            found[key] = float(match[4])
    return found


def test_a_real_stream(spark: SparkSession, tmp_path: Path) -> None:
    events = [("Temp", 10_000_000, "A1", 60.0), ("Temp", 10_000_001, "A2", -4.0), ("Temp", 10_000_002, "A3", 70.0)]
    spark.createDataFrame(events, ROWS).coalesce(1).write.parquet(str(tmp_path / "in"))
    counters = Counters()
    listener = Listener(counters, "metrics")
    spark.streams.addListener(listener)
    file = tmp_path / "metrics.prom"
    try:
        with published(counters, str(file)), published(counters, "0") as address:
            assert address is not None
            stream = spark.readStream.schema(ROWS).parquet(str(tmp_path / "in"))
            writer = tocsin.rules(RULES).report(stream, slots=2).writeStream.queryName("metrics")
            writer = writer.option("checkpointLocation", str(tmp_path / "c"))
            query = writer.foreachBatch(lambda frame, n: frame.persist().count()).start()
            query.processAllAvailable()
            late = [("Temp", 5, "A1", 60.0), (None, 6, "A1", 60.0), ("Temp", 11_000_000, "A1", 0.0)]
            spark.createDataFrame(late, ROWS).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
            query.processAllAvailable()
            until = time.monotonic() + 60
            while (counters.input_rows < 6 or counters.matches < 3) and time.monotonic() < until:
                time.sleep(0.1)
            with urllib.request.urlopen(address) as answer:
                assert answer.headers["Content-Type"] == CONTENT
                served = parsed(answer.read().decode())
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(address.replace("metrics", "other"))
            query.stop()
    finally:
        spark.streams.removeListener(listener)
    for found in (served, parsed(file.read_text())):
        assert found["tocsin_input_rows_total", ""] == 6
        assert found["tocsin_matches_total", "Hot"] == 2
        assert found["tocsin_matches_total", "Cold"] == 1
        assert found["tocsin_late_events_total", ""] == 1
        assert found["tocsin_dead_letters_total", ""] == 2
        assert found["tocsin_routed_events_total", ""] >= 4
        assert found["tocsin_batches_total", ""] >= 2
        assert found["tocsin_stage_seconds_total", "addBatch"] > 0
        assert found["tocsin_watermark_lag_seconds", ""] > 0
        assert sum(value for (name, _), value in found.items() if name == "tocsin_state_bytes") > 0


def test_labels_are_escaped() -> None:
    counters = Counters()
    counters.by_rule['a "b"\\\n'] = 1
    assert parsed(counters.text())["tocsin_matches_total", r"a \"b\"\\\n"] == 1


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(TocsinError, match="cannot be written: No such file or directory"):
        write_text(Counters(), tmp_path / "none" / "m.prom")
    with published(Counters(), "0") as address:
        assert address is not None
        port = address.split(":")[2].split("/")[0]
        with pytest.raises(TocsinError, match=f"port {port} cannot be used for metrics"), published(Counters(), port):
            pass
