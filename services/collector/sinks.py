"""Where the publisher sends journalled events: Kafka, or a JSON-lines file for people without Kafka."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordTooLargeError

from schemas.clock import to_rfc3339
from schemas.errors import UserError
from schemas.topics import DLQ, HEADER_KIND, HEADER_SCHEMA, TOPIC_OF_EVENT, record_key
from services.kafka import explain

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes]]


class Sink(Protocol):
    """A place for events. `send` returns only when the place has all of them for good; it may be called again with the same ones."""

    name: str

    async def start(self) -> None:
        """Open it. Raises UserError for what only its owner can mend."""

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """Deliver in order. Raises SinkError when it should be tried again later."""

    async def stop(self) -> None:
        """Close it."""


class SinkError(Exception):
    """The sink did not take the events; trying again may help."""


class KafkaSink:
    """Idempotent producer, acks=all, zstd. Order in a partition is the order of seq."""

    name = "kafka"

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self._kwargs = kwargs
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect if the broker answers; a refused login is the owner's to mend, a broker that is away comes back."""
        try:
            await self._connect()
        except SinkError as error:
            log.warning("%s; events wait in the journal", error)

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """All events, acknowledged by all in-sync replicas."""
        producer = self._producer or await self._connect()
        try:
            waiting = [await self._queue(producer, event, now_ms) for event in events]
            # One failed record must not leave the others' futures unread.
            results = await asyncio.gather(*waiting, return_exceptions=True)
        except (KafkaError, OSError, TimeoutError) as error:
            await self.stop()
            raise SinkError(str(explain(error, self._kwargs["bootstrap_servers"]))) from error
        for result in results:
            if isinstance(result, BaseException):
                await self.stop()
                raise SinkError(str(explain(_as_exception(result), self._kwargs["bootstrap_servers"]))) from result

    async def stop(self) -> None:
        """Flush and close; a broker that is away does not hold this up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await asyncio.wait_for(producer.stop(), timeout=5)
            except (KafkaError, OSError, TimeoutError):
                log.info("producer closed without the broker's answer")

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._kwargs,
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=5,
            max_request_size=4 << 20,
            request_timeout_ms=10_000,
        )
        try:
            await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await producer.stop()
            told = explain(error, self._kwargs["bootstrap_servers"])
            if told.exit_code == os.EX_NOPERM:
                raise told from None
            raise SinkError(str(told)) from error
        self._producer = producer
        return producer

    async def _queue(self, producer: AIOKafkaProducer, event: dict[str, Any], now_ms: int) -> asyncio.Future[Any]:
        value = orjson.dumps(event)
        topic = TOPIC_OF_EVENT[event["event_name"]]
        key = record_key(event)
        try:
            return await producer.send(topic, value, key=key, headers=headers(event))
        except (MessageSizeTooLargeError, RecordTooLargeError) as error:
            refused = [
                ("at_why", str(error).encode()),
                ("at_from", topic.encode()),
                ("at_when", to_rfc3339(now_ms).encode()),
                ("at_by", b"collector"),
            ]
            receipt = orjson.dumps(
                {"event_id": event["event_id"], "size_bytes": len(value), "producer": event["producer"]}
            )
            return await producer.send(DLQ, receipt, key=key, headers=refused)


class JsonlSink:
    """One event a line, synced before it counts. After a crash the last lines may come twice, with the same event_id."""

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    async def start(self) -> None:
        """Open for appending. Raises UserError where the file cannot be written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
        except OSError as error:
            raise UserError(
                f"sinks.jsonl.path {self._path} cannot be written ({error.strerror})", exit_code=os.EX_CANTCREAT
            ) from None

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """Append and sync."""
        assert self._file is not None
        try:
            self._file.write(b"".join(orjson.dumps(event) + b"\n" for event in events))
            self._file.flush()
            await asyncio.to_thread(os.fdatasync, self._file.fileno())
        except OSError as error:
            raise SinkError(f"{self._path}: {error.strerror}") from error

    async def stop(self) -> None:
        """Close."""
        if self._file is not None:
            self._file.close()
            self._file = None


def headers(event: dict[str, Any]) -> Headers:
    """Kafka headers of an event."""
    found = [(HEADER_SCHEMA, b"1.0"), (HEADER_KIND, b"event"), ("content-type", b"application/json")]
    if "trace_id" in event and "span_id" in event:
        found.append(("traceparent", f"00-{event['trace_id']}-{event['span_id']}-01".encode()))
    return found


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
