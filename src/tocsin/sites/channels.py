"""Carry messages between replicas of sites, as batches of one step, over folders or Kafka topics.

Each direction between two replicas has a channel, which is a folder or a topic. The position of a batch in its channel
consists of the sender's incarnation (a number that grows with each start) and step, so positions only grow.

    channels/RECEIVER/SENDER/INCARNATION.STEP     all messages of the sender in one step

In a folder, the position is the file name. A batch is renamed into place, so that it is never read partially. A batch
that is delivered again has the same name as before, or a position that the receiver has passed. The receiver deletes
the batches that it has committed. A full channel drops new batches, like a broken link, and the protocol sends the
messages again. The operator can hold a channel with a file `held` in its folder. A held channel cannot be read, as if
the link were broken while messages are buffered.

    PREFIX.SENDER.RECEIVER        records with the position of a batch as key and the batch as value
    PREFIX.operator.RECEIVER      the operator's messages to a replica, which reads all of them when it starts

Sites without a common disk use Kafka topics of one partition. A site that starts reads its topics from the beginning,
and the host skips the positions that it has processed. Records that are sent again are skipped in the same way. The
receiver regularly deletes committed records. A topic above its size limit loses its oldest records, like a broken link,
and the protocol sends the messages again. The operator's topics are not pruned. To hold a channel, the operator sends a
record, after which the receiver pauses the topic. The host does not see this record.

The Kafka clients belong to Spark's connector and run in the session's JVM, so nothing else must be installed. Their
timeouts are defined here, so that callers can report a broker that does not answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pyspark.sql import SparkSession

from tocsin.overlay.codec import decode
from tocsin.sites.site_plan import SitePlan
from tocsin.spark.kafka import Topic

RECORD_BYTES_MAX = 64 * 1024 * 1024
WAITS = {"request.timeout.ms": "5000", "default.api.timeout.ms": "10000"}
PRODUCER = {
    "acks": "all",
    "max.block.ms": "10000",
    "request.timeout.ms": "5000",
    "delivery.timeout.ms": "15000",
    "linger.ms": "0",
    "max.request.size": str(RECORD_BYTES_MAX),
    "buffer.memory": str(2 * RECORD_BYTES_MAX),
    "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
}
CONSUMER = {
    **WAITS,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "max.partition.fetch.bytes": str(RECORD_BYTES_MAX),
    "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
}


class Broker:
    """Creates Kafka clients for `servers`. The JVM of `spark` must have the connector on its class path."""

    def __init__(self, spark: SparkSession, servers: Sequence[str]) -> None:
        self.servers = tuple(servers)
        self.jvm: Any = spark._jvm
        self._array = spark.sparkContext._gateway.new_array
        self._clients: list[Any] = []
        self.admin = self._keep(self.jvm.org.apache.kafka.clients.admin.AdminClient.create(self._properties(WAITS)))

    def _keep(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Close all clients that this object has created."""
        for client in self._clients:
            with contextlib.suppress(Exception):  # a batch that is ending may still use it
                client.close(self.jvm.java.time.Duration.ofSeconds(1))

    def producer(self) -> Any:
        return self._keep(self.jvm.org.apache.kafka.clients.producer.KafkaProducer(self._properties(PRODUCER)))

    def consumer(self, settings: Mapping[str, str] = CONSUMER) -> Any:
        return self._keep(self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._properties(settings)))

    # ---- topics

    def create(self, topic: str, limits: Mapping[str, object]) -> None:
        """Create a topic of one partition with the settings `limits`. An existing topic is not changed."""
        options = self.jvm.java.util.HashMap()
        for name, value in limits.items():
            options.put(name, str(value))
        optional = self.jvm.java.util.Optional
        new = self.jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(1), optional.empty())
        try:
            one = self.jvm.java.util.Collections.singleton(new.configs(options))
            self.admin.createTopics(one).all().get()
        except Exception as error:
            if "TopicExistsException" not in str(error):  # another process has created it
                raise

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self.admin.listTopics().names().get())

    def numbers(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of `topic`."""
        one = self.jvm.java.util.Collections.singleton(topic)
        known = self.admin.describeTopics(one).allTopicNames().get().get(topic)
        return sorted(part.partition() for part in known.partitions())

    def partition(self, topic: str, number: int = 0) -> Any:
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, number)

    def assign(self, consumer: Any, partitions: Iterable[Any]) -> None:
        consumer.assign(self._list(partitions))

    def rewind(self, consumer: Any, partitions: Iterable[Any]) -> None:
        consumer.seekToBeginning(self._list(partitions))

    def beginnings(self, consumer: Any, partitions: Iterable[Any]) -> dict[int, int]:
        """Return the first offset of each partition, by the number of the partition. All are of the same topic."""
        found = consumer.beginningOffsets(self._list(partitions))
        return {partition.partition(): found.get(partition) for partition in found.keySet()}

    def ends(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the offset after the last record of each topic. All topics have one partition."""
        latest = self.jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        requested = self.jvm.java.util.HashMap()
        for topic in topics:
            requested.put(self.partition(topic), latest)
        found = self.admin.listOffsets(requested).all().get()
        return {partition.topic(): found.get(partition).offset() for partition in requested.keySet()}

    def delete(self, upto: Mapping[str, int]) -> None:
        """Delete records up to and including an offset for each topic. All topics have one partition."""
        before = self.jvm.java.util.HashMap()
        for topic, offset in upto.items():
            before.put(self.partition(topic), self._up_to(offset))
        self.admin.deleteRecords(before).all().get()

    def wait(self, length_ms: int) -> Any:
        return self.jvm.java.time.Duration.ofMillis(length_ms)

    # ---- Java

    def _list(self, items: Iterable[Any]) -> Any:
        found = self.jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    def _up_to(self, offset: int) -> Any:
        """Return the Java object that selects the records up to and including `offset` for deletion.

        It uses reflection because Py4J confuses the static method with an instance method.
        """
        parameter_types = self._array(self.jvm.java.lang.Class, 1)
        parameter_types[0] = self.jvm.java.lang.Long.TYPE
        values = self._array(self.jvm.java.lang.Object, 1)
        values[0] = offset + 1
        kind = self.jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        return kind.getMethod("beforeOffset", parameter_types).invoke(None, values)

    def _properties(self, values: Mapping[str, str]) -> Any:
        properties = self.jvm.java.util.Properties()
        properties.put("bootstrap.servers", ",".join(self.servers))
        for name, value in values.items():
            properties.put(name, value)
        return properties


Position = str
"""The position of a batch in its channel. The empty string precedes all positions."""
Positions = Mapping[str, Position]
"""The position of the last batch of each sender."""
HELD = "held"
LOOK_S_MIN = 0.004
LOOK_S_MAX = 0.04
LOOKS = 100
"""The number of empty reads after which the pause between reads grows from LOOK_S_MIN to LOOK_S_MAX."""
WAITING_MAX = 2_000
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""The limits of a channel, in batches and in bytes."""
OPERATOR = "operator"
"""The sender name of the operator of the sites. Its messages are kept, and a site that starts reads them again."""


@dataclass(frozen=True)
class MessageBatch:
    """The messages that one replica sends to another replica in one step."""

    sender: str
    receiver: str
    position: Position
    data: bytes


def step_position(life: int, step: int) -> Position:
    """Return the position of the batches of `step`, in the incarnation `life` of the sender."""
    return f"{life:016}.{step:012}"


def pack_messages(messages: Iterable[bytes]) -> bytes:
    """Concatenate encoded messages to the data of a batch."""
    parts: list[bytes] = []
    for message in messages:
        parts += [len(message).to_bytes(8, "little"), message]
    return b"".join(parts)


def unpack_messages(data: bytes) -> Iterator[Any]:
    """Decode and yield the messages in the data of a batch, in order."""
    at = 0
    while at < len(data):
        length = int(np.frombuffer(data[at : at + 8], "<i8")[0])
        yield decode(data[at + 8 : at + 8 + length])
        at += 8 + length


class Channels(Protocol):
    """Carries batches of messages between replicas."""

    def post(self, batches: Sequence[MessageBatch]) -> None:
        """Deliver `batches`. A batch that was delivered before has no effect."""

    def read(self, name: str, after: Positions) -> list[MessageBatch]:
        """Return the batches for the replica `name` that follow the positions `after`, by sender and position.

        Wait briefly if there are no batches. The result may contain earlier batches, which the caller must skip.
        """

    def prune(self, name: str, upto: Positions) -> None:
        """Allow the batches for the replica `name` to be deleted, up to the positions `upto`."""

    def known(self, name: str) -> bool:
        """Return whether the replica `name` has sent any batch."""


class FolderChannels:
    """Channels that are folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked = 0

    def post(self, batches: Sequence[MessageBatch]) -> None:
        for batch in batches:
            channel = self.folder / batch.receiver / batch.sender
            channel.mkdir(parents=True, exist_ok=True)
            with os.scandir(channel) as waiting:
                sizes = [entry.stat().st_size for entry in waiting]
            if len(sizes) < WAITING_MAX and sum(sizes) + len(batch.data) <= WAITING_BYTES_MAX:
                write_file(channel / batch.position, batch.data)

    def read(self, name: str, after: Positions) -> list[MessageBatch]:
        found = []
        for sender in self._senders(name):
            last = after.get(sender, "")
            new = [position for position in self._positions(name, sender) if position > last]
            found += [MessageBatch(sender, name, at, (self.folder / name / sender / at).read_bytes()) for at in new]
        if found:
            self._looked = 0
        else:
            self._looked += 1
            time.sleep(LOOK_S_MIN if self._looked < LOOKS else LOOK_S_MAX)
        return found

    def prune(self, name: str, upto: Positions) -> None:
        for sender, last in upto.items():
            for position in () if sender == OPERATOR else self._positions(name, sender, held=True):
                if position <= last:
                    (self.folder / name / sender / position).unlink(missing_ok=True)

    def known(self, name: str) -> bool:
        return any((receiver / name).is_dir() for receiver in self.folder.glob("*"))

    def hold(self, sender: str, receiver: str, *, held: bool) -> None:
        """Hold the channel from `sender` to `receiver`, so that it cannot be read, or release it."""
        channel = self.folder / receiver / sender
        channel.mkdir(parents=True, exist_ok=True)
        if held:
            (channel / HELD).touch()
        else:
            (channel / HELD).unlink(missing_ok=True)

    def waiting(self, receiver: str) -> dict[str, int]:
        """Return the number of batches that wait for the replica `receiver`, by sender."""
        found = {sender: len(self._positions(receiver, sender, held=True)) for sender in self._senders(receiver)}
        found.pop(OPERATOR, None)
        return found

    def _senders(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / name))
        except FileNotFoundError:
            return []

    def _positions(self, name: str, sender: str, *, held: bool = False) -> list[Position]:
        """Return the positions of the batches in a channel, in order.

        The result is empty if the channel is held, unless `held` is true.
        """
        names = os.listdir(self.folder / name / sender) if (self.folder / name / sender).is_dir() else []
        if HELD in names and not held:
            return []
        return sorted(position for position in names if position[0] != "." and position != HELD)


def write_file(path: Path, data: bytes, *, once: bool = False) -> None:
    """Write a file atomically and durably. If `once` is true, leave an existing file as it is."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if not once:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


RELEASED = "released"
PRUNE_S = 5.0
POLL_MS = 20
LIMITS = {
    "max.message.bytes": RECORD_BYTES_MAX,
    "retention.bytes": 4 * RECORD_BYTES_MAX,
    "segment.bytes": RECORD_BYTES_MAX,
    "retention.ms": -1,
}


class TopicChannels:
    """The channels of the replica `name` that are Kafka topics."""

    def __init__(self, broker: Broker, plan: SitePlan, name: str) -> None:
        assert plan.hosting.topics is not None
        self.address: Topic = plan.hosting.topics
        self.broker, self.name = broker, name
        # A replica sends to the same replicas from which it receives.
        self._others = plan.senders(name)
        self._senders = {self.topic(other, name): other for other in (*self._others, OPERATOR)}
        self._read: dict[str, int] = {}
        """The last offset that was read from each topic."""
        self._pruned_s = time.monotonic()
        existing = broker.topics()
        for topic in sorted({*self._senders, *(self.topic(name, other) for other in self._others)} - existing):
            broker.create(topic, LIMITS)
        self._consumer = broker.consumer()
        partitions = [broker.partition(topic) for topic in self._senders]
        broker.assign(self._consumer, partitions)
        broker.rewind(self._consumer, partitions)
        self._producer = broker.producer()

    # ---- channels

    def read(self, name: str, after: Positions) -> list[MessageBatch]:
        found: list[MessageBatch] = []
        for record in self._consumer.poll(self.broker.wait(POLL_MS)).iterator():
            sender, key, data = self._senders[record.topic()], record.key(), bytes(record.value())
            if sender == OPERATOR and key in (HELD, RELEASED):
                self._hold(data.decode(), held=key == HELD)
                continue
            self._read[record.topic()] = record.offset()
            found.append(MessageBatch(sender, name, key, data))
        return sorted(found, key=lambda batch: (batch.sender, batch.position))

    def post(self, batches: Sequence[MessageBatch]) -> None:
        record = self.broker.jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [
            self._producer.send(record(self.topic(one.sender, one.receiver), one.position, bytearray(one.data)))
            for one in batches
        ]
        self._producer.flush()
        for future in sent:
            future.get()

    def prune(self, name: str, upto: Positions) -> None:
        read = {topic: offset for topic, offset in self._read.items() if self._senders[topic] != OPERATOR}
        if time.monotonic() - self._pruned_s >= PRUNE_S and read:
            self._pruned_s = time.monotonic()
            self.broker.delete(read)

    def known(self, name: str) -> bool:
        ends = self.broker.ends(self.topic(name, other) for other in self._others)
        return any(end > 0 for end in ends.values())

    def topic(self, sender: str, receiver: str) -> str:
        return topic_name(self.address, sender, receiver)

    def _hold(self, sender: str, *, held: bool) -> None:
        one = self.broker.jvm.java.util.Collections.singleton(self.broker.partition(self.topic(sender, self.name)))
        (self._consumer.pause if held else self._consumer.resume)(one)


class OperatorChannels:
    """The channels of the operator, for sites whose channels are Kafka topics."""

    def __init__(self, broker: Broker, address: Topic) -> None:
        self.broker, self.address = broker, address
        self._producer = broker.producer()

    def hold(self, sender: str, receiver: str, *, held: bool) -> None:
        """Hold the channel from `sender` to `receiver`, so that it cannot be read, or release it."""
        self._send(receiver, HELD if held else RELEASED, sender.encode())

    def post(self, batches: Sequence[MessageBatch]) -> None:
        """Send message batches of the operator to replicas."""
        for batch in batches:
            self._send(batch.receiver, batch.position, batch.data)

    def _send(self, receiver: str, key: str, data: bytes) -> None:
        topic = topic_name(self.address, OPERATOR, receiver)
        self.broker.create(topic, LIMITS)
        record = self.broker.jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer.send(record(topic, key, bytearray(data))).get()


def topic_name(address: Topic, sender: str, receiver: str) -> str:
    """Return the name of the topic from `sender` to `receiver`, without #, which topic names cannot contain."""
    return f"{address.name}.{sender.replace('#', '-')}.{receiver.replace('#', '-')}"
