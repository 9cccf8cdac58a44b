"""aiokafka's clients as far as the runtime uses them, on the in-memory Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from tests.simulation.kafka import Kafka, Stored, answer, fail

BATCH_TIMEOUT_S = 20.0
"""How long a producer tries to deliver a batch, at most."""


class Consumer:
    """AIOKafkaConsumer with partitions assigned by hand."""

    def __init__(self, kafka: Kafka, **_: Any) -> None:
        self._kafka = kafka
        self._positions: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._coordinator = self

    async def start(self) -> None:
        await self._kafka.call("connect", lambda: None)

    async def stop(self) -> None:
        """Nothing is held."""

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(places)

    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def pause(self, *places: TopicPartition) -> None:
        self._paused.update(places)

    def resume(self, *places: TopicPartition) -> None:
        self._paused.difference_update(places)

    def seek(self, place: TopicPartition, offset: int) -> None:
        if place not in self._positions:
            raise IllegalStateError(f"{place} is not assigned")
        self._positions[place] = offset

    async def seek_to_beginning(self, *places: TopicPartition) -> None:
        for place, offset in (await self.beginning_offsets(places or self._positions)).items():
            self._positions[place] = offset

    async def seek_to_end(self, *places: TopicPartition) -> None:
        for place, offset in (await self.end_offsets(places or self._positions)).items():
            self._positions[place] = offset

    async def position(self, place: TopicPartition) -> int:
        offset = self._positions[place]
        if offset is None:
            offset = self._positions[place] = self._kafka.log(*place).start
        return offset

    async def getone(self) -> Stored:
        while True:
            for records in (await self.getmany(timeout_ms=1000, max_records=1)).values():
                return records[0]

    async def getmany(
        self, *places: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Stored]]:
        """Some of what there is after the positions. A failing broker is no error here: nothing comes."""
        kafka = self._kafka
        wanted = [place for place in (places or self._positions) if place not in self._paused]

        def fetch() -> dict[TopicPartition, list[Stored]]:
            found = {}
            for place in sorted(wanted):
                log, offset = kafka.log(*place), self._positions[place]
                offset = log.start if offset is None else max(offset, log.start)
                first = log.at(offset)
                records = log.records[first : first + min(kafka.rng.randint(1, 60), max_records or 60)]
                if records:
                    found[place] = records
                elif offset < log.end:
                    # Compaction took all that was left.
                    self._positions[place] = log.end
            return found

        started = kafka.loop.time()
        try:
            fetched = await kafka.call(f"read {_names(wanted)}", fetch)
        except KafkaError:
            fetched = {}
        if not fetched:
            await asyncio.sleep(max(0.0, started + timeout_ms / 1000 - kafka.loop.time()))
        for place, records in fetched.items():
            self._positions[place] = records[-1].offset + 1
        return fetched

    async def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = list(places)
        return await self._kafka.call("starts", lambda: {place: self._kafka.log(*place).start for place in asked})

    async def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = list(places)
        return await self._kafka.call("ends", lambda: {place: self._kafka.log(*place).end for place in asked})

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        def find() -> dict[TopicPartition, OffsetAndTimestamp | None]:
            found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
            for place, since in times.items():
                late = (record for record in self._kafka.log(*place).records if record.timestamp >= since)
                first = next(late, None)
                found[place] = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp)
            return found

        return await self._kafka.call("offsets for times", find)

    async def fetch_committed_offsets(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of aiokafka's coordinator, which a consumer has as `_coordinator`."""
        asked = list(places)
        known = self._kafka.committed
        return await self._kafka.call("committed", lambda: {place: known[place] for place in asked if place in known})


class _Batch:
    def __init__(self) -> None:
        self.messages: list[tuple[bytes | None, bytes | None, Any, asyncio.Future[Stored]]] = []
        self.stored: list[Stored] | None = None


class Producer:
    """AIOKafkaProducer, idempotent: a batch is appended once, however often it is sent, and in order per partition."""

    def __init__(self, kafka: Kafka, **_: Any) -> None:
        self._kafka = kafka
        self._open: dict[TopicPartition, _Batch] = {}
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._kafka.call("connect producer", lambda: None)

    async def stop(self) -> None:
        """Deliver what is waiting. Who does not wait for that leaves the batches on their way."""
        if self._sending:
            await asyncio.wait([*self._sending])

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = None,
    ) -> asyncio.Future[Stored]:
        kafka = self._kafka
        if kafka.weather.failing and kafka.rng.random() < kafka.weather.failing / 20:
            await asyncio.sleep(1)
            raise KafkaTimeoutError("simulated: no metadata")
        if partition is None:
            partition = crc32(key or b"") % kafka.partitions
        place = TopicPartition(topic, partition)
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = _Batch()
            task = asyncio.ensure_future(self._deliver(place, batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        future: asyncio.Future[Stored] = kafka.loop.create_future()
        batch.messages.append((key, value, headers or (), future))
        return future

    async def send_and_wait(self, *args: Any, **kwargs: Any) -> Stored:
        return await (await self.send(*args, **kwargs))

    async def flush(self) -> None:
        await self.stop()

    async def _deliver(self, place: TopicPartition, batch: _Batch) -> None:
        kafka = self._kafka
        async with self._locks.setdefault(place, asyncio.Lock()):
            await asyncio.sleep(0.005)
            if self._open.get(place) is batch:
                del self._open[place]

            def append() -> list[Stored]:
                if batch.stored is None:
                    batch.stored = [kafka.append(*place, *message[:3]) for message in batch.messages]
                return batch.stored

            give_up_at = kafka.loop.time() + BATCH_TIMEOUT_S * kafka.rng.random()
            while True:
                try:
                    stored = await kafka.call(f"append {len(batch.messages)} to {_names([place])}", append)
                except KafkaError as error:
                    if kafka.loop.time() > give_up_at:
                        for *_, future in batch.messages:
                            fail(future, error)
                        return
                    await asyncio.sleep(0.1)
                else:
                    for record, (*_, future) in zip(stored, batch.messages, strict=True):
                        answer(future, record)
                    return


def _names(places: Iterable[TopicPartition]) -> str:
    return " ".join(f"{place.topic.removeprefix('agenttrace.')}/{place.partition}" for place in places)
