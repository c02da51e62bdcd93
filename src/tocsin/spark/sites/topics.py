"""How do sites that share no disk speak? Over Kafka: a topic of one partition for each direction between two replicas.

    PREFIX.SENDER.RECEIVER        records: the place of a parcel, the parcel

The clients are those of Spark's Kafka connector, in the JVM of the session. A site that starts reads its topics from
their beginning, and the host passes over what it has had, as over a record that is sent again by a site that does not
know whether it had sent it: both have a place. What a receiver has committed is deleted from the topic now and then; a
topic that grows beyond its limit loses its oldest records, as a link that is cut, and the protocol sends them again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from tocsin.spark.kafka import Topic
from tocsin.spark.sites.channels import Heads, Parcel
from tocsin.spark.sites.plans import Plan

PARCEL_BYTES_MAX = 64 * 1024 * 1024
TOPIC_BYTES_MAX = 4 * PARCEL_BYTES_MAX
PRUNE_S = 5.0
PRODUCER = {
    "acks": "all",
    "max.block.ms": "10000",
    "request.timeout.ms": "5000",
    "delivery.timeout.ms": "15000",
    "linger.ms": "0",
    "max.request.size": str(PARCEL_BYTES_MAX),
    "buffer.memory": str(2 * PARCEL_BYTES_MAX),
    "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
}

CONSUMER = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "max.partition.fetch.bytes": str(PARCEL_BYTES_MAX),
    "request.timeout.ms": "5000",
    "default.api.timeout.ms": "10000",
    "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
}
POLL_MS = 20


class Topics:
    """The channels of one replica. `spark`: a session whose JVM has the Kafka connector on its class path."""

    def __init__(self, spark: SparkSession, plan: Plan, name: str) -> None:
        assert plan.hosting.topics is not None
        self.address: Topic = plan.hosting.topics
        self.name = name
        self._jvm: Any = spark._jvm
        self._array = spark.sparkContext._gateway.new_array
        # Whom it may hear and whom it may speak to are the same.
        self._others = plan.senders(name)
        self._senders = {self.topic(other, name): other for other in self._others}
        self._read: dict[str, int] = {}
        """By topic the last offset that was read."""
        self._pruned_s = time.monotonic()
        # Clients take their time to give up, so what they would say while the broker is away is said by the caller.
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(
            self._properties({"request.timeout.ms": "5000", "default.api.timeout.ms": "10000"})
        )
        self._create()
        clients = self._jvm.org.apache.kafka.clients
        self._consumer = clients.consumer.KafkaConsumer(self._properties(CONSUMER))
        mine = self._jvm.java.util.ArrayList()
        for topic in self._senders:
            mine.add(self._partition(topic))
        self._consumer.assign(mine)
        self._consumer.seekToBeginning(mine)
        self._producer = clients.producer.KafkaProducer(self._properties(PRODUCER))

    def close(self) -> None:
        """Lets go of the broker."""
        wait = self._jvm.java.time.Duration.ofSeconds(1)
        for client in (self._consumer, self._producer, self._admin):
            with contextlib.suppress(Exception):  # it may be in use still, by a batch that is about to end
                client.close(wait)

    # ---- as channels

    def read(self, name: str, after: Heads) -> list[Parcel]:
        found = []
        for record in self._consumer.poll(self._jvm.java.time.Duration.ofMillis(POLL_MS)).iterator():
            self._read[record.topic()] = record.offset()
            found.append(Parcel(self._senders[record.topic()], name, record.key(), bytes(record.value())))
        return sorted(found, key=lambda parcel: (parcel.sender, parcel.place))

    def post(self, parcels: Sequence[Parcel]) -> None:
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [
            self._producer.send(record(self.topic(one.sender, one.receiver), one.place, bytearray(one.data)))
            for one in parcels
        ]
        self._producer.flush()
        for future in sent:
            future.get()

    def prune(self, name: str, upto: Heads) -> None:
        if time.monotonic() - self._pruned_s < PRUNE_S or not self._read:
            return
        self._pruned_s = time.monotonic()
        before = self._jvm.java.util.HashMap()
        for topic, offset in self._read.items():
            before.put(self._partition(topic), self._up_to(offset))
        self._admin.deleteRecords(before).all().get()

    def known(self, name: str) -> bool:
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        asked = self._jvm.java.util.HashMap()
        for other in self._others:
            asked.put(self._partition(self.topic(name, other)), spec)
        found = self._admin.listOffsets(asked).all().get()
        return any(found.get(partition).offset() > 0 for partition in asked.keySet())

    # ---- the broker

    def topic(self, sender: str, receiver: str) -> str:
        """Names of topics have no #."""
        return f"{self.address.name}.{sender.replace('#', '-')}.{receiver.replace('#', '-')}"

    def _create(self) -> None:
        """Makes the topics of this replica that are not there."""
        admin = self._jvm.org.apache.kafka.clients.admin
        optional = self._jvm.java.util.Optional
        there = self._admin.listTopics().names().get()
        wanted = {self.topic(*pair) for other in self._others for pair in ((self.name, other), (other, self.name))}
        limits = self._jvm.java.util.HashMap()
        for option, value in (
            ("max.message.bytes", PARCEL_BYTES_MAX),
            ("retention.bytes", TOPIC_BYTES_MAX),
            ("segment.bytes", PARCEL_BYTES_MAX),
            ("retention.ms", -1),
        ):
            limits.put(option, str(value))
        for name in sorted(wanted):
            if there.contains(name):
                continue
            new = admin.NewTopic(name, optional.of(1), optional.empty()).configs(limits)
            try:
                self._admin.createTopics(self._jvm.java.util.Collections.singleton(new)).all().get()
            except Exception as error:
                if "TopicExistsException" not in str(error):  # another site was quicker
                    raise

    def _up_to(self, offset: int) -> Any:
        """All records up to this one. Py4J cannot tell the static method from that of instances of the same name."""
        kinds = self._array(self._jvm.java.lang.Class, 1)
        kinds[0] = self._jvm.java.lang.Long.TYPE
        given = self._array(self._jvm.java.lang.Object, 1)
        given[0] = offset + 1
        kind = self._jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        return kind.getMethod("beforeOffset", kinds).invoke(None, given)

    def _partition(self, topic: str) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, 0)

    def _properties(self, given: dict[str, str]) -> Any:
        properties = self._jvm.java.util.Properties()
        properties.put("bootstrap.servers", ",".join(self.address.servers))
        for name, value in given.items():
            properties.put(name, value)
        return properties
