"""The faults of a storm: a lane for workers and a lane for brokers, each in an order that the seed decides."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from services.embedded.host import LOOPBACK
from services.embedded.kafka import KafkaCluster
from services.embedded.kafka.broker import KafkaBroker
from tests.chaos.cluster.worker import SESSION_TIMEOUT_S, Worker

log = logging.getLogger(__name__)

WORKERS = 3
PAUSE_S = (0.5, 2.5)
_ELECT_LEADERS, _VERSION = 43, 1


class WorkerFaults:
    """Kills, freezes, adds and ends workers, and sees that there are WORKERS of them again."""

    def __init__(self, make: Callable[[], Worker], rng: Random) -> None:
        self._make = make
        self._rng = rng
        self.workers = [make() for _ in range(WORKERS)]
        self.gone: list[Worker] = []
        self.counts: Counter[str] = Counter()
        self.slowest_stop_s = 0.0

    async def run(self, until: float) -> None:
        """One fault after another until this time (monotonic); each kind once before any comes again."""
        while True:
            for fault in self._rng.sample([self._kill, self._freeze, self._join, self._leave], 4):
                if time.monotonic() > until:
                    return
                await fault()
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def calm(self) -> None:
        """All that are frozen go on, and WORKERS run."""
        for worker in [*self.workers]:
            if worker.frozen:
                worker.thaw()
            if not worker.alive:
                self.counts["workers_ended_by_themselves"] += 1
                self.workers.remove(worker)
                self.gone.append(worker)
        while len(self.workers) < WORKERS:
            self.workers.append(self._make())

    async def end(self) -> None:
        """SIGTERM to all."""
        for seconds in await asyncio.gather(*(asyncio.to_thread(worker.terminate) for worker in self.workers)):
            self.slowest_stop_s = max(self.slowest_stop_s, seconds)
        self.gone += self.workers
        self.workers = []

    def end_at_once(self) -> None:
        """Whatever happened, leave no process."""
        for worker in [*self.workers, *self.gone]:
            if worker.alive:
                worker.kill()

    def _take(self) -> Worker:
        worker = self.workers.pop(self._rng.randrange(len(self.workers)))
        self.gone.append(worker)
        return worker

    async def _kill(self) -> None:
        log.info("kill -9 of a worker")
        self.counts["worker_kills"] += 1
        await asyncio.to_thread(self._take().kill)
        await asyncio.sleep(self._rng.uniform(0, 3))
        await self.calm()

    async def _freeze(self) -> None:
        log.info("a worker stands still")
        self.counts["freezes"] += 1
        worker = self._rng.choice(self.workers)
        worker.freeze()
        await asyncio.sleep(SESSION_TIMEOUT_S + self._rng.uniform(1, 3))
        worker.thaw()

    async def _join(self) -> None:
        log.info("a worker joins")
        self.counts["joins"] += 1
        self.workers.append(self._make())

    async def _leave(self) -> None:
        log.info("a worker leaves")
        self.counts["leaves"] += 1
        self.slowest_stop_s = max(self.slowest_stop_s, await asyncio.to_thread(self._take().terminate))
        await self.calm()


class BrokerFaults:
    """Kills one broker at a time, starts it again, and gives the leaders back to the preferred replicas."""

    def __init__(self, cluster: KafkaCluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._down: KafkaBroker | None = None
        self.counts: Counter[str] = Counter()

    async def run(self, until: float) -> None:
        """One fault after another until this time (monotonic)."""
        while time.monotonic() < until:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            if time.monotonic() > until:
                return
            await self._kill()
            await asyncio.sleep(self._rng.uniform(2, 6))
            await self.calm()
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            await self._elect()

    async def calm(self) -> None:
        """All brokers run and have all replicas in sync, so that the next kill is of one broker only."""
        node, self._down = self._down, None
        if node is not None:
            log.info("a broker starts again")
            await asyncio.to_thread(node.start)
        deadline = time.monotonic() + 60
        while await self._out_of_sync():
            if time.monotonic() > deadline:
                raise TimeoutError("replicas are not in sync again after 60 s")
            await asyncio.sleep(0.3)

    async def _kill(self) -> None:
        number = self._rng.choice(sorted(self._cluster.nodes))
        log.info("kill -9 of broker %d", number)
        self.counts["broker_kills"] += 1
        self._down = self._cluster.nodes[number]
        await asyncio.to_thread(self._down.kill)

    async def _elect(self) -> None:
        moved = sum([await asyncio.to_thread(elect_preferred_leaders, node.port) for node in self._any()])
        log.info("%d partitions got their preferred leader", moved)
        self.counts["leaders_moved_back"] += moved

    def _any(self) -> list[KafkaBroker]:
        return [self._rng.choice([node for node in self._cluster.nodes.values() if node.pid is not None])]

    async def _out_of_sync(self) -> bool:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._cluster.bootstrap)
        try:
            await admin.start()
            topics = await admin.describe_topics()
        except (KafkaError, OSError, TimeoutError):
            return True
        finally:
            await admin.close()
        return any(len(row["isr"]) < len(row["replicas"]) for topic in topics for row in topic["partitions"])


def elect_preferred_leaders(port: int) -> int:
    """Ask for each partition's preferred leader; how many changed. OSError if the broker on this port does not answer.

    One ElectLeaders request (Kafka protocol guide, key 43, version 1) for all partitions; the client library has none.
    """
    header = struct.pack(">hhih", _ELECT_LEADERS, _VERSION, 1, -1)
    body = struct.pack(">bii", 0, -1, 10_000)
    with socket.create_connection((LOOPBACK, port), 15) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        answer = connection.makefile("rb")
        rest = answer.read(struct.unpack(">i", answer.read(4))[0])
    # correlation id, throttle time, error; then by topic the partitions that changed (error 0) or could not
    error, topics = struct.unpack_from(">8xhi", rest)
    if error:
        raise OSError(f"the broker refused to elect leaders: error {error}")
    at, moved = 14, 0
    for _ in range(topics):
        at += 2 + struct.unpack_from(">h", rest, at)[0]
        (partitions,) = struct.unpack_from(">i", rest, at)
        at += 4
        for _ in range(partitions):
            _, code, length = struct.unpack_from(">ihh", rest, at)
            at += 8 + max(length, 0)
            moved += code == 0
    return moved
