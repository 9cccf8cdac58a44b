"""Faust as host of a batch processor: one fetched batch of a partition becomes one Faust event.

Faust's own path costs 180 to 250 µs per record; by batches that is paid once per some hundred. Its producer is not
used, and its consumer is made from the same client settings as every other Kafka client here.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import faust
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.serializers import codecs
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from yarl import URL

from pipelines.runtime.group import Told
from pipelines.runtime.settings import WorkerSettings
from schemas.topics import INPUT_TOPICS
from services.kafka import on_heartbeat

BUFFERED_BATCHES = 16
"""Batches that wait for the agent before Faust stops fetching; each is at most FETCH_BYTES, compressed."""
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 500
"""How long the broker waits for data; also how old the news can be that a partition is read to its end."""
COMMIT_INTERVAL_S = 1.0
HEARTBEAT_S = 2.0
REQUEST_TIMEOUT_S = 40.0
METADATA_MS = 5_000
"""How old a consumer's knowledge of the leaders may be. While it looks for its first position aiokafka does not ask anew
when a leader has moved, so that by its default of 5 min a take-over would wait for that."""

CODEC = "agenttrace-untouched"


class Batch:
    """Records of one partition as fetched, in offset order, never empty."""

    __slots__ = ("records",)

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records


class _Untouched(codecs.Codec):
    def _loads(self, s: Any) -> Any:
        return s

    def _dumps(self, s: Any) -> Any:
        return s


codecs.register(CODEC, _Untouched())


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    alive_at = 0.0
    """When (monotonic) the last answer that this is a member of the group was asked for."""

    async def on_start(self) -> None:
        await super().on_start()
        on_heartbeat(self._ensure_consumer(), self._heard)

    def _heard(self, asked_at: float) -> None:
        self.alive_at = asked_at

    async def on_thread_stop(self) -> None:
        try:
            await super().on_thread_stop()
        except asyncio.CancelledError:
            # In an outage aiokafka's consumer ends its own stop with the cancellation of a fetch; Faust would then wait
            # for ever for this thread to say that it has ended.
            pass

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        # Faust's own assignor is the one that gives the same partition numbers of all topics to one worker.
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            group_id=conf.id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            metadata_max_age_ms=METADATA_MS,
            **transport.client_kwargs,
        )

    async def _commit(self, offsets: Any) -> bool:
        # As in Faust, but each offset carries what time was told with it, and a rebalance in between is no error.
        consumer, assigned = self._ensure_consumer(), self.assignment()
        told: dict[int, Told] = self.app.told  # type: ignore[attr-defined]
        self.tp_last_committed_at.update(dict.fromkeys(offsets, time.monotonic()))
        try:
            await consumer.commit(
                {
                    TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(
                        offset, told_to_text(told.get(tp.partition), tp.topic, offset)
                    )
                    for tp, offset in offsets.items()
                    if tp in assigned
                }
            )
        except (CommitFailedError, IllegalStateError):
            return False
        except KafkaError as error:
            await self.crash(error)
            return False
        return True


class _Consumer(driver.Consumer):
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _getmany(self, active_partitions: Any, timeout: float) -> dict[Any, list[Batch]]:  # noqa: ASYNC109
        fetched = await super()._getmany(active_partitions, timeout)
        return {tp: [Batch(records)] for tp, records in fetched.items() if records}

    def _to_message(self, tp: Any, record: Batch) -> ConsumerMessage:
        last = record.records[-1]
        return ConsumerMessage(
            topic=tp.topic,
            partition=tp.partition,
            offset=last.offset,
            timestamp=last.timestamp / 1000.0,
            timestamp_type=last.timestamp_type,
            headers={},
            key=None,
            value=record,  # type: ignore[arg-type]
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=0,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def _add_gap(self, tp: Any, offset_from: int, offset_to: int) -> None:
        """Offsets inside a batch are no gaps."""

    def _new_offset(self, tp: Any) -> int | None:
        # Batches of a partition are acknowledged in order, so the last one speaks for all before it.
        acked = self._acked[tp]
        if not acked:
            return None
        top: int = max(acked)
        self._acked_index[tp].difference_update(acked)
        acked.clear()
        return top + 1


class _IdleProducer(driver.Producer):
    async def on_start(self) -> None:
        """No connection: outputs go through pipelines.runtime.sender."""

    async def on_stop(self) -> None:
        """Nothing to close."""

    async def flush(self) -> None:
        """Nothing to wait for."""


class Transport(driver.Transport):
    """The Kafka driver of Faust, in batches. `client_kwargs` go to aiokafka as they are."""

    Consumer = _Consumer
    Producer = _IdleProducer

    def __init__(self, app: Any, client_kwargs: Mapping[str, Any]) -> None:
        super().__init__([URL("kafka://unused")], app)
        self.client_kwargs = client_kwargs


class _App(faust.App):
    told: dict[int, Told]
    """By partition number, what goes with the next commit. Its topics have their prefix."""

    async def on_first_start(self) -> None:
        """Faust would make a data directory here; this app keeps no tables."""


def told_to_text(told: Told | None, topic: str, offset: int) -> str:
    """The commit's metadata: told by (ms), settled up to (offset), settled up to (ms), checkpoint (offset), and 1 if all
    is settled, of the other topics too: their own last commits may be older than that.
    """
    if told is None:
        return ""
    if told.settled is None:
        return f"{told.by_ms} {offset} {told.by_ms} {told.checkpoint} 1"
    return f"{told.by_ms} {told.settled[topic]} {told.settled_ms} {told.checkpoint} 0"


class Note(NamedTuple):
    """A commit's metadata as read (see Told), of one topic; `settled` is an offset of it."""

    by_ms: int = 0
    settled: int = 0
    settled_ms: int = 0
    checkpoint: int = -1
    all_settled: int = 0


def told_from_text(text: str, offset: int) -> Note:
    """What `told_to_text` wrote; of a commit by anybody else: nothing told, nothing settled."""
    try:
        note = Note(*map(int, text.split()))
    except (ValueError, TypeError):
        return Note()
    return note._replace(settled=min(note.settled, offset))


def make_app(settings: WorkerSettings) -> tuple[Any, Any]:
    """The Faust app, not started, and its channel of batches of all input topics.

    All inputs are subscribed from the start by one app id: only so does the assignor co-partition them.
    """
    app = _App(
        settings.group_id,
        broker="kafka://unused",
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        autodiscover=False,
        stream_wait_empty=False,
        stream_buffer_maxsize=BUFFERED_BATCHES,
        broker_commit_interval=COMMIT_INTERVAL_S,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=min(HEARTBEAT_S, settings.session_timeout_s / 3),
        broker_rebalance_timeout=60.0,
        broker_client_id=f"agenttrace-{uuid.uuid4().hex[:8]}",
    )
    app.told = {}
    app.transport = app.producer_transport = Transport(app, settings.kafka)
    names = [settings.topic_prefix + name for name in INPUT_TOPICS]
    return app, app.topic(*names, value_serializer=CODEC, key_serializer="raw")
