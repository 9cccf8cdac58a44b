"""What a sink does when it is frozen, or when ClickHouse is slow, or Kafka goes: nothing doubles, and its page says so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from clickhouse_connect.driver import Client

from schemas.topics import TOOL_CALL
from services import kafka
from services.clickhouse_sink import service
from services.clickhouse_sink.service import Sink
from services.clickhouse_sink.settings import SinkSettings
from services.embedded.host import free_port
from services.embedded.kafka import KafkaBroker
from tests.services.clickhouse_sink.conftest import until
from tests.services.clickhouse_sink.events import started
from tests.services.clickhouse_sink.proxy import Proxy
from tests.services.clickhouse_sink.sink_process import SinkProcess
from tests.services.clickhouse_sink.test_service import committed, running, until_rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SESSION_S = 6.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[SinkSettings], SinkProcess]]:
    """Starts sink processes, which end with the test."""
    made: list[SinkProcess] = []

    def start(settings: SinkSettings) -> SinkProcess:
        made.append(SinkProcess(settings, tmp_path / f"sink{len(made)}.log"))
        return made[-1]

    yield start
    for process in made:
        process.end_at_once()


@pytest.fixture
async def publish(settings: SinkSettings) -> AsyncIterator[Callable[..., Any]]:
    """`await publish("a", 10)`: so many starts of calls, spread over the partitions."""
    sender = AIOKafkaProducer(**settings.kafka, acks="all", linger_ms=5)
    await sender.start()

    async def send(name: str, count: int) -> None:
        waiting = [
            await sender.send(settings.topic_prefix + TOOL_CALL, orjson.dumps(started(f"{name}{n}")), partition=n % 2)
            for n in range(count)
        ]
        await asyncio.gather(*waiting)

    yield send
    await sender.stop()


async def test_a_frozen_sink_that_wakes_up_doubles_nothing(
    settings: SinkSettings, publish: Callable[..., Any], client: Client, start: Callable[[SinkSettings], SinkProcess]
) -> None:
    settings = replace(settings, session_timeout_s=SESSION_S)
    async with Proxy(settings.clickhouse_dsn) as proxy:
        zombie = start(replace(settings, clickhouse_dsn=proxy.dsn))
        await until(lambda: zombie.get("/readyz")[0] == 200, "the first sink is ready", 40)
        await publish("a", 100)
        await until_rows(client, "SELECT count() FROM events", 100)
        # Its next insert is on its way when it stands still, and arrives when another has written the same rows.
        proxy.hold()
        await publish("b", 100)
        await until(lambda: proxy.held_bytes > 1000, "an insert is on its way")
        zombie.process.send_signal(signal.SIGSTOP)
        async with running(settings) as heir:
            await until_rows(client, "SELECT count() FROM events", 200, 40)
            written = heir.metrics.rows.labels("ingest_events")._value
            # Counted once ClickHouse has answered, which is after a query can see the rows.
            await until(lambda: written.get() >= 100, "the heir has its answer")
            assert written.get() == 100
            zombie.process.send_signal(signal.SIGCONT)
            proxy.release()
            await until(lambda: zombie.metric("rows_total{") == 200, "the late rows are in")
            assert await asyncio.to_thread(client.command, "SELECT count() FROM events") == 200
            assert await asyncio.to_thread(client.command, "SELECT uniqExact(event_id) FROM events") == 200
            await until(lambda: zombie.get("/readyz")[0] == 200, "it is a member again", 40)
            await publish("c", 100)
            await until_rows(client, "SELECT count() FROM events", 300)
        assert zombie.terminate() < 10
    assert await committed(settings) == 300


async def test_a_slow_clickhouse_costs_time_only_and_a_silent_one_is_told(
    settings: SinkSettings, publish: Callable[..., Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(settings.clickhouse_dsn) as proxy:
        async with running(replace(settings, clickhouse_dsn=proxy.dsn)) as sink:
            proxy.delay_s = 0.3
            for n in range(5):
                await publish(f"a{n}-", 200)
            await until_rows(client, "SELECT count() FROM events", 1000)
            assert (sink.not_ready(), sink.unhealthy()) == ([], [])
            proxy.delay_s = 0
            monkeypatch.setattr(service, "SLOW_S", 1.0)
            proxy.hold()
            await publish("b", 10)
            await until(sink.not_ready, "it says that nothing is answered")
            assert sink.not_ready()[0].startswith("ClickHouse: no answer to an insert for ")
            assert sink.unhealthy() == []
            proxy.release()
            await until_rows(client, "SELECT count() FROM events", 1010)
            await until(lambda: not sink.not_ready(), "ready again")
    assert await committed(settings) == 1010


async def test_a_kafka_that_goes_is_told_in_few_lines_and_a_stop_in_it_ends_in_time(
    tables: str, client: Client, tmp_path: Path, start: Callable[[SinkSettings], SinkProcess]
) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        wanted = SinkSettings(
            kafka={"bootstrap_servers": broker.bootstrap},
            clickhouse_dsn=tables,
            batch_ms=100,
            session_timeout_s=SESSION_S,
        )
        await kafka.create_topics(wanted.kafka, partitions=2)
        sink = start(wanted)
        await until(lambda: sink.get("/readyz")[0] == 200, "ready", 40)
        broker.kill()
        await until(lambda: sink.get("/readyz")[0] == 503, "it says that Kafka is away", 30)
        assert sink.reasons()[0].startswith("Kafka: nothing heard of the consumer group for ")
        assert sink.get("/healthz")[0] == 200
        await asyncio.to_thread(broker.start)
        await until(lambda: sink.get("/readyz")[0] == 200, "ready again", 40)

        sender = AIOKafkaProducer(**wanted.kafka)
        await sender.start()
        await sender.send_and_wait(TOOL_CALL, orjson.dumps(started("after")))
        await sender.stop()
        await until_rows(client, "SELECT count() FROM events", 1)
        told = [line for line in sink.log().splitlines() if " WARNING " in line or " ERROR " in line]
        assert 1 <= len(told) <= 2, told

        broker.kill()
        assert sink.terminate() < 10
        assert sink.process.returncode == 0
    assert "Traceback" not in sink.log()


async def test_a_stop_under_load_drains_and_ends_in_time(
    settings: SinkSettings, publish: Callable[..., Any], client: Client, start: Callable[[SinkSettings], SinkProcess]
) -> None:
    sink = start(settings)
    await until(lambda: sink.get("/readyz")[0] == 200, "ready", 40)
    stop = asyncio.Event()

    async def load() -> int:
        count = 0
        while not stop.is_set():
            await publish(f"l{count}-", 100)
            count += 1
        return count * 100

    loading = asyncio.create_task(load())
    await until(lambda: sink.metric("rows_total{") > 500, "rows flow")
    assert await asyncio.to_thread(sink.terminate) < 10
    assert sink.process.returncode == 0
    stop.set()
    published = await loading
    # What was read is written and committed, no more and no less.
    written = await asyncio.to_thread(client.command, "SELECT count() FROM events")
    assert await committed(settings) == written < published


async def test_a_clickhouse_that_is_away_at_the_start_is_waited_for_and_told(settings: SinkSettings) -> None:
    sink = Sink(replace(settings, clickhouse_dsn=f"http://nobody@127.0.0.1:{free_port()}/default"))
    task = asyncio.create_task(sink.run())
    await until(lambda: any(reason.startswith("ClickHouse: ") for reason in sink.not_ready()), "it says so")
    assert sink.unhealthy() == []
    sink.stop()
    await asyncio.wait_for(task, 10)


async def test_a_sink_in_which_nothing_moves_asks_to_be_started_again(
    settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings) as sink:
        assert sink.unhealthy() == []
        monkeypatch.setattr(service, "STUCK_S", -1.0)
        assert sink.unhealthy()[0].startswith("nothing moved for ")
