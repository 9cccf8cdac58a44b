"""Where the publisher sends journalled events: Kafka, or a JSON-lines file for people without Kafka."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidMessageError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    RecordTooLargeError,
)

from schemas.clock import to_rfc3339
from schemas.errors import UserError
from schemas.topics import DLQ, HEADER_KIND, HEADER_SCHEMA, TOPIC_OF_EVENT, record_key
from services.collector.files import cut_torn, private
from services.kafka import PRODUCER, explain, reason

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes]]

CONNECT_S = 10.0
SEND_S = 10.0
"""How long one `send` waits for the broker before it says so; what is under way stays under way."""
CLOSE_S = 1.0
_REFUSED = (MessageSizeTooLargeError, RecordTooLargeError, RecordListTooLargeError, InvalidMessageError)


class Sink(Protocol):
    """A place for events. `send` returns only when the place has all of them for good; until then it is called again
    with the same list.
    """

    name: str

    async def start(self) -> None:
        """Open it. Raises UserError for what only its owner can mend."""

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """Deliver in order. Raises SinkError when it should be tried again later."""

    async def stop(self) -> None:
        """Close it."""


class SinkError(Exception):
    """The sink did not take the events; trying again may help."""


@dataclass(slots=True, eq=False)
class _Record:
    """One event on its way. `sent` is its future at the present producer; `refused` why the broker never takes it."""

    event: dict[str, Any]
    sent: asyncio.Future[Any] | None = None
    refused: str | None = None
    tries: int = 0

    @property
    def error(self) -> BaseException | None:
        return self.sent.exception() if self.sent is not None and self.sent.done() else None


class KafkaSink:
    """Idempotent producer, acks=all, zstd. Order in a partition is the order of seq.

    An idempotent producer tries for ever by itself, so a late record is waited for again, never sent again: after an
    outage there are no duplicates. A record that fails takes the later ones of its partition with it (their sequence
    has a hole); those, and only those, go again through a new producer.
    """

    name = "kafka"

    def __init__(self, kwargs: dict[str, Any]) -> None:
        self._kwargs = kwargs
        self._producer: AIOKafkaProducer | None = None
        self._events: list[dict[str, Any]] = []
        self._records: list[_Record] = []
        # A broker refuses a batch as a whole: each record by itself, then, to see which it is.
        self._singly = False

    async def start(self) -> None:
        """Connect if the broker answers; a refused login is the owner's to mend, a broker that is away comes back."""
        try:
            await self._connect()
        except SinkError as error:
            log.warning("%s; events wait in the journal", error)

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """All events, acknowledged by all in-sync replicas; one that is refused for its size or form goes to the DLQ
        as a receipt.
        """
        if events is not self._events:
            self._events, self._records = events, [_Record(event) for event in events]
        while True:
            trouble = await self._send_rest(now_ms)
            if any(record.sent is not None and not record.sent.done() for record in self._records):
                raise self._told(trouble)
            failed = [record for record in self._records if record.error is not None]
            if trouble is None and not failed:
                if self._singly:
                    self._singly = False
                    await self.stop()
                return
            trouble = trouble or failed[0].error
            refused = [record for record in failed if isinstance(record.error, _REFUSED) and not record.refused]
            for record in refused if self._singly else ():
                record.refused = f"{type(record.error).__name__}: {record.error}"
            for record in failed:
                record.sent = None
            await self.stop()
            if not refused:
                raise self._told(trouble)
            self._singly = True

    async def stop(self) -> None:
        """Close within 2 * CLOSE_S; what is not acknowledged stays in the journal."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.wait({stopping}, timeout=CLOSE_S)
        # aiokafka's own stop waits for the broker for ever; its sender, once cancelled, for the requests under way.
        sender = producer._sender.sender_task
        for _ in range(2):
            if not stopping.done() and sender is not None:
                sender.cancel()
                await asyncio.wait({stopping}, timeout=CLOSE_S / 2)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)

    # parts

    async def _send_rest(self, now_ms: int) -> BaseException | None:
        """Send what is not sent and wait until each record is taken or failed; what kept it from that, if anything
        did.
        """
        try:
            producer = self._producer or await self._connect()
            async with asyncio.timeout(SEND_S):
                for record in self._records:
                    if record.sent is None:
                        record.sent = await self._queue(producer, record, now_ms)
                # Not gather: the end of the time must not cancel the futures, which are waited for again.
                await asyncio.wait([record.sent for record in self._records if record.sent is not None])
        except (KafkaError, OSError, TimeoutError) as error:
            return error
        return None

    def _told(self, error: BaseException | None) -> SinkError:
        servers = self._kwargs["bootstrap_servers"]
        if isinstance(error, TimeoutError) and not str(error):
            error = TimeoutError(f"no answer within {SEND_S:.0f} s")
        return SinkError(str(explain(error if isinstance(error, Exception) else RuntimeError(repr(error)), servers)))

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._kwargs,
            **PRODUCER | ({"max_batch_size": 1} if self._singly else {}),
            max_request_size=4 << 20,
            request_timeout_ms=10_000,
        )
        self._producer = producer
        try:
            async with asyncio.timeout(CONNECT_S):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.stop()
            told = await reason(self._kwargs, error)
            if told.exit_code == os.EX_NOPERM:
                raise told from None
            raise SinkError(str(told)) from error
        return producer

    async def _queue(self, producer: AIOKafkaProducer, record: _Record, now_ms: int) -> asyncio.Future[Any]:
        event = record.event
        value = orjson.dumps(event)
        topic = TOPIC_OF_EVENT[event["event_name"]]
        key = record_key(event)
        record.tries += 1
        sent: asyncio.Future[Any]
        if record.refused is None:
            try:
                sent = await producer.send(topic, value, key=key, headers=headers(event))
            except (MessageSizeTooLargeError, RecordTooLargeError) as error:
                record.refused = f"{type(error).__name__}: {error}"
        if record.refused is not None:
            receipt = {"event_id": event["event_id"], "size_bytes": len(value), "producer": event["producer"]}
            why = [
                ("at_why", record.refused.encode()),
                ("at_from", topic.encode()),
                ("at_when", to_rfc3339(now_ms).encode()),
                ("at_by", b"collector"),
                ("at_tries", str(record.tries).encode()),
            ]
            sent = await producer.send(DLQ, orjson.dumps(receipt), key=key, headers=why)
        # Read at once: a record that fails while nobody waits for it must not be told as a forgotten exception.
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())
        return sent


class JsonlSink:
    """One event a line, synced before it counts. After a crash the last lines may come twice, with their event_id."""

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    async def start(self) -> None:
        """Open for appending, behind the last whole line. Raises UserError where the file cannot be written."""
        try:
            private(self._path.parent)
            self._file = open(self._path, "ab+", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600))
            cut_torn(self._file)
        except OSError as error:
            raise UserError(
                f"sinks.jsonl.path {self._path} cannot be written ({error.strerror})", exit_code=os.EX_CANTCREAT
            ) from None

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        """Append and sync."""
        assert self._file is not None
        try:
            await asyncio.to_thread(self._append, self._file, events)
        except OSError as error:
            raise SinkError(f"{self._path}: {error.strerror}") from error

    async def stop(self) -> None:
        """Close."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @staticmethod
    def _append(file: BinaryIO, events: list[dict[str, Any]]) -> None:
        data = memoryview(b"".join(orjson.dumps(event) + b"\n" for event in events))
        before = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(before)
            raise
        os.fdatasync(file.fileno())


def headers(event: dict[str, Any]) -> Headers:
    """Kafka headers of an event."""
    found = [(HEADER_SCHEMA, b"1.0"), (HEADER_KIND, b"event"), ("content-type", b"application/json")]
    if "trace_id" in event and "span_id" in event:
        found.append(("traceparent", f"00-{event['trace_id']}-{event['span_id']}-01".encode()))
    return found
