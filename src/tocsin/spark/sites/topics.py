"""How do sites that share no disk speak? Over Kafka: a topic of one partition for each direction between two replicas.

    PREFIX.SENDER.RECEIVER        records: the place of a parcel, the parcel
    PREFIX.operator.RECEIVER      what the operator says to a replica; read from its beginning by one that starts

A site that starts reads its topics from their beginning, and the host passes over what it has had, as over a record
that is sent again by a site that does not know whether it had sent it: both have a place. What a receiver has committed
is deleted from the topic now and then; a topic that grows beyond its limit loses its oldest records, as a link that is
cut, and the protocol sends them again. The operator's topics are not pruned: what he said stays.

A channel is held by a word of the operator, which is not handed on to the host: the receiver pauses its topic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tocsin.spark.kafka import Topic
from tocsin.spark.sites.broker import RECORD_BYTES_MAX, Broker
from tocsin.spark.sites.channels import HELD, OPERATOR, Heads, Parcel
from tocsin.spark.sites.plans import Plan

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
