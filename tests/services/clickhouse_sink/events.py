"""Events of every kind, as the contract's own models make them, and records as Kafka would give them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from aiokafka import ConsumerRecord

from schemas.clock import to_rfc3339
from schemas.events import EVENT, to_json
from schemas.identity import call_id, derived_id, event_id, new_delivery_id
from schemas.topics import BY_NAME, TOPIC_OF_EVENT

Json = dict[str, Any]
T0 = 1_796_064_689_000
"""2026-11-30T18:51:29Z."""


def event(name: str, at: int = 0, **fields: Any) -> Json:
    """An event `at` ms after T0, checked against the contract, in its JSON form. Fields override the defaults."""
    base: Json = {
        "event_id": event_id(new_delivery_id(T0 + at), 0),
        "event_name": name,
        "timestamp": to_rfc3339(T0 + at),
        "agent_runtime": "claude_code",
        "session_id": "s-1",
        "root_session_id": "s-1",
        "source_adapter": "claude_code/1",
    }
    model = EVENT.validate_python({**base, **fields}, strict=False)
    value: Json = orjson.loads(orjson.dumps(to_json(model)))
    return value


def call(key: str = "k", **fields: Any) -> Json:
    """The fields that all events of one call have."""
    return {
        "call_id": call_id(key, 1),
        "call_key": key,
        "occurrence": 1,
        "tool_name": "Bash",
        "tool_source": "shell",
        **fields,
    }


def started(key: str = "k", at: int = 0, **fields: Any) -> Json:
    """A start."""
    return event("tool.call.started", at, **{**call(key), "status": "started", **fields})


def completed(key: str = "k", at: int = 200, **fields: Any) -> Json:
    """An end that proves success."""
    known = {"status": "completed", "outcome": "ok", "outcome_evidence": "exit_status", "duration_ms": 180.5}
    return event("tool.call.completed", at, **{**call(key), **known, **fields})


def failed(key: str = "k", at: int = 200, **fields: Any) -> Json:
    """An end that proves failure."""
    known = {"status": "error", "outcome": "error", "outcome_evidence": "exit_status", "exit_code": 2}
    return event("tool.call.error", at, **{**call(key), **known, **fields})


def derived(name: str, key: str = "k", version: int = 1, retracted: bool = False, **fields: Any) -> Json:
    """tool.call.timed_out or .abandoned of a call."""
    kind = name.removeprefix("tool.call.")
    known = {
        "event_id": derived_id(kind, call_id(key, 1)),
        "version": version,
        "retracted": retracted,
        "call_id": call_id(key, 1),
        "tool_name": "Bash",
        "tool_source": "shell",
        "started_at": to_rfc3339(T0),
        "deadline": to_rfc3339(T0 + 300_000),
        "outcome": "timeout" if kind == "timed_out" else "unknown",
        "source_adapter": "pipelines.pending_calls/1",
    }
    return event(name, 300_000, **{**known, **fields})


def rpc(name: str, operation: str, at: int = 0, **fields: Any) -> Json:
    """A frame of an MCP operation."""
    known = {
        "mcp_server": "github",
        "transport": "stdio",
        "direction": "client_to_server" if name.endswith("request") else "server_to_client",
        "method": "tools/call",
        "tool_name": "create_issue",
        "operation_id": operation,
        "status": "started" if name.endswith("request") else "completed",
        "source_adapter": "mcp_proxy/1",
    }
    return event(name, at, **{**known, **fields})


def finding(key: str = "f", version: int = 1, **fields: Any) -> Json:
    """A risk finding with one piece of evidence."""
    evidence = {
        "event_id": str(uuid.uuid4()),
        "event_name": "tool.call.started",
        "topic": "agenttrace.tool.call",
        "partition": 0,
        "offset": 7,
        "timestamp": to_rfc3339(T0),
    }
    known = {
        "event_id": derived_id("finding-event", key),
        "finding_id": derived_id("finding", key),
        "version": version,
        "risk": "high",
        "severity": "critical",
        "title": "Secret read, then sent away",
        "rule": {"id": "secret-read-then-egress", "version": 1, "pack_hash": "sha256:0"},
        "group_by": "session_id",
        "group": "s-1",
        "tags": ("ASI02",),
        "first_seen": to_rfc3339(T0),
        "last_seen": to_rfc3339(T0 + 5000),
        "evidence": (evidence,),
        "evidence_count": 1,
        "score": 70.0,
        "score_parts": {"sequence_risk": 70.0},
        "source_adapter": "pipelines.sequence_rules/1",
    }
    return event("risk.finding.created" if version == 1 else "risk.finding.updated", 5000, **{**known, **fields})


def metric(sketch: dict[int, int], *, start: int = 0, partition: int = 0, version: int = 1, **fields: Any) -> Json:
    """A closed one-minute window that starts `start` minutes after T0's minute."""
    start_ms = T0 // 60_000 * 60_000 + start * 60_000
    known = {
        "event_id": derived_id("metric", "1m", start_ms, str(fields.get("tool_name", "Bash")), partition),
        "version": version,
        "window": "1m",
        "window_start": to_rfc3339(start_ms),
        "window_ms": 60_000,
        "source_partition": partition,
        "tool_source": "shell",
        "tool_name": "Bash",
        "count": sum(sketch.values()) + fields.get("zero_count", 0),
        "outcomes": {"ok": sum(sketch.values())},
        "error_rate": 0.0,
        "sketch": {str(index): count for index, count in sketch.items()},
        "source_adapter": "rolling_metrics/1",
    }
    return event("metric.window.closed", 60_000, **{**known, **fields})


def producer(epoch: int, seq: int, **fields: Any) -> Json:
    """Who journalled an event."""
    return {"id": "collector-1", "epoch": epoch, "seq": seq, **fields}


def topic_of(value: Json) -> str:
    """The topic that carries an event."""
    return TOPIC_OF_EVENT[value["event_name"]]


def records(events: Sequence[Json], *, offset: int = 0, log_time_ms: int | None = None) -> list[ConsumerRecord]:
    """Records of events, in one partition of each topic, with rising offsets."""
    ms = int(time.time() * 1000) if log_time_ms is None else log_time_ms
    return [
        record(topic_of(value), orjson.dumps(value), offset=offset + number, timestamp=ms)
        for number, value in enumerate(events)
    ]


def record(
    topic: str,
    value: bytes | None,
    *,
    offset: int = 0,
    timestamp: int = T0,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> ConsumerRecord:
    """One record of partition 0."""
    assert topic in BY_NAME
    return ConsumerRecord(topic, 0, offset, timestamp, 1, b"key", value, None, 3, len(value or b""), headers)
