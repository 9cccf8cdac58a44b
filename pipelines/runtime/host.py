"""Owns the partition groups of one worker: makes their state, feeds them, tells them progress, sends what they say.

Order of effects: decode → operators → outputs sent → broker acknowledged → batch acknowledged → Faust commits. A crash
between any two only repeats work; outputs have the same ids then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from aiokafka.errors import KafkaError

from pipelines.runtime import checkpoint
from pipelines.runtime.group import Group, Told
from pipelines.runtime.kafka import CHUNK
from pipelines.runtime.metrics import WorkerMetrics
from pipelines.runtime.rebuild import CREATE_TIME, log_reader
from pipelines.runtime.sender import Message, Sender, encode, refuse
from pipelines.runtime.settings import WorkerSettings
from schemas.topics import INPUT_TOPICS

log = logging.getLogger(__name__)

SETTLED_MS = 2000
"""A partition read to its end has nothing more to come from before now less this: clocks of hosts differ a little."""
CREATE_TIME_SETTLED_MS = 15 * 60_000
"""The same where producers set the log times (a mirrored topic): they can be this late."""
LOST_S = 5.0
"""Nothing delivered for so long though there is more: batches that were dropped in a rebalance do not come again."""
STALLED_S = 300.0
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class Inputs(Protocol):
    """What the host asks of the consumer. Topics are without prefix."""

    def joined(self) -> bool:
        """True once this worker is a member of the consumer group."""

    def member(self) -> str:
        """This worker's id in the group; it has another one once it was thrown out."""

    def fenced(self) -> bool:
        """True while the group may have given this worker's partitions to another."""

    def rebalancing(self) -> bool:
        """True while partitions change hands."""

    def assigned(self) -> Collection[int]:
        """Partition numbers of which this worker has all input topics."""

    def end(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Offset after the last record, and a time (ms, this host's clock) at which that was so; None if not known."""

    def told(self, partition: int, told: Told) -> None:
        """To go with the next commit."""

    def committed(self, topic: str, partition: int) -> int:
        """Offset from which the next worker would be delivered; 0 if nothing was committed."""

    async def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Deliver from this offset on."""


class _Owned:
    """A group with what the host must remember of it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.lock = asyncio.Lock()
        self.member: str | None = None
        """As which member of the consumer group the state was made; None while there is none."""
        self.pending: list[Message] = []
        self.repeat_from: dict[str, int] = {}
        """No worker before can have read beyond these offsets: they were the ends when this one had taken over."""
        self.settled: dict[str, int] | None = None
        self.settled_ms = 0
        self.create_time = False
        self.duplicates = 0
        self.saved = checkpoint.Saved(0.0)

    @property
    def is_settled(self) -> bool:
        """True if there is a state, and nothing of what it said has to be said once more."""
        return self.member is not None and self.settled is None


class _GivenAway(Exception):
    """The partition is not this worker's."""


class Host:
    """The groups of one worker. Everything runs in one event loop."""

    def __init__(self, settings: WorkerSettings, inputs: Inputs) -> None:
        self._settings = settings
        self._inputs = inputs
        self._owned: dict[int, _Owned] = {}
        self._sender = Sender(settings)
        # A large state must not hold up the outputs, nor a checkpoint topic that refuses it.
        self._checkpoints = Sender(settings)
        self._saving: asyncio.Task[None] | None = None
        self._processed_at = _now()
        self._rewound_at = 0.0
        self._waiting = True
        self.stopping = False
        self.metrics = WorkerMetrics(lambda: [owned.group for owned in self._owned.values()])

    async def on_batch(self, topic: str, partition: int, records: Sequence[Any]) -> bool:
        """Process one fetched batch. True once its outputs are acknowledged, False if it is no longer this worker's."""
        owned = self._own(partition)
        self._waiting = False
        async with owned.lock:

            async def step() -> None:
                if self._inputs.fenced():
                    raise TimeoutError("no answer of the consumer group within the session timeout")
                await self._make_ready(owned)
                self._check(owned)
                await self._fold(owned, topic, records)
                self._progress(owned)
                await self._flush(owned)

            done = await self._until_done(partition, step)
        if not done and self._owned.get(partition) is owned:
            del self._owned[partition]
        self._processed_at = _now()
        self._waiting = True
        return done

    async def tick(self) -> None:
        """Once a second: take over what was assigned, drop what was given away, let time pass where nothing comes."""
        if self._inputs.rebalancing() or self._inputs.fenced():
            return
        assigned = set(self._inputs.assigned())
        self.keep(assigned)
        for partition in sorted(assigned):
            owned = self._own(partition)
            if owned.lock.locked():
                continue
            async with owned.lock:
                try:
                    await self._make_ready(owned)
                    self._check(owned)
                    self._progress(owned)
                    await self._flush(owned)
                except _GivenAway:
                    continue
                except Exception as error:
                    self._failed(partition, error)
        await self._find_lost()
        self._save_one()
        self._measure()

    def keep(self, assigned: Collection[int]) -> None:
        """Forget the state of partitions that are not among these; a batch in work ends with the state it has."""
        for partition in [*self._owned]:
            if partition not in assigned:
                del self._owned[partition]
                log.info("partition %d given away", partition)

    async def stop(self) -> None:
        """Close the producers."""
        self.stopping = True
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._checkpoints.stop()
        await self._sender.stop()

    def not_ready(self) -> str | None:
        """None when the state of every assigned partition is made, else what is missing."""
        if not self._inputs.joined():
            return "not a member of the consumer group yet"
        missing = [partition for partition in self._inputs.assigned() if not self._is_ready(partition)]
        return f"making the state of partitions {sorted(missing)}" if missing else None

    def not_healthy(self) -> str | None:
        """None while records are processed as they come, else for how long none were."""
        stalled = self._stalled_s()
        return f"lag, but nothing processed for {stalled:.0f} s" if stalled > STALLED_S else None

    def _check(self, owned: _Owned) -> None:
        """Raise _GivenAway if the partition is another worker's: a batch of before the rebalance, or a slow rebuild."""
        inputs, partition = self._inputs, owned.group.partition
        if not inputs.rebalancing() and partition not in inputs.assigned():
            owned.member = None
            raise _GivenAway

    def _own(self, partition: int) -> _Owned:
        owned = self._owned.get(partition)
        if owned is None:
            owned = self._owned[partition] = _Owned(Group(partition, self._settings.operators))
        return owned

    def _is_ready(self, partition: int) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.member is not None

    async def _make_ready(self, owned: _Owned) -> None:
        member = self._inputs.member()
        if owned.member == member:
            return
        if owned.member is not None:
            log.warning("partition %d: thrown out of the group, its state is made anew", owned.group.partition)
        owned.member = None
        started = _now()
        group = owned.group = Group(owned.group.partition, self._settings.operators)
        async with log_reader(self._settings, group) as reader:
            await reader.rebuild()
            group = owned.group = reader.group
            owned.create_time = reader.create_time
            owned.repeat_from = reader.end
            owned.settled, owned.settled_ms = reader.settled, reader.settled_ms
            owned.saved = checkpoint.Saved.of(reader.checkpoint, _now())
        owned.member = member
        owned.duplicates = group.duplicates
        state = "partial" if group.partial else "complete"
        source = "checkpoint" if reader.checkpoint else "log"
        self.metrics.rebuilds.labels(state, source).inc()
        self.metrics.rebuild_records.inc(group.consumed)
        seconds = _now() - started
        self.metrics.rebuild_seconds.observe(seconds)
        log.info(
            "partition %d: %s state from %s%d records in %.1f s",
            group.partition,
            state,
            "a checkpoint and " if reader.checkpoint else "",
            group.consumed,
            seconds,
        )

    async def _fold(self, owned: _Owned, topic: str, records: Sequence[Any]) -> None:
        group = owned.group
        owned.create_time = owned.create_time or records[0].timestamp_type == CREATE_TIME
        if records[0].offset > group.next_offsets[topic]:
            # Somebody else may have had the partition in between, or the log was cut. Nothing is muted here: what was
            # said before is only said again.
            log.info(
                "%s/%d: reading %d … %d again", topic, group.partition, group.next_offsets[topic], records[0].offset
            )
            async with log_reader(self._settings, group) as reader:
                async for _ in reader.fill(topic, records[0].offset):
                    await self._flush(owned)
            group.next_offsets[topic] = max(group.next_offsets[topic], records[0].offset)
        # What the state has seen already is skipped; its outputs are acknowledged, or still pending here.
        skip = 0
        while skip < len(records) and records[skip].offset < group.next_offsets[topic]:
            skip += 1
        for at in range(skip, len(records), CHUNK):
            chunk = records[at : at + CHUNK]
            group.feed(topic, chunk)
            self.metrics.records.labels(topic).inc(len(chunk))
            await asyncio.sleep(0)

    def _progress(self, owned: _Owned) -> None:
        group = owned.group
        ends = {topic: self._inputs.end(topic, group.partition) for topic in INPUT_TOPICS}
        settled_ms = CREATE_TIME_SETTLED_MS if owned.create_time else SETTLED_MS
        read_to_end = {
            topic: end[1] - settled_ms
            for topic, end in ends.items()
            if end is not None and group.next_offsets[topic] >= end[0]
        }
        group.progress(group.seen_until(read_to_end))
        if all(group.next_offsets[topic] >= offset for topic, offset in owned.repeat_from.items()):
            group.repeat_outputs()
            owned.settled = None

    async def _flush(self, owned: _Owned) -> None:
        group = owned.group
        outputs, refusals = group.take()
        now_ms = self._settings.clock()
        owned.pending += [encode(output) for output in outputs]
        owned.pending += [refuse(refusal, group.partition, now_ms) for refusal in refusals]
        for refusal in refusals:
            self.metrics.refused.labels(refusal.by).inc()
            log.warning(
                "%s/%d/%d refused by %s: %s; its size and hash are in the DLQ",
                refusal.topic,
                group.partition,
                refusal.offset,
                refusal.by,
                refusal.why,
            )
        if group.last_error is not None:
            log.error("partition %d: %s, at progress", group.partition, group.last_error)
            group.last_error = None
        self.metrics.duplicates.inc(group.duplicates - owned.duplicates)
        owned.duplicates = group.duplicates
        if owned.pending:
            await self._sender.send(owned.pending)
            for message in owned.pending:
                self.metrics.outputs.labels(message.topic).inc()
            owned.pending = []
        self._inputs.told(
            group.partition, Told(group.progress_ms, owned.settled, owned.settled_ms, owned.saved.pointer)
        )

    def _save_one(self) -> None:
        """Begin to write the state that is due longest, if none is being written."""
        if self._saving is not None and not self._saving.done():
            return
        now, every_s = _now(), self._settings.checkpoint_s
        due = [
            owned for owned in self._owned.values() if owned.is_settled and owned.saved.due(owned.group, every_s, now)
        ]
        if due:
            self._saving = asyncio.create_task(self._save(min(due, key=lambda owned: owned.saved.at)))

    async def _save(self, owned: _Owned) -> None:
        saved, started = owned.saved, _now()
        saved.at = started
        try:
            async with owned.lock:
                # What it says must be acknowledged, and nothing of it must have to be said once more.
                if not self._is_mine(owned) or not owned.is_settled or saved is not owned.saved:
                    return
                await self._flush(owned)
                state = await checkpoint.take(owned.group, owned.create_time)
            dumped = _now()
            await checkpoint.write(self._checkpoints, owned.group.partition, state, saved)
        except Exception as error:
            self.metrics.checkpoints.labels("failed").inc()
            log.warning(
                "partition %d: no checkpoint, the one before stands: %s",
                owned.group.partition,
                f"{type(error).__name__}: {error}".splitlines()[0],
            )
        else:
            saved.seconds = _now() - started
            self.metrics.checkpoints.labels("written").inc()
            self.metrics.checkpoint_seconds.labels("dump").observe(dumped - started)
            self.metrics.checkpoint_seconds.labels("send").observe(_now() - dumped)
            self.metrics.checkpoint_bytes.set(state.size)

    def _is_mine(self, owned: _Owned) -> bool:
        inputs, partition = self._inputs, owned.group.partition
        return (
            self._owned.get(partition) is owned
            and owned.member == inputs.member()
            and not inputs.fenced()
            and not inputs.rebalancing()
        )

    async def _until_done(self, partition: int, step: Callable[[], Awaitable[None]]) -> bool:
        """Repeat a step through failures of the broker, as long as the partition is this worker's.

        A defect of ours is repeated as well: Faust must not see it, and the probe for health will tell.
        """
        tries = 0
        while True:
            try:
                await step()
            except _GivenAway:
                return False
            except Exception as error:
                self._failed(partition, error)
            else:
                return True
            if self.stopping or not (self._inputs.rebalancing() or partition in self._inputs.assigned()):
                return False
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    def _failed(self, partition: int, error: Exception) -> None:
        self.metrics.retries.inc()
        if isinstance(error, KafkaError | OSError | TimeoutError):
            log.warning(
                "partition %d waits for Kafka: %s", partition, f"{type(error).__name__}: {error}".splitlines()[0]
            )
        else:
            log.error("partition %d: a step failed and is repeated", partition, exc_info=error)

    def _behind(self) -> Iterator[tuple[str, int, int, int]]:
        """Topic, partition, next offset and lag of all that is not read to its end."""
        for partition, owned in self._owned.items():
            for topic, offset in owned.group.next_offsets.items():
                end = self._inputs.end(topic, partition)
                if owned.member is not None and end is not None and end[0] > offset:
                    yield topic, partition, offset, end[0] - offset

    def _uncommitted(self) -> Iterator[tuple[str, int, int, int]]:
        """The same of what the state has seen but nobody committed: batches lost that a rebalance brought again."""
        for partition, owned in self._owned.items():
            for topic in owned.group.log_times if owned.member is not None else ():
                offset, committed = owned.group.next_offsets[topic], self._inputs.committed(topic, partition)
                if committed < offset:
                    yield topic, partition, committed, offset - committed

    async def _find_lost(self) -> None:
        now = _now()
        if self._waiting and now - max(self._processed_at, self._rewound_at) > LOST_S:
            for topic, partition, offset, lag in [*self._uncommitted(), *self._behind()]:
                self._rewound_at = now
                log.warning("%s/%d: %d records were not delivered, reading from %d", topic, partition, lag, offset)
                try:
                    await asyncio.wait_for(self._inputs.rewind(topic, partition, offset), LOST_S)
                except Exception as error:
                    self._failed(partition, error)

    def _stalled_s(self) -> float:
        return _now() - self._processed_at if any(self._behind()) else 0.0

    def _measure(self) -> None:
        lag = sum(lag for *_, lag in self._behind())
        if not lag and not any(self._uncommitted()):
            self._processed_at = _now()
        self.metrics.lag.set(lag)
        self.metrics.idle.set(self._stalled_s())
        now = _now()
        self.metrics.checkpoint_age.set(max([owned.saved.age(now) for owned in self._owned.values()], default=0))


def _now() -> float:
    """Seconds by the event loop's clock, so that a simulation can turn it."""
    return asyncio.get_running_loop().time()
