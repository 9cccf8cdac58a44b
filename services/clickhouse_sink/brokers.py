"""Starts the sink's Kafka clients: waits while Kafka is away, and tells people what only they can mend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.errors import UserError
from services.clickhouse_sink.records import TABLE_OF
from services.clickhouse_sink.settings import SinkSettings
from services.kafka import on_heartbeat, reason

RETRY_S = 2.0

Say = Callable[[UserError], None]
"""Told, at each try, why Kafka is away."""


class Heard:
    """When (`at`, monotonic) the last answer was asked for that this consumer is a member of its group."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.at = time.monotonic()
        on_heartbeat(consumer, self._hear)

    def _hear(self, asked_at: float) -> None:
        self.at = asked_at

    def silent_s(self) -> float:
        """For how long there was none."""
        return time.monotonic() - self.at


async def start_consumer(settings: SinkSettings, say: Say) -> AIOKafkaConsumer:
    """A consumer of the group, offsets committed by hand. Raises UserError for a refused login or a missing topic."""
    known: set[str] = set()

    async def ask(consumer: AIOKafkaConsumer) -> None:
        known.update(await consumer.topics())

    consumer = await _start(
        lambda: AIOKafkaConsumer(
            **settings.kafka,
            group_id=settings.group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=4 << 20,
            # By aiokafka's default of 5 min a partition whose leader has moved could wait so long for its first position.
            metadata_max_age_ms=5_000,
            session_timeout_ms=int(settings.session_timeout_s * 1000),
            heartbeat_interval_ms=int(settings.session_timeout_s * 300),
        ),
        settings,
        say,
        ask,
    )
    missing = [settings.topic_prefix + name for name in TABLE_OF if settings.topic_prefix + name not in known]
    if missing:
        await consumer.stop()
        raise UserError(
            f"Kafka at {settings.servers} has no topic {', '.join(missing)}: "
            "create what is missing with `agenttrace topics create`"
        )
    return consumer


async def start_producer(settings: SinkSettings, say: Say) -> AIOKafkaProducer:
    """For dead letters. Raises UserError for a refused login."""
    return await _start(
        lambda: AIOKafkaProducer(**settings.kafka, acks="all", enable_idempotence=True, request_timeout_ms=10_000),
        settings,
        say,
    )


async def _start(
    make: Callable[[], Any], settings: SinkSettings, say: Say, ask: Callable[[Any], Awaitable[None]] | None = None
) -> Any:
    while True:
        client = make()
        try:
            await client.start()
            if ask is not None:
                await ask(client)
            return client
        except (KafkaError, OSError, TimeoutError) as error:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                await client.stop()
            told = await reason(settings.kafka, error)
            if told.exit_code != os.EX_UNAVAILABLE:
                raise told from None
            say(told)
            await asyncio.sleep(RETRY_S)
