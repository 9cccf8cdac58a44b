"""What Kafka holds after a storm: the events of the input topics by delivery, with every seq and every receipt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from pipelines.runtime.settings import WorkerSettings
from schemas.topics import DLQ, INPUT_TOPICS, TOPICS, drop_class
from services.adapters.registry import ADAPTERS
from services.clickhouse_sink.settings import GROUP_ID as SINK_GROUP
from services.collector.state import delivery_key
from services.kafka import partitions_of

WORKER_GROUP = str(WorkerSettings.__dataclass_fields__["group_id"].default)
DERIVED_TOPICS = tuple(topic.name for topic in TOPICS if topic.kind == "derived")
ENDS = frozenset({"tool.call.completed", "tool.call.error", "tool.call.blocked"})
_CONTRACTS = frozenset(adapter.contract for adapter in ADAPTERS.values())


@dataclass(slots=True)
class Receipt:
    """One producer.dropped."""

    reason: str
    count: int
    by_class: dict[str, int]


@dataclass(slots=True)
class InputLog:
    """The input topics read so far. `read` goes on where the last call ended."""

    kafka: Mapping[str, Any]
    records: int = 0
    ids_of: dict[tuple[str, int, int], set[str]] = field(default_factory=dict)
    places_of: dict[str, set[tuple[str, int, int]]] = field(default_factory=dict)
    deliveries: dict[str, list[str]] = field(default_factory=dict)
    """Event names by delivery key, of what adapters made."""
    calls: dict[str, bool] = field(default_factory=dict)
    """Call id → whether an end of it is there."""
    receipts: dict[str, Receipt] = field(default_factory=dict)
    told_lost: set[tuple[int, int, int]] = field(default_factory=set)
    by_class: Counter[str] = field(default_factory=Counter)
    """Events that adapters made, by drop class."""
    dead_letters: int = 0
    _next: dict[TopicPartition, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read to the ends of now."""
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(**self.kafka, enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        try:
            places = await partitions_of(dict(self.kafka), [*INPUT_TOPICS, DLQ])
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            for place in places:
                consumer.seek(place, self._next.get(place, 0))
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for place, records in (await consumer.getmany(timeout_ms=300)).items():
                    for record in records:
                        if place.topic == DLQ:
                            self.dead_letters += 1
                        else:
                            self._fold(orjson.loads(record.value))
                    self._next[place] = records[-1].offset + 1
        finally:
            await consumer.stop()

    def _fold(self, event: dict[str, Any]) -> None:
        self.records += 1
        producer, event_id, name = event["producer"], event["event_id"], event["event_name"]
        place = (producer["id"], producer["epoch"], producer["seq"])
        self.ids_of.setdefault(place, set()).add(event_id)
        if event_id in self.places_of:
            self.places_of[event_id].add(place)
            return
        self.places_of[event_id] = {place}
        if event["source_adapter"] in _CONTRACTS:
            self.by_class[str(drop_class(name))] += 1
            self.deliveries.setdefault(delivery_key(event), []).append(name)
        if name.startswith("tool.") and event.get("call_id"):
            self.calls[event["call_id"]] = self.calls.get(event["call_id"], False) or name in ENDS
        if name == "producer.dropped":
            self.receipts[event_id] = Receipt(event["reason"], event["count"], event.get("by_class") or {})
            self.told_lost.update((r["epoch"], r["first"], r["last"]) for r in event.get("ranges") or ())

    def gaps(self) -> list[str]:
        """Holes in the seqs of a producer's epoch that no receipt names, up to the last seq there is."""
        found = []
        by_epoch: dict[tuple[str, int], set[int]] = {}
        for producer, epoch, seq in self.ids_of:
            by_epoch.setdefault((producer, epoch), set()).add(seq)
        for (producer, epoch), seqs in sorted(by_epoch.items()):
            told = {seq for e, first, last in self.told_lost if e == epoch for seq in range(first, last + 1)}
            missing = set(range(1, max(seqs) + 1)) - seqs - told
            if missing:
                found.append(f"producer {producer[:8]} epoch {epoch}: {len(missing)} seqs, first {min(missing)}")
        return found


def committed(kafka: Mapping[str, Any], group: str) -> dict[TopicPartition, int]:
    """What a consumer group has committed."""

    async def ask() -> dict[TopicPartition, int]:
        admin = AIOKafkaAdminClient(**kafka)
        try:
            await admin.start()
            return {place: meta.offset for place, meta in (await admin.list_consumer_group_offsets(group)).items()}
        finally:
            await admin.close()

    return asyncio.run(ask())


def ends(kafka: Mapping[str, Any], topics: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Offsets after the last record."""

    async def ask() -> dict[TopicPartition, int]:
        consumer = AIOKafkaConsumer(**kafka, enable_auto_commit=False)
        await consumer.start()
        try:
            return dict(await consumer.end_offsets(await partitions_of(dict(kafka), topics)))
        finally:
            await consumer.stop()

    return asyncio.run(ask())


def behind(kafka: Mapping[str, Any], group: str, upto: Mapping[TopicPartition, int]) -> int:
    """Records before these offsets that the group has not committed."""
    done = committed(kafka, group)
    return sum(max(0, end - max(done.get(place, 0), 0)) for place, end in upto.items())


def lag(kafka: Mapping[str, Any]) -> int:
    """Records of all topics that worker and sink have not committed yet, together."""
    inputs = ends(kafka, INPUT_TOPICS)
    return behind(kafka, WORKER_GROUP, inputs) + behind(kafka, SINK_GROUP, inputs | ends(kafka, DERIVED_TOPICS))
