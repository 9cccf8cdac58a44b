"""Sends what the operators derived, and receipts for what was refused, until the broker has acknowledged all of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from pipelines.runtime.group import Refusal
from pipelines.runtime.port import Event, Output
from pipelines.runtime.settings import WorkerSettings
from schemas.clock import to_rfc3339
from schemas.topics import DLQ, HEADER_KIND, HEADER_SCHEMA, MAX_VALUE_BYTES, RISK_FINDING
from services.kafka import PRODUCER

SOURCE = b"agenttrace/pipelines"
REQUEST_TIMEOUT_MS = 20_000

Headers = list[tuple[str, bytes]]


class Message(NamedTuple):
    """A record to send; `topic` is without prefix. Without a `partition` the key decides."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


def encode(output: Output) -> Message:
    """An output as a record. One that no topic would take becomes a receipt in the DLQ."""
    try:
        value = orjson.dumps(output.body)
    except TypeError:
        return receipt(output.key, b"", "no JSON", f"{output.topic}//", "runtime")
    if len(value) > 2 * MAX_VALUE_BYTES - 1024:
        return receipt(output.key, value, "too large for its topic", f"{output.topic}//", "runtime")
    return Message(output.topic, output.key, value, headers(output.topic, output.body))


def headers(topic: str, body: Event) -> Headers:
    """Kafka headers of a derived event; findings also carry the CloudEvents 1.0 binary binding."""
    found = [(HEADER_SCHEMA, b"1.0"), (HEADER_KIND, b"event"), ("content-type", b"application/json")]
    if "trace_id" in body and "span_id" in body:
        found.append(("traceparent", f"00-{body['trace_id']}-{body['span_id']}-01".encode()))
    if topic == RISK_FINDING:
        found += [
            ("ce_specversion", b"1.0"),
            ("ce_id", f"{body['finding_id']}:{body['version']}".encode()),
            ("ce_source", SOURCE),
            ("ce_type", f"agenttrace.{body['event_name']}".encode()),
            ("ce_time", str(body["timestamp"]).encode()),
        ]
    return found


def refuse(refusal: Refusal, partition: int, now_ms: int) -> Message:
    """The receipt of a refused record: its size and SHA-256, never a byte of it."""
    where = f"{refusal.topic}/{partition}/{refusal.offset}"
    message = receipt(refusal.key, refusal.value or b"", refusal.why, where, refusal.by)
    message.headers.append(("at_when", to_rfc3339(now_ms).encode()))
    return message


def receipt(key: bytes | None, value: bytes, why: str, where: str, by: str) -> Message:
    """A DLQ record: what was refused by size and hash, and why, where from (topic/partition/offset), by whom."""
    body = {"size_bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    found = [
        ("at_why", why.encode()),
        ("at_from", where.encode()),
        ("at_by", f"pipelines.{by}".encode()),
        ("at_tries", b"1"),
    ]
    return Message(DLQ, key, orjson.dumps(body), found)


class Sender:
    """One idempotent producer, made anew after a failure: a broken one cannot be trusted with its sequence numbers."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._lock = asyncio.Lock()

    async def send(self, messages: Iterable[Message]) -> list[int]:
        """Return, when every message is acknowledged by all in-sync replicas, their offsets.

        Raises KafkaError, OSError or TimeoutError; then some may have arrived, and all must be sent again.
        """
        producer = await self._started()
        prefix = self._settings.topic_prefix
        try:
            waiting = [
                await producer.send(
                    prefix + message.topic,
                    message.value,
                    key=message.key,
                    partition=message.partition,
                    headers=message.headers,
                )
                for message in messages
            ]
            results: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        except (KafkaError, OSError, TimeoutError):
            await self.stop()
            raise
        for result in results:
            if isinstance(result, BaseException):
                await self.stop()
                raise result
        return [result.offset for result in results]

    async def stop(self) -> None:
        """Close the producer; a broker that is away does not hold this up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await asyncio.wait_for(producer.stop(), timeout=3)
            except (KafkaError, OSError, TimeoutError):
                pass

    async def _started(self) -> AIOKafkaProducer:
        async with self._lock:
            if self._producer is None:
                producer = self._settings.producer(
                    **self._settings.kafka,
                    **PRODUCER,
                    max_request_size=4 * MAX_VALUE_BYTES,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer
