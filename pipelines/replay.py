"""Says once more what the operators make of a range of the log, without a consumer group, and compares such sets.

The four input topics are merged by log time, so that a replay is one fixed run: the same range gives the same bytes.
What stands at the end is held in memory (about four times the size of its JSON lines); the log is streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from pipelines.runtime.group import Group
from pipelines.runtime.kafka import CHUNK, POLL_MS, STALLED_POLLS
from pipelines.runtime.port import CanonicalSet, OperatorFactory, record_id_of
from schemas.errors import UserError
from schemas.topics import HEADER_KIND, INPUT_TOPICS, KIND_CONTROL, TOPICS
from services.kafka import partitions_of

SAY_EVERY_MS = 1000
"""Progress (log time) is told at these steps."""
STEP_MS = 10_000
"""Progress behind the last record is told at these steps."""
NEVER = 1 << 62

Place: TypeAlias = tuple[str, int]
"""Topic without prefix, partition number."""
Bound: TypeAlias = Mapping[Place, int] | int | None
"""Offsets by place, or one log time (ms), or the log's own bound."""


class Refused(NamedTuple):
    """A record that could not be processed: where it lies, by whom it was refused (`decode` or an operator), and why."""

    topic: str
    partition: int
    offset: int
    by: str
    why: str


@dataclass(slots=True)
class Replayed:
    """What a replay read and said.

    `ranges` are first offset and offset after the last, by place; `records` counts them by topic, without those folded
    to make the state before the range (`warmed`). `partial` names the places whose log no longer holds what that state
    would need: what is said may then be wrong where it reaches back. `failures` say where operators failed at progress.
    """

    said: CanonicalSet = field(default_factory=CanonicalSet)
    records: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INPUT_TOPICS, 0))
    refusals: list[Refused] = field(default_factory=list)
    duplicates: int = 0
    warmed: int = 0
    ranges: dict[Place, tuple[int, int]] = field(default_factory=dict)
    partial: list[Place] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def replay(
    kafka: Mapping[str, Any],
    operators: Sequence[OperatorFactory],
    *,
    prefix: str = "",
    start: Bound = None,
    end: Bound = None,
    until_ms: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Replayed:
    """Run new operators over a range of the input topics (by default all that is there now).

    `until_ms`: what a worker says whose progress is this log time; records after it are not read unless `end` asks for
    them. None: all that follows from the range, however much later it falls due. A range that begins later than the log
    is preceded by the operators' horizon, muted, as a take-over is: what was due before the range belongs not to it.
    Live workers that have read all say the same as a replay until some seconds ago, unless something fell due in
    between; 20 s after the last record nothing else is on its way.
    `report` is called with the records read and those there are. Raises UserError if the topics are missing, KafkaError,
    OSError or TimeoutError where the broker fails.
    """
    found = await partitions_of(dict(kafka), [prefix + topic for topic in INPUT_TOPICS])
    numbers = {place.partition for place in found}
    if not found or len(found) != len(numbers) * len(INPUT_TOPICS):
        raise UserError(
            f"Kafka at {kafka['bootstrap_servers']} lacks input topics, or they have different partition counts; "
            "`agenttrace topics list` says which, `agenttrace topics create` makes what is missing",
            exit_code=os.EX_UNAVAILABLE,
        )
    async with _Log(kafka, prefix, found) as log:
        first, last = await log.bounds()
        starts = await log.offsets(start, first, first, last)
        ends = await log.offsets(end if end is not None or until_ms is None else until_ms + 1, last, first, last)
        done = Replayed(ranges={place: (starts[place], max(starts[place], ends[place])) for place in sorted(first)})
        total = sum(upto - begin for begin, upto in done.ranges.values())

        def count(records: int) -> None:
            if report is not None:
                report(records, total)

        for number in sorted(numbers):
            one = _Partition(log, Group(number, operators), done)
            since_ms = start if isinstance(start, int) else await one.first_time()
            if since_ms is not None:
                await one.warm_up(since_ms, {topic: first[topic, number] for topic in INPUT_TOPICS})
                await one.run(since_ms, until_ms, count)
    return done


class _Partition:
    """One partition number of the range."""

    def __init__(self, log: _Log, group: Group, done: Replayed) -> None:
        self._log = log
        self._group = group
        self._done = done
        self._start = {topic: done.ranges[topic, group.partition][0] for topic in INPUT_TOPICS}
        self._upto = {topic: done.ranges[topic, group.partition][1] for topic in INPUT_TOPICS}
        log.number = group.partition

    async def first_time(self) -> int | None:
        """Log time of the first record of the range, None if it has none."""
        times = [await self._log.time_of(topic, self._start[topic], self._upto[topic]) for topic in INPUT_TOPICS]
        return min(times) if min(times) < NEVER else None

    async def warm_up(self, since_ms: int, begin: Mapping[str, int]) -> None:
        """Fold, muted, what the state at the range's start may reach back to. `begin`: the log's first offsets."""
        group, number = self._group, self._group.partition
        reach_ms = since_ms - group.horizon_ms
        warm, times = await self._log.from_time(max(reach_ms, 0), self._start)
        cut = [topic for topic in INPUT_TOPICS if 0 < begin[topic] == warm[topic] and times[topic] > reach_ms]
        if cut:
            group.partial_until_ms = since_ms + group.horizon_ms
            self._done.partial += [(topic, number) for topic in cut]
        group.begin_rebuild(warm, self._start, since_ms - 1)
        async for topic, records, next_ms in self._log.merged(warm, self._start):
            group.feed(topic, records)
            self._done.warmed += len(records)
            self._progress(min(next_ms, since_ms) - 1)
        group.end_rebuild(self._start, since_ms - 1)
        # There is nobody to say anything once more for.
        group.repeat_outputs()
        group.duplicates = 0

    async def run(self, since_ms: int, until_ms: int | None, count: Callable[[int], None]) -> None:
        """Fold the range and keep what is said."""
        group, done = self._group, self._done
        last_ms = since_ms
        async for topic, records, next_ms in self._log.merged(self._start, self._upto):
            group.feed(topic, records)
            last_ms = max(last_ms, group.log_times[topic])
            self._progress(next_ms - 1)
            self._take()
            done.records[topic] += len(records)
            count(sum(done.records.values()))
        # State reaches back no further than the horizon, so nothing falls due after that.
        end_ms = until_ms if until_ms is not None else last_ms + group.horizon_ms
        # What falls due in one step, such as a timeout, is counted by operators in a later one: a worker's time passes in
        # small steps, and one leap to the end would leave the last part unsaid.
        begin_ms = max(last_ms, end_ms - group.horizon_ms)
        for t_ms in range(begin_ms - begin_ms % STEP_MS + STEP_MS - 1, end_ms, STEP_MS):
            self._tell(t_ms)
            self._take()
        self._tell(end_ms)
        self._take()
        done.duplicates += group.duplicates

    def _progress(self, t_ms: int) -> None:
        if t_ms - self._group.progress_ms >= SAY_EVERY_MS:
            self._tell(t_ms)

    def _tell(self, t_ms: int) -> None:
        group = self._group
        group.progress(t_ms)
        if group.last_error is not None:
            self._done.failures.append(group.last_error)
            group.last_error = None

    def _take(self) -> None:
        outputs, refusals = self._group.take()
        for output in outputs:
            self._done.said.add(output.topic, output.record_id, output.body)
        self._done.refusals += [
            Refused(refusal.topic, self._group.partition, refusal.offset, refusal.by, refusal.why)
            for refusal in refusals
        ]


class _Log:
    """The input topics, read by hand: after `bounds` and `offsets`, those of partition `number`.

    An asynchronous context manager.
    """

    number = 0

    def __init__(self, kafka: Mapping[str, Any], prefix: str, places: Sequence[TopicPartition]) -> None:
        self._consumer = AIOKafkaConsumer(
            enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=200, **kafka
        )
        self._prefix = prefix
        self._places = places

    async def __aenter__(self) -> _Log:
        try:
            await self._consumer.start()
        except BaseException:
            await self._consumer.stop()
            raise
        # All at once: aiokafka's consumer without a group may stall when it is assigned anew. Each is fetched only while
        # it is wanted, for a fetch of one that has no more would hold up the others.
        self._consumer.assign(self._places)
        self._consumer.pause(*self._places)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def bounds(self) -> tuple[dict[Place, int], dict[Place, int]]:
        """First offset, and offset after the last, by place."""
        first = await self._consumer.beginning_offsets(self._places)
        last = await self._consumer.end_offsets(self._places)
        return {self._place(at): first[at] for at in self._places}, {self._place(at): last[at] for at in self._places}

    async def offsets(
        self, bound: Bound, otherwise: Mapping[Place, int], first: Mapping[Place, int], last: Mapping[Place, int]
    ) -> dict[Place, int]:
        """The offsets that a bound means, within what the log has."""
        if bound is None:
            return dict(otherwise)
        if isinstance(bound, int):
            asked = {TopicPartition(self._prefix + topic, number): max(bound, 0) for topic, number in first}
            found = await self._consumer.offsets_for_times(asked)
            bound = {self._place(at): after.offset for at, after in found.items() if after is not None}
            otherwise = last
        return {place: min(max(bound.get(place, otherwise[place]), first[place]), last[place]) for place in first}

    async def from_time(self, since_ms: int, before: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """By topic, the offset of the first record with this log time or a later one, at most `before`; and its time."""
        found = await self._consumer.offsets_for_times({self._at(topic): since_ms for topic in INPUT_TOPICS})
        offsets, times = dict(before), dict.fromkeys(INPUT_TOPICS, 0)
        for at, after in found.items():
            topic = self._place(at)[0]
            if after is not None:
                offsets[topic], times[topic] = min(after.offset, before[topic]), after.timestamp
        return offsets, times

    async def time_of(self, topic: str, offset: int, upto: int) -> int:
        """Log time of the first record between these offsets; NEVER if there is none."""
        if offset >= upto:
            return NEVER
        self._seek(topic, offset)
        records = await self._fetch(topic, upto)
        self._consumer.pause(self._at(topic))
        return int(records[0].timestamp) if records else NEVER

    async def merged(
        self, start: Mapping[str, int], upto: Mapping[str, int]
    ) -> AsyncIterator[tuple[str, list[Any], int]]:
        """Records between these offsets by log time, of one topic at a time; each with the log time of the next record.

        The order, and where it is cut, depend on the records alone. Topics with equal log times come in the order of
        the topic table.
        """
        waiting: dict[str, deque[Any]] = {topic: deque() for topic in INPUT_TOPICS if start[topic] < upto[topic]}
        heads: dict[str, tuple[int, int]] = {}

        async def look(topic: str) -> bool:
            """Know the topic's next record; False if there is none."""
            records = waiting[topic]
            if not records:
                records.extend(await self._fetch(topic, upto[topic]))
            if not records:
                del waiting[topic]
                heads.pop(topic, None)
                return False
            # A producer that sets log times may step back; order within the topic stands.
            before = heads[topic][0] if topic in heads else 0
            heads[topic] = max(before, records[0].timestamp), INPUT_TOPICS.index(topic)
            return True

        for topic in [*waiting]:
            self._seek(topic, start[topic])
            await look(topic)
        while heads:
            topic = min(heads, key=heads.__getitem__)
            others = min((head for name, head in heads.items() if name != topic), default=(NEVER, 0))
            run: list[Any] = []
            while len(run) < CHUNK and heads[topic] <= others:
                run.append(waiting[topic].popleft())
                if not await look(topic):
                    break
            yield topic, run, min(heads.values(), default=(run[-1].timestamp, 0))[0]
            await asyncio.sleep(0)

    async def _fetch(self, topic: str, upto: int) -> list[Any]:
        """The next records of a topic before an offset; none: it is read up to there, and is paused."""
        at = self._at(topic)
        for _ in range(STALLED_POLLS):
            # The position also passes what is no record, such as a transaction's marker.
            if await self._consumer.position(at) >= upto:
                self._consumer.pause(at)
                return []
            records = (await self._consumer.getmany(at, timeout_ms=POLL_MS)).get(at, [])
            wanted = [record for record in records if record.offset < upto]
            if wanted:
                return wanted
        raise TimeoutError(f"no records of {at.topic}/{at.partition} for {STALLED_POLLS * POLL_MS // 1000} s")

    def _seek(self, topic: str, offset: int) -> None:
        self._consumer.seek(self._at(topic), offset)
        self._consumer.resume(self._at(topic))

    def _at(self, topic: str) -> TopicPartition:
        return TopicPartition(self._prefix + topic, self.number)

    def _place(self, at: TopicPartition) -> Place:
        return at.topic[len(self._prefix) :], at.partition


async def canonical_of_topics(kafka: Mapping[str, Any], prefix: str = "") -> CanonicalSet:
    """What the derived topics amount to as they stand now.

    Raises KafkaError, OSError or TimeoutError where the broker fails.
    """
    names = [prefix + topic.name for topic in TOPICS if topic.kind == "derived"]
    said = CanonicalSet()
    consumer = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=200, **kafka)
    try:
        await consumer.start()
        places = await partitions_of(dict(kafka), names)
        consumer.assign(places)
        left = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        while left:
            for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                for record in records:
                    if place in left and record.offset < left[place]:
                        _fold(said, place.topic[len(prefix) :], record)
            for place in [*left]:
                if await consumer.position(place) >= left[place]:
                    consumer.pause(place)
                    del left[place]
    finally:
        await consumer.stop()
    return said


def _fold(said: CanonicalSet, topic: str, record: Any) -> None:
    if (HEADER_KIND, KIND_CONTROL) in record.headers or not record.value:
        return
    body = orjson.loads(record.value)
    try:
        record_id = record_id_of(body)
    except KeyError:
        # What is not in this project's own form, such as OCSF, has its id as key.
        record_id = record.key.decode()
    said.add(topic, record_id, body)


def sha256(said: CanonicalSet) -> str:
    """SHA-256 of the canonical lines, each with a newline."""
    digest = hashlib.sha256()
    for line in said.lines():
        digest.update(line + b"\n")
    return digest.hexdigest()


def diff(a: CanonicalSet, b: CanonicalSet) -> list[str]:
    """Where the sets differ, a line each: what only one has, and names of fields that differ. No content."""
    ours, theirs = (
        {(row["topic"], row["id"]): row["body"] for row in map(orjson.loads, one.lines())} for one in (a, b)
    )
    lines = []
    for topic, record_id in sorted(ours.keys() | theirs.keys()):
        left, right = ours.get((topic, record_id)), theirs.get((topic, record_id))
        if left is None:
            lines.append(f"only in the second: {topic} {record_id}")
        elif right is None:
            lines.append(f"only in the first: {topic} {record_id}")
        elif left != right:
            names = ", ".join(name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name))
            lines.append(f"different: {topic} {record_id}: {names}")
    return lines
