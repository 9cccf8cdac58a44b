"""The topics of one test on a real Kafka, worker processes, and what came out."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from pipelines.replay import canonical_of_topics
from pipelines.runtime.port import CanonicalSet, Event
from schemas.topics import DLQ, INPUT_TOPICS, TOPIC_OF_EVENT, TOPICS

PARTITIONS = 2
ROOT = Path(__file__).parents[3]


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
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            places = [TopicPartition(self.prefix + topic, number) for number in range(PARTITIONS)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            await consumer.seek_to_beginning(*places)
            records: list[object] = []
            while any([await consumer.position(place) < ends[place] for place in places]):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    records += batch
            return records
        finally:
            await consumer.stop()

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


class Process:
    """A worker process."""

    def __init__(
        self, broker: Broker, log: Path, *, ttl_ms: int, port: int, operators: str, checkpoint_s: float
    ) -> None:
        self.port = port
        self._log = log
        args = [broker.bootstrap, broker.prefix, str(self.port), str(ttl_ms), operators, str(checkpoint_s)]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipelines.runtime.worker_process", *args],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def send(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)

    def terminate(self) -> float:
        """SIGTERM; the seconds until it is gone."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=15)
        return time.monotonic() - started

    def log(self) -> str:
        return self._log.read_text(errors="replace")


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
