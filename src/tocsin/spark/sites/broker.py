"""How is a Kafka broker spoken to without Spark's own sources? With the clients of its connector, in the session's JVM.

Nothing has to be installed for that but what Spark needs to read Kafka. Clients take their time to give up; how long
that is stands here, so that whoever waits for a broker that is away can say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

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
