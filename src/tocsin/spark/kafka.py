"""Parse addresses of Kafka topics, and provide Spark's Kafka connector.

The address of a topic is `kafka://host:port,host:port/topic`. `topic` parses an address; `reading` and `writing` return
the options for Spark's readers and writers of a topic. The content of messages does not matter here.

Spark reads Kafka with a connector that is not part of PySpark. There are two ways to get the connector:

- `packages()` names it for `spark.jars.packages`. Spark then resolves it whenever a session's JVM starts.
- `jars()` downloads it once and returns its files for `spark.jars`. This needs only Java and PySpark, because it runs
  the Ivy that comes with Spark. So it finds the same files, but a failure is a short error and not a JVM that exits.

The version of the connector is that of PySpark. `TOCSIN_KAFKA_CONNECTOR` can name other connectors, as comma-separated
Maven coordinates, each of which is used in exactly the given version.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tocsin.errors import TocsinError

SCALA = "2.13"
VARIABLE = "TOCSIN_KAFKA_CONNECTOR"
DOWNLOAD_S_MAX = 600

SERVER = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)

BROUGHT_BY_SPARK = (
    "at.yawk.lz4",
    "com.github.luben",
    "com.google.code.findbugs",
    "org.apache.hadoop",
    "org.lz4",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.xerial.snappy",
)
"""Organisations whose libraries the connector needs and Spark already has.

A second copy of these libraries would take 60 MB, and might be of another version.
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """A Kafka topic and its bootstrap servers."""

    servers: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return f"kafka://{','.join(self.servers)}/{self.name}"


def topic(address: str) -> Topic:
    """Parse the address of a Kafka topic.

    >>> topic("kafka://one:9092,two:9092/alarms")
    Topic(servers=('one:9092', 'two:9092'), name='alarms')
    """

    def wrong(what: str) -> TocsinError:
        return TocsinError(f"'{address}' is not the address of a Kafka topic: {what}")

    scheme, separator, rest = address.partition("://")
    if not separator or scheme != "kafka":
        raise wrong("write kafka://host:port/topic")
    brokers, slash, name = rest.partition("/")
    if not slash or not name:
        raise wrong("a topic is missing at its end; write kafka://host:port/topic")
    servers = tuple(brokers.split(","))
    for server in servers:
        if not server:
            raise wrong("a host is missing; write kafka://host:port/topic")
        if "@" in server:
            raise wrong("names and passwords are no part of it; give them to Spark as kafka.sasl.* options")
        match = SERVER.fullmatch(server)
        if match is None:
            raise wrong(f"'{server}' is not host:port, such as localhost:9092")
        if not 1 <= int(match["port"]) <= 65535:
            raise wrong(f"{match['port']} is not a port; ports are 1 to 65535")
    if TOPIC.fullmatch(name) is None or name in (".", ".."):
        raise wrong(f"'{name}' cannot be a topic; topics have up to 249 letters, digits, '.', '_' and '-'")
    return Topic(servers, name)


def reading(
    topic: Topic, *, start: Literal["earliest", "latest"] = "earliest", batch_events_max: int | None = None
) -> dict[str, str]:
    """Return the options for `spark.read.format("kafka")` and `spark.readStream.format("kafka")`.

    `start` is where a stream without a checkpoint begins; a table always begins at the earliest event.
    `batch_events_max` limits the number of events in a batch of a stream.

    >>> reading(topic("kafka://localhost:9092/alarms"))
    {'kafka.bootstrap.servers': 'localhost:9092', 'subscribe': 'alarms', 'startingOffsets': 'earliest'}
    """
    options = {"kafka.bootstrap.servers": ",".join(topic.servers), "subscribe": topic.name, "startingOffsets": start}
    if batch_events_max is not None:
        options["maxOffsetsPerTrigger"] = str(batch_events_max)
    return options


def writing(topic: Topic) -> dict[str, str]:
    """Return the options for `frame.write.format("kafka")` and `frame.writeStream.format("kafka")`.

    >>> writing(topic("kafka://localhost:9092/alarms"))
    {'kafka.bootstrap.servers': 'localhost:9092', 'topic': 'alarms'}
    """
    return {"kafka.bootstrap.servers": ",".join(topic.servers), "topic": topic.name}


def packages() -> str:
    """Return the Maven coordinates of the connector, as a value of `spark.jars.packages`.

    They are the coordinates in TOCSIN_KAFKA_CONNECTOR if that is set, and otherwise those for the installed PySpark.
    """
    configured = os.environ.get(VARIABLE)
    if configured:
        return configured
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise TocsinError("Kafka is read through PySpark, which is not installed.") from None
    return f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{version}"


def jars(coordinates: str | None = None) -> list[str]:
    """Return the paths of the connector's files; `",".join(jars())` is a value of `spark.jars`.

    The first call on a machine downloads the files. `coordinates` are the Maven coordinates of the connector (default:
    `packages()`).
    """
    names = [name.strip() for name in (coordinates or packages()).split(",")]
    for name in names:
        if COORDINATE.fullmatch(name) is None:
            raise TocsinError(f"'{name}' is not the Maven coordinate of a connector: write group:artifact:version.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tocsin"
    folder = cache / "+".join(name.partition(":")[2].replace(":", "-") for name in names)
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="connector.") as temporary:
            _download(names, Path(temporary))
            try:
                (Path(temporary) / "jars").rename(folder)
            except OSError:
                if not folder.is_dir():  # no other process has created the folder
                    raise
    return sorted(str(path) for path in folder.glob("*.jar"))


def _download(names: list[str], folder: Path) -> None:
    """Download the artifacts `names` and their dependencies into `folder/jars`."""
    (folder / "ivy.xml").write_text(_module(names), encoding="utf-8")
    command = [_java(), "-Xmx256m", "-jar", _ivy(), "-warn", "-ivy", "ivy.xml", "-cache", "cache"]
    command += ["-confs", "default", "-types", "jar", "bundle", "-retrieve", "jars/[artifact]-[revision].[ext]"]
    what = f"Spark's Kafka connector {', '.join(names)} cannot be downloaded"
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise TocsinError(f"{what}: Maven Central does not answer.") from None
    if done.returncode != 0:
        output = done.stdout + done.stderr
        missing = ", ".join(dict.fromkeys(re.findall(r":: (\S+#\S+;\S+): ", output)))
        unreachable = re.search(r"Host \S+ not found|timed out|refused|[Uu]nreachable|SSL|PKIX", output)
        if missing and not unreachable:
            why = f"{missing} was not found in Maven Central; set {VARIABLE} to one that is there"
        elif unreachable:
            why = f"Maven Central cannot be reached ({unreachable[0]})"
        else:
            why = (output.strip() or "Ivy does not say why").splitlines()[-1]
        raise TocsinError(f"{what}: {why}.")


def _module(names: list[str]) -> str:
    """Return the text of an Ivy module with exactly the artifacts `names`, and the dependencies that Spark lacks."""
    lines = ['<ivy-module version="2.0">', '<info organisation="tocsin" module="connector"/>', "<dependencies>"]
    split = [name.split(":") for name in names]
    # Ivy's configuration "default" is Maven's scope "runtime".
    lines += [f'<dependency org="{g}" name="{a}" rev="{v}" conf="default"/>' for g, a, v in split]
    lines += [f'<exclude org="{organisation}"/>' for organisation in BROUGHT_BY_SPARK]
    lines += [f'<exclude org="org.apache.spark" module="spark-tags_{SCALA}"/>']
    lines += [f'<override org="{g}" module="{a}" rev="{v}"/>' for g, a, v in split]
    return "\n".join([*lines, "</dependencies>", "</ivy-module>", ""])


def _ivy() -> str:
    home = os.environ.get("SPARK_HOME")
    if not home:
        spec = importlib.util.find_spec("pyspark")
        home = str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else ""
    found = sorted(Path(home, "jars").glob("ivy-*.jar")) if home else []
    if not found:
        raise TocsinError("Spark's Kafka connector cannot be downloaded: there is no Spark with a jars folder.")
    return str(found[-1])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        raise TocsinError("Spark's Kafka connector cannot be downloaded: there is no Java, which Spark needs too.")
    return java
