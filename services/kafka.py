"""How every part reaches Kafka: client settings from the configuration, topics as the table says, and errors told to people."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    UnrecognizedBrokerVersion,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.partitioner import murmur2

from schemas.config import KafkaConfig
from schemas.errors import UserError
from schemas.topics import TOPICS, Topic

BROKER_DEFAULT = -1
"""As a replication factor: what the broker's default.replication.factor says."""


def partition_of(key: bytes | None, partitions: list[int], available: list[int]) -> int:
    """As Kafka's default partitioner, but that the key of a session, which comes with each of its events, is hashed once."""
    return random.choice(available or partitions) if key is None else partitions[_hashed(key) % len(partitions)]


@lru_cache(maxsize=4096)
def _hashed(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": True,
    "compression_type": "zstd",
    "linger_ms": 5,
    # Of one partition, before compression. A request costs as much as some 40 events, here and in the broker.
    "max_batch_size": 256 << 10,
    "partitioner": partition_of,
}
"""Of everything that produces records: none lost, none twice, in order."""


def client_kwargs(config: KafkaConfig) -> dict[str, Any]:
    """Keyword arguments that every aiokafka client takes. Raises UserError for missing servers or unreadable certificates."""
    if not config.bootstrap_servers:
        raise UserError(
            "no Kafka to talk to: start the embedded one with `agenttrace up`, "
            "or set kafka.bootstrap_servers (AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS)"
        )
    for server in config.bootstrap_servers.split(","):
        if not server.rpartition(":")[2].isdigit():
            raise UserError(f"kafka.bootstrap_servers: {server!r} is not HOST:PORT")
    kwargs: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "security_protocol": config.security_protocol,
    }
    if config.security_protocol.startswith("SASL"):
        if not config.sasl_username or config.sasl_password is None:
            raise UserError(
                f"kafka.security_protocol is {config.security_protocol}, which needs kafka.sasl_username and "
                "kafka.sasl_password"
            )
        kwargs["sasl_mechanism"] = config.sasl_mechanism or "PLAIN"
        kwargs["sasl_plain_username"] = config.sasl_username
        kwargs["sasl_plain_password"] = config.sasl_password
    if config.security_protocol.endswith("SSL"):
        try:
            kwargs["ssl_context"] = create_ssl_context(
                cafile=config.ssl_cafile, certfile=config.ssl_certfile, keyfile=config.ssl_keyfile
            )
        except (OSError, ValueError) as error:
            raise UserError(f"kafka.ssl_cafile/ssl_certfile/ssl_keyfile: {error}") from None
    return kwargs


def explain(error: BaseException, servers: str) -> UserError:
    """The error of a Kafka client as one line that says what to do."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, AuthenticationFailedError | UnsupportedSaslMechanismError) or "uthentication" in text:
        return UserError(
            f"Kafka at {servers} refused the login ({text}): check kafka.sasl_username, sasl_password and sasl_mechanism",
            exit_code=os.EX_NOPERM,
        )
    if isinstance(error, KafkaConnectionError | OSError | TimeoutError | UnrecognizedBrokerVersion):
        return UserError(
            f"Kafka at {servers} cannot be reached ({text}): is it running, and are kafka.bootstrap_servers and "
            "kafka.security_protocol right?",
            exit_code=os.EX_UNAVAILABLE,
        )
    return UserError(f"Kafka at {servers}: {text}", exit_code=os.EX_UNAVAILABLE)


async def reason(kwargs: Mapping[str, Any], error: BaseException) -> UserError:
    """`explain`, once each broker was asked by itself: a client that reaches none says only that, also where the login was refused."""
    servers = str(kwargs["bootstrap_servers"])
    told = explain(error, servers)
    if told.exit_code == os.EX_NOPERM:
        return told
    options = {name: value for name, value in kwargs.items() if name != "bootstrap_servers"}
    for host, port, _ in collect_hosts(servers, randomize=False):
        try:
            connection = await asyncio.wait_for(create_conn(host, port, **options), timeout=5)
        except (KafkaError, OSError, TimeoutError) as found:
            told = explain(found, servers)
            if told.exit_code == os.EX_NOPERM:
                return told
        else:
            connection.close()
    return told


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic of the table as the broker has it; `partitions` 0 means missing."""

    topic: Topic
    partitions: int
    created: bool = False


async def create_topics(
    kwargs: dict[str, Any], *, partitions: int, replication: int = 1, dry_run: bool = False
) -> list[TopicState]:
    """Create what is missing of the topic table; existing topics stay as they are. Raises UserError."""
    servers = kwargs["bootstrap_servers"]
    admin = AIOKafkaAdminClient(**kwargs)
    try:
        await admin.start()
        existing = await _partitions(admin)
        missing = [topic for topic in TOPICS if topic.name not in existing]
        if missing and not dry_run:
            response = await admin.create_topics(
                [
                    NewTopic(
                        name=topic.name,
                        num_partitions=partitions,
                        replication_factor=replication,
                        topic_configs=topic.config,
                    )
                    for topic in missing
                ]
            )
            for name, code, *message in response.topic_errors:
                if code and not issubclass(for_code(code), TopicAlreadyExistsError):
                    raise UserError(
                        f"Kafka at {servers} did not create the topic {name}: {message or for_code(code).__name__}"
                    )
        return [
            TopicState(topic, existing.get(topic.name, partitions if not dry_run else 0), topic.name not in existing)
            for topic in TOPICS
        ]
    except (KafkaError, OSError, TimeoutError) as error:
        raise await reason(kwargs, error) from None
    finally:
        await admin.close()


async def list_topics(kwargs: dict[str, Any]) -> list[TopicState]:
    """The topic table against the broker. Raises UserError."""
    admin = AIOKafkaAdminClient(**kwargs)
    try:
        await admin.start()
        existing = await _partitions(admin)
        return [TopicState(topic, existing.get(topic.name, 0)) for topic in TOPICS]
    except (KafkaError, OSError, TimeoutError) as error:
        raise await reason(kwargs, error) from None
    finally:
        await admin.close()


async def _partitions(admin: AIOKafkaAdminClient) -> dict[str, int]:
    described = await asyncio.wait_for(admin.describe_topics(), timeout=15)
    return {row["topic"]: len(row["partitions"]) for row in described}


async def partitions_of(kwargs: dict[str, Any], names: Iterable[str]) -> list[TopicPartition]:
    """All partitions of those of the topics that exist. Raises what aiokafka raises."""
    admin = AIOKafkaAdminClient(**kwargs)
    try:
        await admin.start()
        counts = await _partitions(admin)
    finally:
        await admin.close()
    return [TopicPartition(name, number) for name in names for number in range(counts.get(name, 0))]


def on_heartbeat(consumer: Any, heard: Callable[[float], None]) -> None:
    """Tell `heard`, at each answer that this started consumer is a member of its group, when it was asked for
    (monotonic).
    """
    coordinator = consumer._coordinator
    ask = coordinator._do_heartbeat

    async def heartbeat() -> bool:
        asked_at = time.monotonic()
        alive = bool(await ask())
        if alive:
            heard(asked_at)
        return alive

    coordinator._do_heartbeat = heartbeat
