"""Reads topics as they stand, outside any consumer group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer

from services.kafka import partitions_of


async def read_topics(kafka: Mapping[str, Any], topics: Sequence[str]) -> list[Any]:
    """All records of some topics as aiokafka gives them, of each partition in order."""
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **kafka)
    await consumer.start()
    try:
        places = await partitions_of(dict(kafka), topics)
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        records: list[Any] = []
        left = {place for place in places if ends[place]}
        while left:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
            left = {place for place in left if await consumer.position(place) < ends[place]}
        return records
    finally:
        await consumer.stop()
