"""The topics of one test on a real Kafka, worker processes, and what came out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from pipelines.replay import canonical_of_topics
from pipelines.runtime.port import CanonicalSet, Event
from schemas.topics import DLQ, INPUT_TOPICS, TOPIC_OF_EVENT, TOPICS
from tests.part_process import PartProcess
from tests.reading import read_topics

PARTITIONS = 2


class Broker:
    """The topics of one test, which have its prefix."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._producer: AIOKafkaProducer | None = None

    @property
    def kafka(self) -> dict[str, str]:
        """What a client takes."""
        return {"bootstrap_servers": self.bootstrap}

    async def create(self, leave_out: Sequence[str] = ()) -> None:
        """Make all topics of the table."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.create_topics(
                [
                    NewTopic(self.prefix + topic.name, PARTITIONS, 1, topic_configs=topic.config)
                    for topic in TOPICS
                    if topic.name not in leave_out
                ]
            )
        finally:
            await admin.close()

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """One topic with a partition count and settings of its own."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.prefix + topic, partitions, 1, topic_configs=config)])
        finally:
            await admin.close()

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """As retention does."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            place = TopicPartition(self.prefix + topic, partition)
            await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
        finally:
            await admin.close()

    async def publish(
        self, events: Sequence[Event | tuple[str, bytes]], partition: int = 0, times: Sequence[int | None] = ()
    ) -> None:
        """Append to a partition of each event's topic, in order; a (topic, value) goes as it is.

        `times` are log times (ms) for topics where the producer sets them.
        """
        if self._producer is None:
            self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, linger_ms=2)
            await self._producer.start()
        waiting = []
        for event, time_ms in zip_longest(events, times):
            topic, value = (
                event if isinstance(event, tuple) else (TOPIC_OF_EVENT[event["event_name"]], orjson.dumps(event))
            )
            waiting.append(
                await self._producer.send(
                    self.prefix + topic, value, key=b"k", partition=partition, timestamp_ms=time_ms
                )
            )
        await asyncio.gather(*waiting)

    async def read(self, topic: str) -> list[object]:
        """All records of a topic, as aiokafka gives them."""
        return await read_topics(self.kafka, [self.prefix + topic])

    async def said(self) -> CanonicalSet:
        """What the derived topics amount to."""
        return await canonical_of_topics(self.kafka, self.prefix)

    async def dlq(self) -> list[object]:
        """The refused records' receipts."""
        return await self.read(DLQ)

    async def lag(self, group: str) -> int:
        """Input records that the group has not committed."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            places = [
                TopicPartition(self.prefix + topic, number) for topic in INPUT_TOPICS for number in range(PARTITIONS)
            ]
            ends = await consumer.end_offsets(places)
            return sum([ends[place] - (await consumer.committed(place) or 0) for place in places])
        finally:
            await consumer.stop()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()


class Process(PartProcess):
    """A worker process."""

    def __init__(
        self, broker: Broker, log: Path, *, ttl_ms: int, port: int, operators: str, checkpoint_s: float
    ) -> None:
        args = [broker.bootstrap, broker.prefix, str(port), str(ttl_ms), operators, str(checkpoint_s)]
        super().__init__("tests.pipelines.runtime.worker_process", args, log, port)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def send(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)


async def until(condition: Callable[[], object], what: str, timeout_s: float = 40) -> object:
    """The condition's result once it is true; the condition may be async."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        await asyncio.sleep(0.1)
