"""A database with the tables in it, a way to write events as the sink does, and topics for a whole sink."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import clickhouse_connect
import pytest
from aiokafka import ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from clickhouse_connect.driver import Client

from schemas.topics import TOPICS
from services.clickhouse_sink.metrics import Metrics
from services.clickhouse_sink.migrate import migrate_dsn
from services.clickhouse_sink.records import blocks
from services.clickhouse_sink.settings import SinkSettings
from services.clickhouse_sink.writer import Writer
from tests.services.clickhouse_sink.events import T0, Json, records

PARTITIONS = 2


async def until(condition: Callable[[], object], what: str, timeout_s: float = 20) -> None:
    """Return once the condition holds; fail when time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture
def tables(clickhouse_db: str) -> str:
    """DSN of a database with all tables."""
    migrate_dsn(clickhouse_db)
    return clickhouse_db


@pytest.fixture
def client(clickhouse_db: str) -> Iterator[Client]:
    """A client of the test's database."""
    with clickhouse_connect.get_client(dsn=clickhouse_db, autogenerate_session_id=False) as connected:
        yield connected


@pytest.fixture
def rows(tables: str, client: Client) -> Callable[..., list[Json]]:
    """`rows(sql)`: what a query gives, each row by column name."""

    def ask(sql: str) -> list[Json]:
        return list(client.query(sql).named_results())

    return ask


class Written:
    """Writes events by the sink's own code; keeps what ClickHouse refused."""

    def __init__(self, dsn: str) -> None:
        self.refused: list[tuple[ConsumerRecord, str, int]] = []
        self.writer = Writer(dsn, Metrics(), self._refuse)
        self._offset = 0

    async def _refuse(self, record: ConsumerRecord, why: str, tries: int) -> None:
        self.refused.append((record, why, tries))

    async def __call__(self, events: Sequence[Json], **fields: Any) -> None:
        """One batch of events."""
        await self.records(records(events, offset=self._offset, **fields))
        self._offset += len(events)

    async def records(self, batch: Sequence[ConsumerRecord]) -> None:
        """One batch of records."""
        for block in blocks(batch, "", T0):
            await self.writer.write(block)


@pytest.fixture
async def write(tables: str) -> AsyncIterator[Written]:
    """`await write(events)`: one batch into the test's database."""
    written = Written(tables)
    await written.writer.open()
    yield written
    written.writer.close()


@pytest.fixture
async def topics(kafka_bootstrap: str, topic_prefix: str) -> AsyncIterator[str]:
    """The prefix of a set of topics that is this test's alone."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    names = [topic_prefix + topic.name for topic in TOPICS]
    made = [NewTopic(topic_prefix + topic.name, PARTITIONS, 1, topic_configs=topic.config) for topic in TOPICS]
    try:
        await admin.create_topics(made)
        yield topic_prefix
        await admin.delete_topics(names)
    finally:
        await admin.close()


@pytest.fixture
def settings(kafka_bootstrap: str, topics: str, tables: str) -> SinkSettings:
    """Settings of a sink between the test's topics and its database."""
    return SinkSettings(
        kafka={"bootstrap_servers": kafka_bootstrap},
        clickhouse_dsn=tables,
        topic_prefix=topics,
        group_id=f"{topics}sink",
        batch_ms=100,
    )
