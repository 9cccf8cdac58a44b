"""Runs a sink: reads the topics as a member of a group, writes batches, commits what ClickHouse has acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from pipelines.runtime import logs
from schemas.errors import UserError
from schemas.topics import DLQ
from services import probes
from services.clickhouse_sink import clickhouse, migrate
from services.clickhouse_sink.batch import Batch
from services.clickhouse_sink.brokers import Heard, start_consumer, start_producer
from services.clickhouse_sink.metrics import Metrics
from services.clickhouse_sink.records import TABLE_OF, blocks, receipt
from services.clickhouse_sink.settings import SinkSettings
from services.clickhouse_sink.writer import Writer

log = logging.getLogger(__name__)

STOP_S = 7.0
"""After a stop is asked for, how long what was read may still take to be written and committed."""
CLOSE_S = 1.5
"""How long a Kafka client may take to say goodbye."""
POLL_S = 1.0
STUCK_S = 120.0
SLOW_S = 10.0
"""An insert that takes longer than this is told as a reason for not being ready."""
LINGER_S = 0.05
"""How long a batch waits for company when the one before it is `batch_ms` old already."""
HANDOVER_S = 5.0
"""How long a rebalance waits for the batch on its way, so that the next owner does not write it again."""


def run(settings: SinkSettings) -> None:
    """Run a sink in this process until SIGTERM or SIGINT; then it stops within 10 s.

    Raises UserError when Kafka or ClickHouse refuses the login, when a topic, the database or its tables are missing,
    or when the port is taken. While either of them is away it waits.
    """
    logs.damp()

    async def serve() -> None:
        sink = Sink(settings)
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, sink.stop)
        await sink.run()

    asyncio.run(serve())


class Sink(ConsumerRebalanceListener):  # type: ignore[misc]
    """One running sink. `port` is the loopback port of its page once it runs."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.port = 0
        self._stop = asyncio.Event()
        self._writer = Writer(settings.clickhouse_dsn, self.metrics, self._dead_letter)
        self._consumer: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._reading = Batch(settings.topic_prefix)
        self._delivering: Batch | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._carried: list[tuple[TopicPartition, list[ConsumerRecord]]] = []
        self._lag: dict[TopicPartition, int] = {}
        self._heard: Heard | None = None
        self._joined = False
        self._kafka_away = ""
        self._beat = time.monotonic()
        self._collected_at = 0.0

    async def run(self) -> None:
        """Serve until `stop` is called. Raises UserError; see `run` of this module."""
        runner, self.port = await probes.serve(
            self.settings.port, "sink.port", self.metrics.registry, self.unhealthy, self.not_ready
        )
        if self.settings.on_ready:
            self.settings.on_ready(self.port)
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and self._consumer is not None:
                await asyncio.wait({work}, timeout=STOP_S)
            if work.done():
                work.result()
        finally:
            for task in (work, stop, self._delivery):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(t for t in (work, stop, self._delivery) if t), return_exceptions=True)
            await self._close()
            await runner.cleanup()

    def stop(self) -> None:
        """Ask `run` to write what was read and to end."""
        self._stop.set()

    def not_ready(self) -> list[str]:
        """Why rows are not flowing; empty when they are."""
        reasons = []
        if self._kafka_away:
            reasons.append(f"Kafka: {self._kafka_away}")
        elif not self._joined or self._heard is None:
            reasons.append("not yet a member of the consumer group")
        elif (silent := self._heard.silent_s()) > self.settings.session_timeout_s:
            reasons.append(f"Kafka: nothing heard of the consumer group for {silent:.0f} s")
        if self._writer.away:
            reasons.append(f"ClickHouse: {self._writer.away}")
        elif (silent := self._writer.silent_s()) > SLOW_S:
            reasons.append(f"ClickHouse: no answer to an insert for {silent:.0f} s")
        return reasons

    def unhealthy(self) -> list[str]:
        """Why this process should be started again; empty in an outage of others."""
        silent = time.monotonic() - self._beat
        return [f"nothing moved for {silent:.0f} s"] if silent > STUCK_S else []

    # the work

    async def _work(self) -> None:
        await self._open()
        while not self._stop.is_set():
            batch = await self._collect()
            await self._settle()
            if batch.taken:
                self._delivering = batch
                self._delivery = asyncio.create_task(self._deliver(batch))
        await self._settle()

    async def _open(self) -> None:
        settings = self.settings
        beat = asyncio.create_task(self._keep_beating())
        try:
            await self._writer.open()
            await asyncio.to_thread(_check_tables, settings.clickhouse_dsn)
            with logs.quiet():
                self._producer = await start_producer(settings, self._say_kafka)
                self._consumer = await start_consumer(settings, self._say_kafka)
            self._heard = Heard(self._consumer)
            self._kafka_away = ""
        finally:
            beat.cancel()
        self._consumer.subscribe([settings.topic_prefix + name for name in TABLE_OF], listener=self)
        log.info("sink reads %d topics into %s", len(TABLE_OF), clickhouse.place(settings.clickhouse_dsn))

    async def _collect(self) -> Batch:
        """Records until `batch_ms` after the batch before, so that a lone event does not wait; none after half a second."""
        settings = self.settings
        batch = self._reading = Batch(settings.topic_prefix)
        for place, records in self._carried:
            batch.add(place, records)
        self._carried = []
        deadline = self._due() if batch.taken else None
        give_up = time.monotonic() + POLL_S / 2
        while not self._stop.is_set() and batch.taken < settings.batch_rows and batch.size_bytes < settings.batch_bytes:
            now = self._beat = time.monotonic()
            left = (give_up if deadline is None else deadline) - now
            if left <= 0:
                break
            for place, records in (await self._poll(left, settings.batch_rows - batch.taken)).items():
                batch.add(place, records)
            if batch.taken and deadline is None:
                deadline = self._due()
        if batch.taken:
            self._collected_at = time.monotonic()
        return batch

    def _due(self) -> float:
        return max(time.monotonic() + LINGER_S, self._collected_at + self.settings.batch_ms / 1000)

    async def _poll(self, timeout_s: float, rows: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        assert self._consumer is not None
        found: dict[TopicPartition, list[ConsumerRecord]] = await self._consumer.getmany(
            timeout_ms=int(timeout_s * 1000) + 1, max_records=rows
        )
        return found

    async def _settle(self) -> None:
        """Wait for the batch on its way; paused, but polling, so that a long outage does not cost the membership."""
        if self._delivery is None:
            return
        assert self._consumer is not None
        while True:
            done, _ = await asyncio.wait({self._delivery}, timeout=POLL_S)
            self._beat = time.monotonic()
            if done:
                break
            self._consumer.pause(*self._consumer.assignment())
            # A partition that came between the two lines is not paused yet.
            self._carried += (await self._poll(0, 1)).items()
        self._consumer.resume(*self._consumer.paused())
        delivery, self._delivery, self._delivering = self._delivery, None, None
        delivery.result()

    async def _deliver(self, batch: Batch) -> None:
        metrics = self.metrics
        metrics.batch.observe(batch.taken)
        metrics.control.inc(batch.control)
        for record, why in batch.faults:
            await self._dead_letter(record, why, 1)
        for block in blocks(batch.rows, self.settings.topic_prefix, time.time_ns() // 1_000_000):
            await self._writer.write(block)
        if batch.rows:
            oldest = min(record.timestamp for record in batch.rows)
            metrics.age.set(max(0.0, time.time() - oldest / 1000))
        await self._commit(batch)

    async def _commit(self, batch: Batch) -> None:
        assert self._consumer is not None
        ours = self._consumer.assignment()
        offsets = {place: offset for place, offset in batch.offsets.items() if place in ours}
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            # The group has moved on; the next owner writes these rows again, and they show once.
            self.metrics.commits_lost.inc()
        except (KafkaError, OSError, TimeoutError) as error:
            self.metrics.commits_lost.inc()
            log.warning("offsets not committed (%s); the next batch's commit covers them", type(error).__name__)
        for place in set(self._lag) - ours:
            del self._lag[place]
        for place, offset in offsets.items():
            self._lag[place] = max(0, (self._consumer.highwater(place) or offset) - offset)
        self.metrics.lag.set(sum(self._lag.values()))

    async def _dead_letter(self, record: ConsumerRecord, why: str, tries: int) -> None:
        topic = record.topic.removeprefix(self.settings.topic_prefix)
        where = f"{record.topic}/{record.partition}/{record.offset}"
        if topic == DLQ:
            self.metrics.unwritten.inc()
            log.error("%s: a dead letter that cannot be stored (%s); it stays in Kafka", where, why)
            return
        log.warning("%s refused: %s; its size, hash and ids are in %s", where, why, DLQ)
        self.metrics.refused.labels(topic).inc()
        value, headers = receipt(record, why, tries, time.time_ns() // 1_000_000)
        while True:
            assert self._producer is not None
            try:
                await self._producer.send_and_wait(
                    self.settings.topic_prefix + DLQ, value, key=record.key, headers=headers
                )
                return
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("dead letter not sent (%s); trying again", type(error).__name__)
                with contextlib.suppress(KafkaError, OSError, TimeoutError):
                    await asyncio.wait_for(self._producer.stop(), timeout=5)
                await asyncio.sleep(1)
                self._producer = await start_producer(self.settings, self._say_kafka)

    # the group

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        """Called before partitions change hands: the batch on its way is committed first, nothing of them after."""
        if self._delivery is not None:
            await asyncio.wait({self._delivery}, timeout=HANDOVER_S)
        for batch in (self._reading, self._delivering):
            if batch is not None:
                batch.forget(revoked)

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        """Called with all partitions that this sink reads now."""
        self._joined = True
        if self._heard is not None:
            self._heard.at = time.monotonic()
        self.metrics.partitions.set(len(assigned))

    # begin and end

    def _say_kafka(self, error: UserError) -> None:
        # The damper lets one through a minute.
        log.warning("%s; waiting for it", error)
        self._kafka_away = str(error)

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(POLL_S)

    async def _close(self) -> None:
        stopping = [asyncio.create_task(part.stop()) for part in (self._consumer, self._producer) if part is not None]
        if stopping:
            await asyncio.wait(stopping, timeout=CLOSE_S)
            for task in stopping:
                task.cancel()
            # In an outage aiokafka's consumer ends its own stop with a CancelledError.
            await asyncio.gather(*stopping, return_exceptions=True)
        self._writer.close()


def _check_tables(dsn: str) -> None:
    with clickhouse.connect(dsn) as client:
        missing = migrate.pending(client)
    if missing:
        raise UserError(
            f"the tables in ClickHouse at {clickhouse.place(dsn)}, database {clickhouse.database(dsn)}, are not those "
            f"of this version ({missing[0].name} is not applied): run `agenttrace migrate`"
        )
