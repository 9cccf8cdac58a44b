"""What a proxy publishes counts: windows of each server and tool, timeouts in them, tables of servers and elicitations, and
one partition a connection where no session is known.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from clickhouse_connect.driver import Client

from pipelines.rolling_metrics.operator import RollingMetrics
from pipelines.runtime.port import CanonicalSet, Record
from schemas.clock import from_rfc3339
from schemas.events import Metric
from schemas.topics import MCP_RPC, TOOL_METRIC, TOPIC_OF_EVENT, record_key
from tests.services.clickhouse_sink.conftest import Written, client, rows, tables, write

from .parts import Json, Proxied, ended_calls, event, request, until

pytestmark = pytest.mark.integration

__all__ = ["client", "rows", "tables", "write"]


def pair(number: int, tool: str, status: str, **fields: Any) -> list[Json]:
    """A call of `tool` that took 40 ms, or had not ended after 60 s; all within one minute."""
    operation = f"op-{number}"
    name = "mcp.rpc.response" if status == "completed" else "mcp.rpc.error"
    took = 60_000.0 if status == "timeout" else 40.0
    known = {"tool_name": tool, "operation_id": operation, **{k: v for k, v in fields.items() if k == "mcp_server"}}
    return [
        event("mcp.rpc.request", number, timestamp="2026-03-01T12:00:01.000Z", **known),
        event(
            name, number, timestamp="2026-03-01T12:00:10.000Z", status=status, duration_ms=took, **{**known, **fields}
        ),
    ]


def test_windows_are_by_server_and_tool_and_timeouts_count() -> None:
    refused = {"protocol_error": {"code": -32602, "message_summary": "no"}}
    sent = [
        *(found for number in range(5) for found in pair(number, "read", "completed")),
        *pair(10, "read", "timeout"),
        *pair(11, "read", "error", **refused),
        *pair(12, "write", "completed", is_error_result=True),
        *pair(13, "write", "input_required"),
        *pair(14, "read", "completed", mcp_server="other"),
    ]
    # The result of the call that timed out comes after all: it is no second call.
    late = {"tool_name": "read", "operation_id": "op-10", "status": "late", "duration_ms": 61_000.0}
    sent.append(event("mcp.rpc.response", 10, timestamp="2026-03-01T12:00:20.000Z", **late))
    said = CanonicalSet()

    class Out:
        version = 0

        def put(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
            self.version += 1
            said.add(topic, record_id, {**body, "version": self.version})

        def retract(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
            self.put(topic, record_id, {**body, "retracted": True})

    random.Random(1).shuffle(sent)
    operator, out = RollingMetrics(0), Out()
    end = from_rfc3339("2026-03-01T12:00:20.000Z")
    for offset, found in enumerate(sent):
        operator.on_event(Record(MCP_RPC, 0, offset, end, found), out)
    for later_ms in (0, 61 * 60_000, 200 * 60_000):
        operator.on_progress(end + later_ms, out)
    windows = [Metric.model_validate({**body, "source_partition": 0}) for body in said.bodies(TOOL_METRIC).values()]
    counted = {
        (window.mcp_server, window.tool_name): (window.count, window.outcomes, window.error_rate)
        for window in windows
        if window.window == "1m"
    }
    assert counted["files", "rpc:tools/call:read"] == (7, {"ok": 5, "error": 1, "timeout": 1}, pytest.approx(2 / 7))
    assert counted["files", "rpc:tools/call:write"] == (1, {"error": 1}, 1)
    assert counted["other", "rpc:tools/call:read"] == (1, {"ok": 1}, 0)


@pytest.mark.parametrize("name", [name for name, topic in TOPIC_OF_EVENT.items() if topic == MCP_RPC])
def test_without_a_session_the_connection_is_the_key(name: str) -> None:
    known = {"event_name": name, "tenant_id": "acme", "connection_id": "c|1", "producer": {"id": "p"}}
    assert record_key(known) == b"acme|c%7C1"
    assert record_key({**known, "session_id": "s"}) == b"acme|s"
    assert record_key({**known, "session_id": "s", "root_session_id": "r"}) == b"acme|r"


async def test_servers_and_elicitations_can_be_asked_for(write: Written, client: Client) -> None:
    health = "mcp.server.health_changed"
    sent = [
        event(health, 0, health="up", reason="initialized", transport="stdio"),
        event("mcp.server.stderr", 0, content={"size_bytes": 12, "summary": "listening"}, transport="stdio"),
        event("mcp.elicitation.requested", 0, mode="form", content={"size_bytes": 5, "summary": "Sure?"}),
        event("mcp.elicitation.completed", 0, action="accept"),
        event(health, 0, health="down", reason="exited 3", transport="stdio", timestamp="2099-01-01T00:00:00.000Z"),
        event(health, 0, health="up", mcp_server="other", connection_id="c-2", transport="streamable-http"),
    ]
    await write(sent)
    await write(sent[::-1])

    def ask(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in client.query(sql).result_rows]

    assert ask("SELECT mcp_server, health, reason, transport, connections, times_down FROM mcp_servers ORDER BY 1") == [
        ("files", "down", "exited 3", "stdio", 1, 1),
        ("other", "up", "", "streamable-http", 1, 0),
    ]
    assert len(ask("SELECT * FROM mcp_server_health")) == 3
    assert ask("SELECT mcp_server, text, bytes FROM mcp_server_stderr") == [("files", "listening", 12)]
    assert ask("SELECT step, mode, action, text FROM mcp_elicitations ORDER BY step DESC") == [
        ("requested", "form", "", "Sure?"),
        ("completed", "", "accept", ""),
    ]


async def test_what_a_real_observer_says_fills_the_tables(tmp_path: Path, write: Written, client: Client) -> None:
    path = tmp_path / "calls.jsonl"
    proxy = Proxied(tmp_path, "--sink", f"jsonl:{path}", "--timeout-ms", "1500")
    try:
        known: Json = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "serverInfo": {"name": "Fs", "version": "2"},
        }
        proxy.client(request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}))
        proxy.server({"jsonrpc": "2.0", "id": 0, "result": known})
        for number, words in ((1, "reads a file"), (2, "reads a file"), (3, "reads any file")):
            proxy.client(request(number, "tools/list"))
            tool = {"name": "read", "description": words, "inputSchema": {"type": "object"}}
            proxy.server({"jsonrpc": "2.0", "id": number, "result": {"tools": [tool]}})
        proxy.call(4)
        proxy.call(5, "write", result={"content": [], "isError": True})
        proxy.client(request(6, "tools/call", {"name": "ask", "arguments": {}}))
        proxy.server(request("q", "elicitation/create", {"message": "Sure?", "requestedSchema": {"type": "object"}}))
        await asyncio.sleep(0.06)
        proxy.client({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept", "content": {}}})
        proxy.server({"jsonrpc": "2.0", "id": 6, "result": {"content": []}})
        proxy.client(request(7, "tools/call", {"name": "slow", "arguments": {}}))
        await until(lambda: path.exists() and b'"timeout"' in path.read_bytes(), "a timeout")
        await proxy.end()
    finally:
        proxy.kill()
    sent = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert ended_calls(sent) == {"completed": 3, "timeout": 1}, proxy.log.read_text()
    await write(sent)
    assert not write.refused

    def ask(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in client.query(sql).result_rows]

    found = ask(
        "SELECT tool_name, status, failed, request_bytes > 0, duration_ms > 0, duration_human_ms >= 50,"
        " duration_server_ms < duration_ms FROM mcp_rpc_calls WHERE method = 'tools/call' ORDER BY tool_name"
    )
    assert [row[:5] for row in found] == [
        ("ask", "completed", False, True, True),
        ("read", "completed", False, True, True),
        ("slow", "timeout", True, True, True),
        ("write", "completed", True, True, True),
    ]
    assert found[0][5:] == (True, True)
    assert ask("SELECT tool_name, revision, revisions FROM mcp_tool_schemas ORDER BY revision") == [
        ("read", 1, 2),
        ("read", 2, 2),
    ]
    [told] = ask("SELECT health, declared_name, declared_version, protocol_version FROM mcp_servers")
    assert told == ("down", "Fs", "2", "2025-11-25")
    assert [row[0] for row in ask("SELECT step FROM mcp_elicitations ORDER BY at")] == ["requested", "completed"]
    assert ask("SELECT action FROM mcp_elicitations WHERE step = 'completed'") == [("accept",)]
    [[waits]] = ask("SELECT operation_id FROM mcp_rpc_calls WHERE tool_name = 'ask'")
    assert ask("SELECT DISTINCT operation_id FROM mcp_elicitations") == [(waits,)]
    assert {tool for (tool,) in ask("SELECT tool_name FROM mcp_audit_log")} == {"read", "write", "ask", "slow"}
    [[keys]] = ask("SELECT uniqExact(JSONExtractString(payload, 'connection_id')) FROM events WHERE mcp_server != ''")
    assert keys == 1
    assert {record_key(event) for event in sent} == {f"|{sent[0]['connection_id']}".encode()}
