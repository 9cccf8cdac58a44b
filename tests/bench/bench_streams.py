"""The three operators under four hosts: our worker, a plain aiokafka loop, plain Faust, and Quix Streams.

`python -m tests.bench.bench_streams [BOOTSTRAP]` prints the figures as JSON; without an address it starts a broker. Every
host reads the same topics and does the same work: decode, all operators in one `Group` a partition, progress and
outputs to Kafka. Ours and the loop get batches; the agents of Faust and the dataframe of Quix Streams get one event at a
time, as their documents have it. Times are microseconds of CPU per event, the start of the process taken off.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.operators import build_operators
from pipelines.runtime.group import Group
from pipelines.runtime.sender import Sender, encode
from pipelines.runtime.settings import WorkerSettings, wall_ms
from pipelines.runtime.worker import collect_garbage_seldom
from schemas.config import Config
from schemas.topics import INPUT_TOPICS
from services.embedded.host import free_port
from services.embedded.kafka import KafkaBroker
from tests.bench.bench_pipelines import BATCH, PARTITIONS, _consumed, _delete, _plain, _publish, _run, _worker, traffic
from tests.pipelines.helpers import T0, Raw

EVENTS = 60_000
ROUNDS = 5


class Work:
    """What every host does with an event, and after each BATCH events with what came of them."""

    def __init__(self, kafka: dict[str, Any], prefix: str, count: int) -> None:
        collect_garbage_seldom()
        self._settings = WorkerSettings(kafka=kafka, operators=(), topic_prefix=prefix)
        self._groups = [Group(number, build_operators(Config())) for number in range(PARTITIONS)]
        self._prefix = len(prefix)
        self.left = count

    def fold(self, topic: str, partition: int, record: Raw) -> bool:
        """One event; True when what came of it and those before should go out."""
        self._groups[partition].feed(topic[self._prefix :], [record])
        self.left -= 1
        return self.left % BATCH == 0

    def outputs(self, now_ms: int) -> list[Any]:
        """Progress for every partition, and the messages to send."""
        messages = []
        for group in self._groups:
            group.progress(group.seen_until(dict.fromkeys(INPUT_TOPICS, now_ms)))
            messages += [encode(output) for output in group.take()[0]]
        return messages

    def sender(self) -> Sender:
        """Ours, for hosts on asyncio."""
        return Sender(self._settings)


def _faust(kafka: dict[str, Any], prefix: str, count: int, group: str) -> None:
    """A plain agent on Faust's own transport, one event at a time."""
    import faust

    app = faust.App(
        group,
        broker=f"kafka://{kafka['bootstrap_servers']}",
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        consumer_auto_offset_reset="earliest",
    )
    work = Work(kafka, prefix, count)
    done = asyncio.Event()
    topic = app.topic(*(prefix + name for name in INPUT_TOPICS), value_serializer="raw", key_serializer="raw")

    @app.agent(topic)  # type: ignore[untyped-decorator]
    async def process(stream: Any) -> None:
        sender = work.sender()
        async for event in stream.events():
            message = event.message
            record = Raw(message.offset, int(message.timestamp * 1000), message.key, message.value)
            if work.fold(message.topic, message.partition, record):
                await sender.send(work.outputs(record.timestamp))
            if work.left <= 0:
                done.set()

    async def run() -> None:
        running = asyncio.create_task(app.start())
        await done.wait()
        await app.stop()
        running.cancel()

    with tempfile.TemporaryDirectory() as folder:
        app.conf.datadir = Path(folder)
        asyncio.run(run())


def _quix(kafka: dict[str, Any], prefix: str, count: int, group: str) -> None:
    """A dataframe with one update on each topic."""
    from quixstreams import Application, message_context

    with tempfile.TemporaryDirectory() as folder:
        app = Application(
            broker_address=kafka["bootstrap_servers"],
            consumer_group=group,
            auto_offset_reset="earliest",
            state_dir=folder,
            auto_create_topics=False,
            loglevel="WARNING",
        )
        work = Work(kafka, prefix, count)
        producer = app.get_producer()

        def fold(value: bytes, key: bytes, timestamp: int, headers: Any) -> None:
            where = message_context()
            if work.fold(where.topic, where.partition, Raw(where.offset, timestamp, key, value)):
                for message in work.outputs(timestamp):
                    producer.produce(prefix + message.topic, message.value, message.key, message.headers)

        for name in INPUT_TOPICS:
            topic = app.topic(prefix + name, value_deserializer="bytes", key_deserializer="bytes")
            app.dataframe(topic).update(fold, metadata=True)
        with producer:
            app.run(count=count)


def _ours(kafka: dict[str, Any], prefix: str, size: int, mark: str) -> float:
    port = free_port()
    args = (kafka, prefix, mark, port, "all")
    return _run(_worker, args, lambda: _consumed(port) >= size)[0]


def measure(bootstrap: str, count: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """CPU µs per event of each host by round, their medians and spread, and ratios over ours."""
    kafka = {"bootstrap_servers": bootstrap}
    sizes = (count // 10, count)
    prefixes = {size: f"bench{uuid.uuid4().hex[:8]}." for size in sizes}
    for size, prefix in prefixes.items():
        # The broker's log times are of now, and what is far from them is too late for rules.
        asyncio.run(_publish(kafka, prefix, traffic(size, wall_ms() - T0 - size, step_ms=2)))
    hosts: dict[str, Callable[[int, str], float]] = {
        "ours": lambda size, mark: _ours(kafka, prefixes[size], size, mark),
        "plain_loop": lambda size, _: _run(_plain, (kafka, prefixes[size], size, "all"), lambda: False)[0],
        "faust": lambda size, mark: _run(_faust, (kafka, prefixes[size], size, mark), lambda: False)[0],
        "quix_streams": lambda size, mark: _run(_quix, (kafka, prefixes[size], size, mark), lambda: False)[0],
    }
    spent: dict[str, list[float]] = {name: [] for name in hosts}
    for number in range(rounds):
        for name, host in hosts.items():
            less, more = (host(size, f"{name}{number}") for size in sizes)
            spent[name].append((more - less) / (sizes[1] - sizes[0]) * 1e6)
    asyncio.run(_delete(kafka, [*prefixes.values()]))
    middle = {name: statistics.median(costs) for name, costs in spent.items()}
    return {
        "us_per_event": {name: round(cost, 1) for name, cost in middle.items()},
        "spread_us": {name: [round(min(costs), 1), round(max(costs), 1)] for name, costs in spent.items()},
        "over_ours": {name: round(cost / middle["ours"], 2) for name, cost in middle.items()},
    }


def run(count: int = EVENTS, bootstrap: str | None = None) -> dict[str, Any]:
    """All figures."""
    if bootstrap:
        return measure(bootstrap, count)
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder)) as broker:
        return measure(broker.bootstrap, count)


if __name__ == "__main__":
    print(json.dumps(run(EVENTS, *sys.argv[1:2]), indent=1))
