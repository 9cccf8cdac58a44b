"""One storm: workers and brokers fail under load, and what was said is compared with a replay of the same records."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from pipelines.replay import Replayed, canonical_of_topics, diff, replay
from pipelines.runtime.port import CanonicalSet, record_id_of
from schemas.clock import from_rfc3339
from schemas.topics import CHECKPOINT, DLQ, INPUT_TOPICS, RISK_FINDING, TOOL_CALL_DERIVED, TOOL_METRIC, TOPICS
from services.embedded.kafka import KafkaCluster
from tests.chaos.cluster.faults import BrokerFaults, WorkerFaults
from tests.chaos.cluster.load import PARTITIONS, Agents, publish
from tests.chaos.cluster.worker import TTL_MS, Worker, operators
from tests.reading import read_topics

log = logging.getLogger(__name__)

DERIVED = tuple(topic.name for topic in TOPICS if topic.kind == "derived")
OF_WORKERS = (*INPUT_TOPICS, *DERIVED, DLQ, CHECKPOINT)
"""The topics that workers read and write; the sink's and the collector's are not made."""
READY_S = 60
SETTLE_MS = 7_000
"""From the last record to what follows from it: the grace after a session's end, and what a partition read to its end
may still get."""
CONVERGE_S = 60


@dataclass(slots=True)
class Result:
    """What a storm did and what came of it. `differences` is empty when it is clean."""

    seed: int
    events: int = 0
    poison: int = 0
    receipts: int = 0
    receipts_repeated: int = 0
    derived_records: int = 0
    outputs: int = 0
    said_twice_in_one_version: int = 0
    """Ids of which one version has several bodies: the last in the log's order stands, here as in ClickHouse."""
    findings: int = 0
    timed_out: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    take_overs: int = 0
    thrown_out: int = 0
    slowest_stop_s: float = 0.0
    catch_up_s: float = 0.0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self)


async def storm(cluster: KafkaCluster, folder: Path, *, seed: int, load_s: float, per_second: int = 300) -> Result:
    """A storm on a cluster that runs; worker logs go to `folder`. Topics have a prefix of their own."""
    began = time.monotonic()
    rng, result = Random(seed), Result(seed)
    kafka = {"bootstrap_servers": cluster.bootstrap}
    prefix = f"s{uuid.uuid4().hex[:8]}."
    await _create_topics(kafka, prefix)
    made = 0

    def make() -> Worker:
        nonlocal made
        made += 1
        return Worker(cluster.bootstrap, prefix, folder / f"storm{seed}-worker{made}.log")

    agents = Agents(seed)
    log.info("topics are made")
    workers = WorkerFaults(make, Random(rng.random()))
    brokers = BrokerFaults(cluster, Random(rng.random()))
    try:
        await _until_ready(workers)
        until = time.monotonic() + load_s
        log.info("the load begins")
        await asyncio.gather(
            publish(cluster.bootstrap, prefix, agents, rng, seconds=load_s, per_second=per_second),
            workers.run(until),
            brokers.run(until),
        )
        last_ms = time.time_ns() // 1_000_000
        log.info("the load has ended")
        await asyncio.gather(workers.calm(), brokers.calm())
        # A multiple of the operators' ticks, so that nothing falls due between it and the comparison but windows.
        until_ms = -(-(last_ms + TTL_MS + SETTLE_MS) // 10_000) * 10_000
        log.info("all runs again; comparing at +%.0f s", until_ms / 1000 - time.time())
        await asyncio.sleep(max(0.0, until_ms / 1000 - time.time()))
        truth = await replay(kafka, operators(), prefix=prefix, until_ms=until_ms)
        log.info("replayed")
        result.differences, result.catch_up_s = await _converged(kafka, prefix, truth, until_ms)
        log.info(
            "the same after %.1f s" if not result.differences else "still different after %.1f s", result.catch_up_s
        )
        await workers.end()
        await _judge(result, kafka, prefix, truth=truth, until_ms=until_ms, agents=agents)
    finally:
        workers.end_at_once()
    result.events = agents.published
    result.faults = dict(sorted((workers.counts + brokers.counts).items()))
    logs = "".join(worker.log.read_text(errors="replace") for worker in workers.gone)
    result.take_overs = len(re.findall(r"partition \d+: \w+ state from", logs)) - PARTITIONS
    result.thrown_out = len(re.findall(r"thrown out of the group", logs))
    result.slowest_stop_s = round(workers.slowest_stop_s, 1)
    result.seconds = round(time.monotonic() - began, 1)
    await _delete_topics(kafka, prefix)
    return result


async def _until_ready(workers: WorkerFaults) -> None:
    deadline = time.monotonic() + READY_S
    while not all([await asyncio.to_thread(worker.ready) for worker in workers.workers]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the workers are not ready after {READY_S} s; see {workers.workers[0].log}")
        await asyncio.sleep(0.3)


async def _converged(kafka: dict[str, Any], prefix: str, truth: Replayed, until_ms: int) -> tuple[list[str], float]:
    """Differences once there are none, or after CONVERGE_S; and the seconds that took."""
    began, wanted = time.monotonic(), _closed(truth.said, until_ms)
    while True:
        found = diff(wanted, _closed(await canonical_of_topics(kafka, prefix), until_ms))
        waited = time.monotonic() - began
        if not found or waited > CONVERGE_S:
            return found, round(waited, 1)
        await asyncio.sleep(0.5)


async def _judge(
    result: Result, kafka: dict[str, Any], prefix: str, *, truth: Replayed, until_ms: int, agents: Agents
) -> None:
    """The final comparison, when no worker runs any more."""
    wanted = _closed(truth.said, until_ms)
    records = await read_topics(kafka, [prefix + topic for topic in DERIVED])
    said, bodies = CanonicalSet(), defaultdict[tuple[str, str, int], set[bytes]](set)
    for record in records:
        topic = record.topic.removeprefix(prefix)
        body = orjson.loads(record.value)
        record_id = record.key.decode() if "event_id" not in body else record_id_of(body)
        said.add(topic, record_id, body)
        bodies[topic, record_id, body.get("version", 0)].add(record.value)
    result.differences = diff(wanted, _closed(said, until_ms))
    result.derived_records, result.outputs = len(records), len(wanted)
    result.said_twice_in_one_version = sum(len(values) > 1 for values in bodies.values())
    result.findings = len(wanted.bodies(RISK_FINDING))
    ended = wanted.bodies(TOOL_CALL_DERIVED)
    result.timed_out = len(ended)
    unsaid = agents.never_ended - {str(body["call_id"]) for body in ended.values()}
    result.differences += [f"call {call_id} never ended, and nothing says so" for call_id in sorted(unsaid)]
    if not result.findings:
        result.differences.append("there are risky sequences, and no finding")

    poison = {
        f"{record.topic.removeprefix(prefix)}/{record.partition}/{record.offset}"
        for record in await read_topics(kafka, [prefix + topic for topic in INPUT_TOPICS])
        if b"poison" in record.value
    }
    letters = Counter(dict(record.headers)["at_from"].decode() for record in await read_topics(kafka, [prefix + DLQ]))
    result.poison, result.receipts = len(poison), len(letters)
    result.receipts_repeated = letters.total() - len(letters)
    result.differences += [f"no receipt of poison at {place}" for place in sorted(poison - letters.keys())]
    result.differences += [f"a receipt of {place}, which is no poison" for place in sorted(letters.keys() - poison)]


def _closed(said: CanonicalSet, until_ms: int) -> CanonicalSet:
    """Without windows that were still open: what is said of them depends on when one looks."""
    kept = CanonicalSet()
    for topic in DERIVED:
        for record_id, body in said.bodies(topic).items():
            if topic != TOOL_METRIC or from_rfc3339(body["window_start"]) + body["window_ms"] <= until_ms:
                kept.add(topic, record_id, body)
    return kept


async def _create_topics(kafka: dict[str, Any], prefix: str) -> None:
    admin = AIOKafkaAdminClient(**kafka)
    await admin.start()
    try:
        await admin.create_topics(
            [
                NewTopic(
                    prefix + topic.name,
                    PARTITIONS if topic.name in (*INPUT_TOPICS, CHECKPOINT) else 3,
                    min(3, len(admin._client.cluster.brokers())),
                    topic_configs={**topic.config, "min.insync.replicas": "2"},
                )
                for topic in TOPICS
                if topic.name in OF_WORKERS
            ]
        )
    finally:
        await admin.close()


async def _delete_topics(kafka: dict[str, Any], prefix: str) -> None:
    admin = AIOKafkaAdminClient(**kafka)
    await admin.start()
    try:
        await admin.delete_topics([prefix + name for name in OF_WORKERS])
    finally:
        await admin.close()
