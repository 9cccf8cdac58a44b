"""Reads the log again: to make a group's state from it, or to fill a gap between a state and the next batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from pipelines.runtime import checkpoint
from pipelines.runtime.checkpoint import Manifest
from pipelines.runtime.group import Group
from pipelines.runtime.kafka import CHUNK, POLL_MS, STALLED_POLLS
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.transport import Note, told_from_text

log = logging.getLogger(__name__)

CREATE_TIME = 0
"""Kafka's timestamp type where the producer sets the log time, as a mirrored topic has it."""


class LogReader:
    """Reads one partition number of all input topics by offsets, outside the consumer group's assignment."""

    def __init__(self, consumer: AIOKafkaConsumer, settings: WorkerSettings, group: Group) -> None:
        self._consumer = consumer
        self._settings = settings
        self.group = group
        self._places = {
            topic: TopicPartition(settings.topic_prefix + topic, group.partition) for topic in group.next_offsets
        }
        self._topics = {place: topic for topic, place in self._places.items()}
        self.create_time = False
        self.end: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.settled_ms = 0
        self.checkpoint: tuple[int, Manifest] | None = None

    @property
    def places(self) -> list[TopicPartition]:
        """The partitions it reads."""
        return list(self._topics)

    async def rebuild(self) -> None:
        """Make the group's state up to the committed offsets, outputs muted: from a checkpoint, else from the horizon.

        Without a checkpoint the state is partial if records that it should know were deleted, or are more than
        `rebuild_max_records`. With one, `group` is another object afterwards.
        """
        places = self._places
        begin = self._by_topic(await self._consumer.beginning_offsets(places.values()))
        end = self.end = self._by_topic(await self._consumer.end_offsets(places.values()))
        committed = await self._consumer._coordinator.fetch_committed_offsets([*places.values()])
        upto = {
            topic: min(max(begin[topic], committed[place].offset if place in committed else 0), end[topic])
            for topic, place in places.items()
        }
        notes = {
            topic: told_from_text(committed[place].metadata or "", upto[topic]) if place in committed else Note()
            for topic, place in places.items()
        }
        # A worker before has said all that was due by `told`, with this state or a later one; this state itself knows
        # all records only up to the first that it has yet to read.
        last = max(notes.values(), key=lambda note: (note.by_ms, -note.settled_ms))
        told, self.settled_ms = last.by_ms, last.settled_ms
        self.settled = {topic: upto[topic] if last.all_settled else note.settled for topic, note in notes.items()}
        unread = [await self._log_time(topic, offset) - 1 for topic, offset in upto.items() if offset < end[topic]]
        told = min([told, *unread])
        pointers = sorted({note.checkpoint for note in notes.values()} - {checkpoint.NONE}, reverse=True)
        start = await self._load(pointers, begin, upto, told) or await self._from_horizon(begin, upto, told)
        group = self.group
        group.begin_rebuild(start, self.settled, self.settled_ms)
        # First what is settled: what follows from it alone needs no repeating.
        settled = {topic: min(self.settled[topic], offset) for topic, offset in upto.items()}
        for bound in (settled, upto):
            async for _ in self._read(dict(group.next_offsets), bound):
                left = [topic for topic, offset in upto.items() if group.next_offsets[topic] < offset]
                group.progress(min([told, *(group.log_times.get(topic, 0) for topic in left)]))
        group.end_rebuild(upto, told)

    async def _load(
        self, pointers: Iterable[int], begin: Mapping[str, int], upto: Mapping[str, int], told: int
    ) -> Mapping[str, int] | None:
        """Take the state over from the first of these checkpoints that fits; the offsets that it is folded up to."""
        code, said_ms = checkpoint.code_of(self.group.operators), min(told, self.settled_ms)
        for pointer in pointers:
            found = await checkpoint.read(
                self._settings,
                self.group.partition,
                pointer,
                lambda manifest: manifest.fits(code, begin, upto, self.settled, said_ms),
            )
            if found is None:
                continue
            manifest, parts = found
            group = Group(self.group.partition, self._settings.operators)
            try:
                group.load(parts)
            except ValueError as error:
                log.warning("partition %d: checkpoint %d cannot be loaded: %s", group.partition, pointer, error)
                continue
            self.group, self.checkpoint = group, (pointer, manifest)
            self.create_time = manifest.create_time
            return manifest.offsets
        return None

    async def _from_horizon(self, begin: Mapping[str, int], upto: Mapping[str, int], told: int) -> Mapping[str, int]:
        """The offsets from which an empty state must be folded to know all that matters."""
        group, places = self.group, self._places
        since = max(min(told, self.settled_ms) - group.horizon_ms, 0)
        found = await self._consumer.offsets_for_times(dict.fromkeys(places.values(), since))
        start: dict[str, int] = {}
        partial = False
        share = self._settings.rebuild_max_records // len(places)
        for topic, place in places.items():
            first = found.get(place)
            start[topic] = upto[topic] if first is None else min(first.offset, upto[topic])
            if first is not None and 0 < begin[topic] == first.offset < upto[topic] and first.timestamp > since:
                partial = True
            if upto[topic] - start[topic] > share:
                start[topic] = upto[topic] - share
                partial = True
        if partial:
            group.partial_until_ms = told + group.horizon_ms
        return start

    async def fill(self, topic: str, upto: int) -> AsyncIterator[None]:
        """Fold what lies between the group's state and offset `upto`; yields when there may be outputs to send."""
        async for _ in self._read({topic: self.group.next_offsets[topic]}, {topic: upto}):
            yield

    async def _read(self, start: Mapping[str, int], upto: Mapping[str, int]) -> AsyncIterator[None]:
        consumer = self._consumer
        left = {topic for topic in start if start[topic] < upto[topic]}
        for topic in left:
            consumer.seek(self._places[topic], start[topic])
            consumer.resume(self._places[topic])
        stalled = 0
        while left:
            batches = await consumer.getmany(timeout_ms=POLL_MS)
            stalled = 0 if batches else stalled + 1
            if stalled > STALLED_POLLS:
                raise TimeoutError(f"no records of {', '.join(sorted(left))} for {stalled * POLL_MS // 1000} s")
            for place, records in batches.items():
                topic = self._topics[place]
                self.create_time = self.create_time or records[0].timestamp_type == CREATE_TIME
                wanted = [record for record in records if record.offset < upto[topic]]
                for at in range(0, len(wanted), CHUNK):
                    self.group.feed(topic, wanted[at : at + CHUNK])
                    await asyncio.sleep(0)
            for topic in [*left]:
                # The position also passes what is no record, such as a transaction's marker.
                if await consumer.position(self._places[topic]) >= upto[topic]:
                    consumer.pause(self._places[topic])
                    left.discard(topic)
            yield

    async def _log_time(self, topic: str, offset: int) -> int:
        place = self._places[topic]
        self._consumer.seek(place, offset)
        self._consumer.resume(place)
        try:
            for _ in range(STALLED_POLLS):
                records = (await self._consumer.getmany(place, timeout_ms=POLL_MS)).get(place)
                if records:
                    return int(records[0].timestamp)
            raise TimeoutError(f"{place.topic}/{place.partition}/{offset} cannot be read")
        finally:
            self._consumer.pause(place)

    def _by_topic(self, offsets: Mapping[TopicPartition, int]) -> dict[str, int]:
        return {self._topics[place]: offset for place, offset in offsets.items()}


@asynccontextmanager
async def log_reader(settings: WorkerSettings, group: Group) -> AsyncIterator[LogReader]:
    """A LogReader with a connection of its own. Raises KafkaError or OSError."""
    kwargs: dict[str, Any] = dict(settings.kafka)
    consumer = settings.consumer(
        # Knows the group's committed offsets, but never joins it: partitions are assigned by hand.
        group_id=settings.group_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=200,
        **kwargs,
    )
    try:
        await consumer.start()
        reader = LogReader(consumer, settings, group)
        consumer.assign(reader.places)
        # Each topic is fetched only while it is wanted.
        consumer.pause(*reader.places)
        yield reader
    finally:
        await consumer.stop()
