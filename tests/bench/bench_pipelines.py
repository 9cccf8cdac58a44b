"""What an event costs the pipelines: CPU in process by operator, and on a real Kafka against a plain aiokafka loop.

`python -m tests.bench.bench_pipelines [BOOTSTRAP]` prints the figures as JSON; without an address it starts a broker.
All times are microseconds of CPU per input event, medians of interleaved rounds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from pipelines.operators import build_operators
from pipelines.runtime.group import Group
from pipelines.runtime.port import Event, OperatorFactory
from pipelines.runtime.sender import Sender, encode
from pipelines.runtime.settings import WorkerSettings, wall_ms
from pipelines.runtime.worker import collect_garbage_seldom
from pipelines.runtime.worker import run as run_worker
from schemas.config import Config
from schemas.topics import INPUT_TOPICS, TOPIC_OF_EVENT, TOPICS
from services.embedded.host import free_port
from services.embedded.kafka import KafkaBroker
from tests.pipelines.helpers import T0, Raw, call_event, event

EVENTS = 40_000
ROUNDS = 5
PARTITIONS = 4
BATCH = 500


def traffic(count: int, begin_ms: int = 0, step_ms: int = 40) -> list[Event]:
    """Events of ordinary sessions, about 1 KB each, nine in ten starts and ends of calls; a call begins each step."""
    rng = Random(1)
    made: list[Event] = []
    number = 0
    while len(made) < count:
        number += 1
        at_ms = begin_ms + number * step_ms
        session = f"0199c0de-0000-7000-8000-{number % 200:012}"
        where = {"session_id": session, "root_session_id": session, "agent_version": "2.1.0", "agent_id": "main"}
        where |= {
            "trace_id": f"{number % 200:032x}",
            "span_id": f"{number:016x}",
            "turn_id": f"{session}-{number // 2000}",
        }
        content = {"size_bytes": 420, "hash": f"hmac-sha256:k1:{number:064x}", "summary": "x" * rng.randint(60, 300)}
        if number % 10 == 0:
            made.append(event("user.prompt.submitted", at_ms, number, content=content, **where))
            made.append(event("turn.ended", at_ms, number, success=True, **where))
        shell = {
            "tool_name": "Bash",
            "tool_source": "shell",
            "input": content,
            "facts": {
                "commands": [{"argv0": rng.choice(["ls", "git", "cat", "python", "rg"]), "sub": None}],
                "paths": [{"path": f"/srv/app/src/module_{number % 50}.py", "kind": "read"}],
            },
        }
        mcp = {
            "tool_name": "mcp__github__search",
            "tool_source": "mcp",
            "input": content,
            "mcp": {"server_name": "github", "safe_server_name": "github", "tool_name": "search", "transport": "stdio"},
        }
        call = dict(where, **(shell if rng.random() < 0.7 else mcp))
        made.append(call_event("tool.call.started", at_ms, number, **call))
        if rng.random() < 0.995:
            end = dict(call, output=content, duration_ms=rng.lognormvariate(5, 1), outcome_evidence="exit_status")
            failed = rng.random() < 0.05
            end["outcome"] = "error" if failed else "ok"
            made.append(call_event("tool.call.error" if failed else "tool.call.completed", at_ms + 30, number, **end))
    for seq, body in enumerate(made[:count], start=1):
        body["producer"] = {"id": "bench", "epoch": 1, "seq": seq}
    return made[:count]


def batches(events: Sequence[Event]) -> list[tuple[str, list[Raw]]]:
    """The events as fetched batches, topic by topic as they come; log times are theirs."""
    made: list[tuple[str, list[Raw]]] = []
    offsets = dict.fromkeys(INPUT_TOPICS, 0)
    for at in range(0, len(events), BATCH):
        by_topic: dict[str, list[Raw]] = {}
        for n, body in enumerate(events[at : at + BATCH], at):
            topic = TOPIC_OF_EVENT[body["event_name"]]
            by_topic.setdefault(topic, []).append(Raw(offsets[topic], T0 + n * 20, b"k", orjson.dumps(body)))
            offsets[topic] += 1
        made += by_topic.items()
    return made


def in_process(factories: Sequence[OperatorFactory], fed: list[tuple[str, list[Raw]]]) -> tuple[float, int]:
    """CPU µs per event of decoding, operators and encoding what they say, and how many outputs there were."""
    group = Group(0, factories)
    outputs = 0
    gc.collect()
    started = time.process_time()
    for topic, records in fed:
        group.feed(topic, records)
        group.progress(group.seen_until(dict.fromkeys(INPUT_TOPICS, records[-1].timestamp)))
        for output in group.take()[0]:
            encode(output)
            outputs += 1
    spent = time.process_time() - started
    return spent / sum(len(records) for _, records in fed) * 1e6, outputs


def decode_only(fed: list[tuple[str, list[Raw]]]) -> float:
    """CPU µs per event of orjson alone."""
    started = time.process_time()
    for _, records in fed:
        for record in records:
            orjson.loads(record.value or b"")
    return (time.process_time() - started) / sum(len(records) for _, records in fed) * 1e6


def measure_in_process(count: int) -> dict[str, Any]:
    """Each operator alone and all together, ABAB."""
    fed = batches(traffic(count))
    operators = build_operators(Config())
    names = [factory(0).name for factory in operators]
    sides: dict[str, list[OperatorFactory]] = {
        "group": [],
        **dict(zip(names, ([one] for one in operators), strict=True)),
    }
    sides["all"] = operators
    spent: dict[str, list[float]] = {name: [] for name in ["decode", *sides]}
    outputs = {}
    for _ in range(ROUNDS):
        spent["decode"].append(decode_only(fed))
        for name, factories in sides.items():
            cost, outputs[name] = in_process(factories, fed)
            spent[name].append(cost)
    return {
        "us_per_event": {name: round(statistics.median(costs), 1) for name, costs in spent.items()},
        "outputs_per_event": {name: round(number / count, 3) for name, number in outputs.items()},
        "bytes_per_event": round(sum(len(raw.value or b"") for _, records in fed for raw in records) / count),
    }


def _plain(kafka: dict[str, Any], prefix: str, count: int, work: str) -> None:
    """The same work without Faust: one consumer by hand, one group a partition. `work`: decode, or all."""

    collect_garbage_seldom()

    async def loop() -> None:
        settings = WorkerSettings(kafka=kafka, operators=(), topic_prefix=prefix)
        consumer = AIOKafkaConsumer(**kafka, auto_offset_reset="earliest", enable_auto_commit=False)
        sender = Sender(settings)
        await consumer.start()
        topics = {TopicPartition(prefix + topic, n): topic for topic in INPUT_TOPICS for n in range(PARTITIONS)}
        consumer.assign([*topics])
        groups = [Group(n, build_operators(Config()) if work == "all" else ()) for n in range(PARTITIONS)]
        seen = 0
        while seen < count:
            for place, records in (await consumer.getmany(timeout_ms=500)).items():
                group = groups[place.partition]
                group.feed(topics[place], records)
                group.progress(group.seen_until(dict.fromkeys(INPUT_TOPICS, records[-1].timestamp)))
                await sender.send([encode(output) for output in group.take()[0]])
                seen += len(records)
        await consumer.stop()
        await sender.stop()

    asyncio.run(loop())


def _worker(kafka: dict[str, Any], prefix: str, group: str, port: int, work: str) -> None:
    operators = build_operators(Config()) if work == "all" else []
    run_worker(
        WorkerSettings(kafka=kafka, operators=tuple(operators), topic_prefix=prefix, group_id=group, http_port=port)
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _consumed(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    name = "agenttrace_pipeline_records_total{"
    return int(sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)))


def _run(target: Callable[..., None], args: tuple[Any, ...], done: Callable[[], bool]) -> tuple[float, float]:
    """CPU and wall seconds of a process of its own until `done`, its start (imports, compiled rules) included."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    started = time.monotonic()
    process.start()
    assert process.pid is not None
    cpu = 0.0
    while process.is_alive() and not done():
        cpu = _cpu_s(process.pid)
        time.sleep(0.05)
        if time.monotonic() - started > 300:
            raise TimeoutError("the events were not consumed in 300 s")
    if process.is_alive():
        cpu = _cpu_s(process.pid)
        process.terminate()
    wall = time.monotonic() - started
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the measured process ended with {process.exitcode}")
    return cpu, wall


async def _publish(kafka: dict[str, Any], prefix: str, events: Sequence[Event]) -> None:
    admin = AIOKafkaAdminClient(**kafka)
    await admin.start()
    await admin.create_topics(
        [NewTopic(prefix + topic.name, PARTITIONS, 1, topic_configs=topic.config) for topic in TOPICS]
    )
    await admin.close()
    producer = AIOKafkaProducer(**kafka, compression_type="zstd", linger_ms=20, max_batch_size=1 << 17)
    await producer.start()
    for body in events:
        place = zlib.crc32(body["session_id"].encode()) % PARTITIONS
        topic = prefix + TOPIC_OF_EVENT[body["event_name"]]
        await producer.send(topic, orjson.dumps(body), key=body["session_id"].encode(), partition=place)
    await producer.stop()


async def _delete(kafka: dict[str, Any], prefixes: Sequence[str]) -> None:
    admin = AIOKafkaAdminClient(**kafka)
    await admin.start()
    await admin.delete_topics([prefix + topic.name for prefix in prefixes for topic in TOPICS])
    await admin.close()


def measure_on_kafka(bootstrap: str, count: int) -> dict[str, Any]:
    """Worker and plain loop over the same topics; what a process costs before its first event is taken off.

    The cost at the start is that of the same process over a tenth of the events, extrapolated.
    """
    kafka = {"bootstrap_servers": bootstrap}
    sizes = (count // 10, count)
    prefixes = [f"bench{uuid.uuid4().hex[:8]}." for _ in sizes]
    for prefix, size in zip(prefixes, sizes, strict=True):
        # The broker's log times are of now, and what is far from them is too late for rules.
        asyncio.run(_publish(kafka, prefix, traffic(size, wall_ms() - T0 - size, step_ms=2)))
    rows: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    for round_number in range(3):
        for work in ("decode", "all"):
            for side in ("plain", "worker"):
                spent, walls = [], []
                for prefix, size in zip(prefixes, sizes, strict=True):
                    if side == "plain":
                        cpu, wall = _run(_plain, (kafka, prefix, size, work), lambda: False)
                    else:
                        port, group = free_port(), f"{prefix}{work}{round_number}"
                        cpu, wall = _run(
                            _worker,
                            (kafka, prefix, group, port, work),
                            lambda port=port, size=size: _consumed(port) >= size,  # type: ignore[misc]
                        )
                    spent.append(cpu)
                    walls.append(wall)
                (less, more), (short, long) = spent, walls
                name = f"{side}_{work}"
                rows.setdefault(name, []).append((more - less) / (sizes[1] - sizes[0]) * 1e6)
                rates.setdefault(name, []).append((sizes[1] - sizes[0]) / max(long - short, 1e-3))
    asyncio.run(_delete(kafka, prefixes))
    cost = {name: statistics.median(values) for name, values in rows.items()}
    return {
        "us_per_event": {name: round(value, 1) for name, value in cost.items()},
        "events_per_s": {name: round(statistics.median(values)) for name, values in rates.items()},
        "worker_over_plain": round(cost["worker_all"] / cost["plain_all"], 2),
        "faust_us_per_event": round(cost["worker_all"] - cost["plain_all"], 1),
    }


def growth() -> dict[str, float]:
    """CPU µs per event of all operators at 1×, 4× and 16× the events: flat, or something grows."""
    costs = {}
    for count in (5_000, 20_000, 80_000):
        costs[str(count)] = round(in_process(build_operators(Config()), batches(traffic(count)))[0], 1)
    return costs


def run(bootstrap: str | None = None, count: int = EVENTS) -> dict[str, Any]:
    """All figures, with the machine they are from."""
    collect_garbage_seldom()
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "events": count,
        "in_process": measure_in_process(count),
        "growth_us_per_event": growth(),
    }
    if bootstrap:
        figures["kafka"] = measure_on_kafka(bootstrap, 5 * count)
    else:
        with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:
            figures["kafka"] = measure_on_kafka(broker.bootstrap, 5 * count)
    return figures


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:2]), indent=1))
