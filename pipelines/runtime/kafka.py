"""What a worker checks before it joins, and Kafka's errors as lines for people."""

from __future__ import annotations

import asyncio
import os
import time

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from pipelines.runtime import logs
from pipelines.runtime.settings import WorkerSettings
from schemas.errors import UserError
from schemas.topics import CHECKPOINT, DLQ, INPUT_TOPICS, TOPICS
from services.kafka import reason

CHUNK = 500
"""Records folded before the event loop gets a turn."""
POLL_MS = 1000
STALLED_POLLS = 30
"""Who reads the log by hand gives up after so many polls of POLL_MS without a record that must be there."""
SETTLE_S = 3.0
"""A topic that was just made takes a moment until every broker knows it, as does a broker that has gone."""


async def check(settings: WorkerSettings) -> int:
    """The partition count of the input topics.

    Raises UserError if the broker cannot be reached or refuses the login, if a topic is missing, or if the inputs have
    different partition counts.
    """
    prefix = settings.topic_prefix
    needed = [*INPUT_TOPICS, *(topic.name for topic in TOPICS if topic.kind == "derived"), DLQ, CHECKPOINT]
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            with logs.quiet():
                found = await asyncio.wait_for(_topics(settings), settings.start_timeout_s)
        except (KafkaError, OSError, TimeoutError) as error:
            # One broker of several may be away, and the client asks any of them.
            told = await reason(settings.kafka, error)
            if told.exit_code != os.EX_UNAVAILABLE or time.monotonic() > deadline:
                raise told from None
        else:
            missing = [prefix + name for name in needed if prefix + name not in found]
            if not missing or time.monotonic() > deadline:
                break
        await asyncio.sleep(SETTLE_S / 10)
    if missing:
        raise UserError(
            f"Kafka at {settings.servers} has no topic {', '.join(missing)}: "
            "create what is missing with `agenttrace topics create`"
        )
    counts = {prefix + name: found[prefix + name] for name in (*INPUT_TOPICS, CHECKPOINT)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UserError(
            f"the input and checkpoint topics at {settings.servers} must have one partition count, but have: {listed}; "
            "make a new generation of topics with equal counts"
        )
    return found[prefix + INPUT_TOPICS[0]]


async def _topics(settings: WorkerSettings) -> dict[str, int]:
    admin = AIOKafkaAdminClient(**settings.kafka)
    try:
        await admin.start()
        return {row["topic"]: len(row["partitions"]) for row in await admin.describe_topics()}
    finally:
        await admin.close()
