"""What of a Kafka record goes into which table, or why it cannot; and the receipt for what cannot."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiokafka import ConsumerRecord

from schemas.clock import to_rfc3339
from schemas.topics import (
    ALERT,
    BY_NAME,
    DLQ,
    FINDING_STATUS,
    HEADER_KIND,
    HEADER_SCHEMA,
    KIND_CONTROL,
    RISK_FINDING,
    RISK_FINDING_OCSF,
    TOPICS,
)

EVENTS, DERIVED, DEAD = "ingest_events", "ingest_derived", "ingest_dlq"
COLUMNS: dict[str, tuple[str, ...]] = {
    EVENTS: ("_topic", "_partition", "_offset", "_log_time", "payload"),
    DERIVED: ("_topic", "_partition", "_offset", "_log_time", "payload"),
    DEAD: ("_topic", "_partition", "_offset", "_log_time", "payload", "headers"),
}
TYPES: dict[str, tuple[str, ...]] = {
    table: ("String", "Int32", "Int64", "DateTime64(3, 'UTC')", *("String" for _ in columns[4:]))
    for table, columns in COLUMNS.items()
}

TABLE_OF: dict[str, str] = {
    topic.name: EVENTS if topic.kind == "input" else DERIVED
    for topic in TOPICS
    if topic.kind in ("input", "derived") or topic.name == FINDING_STATUS
} | {DLQ: DEAD}
"""Topics that are copied, to the table that takes them."""

_ID_OF = {RISK_FINDING: "finding_id", FINDING_STATUS: "finding_id", ALERT: "alert_id"}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_CONTROL = (HEADER_KIND, KIND_CONTROL)


@dataclass(slots=True)
class Block:
    """Rows for one table, as columns, with the records they come from."""

    table: str
    columns: list[list[Any]] = field(default_factory=list)
    records: list[ConsumerRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def halves(self) -> tuple[Block, Block]:
        """The first and the second half."""
        middle = len(self.records) // 2
        first = Block(self.table, [column[:middle] for column in self.columns], self.records[:middle])
        return first, Block(self.table, [column[middle:] for column in self.columns], self.records[middle:])


def is_control(record: ConsumerRecord) -> bool:
    """True for progress records, which carry no data."""
    return _CONTROL in record.headers


def fault(topic: str, value: bytes | None) -> str | None:
    """Why no table can take a record of this topic (its name without prefix); None if one can.

    Only what rows are told apart by is asked for. Everything else may be missing, mistyped or new: the row keeps the
    record's own text.
    """
    if value is None:
        return "it has no value"
    if topic == DLQ:
        return None
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return f"not JSON from byte {error.pos} on"
    if not isinstance(event, dict):
        return "not a JSON object"
    if topic == RISK_FINDING_OCSF:
        info = event.get("finding_info")
        uid = info.get("uid") if isinstance(info, dict) else None
        return None if isinstance(uid, str) and uid else "finding_info.uid is missing"
    if not _is_uuid(event.get("event_id")):
        return "event_id is not a UUID"
    name = event.get("event_name")
    if not isinstance(name, str) or not name:
        return "event_name is missing"
    kind = BY_NAME[topic]
    if kind.kind != "input" and name not in kind.events:
        return "event_name is none of this topic"
    if topic in _ID_OF and not _is_uuid(event.get(_ID_OF[topic])):
        return f"{_ID_OF[topic]} is not a UUID"
    return None


def blocks(records: Iterable[ConsumerRecord], prefix: str, now_ms: int) -> Iterator[Block]:
    """The records as one block a table, in their order; all must be without `fault`.

    A record without a time counts as logged now: retention counts from the log time and would drop the row at once.
    """
    by_table: dict[str, list[ConsumerRecord]] = {}
    for record in records:
        by_table.setdefault(TABLE_OF[record.topic.removeprefix(prefix)], []).append(record)
    for table, rows in by_table.items():
        columns: list[list[Any]] = [
            [row.topic for row in rows],
            [row.partition for row in rows],
            [row.offset for row in rows],
            [row.timestamp if row.timestamp > 0 else now_ms for row in rows],
            [row.value for row in rows],
        ]
        if table == DEAD:
            columns.append([_headers(row.headers) for row in rows])
        yield Block(table, columns, rows)


def receipt(record: ConsumerRecord, why: str, tries: int, now_ms: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Value and headers of the dead letter for a record: its size, SHA-256 and ids, never the value itself, which the
    topic still has at `at_from` (topic/partition/offset).
    """
    value = record.value or b""
    body = {"size_bytes": len(value), "sha256": hashlib.sha256(value).hexdigest(), **_ids(value)}
    headers = [
        (HEADER_SCHEMA, b"1.0"),
        (HEADER_KIND, b"event"),
        ("content-type", b"application/json"),
        ("at_why", why.encode()),
        ("at_from", f"{record.topic}/{record.partition}/{record.offset}".encode()),
        ("at_when", to_rfc3339(now_ms).encode()),
        ("at_by", b"clickhouse_sink"),
        ("at_tries", str(tries).encode()),
    ]
    return orjson.dumps(body), headers


def _ids(value: bytes) -> dict[str, Any]:
    """Of a readable event: what tells which it is. Fields of another shape are left out: they could hold anything."""
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(event, dict):
        return {}
    ids: dict[str, Any] = {}
    if _is_uuid(event.get("event_id")):
        ids["event_id"] = event["event_id"]
    if any(event.get("event_name") in topic.events for topic in TOPICS):
        ids["event_name"] = event["event_name"]
    producer = event.get("producer")
    if isinstance(producer, dict):
        name, numbers = producer.get("id"), [producer.get("epoch"), producer.get("seq")]
        if isinstance(name, str) and len(name) <= 100 and all(isinstance(n, int) and 0 < n < 1 << 64 for n in numbers):
            ids["producer"] = {"id": name, "epoch": numbers[0], "seq": numbers[1]}
    return ids


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    return orjson.dumps({name: (value or b"").decode(errors="replace") for name, value in headers})
