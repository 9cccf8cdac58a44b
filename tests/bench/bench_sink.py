"""Rows a second of the sink's write path into ClickHouse, against clickhouse-connect alone on the same rows.

`python -m tests.bench.bench_sink` prints the figures as JSON. Five sides in interleaved rounds, all into the same
tables with the same materialised views behind them; what a client needs is prepared before its clock starts:

- `sink`: Kafka records as aiokafka gives them → check → blocks → writer, as the service does it
- `client_same`: the very columns that the sink inserts, by clickhouse-connect
- `client_columns`, `client_rows`: every field of every event as a typed value, by column and by row
- `client_json`: each event with its text and place added, as JSONEachRow

Ratios above 1 say that the sink is faster than that side.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import clickhouse_connect
import orjson
from aiokafka import ConsumerRecord, TopicPartition
from clickhouse_connect.driver import Client

from schemas.clock import from_rfc3339, to_rfc3339
from schemas.identity import call_id, event_id, new_delivery_id, span_id, trace_id
from schemas.topics import TOOL_CALL
from services.clickhouse_sink.batch import Batch
from services.clickhouse_sink.clickhouse import connect
from services.clickhouse_sink.metrics import Metrics
from services.clickhouse_sink.migrate import migrate_dsn
from services.clickhouse_sink.records import COLUMNS, EVENTS, TYPES, blocks
from services.clickhouse_sink.writer import Writer
from services.embedded.clickhouse import ClickHouseServer

ROUNDS = 5
ROWS = 10_000
BATCH = 10_000
T0 = 1_796_064_689_000


def events(count: int, first: int) -> list[bytes]:
    """Starts and ends of tool calls, about 1.2 KB each, as the collector publishes them; `first` makes ids differ."""
    made: list[bytes] = []
    for number in range(first, first + count // 2):
        at = T0 + number * 7
        session = f"session-{number // 50:06d}"
        key = f"acme|claude_code|{session}|main|toolu_{number:024x}"
        identity = call_id(key, 1)
        base = {
            "event_version": "1.0",
            "tenant_id": "acme",
            "agent_runtime": "claude_code",
            "agent_version": "2.1.332",
            "agent_id": "main",
            "session_id": session,
            "root_session_id": session,
            "turn_id": f"turn-{number // 5}",
            "trace_id": trace_id("claude_code", session, "turn"),
            "span_id": span_id(identity),
            "source_adapter": "claude_code/1",
            "severity": "info",
            "labels": {"env": "ci", "team": "platform"},
            "call_id": identity,
            "call_key": key,
            "occurrence": 1,
            "tool_call_id": f"toolu_{number:024x}",
            "tool_name": "Bash",
            "tool_source": "shell",
            "tool_kind": "shell",
        }
        digest = f"hmac-sha256:k1:{number:064x}"
        started = {
            "event_id": event_id(new_delivery_id(at), 0),
            "event_name": "tool.call.started",
            "timestamp": to_rfc3339(at),
            "observed_at": to_rfc3339(at + 2),
            "source_event_name": "PreToolUse",
            "producer": {"id": "collector-1", "epoch": 1, "seq": number * 2 + 1},
            "status": "started",
            "input": {
                "size_bytes": 140,
                "hash": digest,
                "summary": f'{{"command":"git log --oneline -n {number} -- src/module_{number % 97}.py"}}',
            },
            "facts": {
                "commands": [{"argv0": "git", "sub": "log", "flags": ["--oneline", "-n"]}],
                "paths": [{"path": f"/home/dev/project/src/module_{number % 97}.py", "kind": "read"}],
            },
        }
        completed = {
            "event_id": event_id(new_delivery_id(at + 180), 0),
            "event_name": "tool.call.completed",
            "timestamp": to_rfc3339(at + 180),
            "observed_at": to_rfc3339(at + 182),
            "source_event_name": "PostToolUse",
            "producer": {"id": "collector-1", "epoch": 1, "seq": number * 2 + 2},
            "status": "completed",
            "outcome": "ok",
            "outcome_evidence": "exit_status",
            "exit_code": 0,
            "duration_ms": 100 + number % 1000 / 7,
            "output": {"size_bytes": 900, "hash": digest, "summary": f"{number:07x} Fix the parser\n" * 8},
        }
        made += [orjson.dumps({**base, **started}), orjson.dumps({**base, **completed})]
    return made


def as_records(values: list[bytes]) -> list[ConsumerRecord]:
    """What the consumer hands over."""
    return [
        ConsumerRecord(TOOL_CALL, 0, offset, T0, 1, b"k", value, None, 1, len(value), ())
        for offset, value in enumerate(values)
    ]


async def _sink(writer: Writer, batches: list[list[ConsumerRecord]]) -> float:
    place = TopicPartition(TOOL_CALL, 0)
    began = time.perf_counter()
    for records in batches:
        batch = Batch("")
        batch.add(place, records)
        for block in blocks(batch.rows, "", T0):
            await writer.write(block)
    return time.perf_counter() - began


def _value(type_name: str, found: Any) -> Any:
    """An event's field as clickhouse-connect takes it for a column of this type."""
    if type_name.startswith("Nullable"):
        return found
    if type_name.startswith("Tuple"):
        inner = _members(type_name)
        given = found if isinstance(found, dict) else {}
        return {name: _value(kind, given.get(name)) for name, kind in inner}
    if type_name.startswith("Array"):
        inner_type = type_name[6:-1]
        return [_value(inner_type, item) for item in found or []]
    if type_name.startswith("Map"):
        return found or {}
    if type_name.startswith("Bool"):
        return bool(found)
    if type_name.startswith(("UInt", "Int", "Float")):
        return found or 0
    return "" if found is None else str(found)


def _members(type_name: str) -> list[tuple[str, str]]:
    members, depth, start, body = [], 0, 0, type_name[6:-1]
    for place, char in enumerate(body + ","):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            name, _, kind = body[start:place].strip().partition(" ")
            members.append((name.strip("`"), kind))
            start = place + 1
    return members


def _typed(columns: list[tuple[str, str]], values: list[bytes], first_offset: int) -> list[list[Any]]:
    rows = []
    log_time = datetime.fromtimestamp(T0 / 1000, UTC)
    for number, value in enumerate(values):
        event = orjson.loads(value)
        own = {
            "_topic": TOOL_CALL,
            "_partition": 0,
            "_offset": first_offset + number,
            "_log_time": log_time,
            "payload": value.decode(),
            "at": datetime.fromtimestamp(from_rfc3339(event["timestamp"]) / 1000, UTC),
        }
        rows.append(
            [own[name] if name in own else _value(kind, event.get(name.removeprefix("e."))) for name, kind in columns]
        )
    return rows


def _timed(insert: Callable[[Any], object], batches: list[Any]) -> float:
    began = time.perf_counter()
    for batch in batches:
        insert(batch)
    return time.perf_counter() - began


def _chunks(rows: list[Any]) -> list[list[Any]]:
    return [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]


async def _measure(dsn: str) -> dict[str, Any]:
    client = await asyncio.to_thread(connect, dsn)
    described = client.query("DESCRIBE TABLE decoded_events").result_rows
    columns = [(str(row[0]), str(row[1])) for row in described]

    async def refuse(record: ConsumerRecord, why: str, tries: int) -> None:
        raise AssertionError(f"{record.offset}: {why}")

    writer = Writer(dsn, Metrics(), refuse)
    await writer.open()
    sides = ["sink", "client_same", "client_columns", "client_rows", "client_json"]
    seconds: dict[str, list[float]] = {}
    first = 0
    for round_ in range(ROUNDS + 1):
        # Merges of what one side wrote run while the next is measured, so none may always follow the same.
        for side in sides[round_ % len(sides) :] + sides[: round_ % len(sides)]:
            values = events(ROWS, first)
            took = await _side(side, values, writer, client, columns)
            if round_:
                seconds.setdefault(side, []).append(took)
            first += ROWS
    writer.close()
    stored = int(client.command("SELECT count() FROM events"))
    client.close()
    assert stored == first, f"{stored} rows stored of {first}"
    rate = {side: ROWS / statistics.median(took) for side, took in seconds.items()}
    return {
        "rows_per_s": {side: round(value) for side, value in rate.items()},
        "sink_to": {side: round(rate["sink"] / value, 2) for side, value in rate.items() if side != "sink"},
        "rounds": ROUNDS,
        "rows_a_round": ROWS,
        "batch_rows": BATCH,
        "event_bytes": round(sum(map(len, values)) / len(values)),
    }


async def _side(
    side: str, values: list[bytes], writer: Writer, client: Client, columns: list[tuple[str, str]]
) -> float:
    if side == "sink":
        return await _sink(writer, _chunks(as_records(values)))
    if side == "client_same":
        prepared = [next(blocks(records, "", T0)).columns for records in _chunks(as_records(values))]
        return await asyncio.to_thread(
            _timed,
            lambda batch: client.insert(
                EVENTS,
                batch,
                column_names=COLUMNS[EVENTS],
                column_type_names=TYPES[EVENTS],
                column_oriented=True,
            ),
            prepared,
        )
    if side == "client_json":
        lines = _chunks(
            [
                b'{"_topic":"%b","_offset":%d,"_log_time":"%d","payload":%b}\n'
                % (TOOL_CALL.encode(), n, T0 // 1000, orjson.dumps(value.decode()))
                for n, value in enumerate(values)
            ]
        )
        return await asyncio.to_thread(
            _timed,
            lambda batch: client.raw_insert(EVENTS, insert_block=b"".join(batch), fmt="JSONEachRow"),
            lines,
        )
    rows = _chunks(_typed(columns, values, 0))
    names, types = [name for name, _ in columns], [kind for _, kind in columns]
    if side == "client_columns":
        return await asyncio.to_thread(
            _timed,
            lambda batch: client.insert(
                "decoded_events", batch, column_names=names, column_type_names=types, column_oriented=True
            ),
            [[list(column) for column in zip(*batch, strict=True)] for batch in rows],
        )
    return await asyncio.to_thread(
        _timed,
        lambda batch: client.insert("decoded_events", batch, column_names=names, column_type_names=types),
        rows,
    )


def run() -> dict[str, Any]:
    """The figures; uses CLICKHOUSE_DSN if set (a database `bench_sink` is made there), else an embedded server."""
    if given := os.environ.get("CLICKHOUSE_DSN"):
        from urllib.parse import urlsplit

        dsn = urlsplit(given)._replace(path="/bench_sink").geturl()
        migrate_dsn(dsn)
        try:
            return asyncio.run(_measure(dsn))
        finally:
            with clickhouse_connect.get_client(dsn=given) as client:
                client.command("DROP DATABASE bench_sink SYNC")
    with tempfile.TemporaryDirectory(prefix="agenttrace-bench-") as folder, ClickHouseServer(Path(folder)) as server:
        migrate_dsn(server.dsn)
        return asyncio.run(_measure(server.dsn))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
