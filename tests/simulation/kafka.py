"""An in-memory Kafka on virtual time: logs, committed offsets, and the way to them.

Every call of a client is a request with a way there and a way back, each of which the weather can delay or lose, and at
each of which the process that made the call can be killed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple, TypeVar

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    RequestTimedOutError,
)
from aiokafka.structs import OffsetAndMetadata

from tests.simulation.loop import PROCESS, VirtualLoop

T = TypeVar("T")

LOG_APPEND_TIME = 1


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
        *,
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
        waiting: asyncio.Future[T] = self.loop.create_future()
        there, back = 0.001 * rng.random(), 0.001 * rng.random()
        if rng.random() < max(weather.slow, 0.05):
            there, back = (rng.random() * rng.choice([0.1, 1, 4]) for _ in range(2))
        lost: str | None = None
        if weather.failing and rng.random() < weather.failing:
            lost = "late" if rng.random() < weather.late else rng.choice(["request", "answer"])

        def arrive() -> None:
            if process.dead and process.lost_in_flight:
                return
            if weather.down or lost == "request":
                self.say(f"{process.name}: {what}: lost")
                self.loop.call_later(rng.random() * 2, fail, waiting, rng.choice(FAILURES)("simulated"))
                return
            if lost == "late":
                self.say(f"{process.name}: {what}: late")
                self.loop.call_later(rng.random() * 0.5, fail, waiting, rng.choice(FAILURES)("simulated"))
                self.loop.call_later(0.5 + rng.random() * 3, _try, effect)
                return
            try:
                result = effect()
            except KafkaError as error:
                self.say(f"{process.name}: {what}: {type(error).__name__}")
                self.loop.call_later(back, fail, waiting, error)
                return
            self.say(f"{process.name}: {what}{': answer lost' if lost else ''}")
            if lost:
                self.loop.call_later(rng.random() * 2, fail, waiting, rng.choice(FAILURES)("simulated"))
            else:
                self.loop.call_later(back, answer, waiting, result)

        # What has been sent goes on its way whatever becomes of the process, so not as a part of it.
        token = PROCESS.set(None)
        self.loop.call_later(there, arrive)
        PROCESS.reset(token)
        return await waiting


FAILURES: tuple[type[KafkaError], ...] = (KafkaConnectionError, RequestTimedOutError, NodeNotReadyError)


def _try(effect: Callable[[], Any]) -> None:
    try:
        effect()
    except KafkaError:
        pass


def answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
