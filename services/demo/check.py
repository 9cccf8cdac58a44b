"""Proves that the demo's numbers add up: journal, Kafka and ClickHouse hold the same events, each once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from schemas.topics import INPUT_TOPICS
from services.adapters.registry import ADAPTERS
from services.collector.journal import Journal
from services.collector.state import delivery_key
from services.kafka import partitions_of

Seqs = set[tuple[str, int, int]]
"""(producer id, epoch, seq) of events."""

_MCP_ENDS = frozenset({"mcp.rpc.response", "mcp.rpc.error"})
_CONTRACTS = frozenset(adapter.contract for adapter in ADAPTERS.values())


@dataclass(frozen=True, slots=True)
class Journalled:
    """What the collector accepted: every event's place, the deliveries that hooks made, the tool calls, and the MCP calls
    that ended.
    """

    seqs: Seqs
    deliveries: int
    calls: set[str]
    mcp_calls: set[str]


def journalled(home: Path) -> Journalled:
    """Read the collector's journal; it keeps what it published for long enough for a demo."""
    seqs: Seqs = set()
    deliveries: set[str] = set()
    calls: set[str] = set()
    mcp_calls: set[str] = set()
    for line in Journal(home / "collector" / "journal").lines():
        for event in line.events or []:
            seqs.add(_place(event))
            if "call_key" in event:
                calls.add(event["call_id"])
            if event["event_name"] in _MCP_ENDS and event.get("method") == "tools/call":
                mcp_calls.add(event["operation_id"])
            if event["source_adapter"] in _CONTRACTS:
                deliveries.add(delivery_key(event))
    return Journalled(seqs, len(deliveries), calls, mcp_calls)


async def in_kafka(kwargs: dict[str, Any]) -> Seqs:
    """The places of all events in the input topics."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(**kwargs, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = await partitions_of(kwargs, INPUT_TOPICS)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: Seqs = set()
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=300)).values():
                found.update(_place(orjson.loads(record.value)) for record in records)
        return found
    finally:
        await consumer.stop()


def in_clickhouse(client: Any) -> list[tuple[str, int, int]]:
    """The places of all rows that the view `events` shows for events of producers; a list, so that a double is seen."""
    rows = client.query(
        "select producer_id, producer_epoch, producer_seq from events where producer_id != ''"
    ).result_rows
    return [(producer, int(epoch), int(seq)) for producer, epoch, seq in rows]


def calls_in_clickhouse(client: Any) -> list[str]:
    """The call ids of all rows of the view `tool_calls`."""
    return [row[0] for row in client.query("select call_id from tool_calls").result_rows]


def _place(event: dict[str, Any]) -> tuple[str, int, int]:
    producer = event["producer"]
    return producer["id"], producer["epoch"], producer["seq"]
