"""A short storm of workers, and a sink whose brokers fail: on a cluster of three, part of every test run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from clickhouse_connect.driver import Client

from schemas.topics import TOOL_CALL, TOPICS
from services.clickhouse_sink.settings import SinkSettings
from services.embedded.kafka import KafkaCluster
from services.kafka import create_topics
from tests.chaos.cluster.faults import elect_preferred_leaders
from tests.chaos.cluster.storm import storm
from tests.services.clickhouse_sink.conftest import client, tables, until
from tests.services.clickhouse_sink.events import started
from tests.services.clickhouse_sink.test_service import committed, running, until_rows

__all__ = ["client", "tables"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def test_a_storm_of_workers_on_three_brokers_loses_and_doubles_nothing(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    result = await storm(cluster, tmp_path, seed=11, load_s=10)
    assert result.differences == []
    assert result.events > 1000
    assert result.receipts == result.poison > 0
    assert result.take_overs > 0
    assert result.faults["broker_kills"] >= 1
    assert result.slowest_stop_s < 10


@pytest.fixture
async def wanted(cluster: KafkaCluster, tables: str) -> AsyncIterator[SinkSettings]:
    """Settings of a sink between topics on three brokers and the test's database."""
    kafka = {"bootstrap_servers": cluster.bootstrap}
    await create_topics(kafka, partitions=3, replication=3)
    yield SinkSettings(kafka=kafka, clickhouse_dsn=tables, batch_ms=100, session_timeout_s=6)
    admin = AIOKafkaAdminClient(**kafka)
    await admin.start()
    await admin.delete_topics([topic.name for topic in TOPICS])
    await admin.close()


async def test_a_sink_whose_brokers_are_killed_and_whose_leaders_move_shows_each_row_once(
    cluster: KafkaCluster,
    wanted: SinkSettings,
    client: Client,
) -> None:
    published = 0

    async def load(seconds: float) -> None:
        nonlocal published
        sender = AIOKafkaProducer(**wanted.kafka, acks="all", enable_idempotence=True, linger_ms=5)
        await sender.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            values = [orjson.dumps(started(f"k{n}")) for n in range(published, published + 50)]
            waiting = [await sender.send(TOOL_CALL, value, partition=n % 3) for n, value in enumerate(values)]
            await asyncio.gather(*waiting)
            published += 50
            await asyncio.sleep(0.05)
        await sender.stop()

    async with running(wanted) as sink:
        loading = asyncio.create_task(load(10))
        await until(lambda: sink.metrics.rows.labels("ingest_events")._value.get() > 0, "rows flow")
        await asyncio.to_thread(cluster.nodes[2].kill)
        assert sink.unhealthy() == []
        await asyncio.to_thread(cluster.nodes[2].start)
        await asyncio.to_thread(elect_preferred_leaders, cluster.nodes[1].port)
        await loading
        await until_rows(client, "SELECT count() FROM events", published, 60)
        assert await asyncio.to_thread(client.command, "SELECT uniqExact(event_id) FROM events") == published
        await until(lambda: not sink.not_ready(), "ready", 30)
        assert sink.unhealthy() == []
    assert await committed(wanted) == published
