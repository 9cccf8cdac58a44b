"""One worker process: the real host and inputs, driven as Faust and aiokafka's consumer drive them.

What is modelled of them: fetching ahead in batches with random borders, a queue before the one agent that is emptied in
a rebalance, acknowledgements that are committed once a second, and membership with heartbeats. What a rebalance may
lose, repeat or let through late, this loses, repeats and lets through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata

from pipelines.runtime.host import Host
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.transport import BUFFERED_BATCHES, COMMIT_INTERVAL_S, told_to_text
from pipelines.runtime.worker import FaustInputs
from schemas.topics import INPUT_TOPICS
from tests.simulation.kafka import Kafka, Stored
from tests.simulation.loop import Process
from tests.simulation.members import Coordinator, Joined


class _Place:
    """What aiokafka knows of an assigned partition."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.highwater: int | None = None
        self.timestamp: int | None = None


class Worker:
    """A worker process from its start to its end."""

    def __init__(
        self, kafka: Kafka, group: Coordinator, rng: Random, process: Process, settings: WorkerSettings
    ) -> None:
        self.kafka = kafka
        self.group = group
        self.process = process
        self.settings = settings
        self.rng = rng
        self.defects: list[str] = []
        self._places: dict[tuple[str, int], _Place] = {}
        self._queue: deque[list[Stored]] = deque()
        self._filled = asyncio.Event()
        self._flowing = False
        self._acked: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._coordinator = SimpleNamespace(generation=-1, member_id="")
        self._tick_s = rng.choice([1.0, 1.0, 1.5, 2.5])
        self._fetch_s = rng.choice([0.1, 0.5, 0.5, 1.0])
        # So that two workers read the topics in very different interleavings.
        self.lagging = {topic for topic in INPUT_TOPICS if rng.random() < 0.25}
        self._heartbeat_s = min(2.0, settings.session_timeout_s / 3)
        self._tasks: list[asyncio.Task[Any]] = []
        # What FaustInputs looks at inside of Faust.
        assignment = SimpleNamespace(state_value=self._places_get)
        consumer = SimpleNamespace(
            _coordinator=self._coordinator,
            assignment=lambda: {TopicPartition(*place) for place in self._places},
            _subscription=SimpleNamespace(subscription=SimpleNamespace(assignment=assignment)),
        )
        thread = SimpleNamespace(alive_at=0.0, _consumer=consumer)
        self.app = SimpleNamespace(
            told={}, rebalancing=False, _consumer=SimpleNamespace(_thread=thread), consumer=SimpleNamespace()
        )
        self.app.consumer.seek_wait = self._seek_wait
        self.app.consumer._committed_offset = self._committed
        self.inputs = FaustInputs(self.app, settings)
        self.host: Host | None = None

    def start(self) -> None:
        """Start its tasks."""
        spawn = self.process.spawn
        self._tasks = [spawn(self._main(), "main")]

    async def _main(self) -> None:
        # Made here, so that whatever the host makes belongs to the process.
        self.host = Host(self.settings, self.inputs)
        failed = self.host._failed

        def note(partition: int, error: Exception) -> None:
            if not isinstance(error, KafkaError | OSError | TimeoutError):
                self.defects.append(f"{self.process.name}: {type(error).__name__}: {error}")
            failed(partition, error)

        self.host._failed = note  # type: ignore[method-assign]
        spawn = self.process.spawn
        self._tasks += [
            spawn(self._membership(), "membership"),
            spawn(self._agent(self.host), "agent"),
            spawn(self._fetch(), "fetch"),
            spawn(self._commits(), "commit"),
            spawn(self._tick(self.host), "tick"),
        ]

    async def leave(self) -> None:
        """SIGTERM: commit, leave the group, close."""
        assert self.host is not None
        self.host.stopping = True
        for task in self._tasks[1:]:
            task.cancel()
        await self._commit()
        try:
            member = self._coordinator.member_id
            await self.kafka.call(f"leave {member}", lambda: self.group.leave(member))
        except KafkaError:
            pass
        await self.host.stop()
        self.process.kill()

    # Membership.

    async def _membership(self) -> None:
        while True:
            await self._join()
            await self._stay()

    async def _join(self) -> None:
        self.app.rebalancing = True
        self._flowing = False
        generation = self._coordinator.generation
        self._acked.clear()
        self._committed.clear()
        # A batch that has left the queue before it is cleared comes to the agent all the same, now or afterwards.
        kept = self._queue[0] if self._queue and self.rng.random() < 0.2 else None
        self._queue.clear()
        if kept is not None:
            self._queue.append(kept)
        while True:
            member = self._coordinator.member_id
            try:
                joining = await self.kafka.call(f"join as {member or 'somebody new'}", partial(self.group.join, member))
                joined: Joined = await asyncio.wait_for(asyncio.shield(joining), 30.0)
                # The assignment comes by a second request, which may fail as well.
                sync = partial(self.group.heartbeat, joined.member, joined.generation)
                await self.kafka.call(f"sync {joined.member}", sync)
                break
            except (UnknownMemberIdError, IllegalGenerationError):
                self._coordinator.member_id, self._coordinator.generation = "", -1
            except (KafkaError, TimeoutError):
                await asyncio.sleep(0.1)
        self._coordinator.member_id, self._coordinator.generation = joined.member, joined.generation
        self._places = {
            (topic, partition): _Place() for topic in INPUT_TOPICS for partition in sorted(joined.partitions)
        }
        await asyncio.sleep(self.rng.random() * 0.2)
        self.inputs.assigned_now()
        assert self.host is not None
        self.host.keep(joined.partitions)
        self.kafka.say(f"has {sorted(joined.partitions)} in generation {joined.generation}, had {generation}")
        places = self._places
        while True:
            try:
                known = await self.kafka.call(
                    "committed", lambda: {place: self.kafka.committed.get(place) for place in places}
                )
                break
            except KafkaError:
                await asyncio.sleep(0.1)
        for place, found in known.items():
            places[place].position = found.offset if found is not None else self.kafka.log(*place).start
            if found is not None:
                self._committed[place] = found.offset
        self._flowing = True
        self.app.rebalancing = False
        self._filled.set()

    async def _stay(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(0.1 if failed else self._heartbeat_s)
            asked_at = self.kafka.loop.time()
            member, generation = self._coordinator.member_id, self._coordinator.generation
            try:
                stable = await self.kafka.call(f"heartbeat {member}", partial(self.group.heartbeat, member, generation))
            except (UnknownMemberIdError, IllegalGenerationError):
                self._coordinator.member_id, self._coordinator.generation = "", -1
                await asyncio.sleep(self.rng.random() * 0.1)
                return
            except KafkaError:
                failed = True
                continue
            failed = False
            self.app._consumer._thread.alive_at = asked_at
            if not stable:
                await asyncio.sleep(self.rng.random() * 0.1)
                return

    # Batches.

    async def _fetch(self) -> None:
        while True:
            if not self._flowing or len(self._queue) >= BUFFERED_BATCHES:
                await asyncio.sleep(0.1)
                continue
            places, rng = self._places, self.rng
            asked = {place: state.position for place, state in places.items() if state.position is not None}

            try:
                fetched = await self.kafka.call("fetch", partial(self._read, asked))
            except KafkaError:
                await asyncio.sleep(self._fetch_s)
                continue
            if places is not self._places or not self._flowing:
                continue
            now_ms = self.settings.clock()
            order = list(fetched)
            rng.shuffle(order)
            got = False
            for place in order:
                state, (highwater, records) = places[place], fetched[place]
                if state.position != asked[place]:
                    continue
                state.highwater, state.timestamp = highwater, now_ms
                if place[0] in self.lagging and rng.random() < 0.9:
                    continue
                if records and len(self._queue) < BUFFERED_BATCHES:
                    got = True
                    state.position = records[-1].offset + 1
                    self._deliver(place, state, records)
            await asyncio.sleep(0.01 if got and rng.random() < 0.7 else self._fetch_s)

    def _read(self, asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, list[Stored]]]:
        """The broker's side of a fetch: the end of each partition, and some records from the position on."""
        found = {}
        for place, position in asked.items():
            log = self.kafka.log(*place)
            first = log.at(position)
            most = self.rng.randint(1, self.rng.choice([2, 10, 60]))
            found[place] = log.end, log.records[first : first + most]
        return found

    def _deliver(self, place: tuple[str, int], state: _Place, records: list[Stored]) -> None:
        dice = self.rng.random()
        if dice < 0.03:
            self.kafka.say(f"{_where(records)} lost")
            return
        if dice < 0.06:
            # Once more, in other batches.
            state.position = self.rng.randint(max(0, records[0].offset - 3), records[-1].offset + 1)
        self._queue.append(records)
        self._filled.set()

    async def _agent(self, host: Host) -> None:
        while True:
            while not self._queue or (not self._flowing and self.rng.random() < 0.95):
                self._filled.clear()
                if self._queue:
                    await asyncio.sleep(0.05)
                else:
                    await self._filled.wait()
            records = self._queue.popleft()
            self.kafka.say(f"takes {_where(records)}")
            place = records[0].topic, records[0].partition
            if await host.on_batch(*place, records):
                self._acked[place] = max(self._acked.get(place, 0), records[-1].offset + 1)
                self.kafka.say(f"acknowledges {_where(records)}")

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self._commit()

    async def _commit(self) -> None:
        acked, self._acked = self._acked, {}
        told = self.app.told
        offsets = {
            place: OffsetAndMetadata(offset, told_to_text(told.get(place[1]), place[0], offset))
            for place, offset in acked.items()
            if place in self._places and offset > self._committed.get(place, 0)
        }
        if not offsets:
            return
        member, generation = self._coordinator.member_id, self._coordinator.generation
        shown = {f"{topic.removeprefix('agenttrace.')}/{n}": tuple(note) for (topic, n), note in offsets.items()}
        while True:
            try:
                await self.kafka.call(f"commit {shown}", lambda: self.group.commit(member, generation, offsets))
            except (UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError):
                return
            except KafkaError:
                if self.host is not None and self.host.stopping:
                    return
                await asyncio.sleep(0.1)
            else:
                break
        self._committed.update({place: note.offset for place, note in offsets.items()})

    async def _tick(self, host: Host) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            await host.tick()

    async def _seek_wait(self, offsets: dict[Any, int]) -> None:
        for place, offset in offsets.items():
            if tuple(place) not in self._places:
                raise IllegalStateError(f"{place} is not assigned")
            self._places[tuple(place)].position = offset
            self.kafka.say(f"goes back to {place[0]}/{place[1]}/{offset}")

    def _places_get(self, place: TopicPartition) -> _Place | None:
        return self._places.get((place.topic, place.partition))


def _where(records: list[Stored]) -> str:
    first, last = records[0], records[-1]
    return f"{first.topic.removeprefix('agenttrace.')}/{first.partition}/{first.offset}…{last.offset}"
