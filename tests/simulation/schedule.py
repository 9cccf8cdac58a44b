"""One schedule: everything that happens between the first record and the last word, drawn from a seed, and its verdict."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson

from pipelines.operators import build_operators
from pipelines.runtime import worker as runtime_worker
from pipelines.runtime.group import Group
from pipelines.runtime.host import SETTLED_MS
from pipelines.runtime.logs import quiet
from pipelines.runtime.port import CanonicalSet, OperatorFactory, record_id_of
from pipelines.runtime.settings import WorkerSettings
from schemas.config import Config, PipelinesConfig, Reliability
from schemas.topics import CHECKPOINT, DLQ, INPUT_TOPICS, TOPICS
from tests.pipelines.helpers import T0, Pairs
from tests.simulation.clients import Consumer, Producer
from tests.simulation.kafka import Kafka
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.members import Coordinator
from tests.simulation.traffic import traffic
from tests.simulation.worker import Worker

FAULTS = frozenset(
    {
        "amid",
        "clock",
        "compaction",
        "failing",
        "freeze",
        "kill",
        "late",
        "leave",
        "outage",
        "poison",
        "repeats",
        "shuffle",
        "slow",
    }
)
"""What a schedule may contain. Leaving one out leaves the rest as it is, as far as that can be."""

OPERATORS: tuple[OperatorFactory, ...] = (
    *build_operators(
        Config(
            reliability=Reliability(pending_call_ttl_ms=12_000),
            pipelines=PipelinesConfig(
                rules=(str(Path(__file__).with_name("rules.yaml")),), shipped_rules=False, approval_ttl_ms=25_000
            ),
        )
    ),
)
DERIVED = [topic.name for topic in TOPICS if topic.kind == "derived"]
JUMPS_MS = (120_000, 1_200_000, 7_200_000, 43_200_000)
"""How time passes in the end, until everything that can become due has."""
PATIENCE_S = 120.0
MAX_WORKERS = 4
CLOCK_ERRORS_MS = (-120_000, -5_000, -1_500, 500, 1_500)
"""Errors of a worker's clock; ahead by no more than the settling time that the host allows for."""


@dataclass
class Verdict:
    """What came of a schedule. `problems` is empty if all is well."""

    seed: int
    problems: list[str] = field(default_factory=list)
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    records: int = 0
    outputs: int = 0
    virtual_s: float = 0.0
    digest: str = ""


def run(seed: int, faults: frozenset[str] = FAULTS) -> Verdict:
    """Run the schedule of a seed, without those faults that are left out."""
    with quiet("pipelines.runtime"):
        loop = VirtualLoop(Random(f"{seed} order") if "shuffle" in faults and seed % 2 else None)
        schedule = _Schedule(seed, faults, loop)
        runtime_time, runtime_worker.time = runtime_worker.time, _Time(schedule.kafka)  # type: ignore[assignment]
        asyncio.set_event_loop(loop)
        try:
            try:
                loop.run_until_complete(schedule.tell())
            except (RuntimeError, TimeoutError) as error:
                schedule.verdict.problems.append(f"{type(error).__name__}: {error}")
            schedule.judge()
            schedule.end()
        finally:
            runtime_worker.time = runtime_time
            asyncio.set_event_loop(None)
            loop.close()
    return schedule.verdict


class _Time:
    """The module `time` for FaustInputs: virtual, with the error of the process's clock."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def monotonic(self) -> float:
        return self._kafka.loop.time()

    def time_ns(self) -> int:
        process = PROCESS.get()
        return (self._kafka.wall_ms() + (process.clock_ahead_ms if process else 0)) * 1_000_000


class _Schedule:
    def __init__(self, seed: int, faults: frozenset[str], loop: VirtualLoop) -> None:
        self.verdict = Verdict(seed)
        self.faults = faults
        self.loop = loop
        self.rng = rng = Random(f"{seed} story")
        self.live_ms = rng.choice([15_000, 25_000, 40_000])
        self.session_timeout_s = rng.choice([3.0, 6.0, 10.0])
        self.kafka = Kafka(loop, Random(f"{seed} network"), T0, rng.choice([1, 1, 2, 3]))
        self.group = Coordinator(self.kafka, self.session_timeout_s, rng.choice([5.0, 15.0]))
        self.checkpoint_s = rng.choice([0.5, 2.0, 5.0, 10.0, 1e9])
        pairs = rng.random() < 0.6
        self.processes: list[Process] = []
        self.workers: list[Worker] = []
        self.calm = False
        self.appends = traffic(
            Random(f"{seed} traffic"), self.kafka.partitions, self.live_ms, "poison" in faults, "repeats" in faults
        )
        # The test operator never forgets, so its state is more than a log of its horizon can say.
        self.operators = OPERATORS
        if pairs and all(append.at_ms > -Pairs.horizon_ms // 2 for append in self.appends):
            self.operators = (*OPERATORS, Pairs)

    # The story.

    async def tell(self) -> None:
        """All that happens."""
        kafka, rng = self.kafka, self.rng
        appends = list(self.appends)
        while appends and appends[0].at_ms <= 0:
            at_ms, topic, partition, value = appends.pop(0)
            kafka.append(topic, partition, b"k", value, at_ms=T0 + at_ms)
        for _ in range(rng.choice([1, 1, 2])):
            self.start()
        for append in appends:
            _, topic, partition, value = append
            self.loop.call_at(append.at_ms / 1000, kafka.append, topic, partition, b"k", value)
        for _ in range(rng.choice([0, 2, 3, 5, 8, 12])):
            at = rng.random() ** rng.choice([1, 4]) * self.live_ms / 1000
            self.loop.call_at(at, self.strike, Random(rng.random()))
        await asyncio.sleep(self.live_ms / 1000 + 0.001)
        self.calm_down()
        await self.until("all is committed", self.all_committed)
        for jump_ms in JUMPS_MS:
            kafka.jump(jump_ms)
            until_ms = kafka.wall_ms() - SETTLED_MS
            await self.until("all is due", partial(self.all_said, until_ms))
        await asyncio.sleep(1)

    def start(self) -> None:
        """One more worker process."""
        if len(self.alive()) >= MAX_WORKERS:
            return
        process = Process(self.loop, f"w{len(self.processes) + 1}")
        kafka = self.kafka
        settings = WorkerSettings(
            kafka={},
            operators=self.operators,
            session_timeout_s=self.session_timeout_s,
            checkpoint_s=self.checkpoint_s,
            clock=lambda: kafka.wall_ms() + process.clock_ahead_ms,
            consumer=partial(Consumer, kafka),
            producer=partial(Producer, kafka),
        )
        worker = Worker(kafka, self.group, Random(self.rng.random()), process, settings)
        self.processes.append(process)
        self.workers.append(worker)
        if self.calm:
            worker.lagging.clear()
        kafka.say(f"{process.name} starts")
        worker.start()

    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.process.dead]

    def strike(self, rng: Random) -> None:
        """One fault."""
        kind = rng.choice(
            [
                "kill",
                "kill",
                "amid",
                "amid",
                "join",
                "leave",
                "freeze",
                "freeze",
                "outage",
                "failing",
                "slow",
                "clock",
                "compaction",
            ]
        )
        alive, length_s = self.alive(), rng.choice([0.2, 1.0, 3.0, 8.0])
        dice, worker = rng.random(), rng.choice(alive) if alive else None
        weather, later = self.kafka.weather, self.loop.call_later
        if kind == "join":
            self.start()
        elif kind not in self.faults:
            return
        elif kind == "outage":
            weather.down = True
            later(length_s, setattr, weather, "down", False)
        elif kind == "failing":
            weather.failing, weather.late = 0.3 * dice, (0.3 if "late" in self.faults else 0.0)
            later(length_s, setattr, weather, "failing", 0.0)
        elif kind == "slow":
            weather.slow = dice
            later(length_s, setattr, weather, "slow", 0.0)
        elif kind == "compaction":
            self.kafka.compact(CHECKPOINT)
        elif worker is None:
            self.start()
            return
        elif kind == "kill":
            worker.process.lost_in_flight = dice < 0.5
            worker.process.kill()
            later(length_s, self.start)
        elif kind == "amid":
            worker.process.fuse_of = rng.choice(["", "append", "commit", "commit"])
            worker.process.fuse = rng.randrange(3 if worker.process.fuse_of else 30)
            later(length_s, self.start)
        elif kind == "leave":
            if worker.host is not None and not worker.host.stopping:
                worker.process.spawn(worker.leave(), "leave")
                later(length_s, self.start)
        elif kind == "freeze":
            worker.process.freeze()
            later(length_s * 2, worker.process.wake)
        elif kind == "clock":
            worker.process.clock_ahead_ms = rng.choice(CLOCK_ERRORS_MS)
            later(length_s, setattr, worker.process, "clock_ahead_ms", 0)
        self.kafka.say(f"{kind}, {length_s} s: {worker.process.name if worker is not None else ''}")

    def calm_down(self) -> None:
        """No more faults; what is frozen wakes, and somebody works."""
        self.kafka.say("no more faults")
        self.calm = True
        self.kafka.weather.__init__()  # type: ignore[misc]
        for worker in self.workers:
            worker.lagging.clear()
        for process in self.processes:
            process.fuse = None
            process.clock_ahead_ms = 0
            if process.frozen:
                process.wake()
        self.start()

    async def until(self, what: str, condition: Any) -> None:
        """Wait for it. Raises TimeoutError."""
        give_up_at = self.loop.time() + PATIENCE_S
        while not condition():
            if self.loop.time() > give_up_at:
                raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}")
            await asyncio.sleep(0.5)

    def all_committed(self) -> bool:
        return all(
            log.end == 0 or (place in self.kafka.committed and self.kafka.committed[place].offset == log.end)
            for place, log in self.kafka.logs.items()
            if place[0] in INPUT_TOPICS
        )

    def all_said(self, until_ms: int) -> bool:
        """Every partition has an owner who has said all that was due by then."""
        said = set()
        owners = self.group.owners()
        for worker in self.alive():
            for partition in owners.get(worker._coordinator.member_id, ()):
                owned = worker.host and worker.host._owned.get(partition)
                idle = owned and owned.is_settled and not owned.pending and not owned.lock.locked()
                if owned and idle and owned.group.progress_ms >= until_ms:
                    said.add(partition)
        return len(said) == self.kafka.partitions

    # The verdict.

    def judge(self) -> None:
        """Compare with one calm worker, and look for what must not be."""
        verdict, kafka = self.verdict, self.kafka
        verdict.trace, verdict.virtual_s = kafka.trace, self.loop.time()
        for worker in self.workers:
            verdict.problems += worker.defects
            verdict.problems += [f"{worker.process.name} died: {error!r}" for error in worker.process.failures]
        verdict.problems += [error for error in self.loop.errors if "Task exception" in error]
        expected, refused = self.expected()
        found = CanonicalSet()
        for topic in DERIVED:
            for partition in range(kafka.partitions):
                for record in kafka.log(topic, partition).records:
                    assert record.value is not None
                    body = orjson.loads(record.value)
                    found.add(topic, record_id_of(body), body)
                    verdict.outputs += 1
        verdict.records = sum(log.end for (topic, _), log in kafka.logs.items() if topic in INPUT_TOPICS)
        verdict.problems += [f"not expected: {_text(line)}" for line in sorted({*found.lines()} - {*expected.lines()})]
        verdict.problems += [f"missing: {_text(line)}" for line in sorted({*expected.lines()} - {*found.lines()})]
        receipts = {
            (headers["at_from"].decode(), headers["at_by"].decode(), headers["at_why"].decode())
            for partition in range(kafka.partitions)
            for record in kafka.log(DLQ, partition).records
            for headers in [dict(record.headers)]
        }
        verdict.problems += [f"no receipt: {one}" for one in sorted(refused - receipts)]
        verdict.problems += [f"receipt of what was not refused: {one}" for one in sorted(receipts - refused)]

    def expected(self) -> tuple[CanonicalSet, set[tuple[str, str, str]]]:
        """What one worker says that reads everything in the order of the log times, and what it refuses."""
        said, refused = CanonicalSet(), set()
        for partition in range(self.kafka.partitions):
            group = Group(partition, self.operators)
            records = sorted(
                (record for topic in INPUT_TOPICS for record in self.kafka.log(topic, partition).records),
                key=lambda record: record.timestamp,
            )
            steps = [(record, record.timestamp - 1) for record in records]
            for number, (record, progress_ms) in enumerate(steps):
                group.feed(record.topic, [record])
                if number % 4 == 0:
                    group.progress(progress_ms)
            until_ms = max((record.timestamp for record in records), default=T0)
            for jump_ms in JUMPS_MS:
                until_ms += jump_ms
                group.progress(until_ms)
            outputs, refusals = group.take()
            for output in outputs:
                said.add(output.topic, output.record_id, output.body)
            for refusal in refusals:
                where = f"{refusal.topic}/{partition}/{refusal.offset}"
                refused.add((where, f"pipelines.{refusal.by}", refusal.why))
        return said, refused

    def end(self) -> None:
        """Let go of all tasks, and hash what happened."""
        for process in self.processes:
            process.lost_in_flight = True
            process.kill()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        digest = hashlib.sha256(repr(self.kafka.trace).encode())
        for place in sorted(self.kafka.logs):
            digest.update(repr((place, self.kafka.logs[place].records)).encode())
        self.verdict.digest = digest.hexdigest()


def _text(line: bytes, limit: int = 300) -> str:
    return line.decode()[:limit]
