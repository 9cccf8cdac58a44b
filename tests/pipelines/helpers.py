"""An in-memory log, workers that read it in any way a real one could, and events to fill it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import orjson

from pipelines.runtime.checkpoint import NONE, Manifest, code_of
from pipelines.runtime.group import Group, Told
from pipelines.runtime.port import CanonicalSet, Event, OperatorFactory, Out, Record
from pipelines.runtime.transport import Note, told_from_text, told_to_text
from schemas.clock import from_rfc3339, to_rfc3339
from schemas.identity import derived_id
from schemas.topics import INPUT_TOPICS, RISK_FINDING, TOPIC_OF_EVENT

T0 = from_rfc3339("2026-03-01T12:00:00Z")


class Raw(NamedTuple):
    """A record as a Kafka client gives it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def event(name: str, at_ms: int, number: object = 0, **fields: Any) -> Event:
    """A valid event of this name, `at_ms` after T0; `number` tells apart those of the same name and time."""
    made: Event = {
        "event_id": derived_id("test", name, at_ms, str(number)),
        "event_version": "1.0",
        "event_name": name,
        "timestamp": to_rfc3339(T0 + at_ms),
        "tenant_id": "acme",
        "agent_runtime": "claude_code",
        "session_id": "s1",
        "root_session_id": "s1",
        "source_adapter": "test/1",
        "severity": "info",
    }
    return {**made, **fields}


def call_event(name: str, at_ms: int, call: int | str = 0, **fields: Any) -> Event:
    """A tool.call.* event of the call with this number."""
    statuses = {"tool.call.completed": "completed", "tool.call.error": "error", "tool.call.blocked": "blocked"}
    made: Event = {
        "call_id": derived_id("call", f"key{call}", 1),
        "call_key": f"key{call}",
        "occurrence": 1,
        "tool_name": "Bash",
        "tool_source": "shell",
        "status": statuses.get(name, "started"),
    }
    return event(name, at_ms, call, **{**made, **fields})


class Checkpoint(NamedTuple):
    """A state as it lies in the checkpoint topic."""

    manifest: Manifest
    parts: dict[str, bytes]


class MemoryLog:
    """One partition number of the input topics, and what was derived from it, in the order of arrival.

    Of `checkpoints`, one that is None is torn: a piece of it is gone.
    """

    def __init__(self) -> None:
        self.topics: dict[str, list[Raw]] = {topic: [] for topic in INPUT_TOPICS}
        self.derived: list[tuple[str, bytes]] = []
        self.committed: dict[str, int] = dict.fromkeys(INPUT_TOPICS, 0)
        self.notes = dict.fromkeys(INPUT_TOPICS, Note())
        self.checkpoints: list[Checkpoint | None] = []
        self.wall_ms = T0

    def append(self, body: Event, at_ms: int, value: bytes | None = None) -> None:
        """Append with the log time T0 + at_ms, which must not fall."""
        records = self.topics[TOPIC_OF_EVENT[body["event_name"]]]
        records.append(Raw(len(records), T0 + at_ms, b"k", value if value is not None else orjson.dumps(body)))
        self.wall_ms = max(self.wall_ms, T0 + at_ms)

    def canonical(self) -> CanonicalSet:
        """What the derived records amount to."""
        said = CanonicalSet()
        for topic, value in self.derived:
            said.add_value(topic, value)
        return said


class MemoryWorker:
    """Does what the worker does with one group, in steps; takes the group over from whoever had it before."""

    def __init__(self, log: MemoryLog, factories: Sequence[OperatorFactory], rng: Random | None = None) -> None:
        self.log = log
        self.rng = rng or Random(0)
        self.group = Group(0, factories)
        self.loaded = False
        self.checkpoint = NONE
        upto = dict(log.committed)
        unread = {topic: log.topics[topic][offset:] for topic, offset in upto.items()}
        last = max(log.notes.values(), key=lambda note: (note.by_ms, -note.settled_ms))
        told, self.settled_ms = last.by_ms, last.settled_ms
        told = min([told, *(records[0].timestamp - 1 for records in unread.values() if records)])
        self.settled: dict[str, int] | None = {topic: note.settled for topic, note in log.notes.items()}
        start = self._load(upto, min(told, self.settled_ms))
        if start is None:
            since = min(told, self.settled_ms) - self.group.horizon_ms
            start = {
                topic: sum(record.timestamp < since for record in log.topics[topic][:offset])
                for topic, offset in upto.items()
            }
        self.group.begin_rebuild(start, dict(self.settled), self.settled_ms)
        settled = {topic: min(self.settled[topic], offset) for topic, offset in upto.items()}
        for ends in (settled, upto):
            while unread := [topic for topic in INPUT_TOPICS if self.group.next_offsets[topic] < ends[topic]]:
                topic = self.rng.choice(unread)
                begin = self.group.next_offsets[topic]
                self.group.feed(topic, log.topics[topic][begin : min(begin + self.rng.randint(1, 5), ends[topic])])
                left = [topic for topic in INPUT_TOPICS if self.group.next_offsets[topic] < upto[topic]]
                self.group.progress(min([told, *(self.group.log_times.get(topic, 0) for topic in left)]))
        self.group.end_rebuild(upto, told)
        self.limit: dict[str, int] | None = None
        self.frozen_ms = 0
        self.seen = {topic: len(records) for topic, records in log.topics.items()}

    def _load(self, upto: dict[str, int], said_ms: int) -> Mapping[str, int] | None:
        """Go on from a checkpoint: one that a commit points to, or any other that there is, if it fits."""
        pointers = sorted({note.checkpoint for note in self.log.notes.values()} - {NONE}, reverse=True)
        if self.log.checkpoints and self.rng.random() < 0.4:
            # Also one of a zombie, or an old one: which fit is a matter of what they say alone.
            pointers = [self.rng.randrange(len(self.log.checkpoints))]
        assert self.settled is not None
        code, begin = code_of(self.group.operators), dict.fromkeys(upto, 0)
        for pointer in pointers:
            found = self.log.checkpoints[pointer]
            if found is None or not found.manifest.fits(code, begin, upto, self.settled, said_ms):
                continue
            self.group.load(found.parts)
            self.loaded, self.checkpoint = True, pointer
            return found.manifest.offsets
        return None

    def save(self) -> None:
        """Write a checkpoint, which may be torn; the next commits carry it."""
        if self.settled is not None:
            return
        self.send()
        parts, group = dict(self.group.dump()), self.group
        manifest = Manifest(
            code_of(group.operators), dict(group.next_offsets), group.progress_ms, False, 0, (), ({}, {})
        )
        whole = Checkpoint(Manifest.load(manifest.dump()), parts)
        self.log.checkpoints.append(whole if self.rng.random() < 0.8 else None)
        self.checkpoint = len(self.log.checkpoints) - 1

    def step(self, topic: str, count: int) -> None:
        """Read a batch, say what follows, and perhaps commit."""
        begin = self.group.next_offsets[topic]
        end = min(begin + count, len(self.log.topics[topic]) if self.limit is None else self.limit[topic])
        self.group.feed(topic, self.log.topics[topic][begin:end])
        self.tick()
        if self.rng.random() < 0.2:
            self.save()
        if self.rng.random() < 0.5:
            self.commit()

    def tick(self) -> None:
        """Tell progress and send."""
        end = {
            topic: (self.log.wall_ms if self.limit is None else self.frozen_ms) - 2000
            for topic, offset in self.group.next_offsets.items()
            if offset == len(self.log.topics[topic])
        }
        self.group.progress(self.group.seen_until(end))
        if all(self.group.next_offsets[topic] >= offset for topic, offset in self.seen.items()):
            self.group.repeat_outputs()
            self.settled = None
        self.send()

    def freeze(self) -> None:
        """Another has taken over: this one may still work on what it has fetched, but reads and commits no more."""
        self.limit = {topic: len(records) for topic, records in self.log.topics.items()}
        self.frozen_ms = self.log.wall_ms

    def send(self) -> None:
        """Append the outputs to the derived records."""
        for output in self.group.take()[0]:
            self.log.derived.append((output.topic, orjson.dumps(output.body)))

    def commit(self) -> None:
        """Some topics' offsets: each is committed when it happens to be, with the progress told."""
        if self.limit is not None:
            return
        for topic, offset in self.group.next_offsets.items():
            if self.rng.random() < 0.5:
                self.log.committed[topic] = offset
                told = Told(self.group.progress_ms, self.settled, self.settled_ms, self.checkpoint)
                self.log.notes[topic] = told_from_text(told_to_text(told, topic, offset), offset)

    def drain(self) -> None:
        """Read all that is there, in random batches."""
        while unread := [
            topic for topic in INPUT_TOPICS if self.group.next_offsets[topic] < len(self.log.topics[topic])
        ]:
            self.step(self.rng.choice(unread), self.rng.randint(1, 7))
        self.tick()


def calm(history: Sequence[tuple[int, Event]], factories: Sequence[OperatorFactory], until_ms: int) -> CanonicalSet:
    """The outputs of one worker that reads everything in log order, one record at a time."""
    log = MemoryLog()
    worker = MemoryWorker(log, factories)
    for at_ms, body in history:
        log.append(body, at_ms)
        worker.step(TOPIC_OF_EVENT[body["event_name"]], 1)
    log.wall_ms = T0 + until_ms
    worker.tick()
    return log.canonical()


def stormy(
    history: Sequence[tuple[int, Event]],
    factories: Sequence[OperatorFactory],
    until_ms: int,
    rng: Random,
    on_crash: Callable[[], None] = lambda: None,
) -> CanonicalSet:
    """The outputs of workers that lag, crash, are taken over and live on as zombies, over the same records."""
    log = MemoryLog()
    worker = MemoryWorker(log, factories, rng)
    zombies: list[MemoryWorker] = []
    left = list(history)
    while left or any(worker.group.next_offsets[topic] < len(log.topics[topic]) for topic in INPUT_TOPICS):
        dice = rng.random()
        if left and dice < 0.4:
            for _ in range(rng.randint(1, 5)):
                if left:
                    at_ms, body = left.pop(0)
                    log.append(body, at_ms)
        elif dice < 0.85:
            worker.step(rng.choice(INPUT_TOPICS), rng.randint(1, 6))
        elif dice < 0.9:
            on_crash()
            if rng.random() < 0.5:
                worker.freeze()
                zombies.append(worker)
            worker = MemoryWorker(log, factories, rng)
        elif zombies:
            zombie = rng.choice(zombies)
            zombie.step(rng.choice(INPUT_TOPICS), rng.randint(1, 6))
            if rng.random() < 0.3:
                zombies.remove(zombie)
    log.wall_ms = T0 + until_ms
    worker.drain()
    return log.canonical()


class Pairs:
    """Test operator: one finding per session with all calls and prompts seen of it, so it needs two topics."""

    name = "pairs"
    wants = frozenset({"tool.call.started", "user.prompt.submitted", "tool.call.timed_out"})
    horizon_ms = 3_600_000
    configuration = ""

    def __init__(self, partition: int) -> None:
        self.counters: dict[str, int] = {"seen": 0}
        self._seen: dict[str, set[str]] = {}

    def on_event(self, record: Record, out: Out) -> None:
        event = record.event
        if event.get("severity") == "critical":
            raise RuntimeError(f"an operator's defect, with a piece of the payload: {event['native']}")
        self.counters["seen"] += 1
        session = event["session_id"]
        seen = self._seen.setdefault(session, set())
        if event.get("retracted"):
            seen.discard(event["event_id"])
        else:
            seen.add(event["event_id"])
        finding_id = derived_id("finding", session)
        body = {
            "event_id": finding_id,
            "event_version": "1.0",
            "event_name": "risk.finding.updated",
            "timestamp": to_rfc3339(T0),
            "finding_id": finding_id,
            "group": session,
            "seen": sorted(seen),
        }
        out.put(RISK_FINDING, finding_id, body)

    def on_progress(self, t_ms: int, out: Out) -> None:
        """Nothing becomes due."""

    def dump(self) -> bytes:
        return orjson.dumps({session: sorted(seen) for session, seen in self._seen.items()})

    def load(self, state: bytes) -> None:
        self._seen = {session: set(seen) for session, seen in orjson.loads(state).items()}
