"""How does what a site says get to another? Parcels in a folder, one channel for each direction between two replicas.

    channels/RECEIVER/SENDER/LIFE.STEP        all that the sender had to say in one step

The name is the parcel's place in the channel: it grows, as a step is one of a life of the sender, and lives are
numbered. A parcel is renamed into place, so that nobody sees half of it; one that is delivered again has the same name,
or a name that the receiver has passed. The receiver removes what it has committed. A channel in which too much waits
takes no more: what is sent then is lost, as on a link that is cut, and is sent again by the protocol.

A channel with a file `held` in it cannot be read, as if the link were cut while what is sent is kept.

How is a Kafka broker spoken to without Spark's own sources? With the clients of its connector, in the session's JVM.

Nothing has to be installed for that but what Spark needs to read Kafka. Clients take their time to give up; how long
that is stands here, so that whoever waits for a broker that is away can say so.

How do sites that share no disk speak? Over Kafka: a topic of one partition for each direction between two replicas.

    PREFIX.SENDER.RECEIVER        records: the place of a parcel, the parcel
    PREFIX.operator.RECEIVER      what the operator says to a replica; read from its beginning by one that starts

A site that starts reads its topics from their beginning, and the host passes over what it has had, as over a record
that is sent again by a site that does not know whether it had sent it: both have a place. What a receiver has committed
is deleted from the topic now and then; a topic that grows beyond its limit loses its oldest records, as a link that is
cut, and the protocol sends them again. The operator's topics are not pruned: what he said stays.

A channel is held by a word of the operator, which is not handed on to the host: the receiver pauses its topic.
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
from tocsin.sites.site_plan import Plan
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
    """The clients that were made for some servers. `spark`: a session whose JVM has the connector on its class path."""

    def __init__(self, spark: SparkSession, servers: Sequence[str]) -> None:
        self.servers = tuple(servers)
        self.jvm: Any = spark._jvm
        self._array = spark.sparkContext._gateway.new_array
        self._clients: list[Any] = []
        self.admin = self._made(self.jvm.org.apache.kafka.clients.admin.AdminClient.create(self._properties(WAITS)))

    def _made(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Lets go of the broker."""
        for client in self._clients:
            with contextlib.suppress(Exception):  # it may be in use still, by a batch that is about to end
                client.close(self.jvm.java.time.Duration.ofSeconds(1))

    def producer(self) -> Any:
        return self._made(self.jvm.org.apache.kafka.clients.producer.KafkaProducer(self._properties(PRODUCER)))

    def consumer(self, settings: Mapping[str, str] = CONSUMER) -> Any:
        return self._made(self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._properties(settings)))

    # ---- topics

    def create(self, topic: str, limits: Mapping[str, object]) -> None:
        """Makes a topic of one partition; one that is there stays as it is."""
        options = self.jvm.java.util.HashMap()
        for name, value in limits.items():
            options.put(name, str(value))
        optional = self.jvm.java.util.Optional
        new = self.jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(1), optional.empty())
        try:
            one = self.jvm.java.util.Collections.singleton(new.configs(options))
            self.admin.createTopics(one).all().get()
        except Exception as error:
            if "TopicExistsException" not in str(error):  # another was quicker
                raise

    def topics(self) -> set[str]:
        """All that there are."""
        return set(self.admin.listTopics().names().get())

    def numbers(self, topic: str) -> list[int]:
        """The partitions of a topic."""
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
        """By partition the first offset that is there."""
        found = consumer.beginningOffsets(self._list(partitions))
        return {partition.partition(): found.get(partition) for partition in found.keySet()}

    def ends(self, topics: Iterable[str]) -> dict[str, int]:
        """The offsets behind the last records of topics of one partition."""
        latest = self.jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        asked = self.jvm.java.util.HashMap()
        for topic in topics:
            asked.put(self.partition(topic), latest)
        found = self.admin.listOffsets(asked).all().get()
        return {partition.topic(): found.get(partition).offset() for partition in asked.keySet()}

    def delete(self, upto: Mapping[str, int]) -> None:
        """Deletes the records of topics of one partition up to an offset, with it."""
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
        """All records up to this one. Py4J cannot tell the static method from that of instances of the same name."""
        kinds = self._array(self.jvm.java.lang.Class, 1)
        kinds[0] = self.jvm.java.lang.Long.TYPE
        given = self._array(self.jvm.java.lang.Object, 1)
        given[0] = offset + 1
        kind = self.jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        return kind.getMethod("beforeOffset", kinds).invoke(None, given)

    def _properties(self, given: Mapping[str, str]) -> Any:
        properties = self.jvm.java.util.Properties()
        properties.put("bootstrap.servers", ",".join(self.servers))
        for name, value in given.items():
            properties.put(name, value)
        return properties


Place = str
"""Of a parcel in its channel; '' is before all."""
Heads = Mapping[str, Place]
"""By sender the last parcel there is."""
HELD = "held"
LOOK_S_MIN = 0.004
LOOK_S_MAX = 0.04
LOOKS = 100
"""How long it is until the next look where there was nothing, and how often that was before it takes longer."""
WAITING_MAX = 2_000
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""Parcels that may wait in a channel."""
OPERATOR = "operator"
"""Who runs the sites may say something too. What he said stays: a site that starts hears it again."""


@dataclass(frozen=True)
class Parcel:
    """What one replica says to another in a step."""

    sender: str
    receiver: str
    place: Place
    data: bytes


def placed(life: int, step: int) -> Place:
    """The place of a step's parcels."""
    return f"{life:016}.{step:012}"


def packed(messages: Iterable[bytes]) -> bytes:
    """Encoded messages as one."""
    pieces: list[bytes] = []
    for message in messages:
        pieces += [len(message).to_bytes(8, "little"), message]
    return b"".join(pieces)


def unpacked(data: bytes) -> Iterator[Any]:
    """The messages of a parcel, in order."""
    at = 0
    while at < len(data):
        length = int(np.frombuffer(data[at : at + 8], "<i8")[0])
        yield decode(data[at + 8 : at + 8 + length])
        at += 8 + length


class Channels(Protocol):
    """What carries parcels."""

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Delivers parcels; those that were delivered before change nothing."""

    def read(self, name: str, after: Heads) -> list[Parcel]:
        """What there is for a replica after some parcels, in order: by sender, and as it was sent. Waits a moment if
        there is nothing."""

    def prune(self, name: str, upto: Heads) -> None:
        """A replica will not ask again for parcels up to here."""

    def known(self, name: str) -> bool:
        """Whether a replica has sent something before."""


class Folders:
    """Channels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked = 0

    def post(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            channel = self.folder / parcel.receiver / parcel.sender
            channel.mkdir(parents=True, exist_ok=True)
            with os.scandir(channel) as waiting:
                sizes = [entry.stat().st_size for entry in waiting]
            if len(sizes) < WAITING_MAX and sum(sizes) + len(parcel.data) <= WAITING_BYTES_MAX:
                written(channel / parcel.place, parcel.data)

    def read(self, name: str, after: Heads) -> list[Parcel]:
        found = []
        for sender in self._senders(name):
            last = after.get(sender, "")
            new = [place for place in self._places(name, sender) if place > last]
            found += [Parcel(sender, name, at, (self.folder / name / sender / at).read_bytes()) for at in new]
        if found:
            self._looked = 0
        else:
            self._looked += 1
            time.sleep(LOOK_S_MIN if self._looked < LOOKS else LOOK_S_MAX)
        return found

    def prune(self, name: str, upto: Heads) -> None:
        for sender, last in upto.items():
            for place in () if sender == OPERATOR else self._places(name, sender, held=True):
                if place <= last:
                    (self.folder / name / sender / place).unlink(missing_ok=True)

    def known(self, name: str) -> bool:
        return any((receiver / name).is_dir() for receiver in self.folder.glob("*"))

    def hold(self, sender: str, receiver: str, *, held: bool) -> None:
        """Makes a channel unreadable, or readable again."""
        channel = self.folder / receiver / sender
        channel.mkdir(parents=True, exist_ok=True)
        if held:
            (channel / HELD).touch()
        else:
            (channel / HELD).unlink(missing_ok=True)

    def waiting(self, receiver: str) -> dict[str, int]:
        """How many parcels of each sender wait for a replica."""
        found = {sender: len(self._places(receiver, sender, held=True)) for sender in self._senders(receiver)}
        found.pop(OPERATOR, None)
        return found

    def _senders(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / name))
        except FileNotFoundError:
            return []

    def _places(self, name: str, sender: str, *, held: bool = False) -> list[Place]:
        """The parcels of a channel, in order; none if it is held, unless that does not matter."""
        names = os.listdir(self.folder / name / sender) if (self.folder / name / sender).is_dir() else []
        if HELD in names and not held:
            return []
        return sorted(place for place in names if place[0] != "." and place != HELD)


def written(path: Path, data: bytes, *, once: bool = False) -> None:
    """Puts a file into place so that it is whole or not there, also after the machine fails. `once`: unless it is."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if not once:
        fresh.replace(path)
        return
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()


RELEASED = "released"
PRUNE_S = 5.0
POLL_MS = 20
LIMITS = {
    "max.message.bytes": RECORD_BYTES_MAX,
    "retention.bytes": 4 * RECORD_BYTES_MAX,
    "segment.bytes": RECORD_BYTES_MAX,
    "retention.ms": -1,
}


class Topics:
    """The channels of one replica."""

    def __init__(self, broker: Broker, plan: Plan, name: str) -> None:
        assert plan.hosting.topics is not None
        self.address: Topic = plan.hosting.topics
        self.broker, self.name = broker, name
        # Whom it may hear and whom it may speak to are the same.
        self._others = plan.senders(name)
        self._senders = {self.topic(other, name): other for other in (*self._others, OPERATOR)}
        self._read: dict[str, int] = {}
        """By topic the last offset that was read."""
        self._pruned_s = time.monotonic()
        there = broker.topics()
        for topic in sorted({*self._senders, *(self.topic(name, other) for other in self._others)} - there):
            broker.create(topic, LIMITS)
        self._consumer = broker.consumer()
        mine = [broker.partition(topic) for topic in self._senders]
        broker.assign(self._consumer, mine)
        broker.rewind(self._consumer, mine)
        self._producer = broker.producer()

    # ---- as channels

    def read(self, name: str, after: Heads) -> list[Parcel]:
        found: list[Parcel] = []
        for record in self._consumer.poll(self.broker.wait(POLL_MS)).iterator():
            sender, word, data = self._senders[record.topic()], record.key(), bytes(record.value())
            if sender == OPERATOR and word in (HELD, RELEASED):
                self._hold(data.decode(), held=word == HELD)
                continue
            self._read[record.topic()] = record.offset()
            found.append(Parcel(sender, name, word, data))
        return sorted(found, key=lambda parcel: (parcel.sender, parcel.place))

    def post(self, parcels: Sequence[Parcel]) -> None:
        record = self.broker.jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [
            self._producer.send(record(self.topic(one.sender, one.receiver), one.place, bytearray(one.data)))
            for one in parcels
        ]
        self._producer.flush()
        for future in sent:
            future.get()

    def prune(self, name: str, upto: Heads) -> None:
        read = {topic: offset for topic, offset in self._read.items() if self._senders[topic] != OPERATOR}
        if time.monotonic() - self._pruned_s >= PRUNE_S and read:
            self._pruned_s = time.monotonic()
            self.broker.delete(read)

    def known(self, name: str) -> bool:
        ends = self.broker.ends(self.topic(name, other) for other in self._others)
        return any(end > 0 for end in ends.values())

    def topic(self, sender: str, receiver: str) -> str:
        return named(self.address, sender, receiver)

    def _hold(self, sender: str, *, held: bool) -> None:
        one = self.broker.jvm.java.util.Collections.singleton(self.broker.partition(self.topic(sender, self.name)))
        (self._consumer.pause if held else self._consumer.resume)(one)


class Operator:
    """Who runs sites whose channels are topics, and what he says to replicas."""

    def __init__(self, broker: Broker, address: Topic) -> None:
        self.broker, self.address = broker, address
        self._producer = broker.producer()

    def hold(self, sender: str, receiver: str, *, held: bool) -> None:
        """Makes a channel unreadable, or readable again."""
        self._say(receiver, HELD if held else RELEASED, sender.encode())

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Says something to replicas."""
        for parcel in parcels:
            self._say(parcel.receiver, parcel.place, parcel.data)

    def _say(self, receiver: str, word: str, data: bytes) -> None:
        topic = named(self.address, OPERATOR, receiver)
        self.broker.create(topic, LIMITS)
        record = self.broker.jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer.send(record(topic, word, bytearray(data))).get()


def named(address: Topic, sender: str, receiver: str) -> str:
    """The topic between two; names of topics have no #."""
    return f"{address.name}.{sender.replace('#', '-')}.{receiver.replace('#', '-')}"
