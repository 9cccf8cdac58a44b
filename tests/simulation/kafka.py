"""An in-memory Kafka on virtual time, with aiokafka's clients as far as the runtime uses them.

Every call of a client is a request with a way there and a way back, each of which the weather can delay or lose, and at
each of which the process that made the call can be killed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from aiokafka import TopicPartition
from aiokafka.errors import (
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
)
from aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from tests.simulation.loop import PROCESS, VirtualLoop

T = TypeVar("T")

LOG_APPEND_TIME = 1
BATCH_TIMEOUT_S = 20.0
"""How long a producer tries to deliver a batch."""


class Stored(NamedTuple):
    """A record as a consumer gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_type: int = LOG_APPEND_TIME


class Log:
    """One partition of one topic; offsets only grow, records may go from its start or, in compaction, from anywhere."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.start = 0
        self.end = 0

    def at(self, offset: int) -> int:
        """Index of the first record at or after an offset."""
        return bisect_left(self.records, offset, key=lambda record: record.offset)


class Weather:
    """What goes wrong between clients and broker now. Changed by the storyteller."""

    def __init__(self) -> None:
        self.down = False
        self.failing = 0.0
        """Share of requests that fail, with or without their effect."""
        self.slow = 0.0
        """Share of requests that take up to seconds."""
        self.late = 0.0
        """Of the failing ones, the share whose effect comes after the client has given up."""


class Kafka:
    """Topics, committed offsets, and the way to them."""

    def __init__(self, loop: VirtualLoop, rng: Random, wall_ms: int, partitions: int) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = Weather()
        self.partitions = partitions
        self.logs: dict[tuple[str, int], Log] = {}
        self.committed: dict[tuple[str, int], OffsetAndMetadata] = {}
        self.trace: list[tuple[float, str, str]] = []
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        """The broker's clock."""
        return self._wall_ms + int(self.loop.time() * 1000)

    def jump(self, ms: int) -> None:
        """That much time has passed for everybody's clock."""
        self._wall_ms += ms

    def log(self, topic: str, partition: int) -> Log:
        """The partition, made when it is first asked for."""
        log = self.logs.get((topic, partition))
        if log is None:
            log = self.logs[topic, partition] = Log()
        return log

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
        at_ms: int | None = None,
    ) -> Stored:
        """Append with the broker's time, or an earlier one."""
        log = self.log(topic, partition)
        at_ms = self.wall_ms() if at_ms is None else at_ms
        if log.records:
            at_ms = max(at_ms, log.records[-1].timestamp)
        record = Stored(topic, partition, log.end, at_ms, key, value, tuple(headers))
        log.records.append(record)
        log.end += 1
        return record

    def compact(self, topic: str) -> None:
        """Of each key only the last record stays, and of what is deleted none; whatever is in the topic by now."""
        for partition in range(self.partitions):
            log = self.log(topic, partition)
            last = {record.key: record.offset for record in log.records}
            kept = [record for record in log.records if last[record.key] == record.offset and record.value is not None]
            log.records = kept
        self.say(f"{topic} compacted")

    def say(self, what: str) -> None:
        """Into the trace, with the time and the process."""
        process = PROCESS.get()
        self.trace.append((self.loop.time(), process.name if process is not None else "", what))

    async def call(self, what: str, effect: Callable[[], T]) -> T:
        """One request of the process that runs now. Raises KafkaError if it failed, as far as the client can tell."""
        process, rng, weather = PROCESS.get(), self.rng, self.weather
        assert process is not None
        if process.dead:
            raise asyncio.CancelledError
        if process.fuse is not None and what.startswith(process.fuse_of):
            process.fuse -= 1
            if process.fuse < 0:
                after = rng.random() < 0.5
                self.say(f"killed {'after' if after else 'before'} {what}")
                if after:
                    _try(effect)
                process.lost_in_flight = True
                process.kill()
                raise asyncio.CancelledError
        answer: asyncio.Future[T] = self.loop.create_future()
        there, back = 0.001 * rng.random(), 0.001 * rng.random()
        if rng.random() < max(weather.slow, 0.02):
            there, back = (rng.random() * rng.choice([0.1, 1, 4]) for _ in range(2))
        lost: str | None = None
        if weather.failing and rng.random() < weather.failing:
            lost = "late" if rng.random() < weather.late else rng.choice(["request", "answer"])

        def arrive() -> None:
            if process.dead and process.lost_in_flight:
                return
            if weather.down or lost == "request":
                self.say(f"{process.name}: {what}: lost")
                self.loop.call_later(rng.random() * 2, _fail, answer, rng.choice(FAILURES)("simulated"))
                return
            if lost == "late":
                self.say(f"{process.name}: {what}: late")
                self.loop.call_later(rng.random() * 0.5, _fail, answer, rng.choice(FAILURES)("simulated"))
                self.loop.call_later(0.5 + rng.random() * 3, _try, effect)
                return
            try:
                result = effect()
            except KafkaError as error:
                self.say(f"{process.name}: {what}: {type(error).__name__}")
                self.loop.call_later(back, _fail, answer, error)
                return
            self.say(f"{process.name}: {what}{': answer lost' if lost else ''}")
            if lost:
                self.loop.call_later(rng.random() * 2, _fail, answer, rng.choice(FAILURES)("simulated"))
            else:
                self.loop.call_later(back, _answer, answer, result)

        # What has been sent goes on its way whatever becomes of the process, so not as a part of it.
        token = PROCESS.set(None)
        self.loop.call_later(there, arrive)
        PROCESS.reset(token)
        return await answer


FAILURES: tuple[type[KafkaError], ...] = (KafkaConnectionError, RequestTimedOutError, NodeNotReadyError)


def _try(effect: Callable[[], Any]) -> None:
    try:
        effect()
    except KafkaError:
        pass


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


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
                            _fail(future, error)
                        return
                    await asyncio.sleep(0.1)
                else:
                    for record, (*_, future) in zip(stored, batch.messages, strict=True):
                        _answer(future, record)
                    return


def _names(places: Iterable[TopicPartition]) -> str:
    return " ".join(f"{place.topic.removeprefix('agenttrace.')}/{place.partition}" for place in places)
