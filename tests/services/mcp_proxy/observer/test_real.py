"""A real client and a real server of the public SDK, through the real proxy: what is told is what was done."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the MCP SDK")

from mcp import types
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[4]
SERVER = [sys.executable, "-m", "tests.mcp_servers.everything"]
PROXY = [sys.executable, "-m", "services.cli.main", "proxy"]
HUMAN_S = 0.3
Json = dict[str, Any]


async def person(context: Any, params: Any) -> types.ElicitResult:
    await asyncio.sleep(HUMAN_S)
    return types.ElicitResult(
        action="accept", content=dict.fromkeys(params.requested_schema["properties"], "Ann Onymous")
    )


async def session(target: Any, mode: str) -> None:
    """One client's session: a good call, one that fails, one with progress, one that asks a person."""
    async with Client(target, mode=mode, elicitation_callback=person) as client:
        await client.list_tools()
        await client.call_tool("echo", {"text": "hello"})
        await client.call_tool("fail", {"text": "broken"})
        await client.call_tool("steps", {"count": 3}, progress_callback=_ignore)
        if mode == "legacy":
            await client.call_tool("test_elicitation", {"message": "Who are you?"})
        else:
            await client.call_tool("test_input_required_result_multi_round", {})


async def _ignore(*_: Any) -> None:
    return None


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "AGENTTRACE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def listening(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens on {port}"
        time.sleep(0.05)


@pytest.fixture
def server(env: dict[str, str]) -> Iterator[int]:
    port = free_port()
    with subprocess.Popen([*SERVER, "--port", str(port)], env=env, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        listening(port)
        yield port
        process.terminate()


def told(sink: Path, calls: int) -> list[Json]:
    """All events, once so many calls have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        events = [json.loads(line) for line in sink.read_text().splitlines()] if sink.exists() else []
        if len([e for e in events if e.get("method") == "tools/call" and "duration_ms" in e]) >= calls:
            return events
        time.sleep(0.1)
    raise AssertionError(f"only {len(events)} events in {sink}")


def check(events: list[Json], mode: str, transport: str) -> None:
    asks = "test_elicitation" if mode == "legacy" else "test_input_required_result_multi_round"
    ends = {e["tool_name"]: e for e in events if e.get("method") == "tools/call" and "duration_ms" in e}
    assert list(ends) == ["echo", "fail", "steps", asks]
    assert {e["status"] for e in ends.values()} == {"completed"}
    assert {name: e["is_error_result"] for name, e in ends.items()} == {
        "echo": False,
        "fail": True,
        "steps": False,
        asks: False,
    }
    rounds = [e for e in events if e.get("operation_id") == ends[asks]["operation_id"]]
    human_ms = ends[asks]["duration_human_ms"]
    if mode == "legacy":
        assert HUMAN_S * 1000 <= human_ms < ends[asks]["duration_ms"]
        # Progress that came on the wire, over HTTP on the call's own stream.
        assert ends["steps"]["progress_count"] == 3
        assert {e["protocol_version"] for e in ends.values()} == {"2025-11-25"}
    else:
        statuses = [e["status"] for e in rounds if e["event_name"] == "mcp.rpc.response"]
        assert statuses == ["input_required"] * (len(statuses) - 1) + ["completed"]
        assert len(statuses) > 2
        assert HUMAN_S * 1000 * (len(statuses) - 1) <= human_ms < ends[asks]["duration_ms"]
        assert {e["protocol_version"] for e in ends.values()} == {"2026-07-28"}
    assert {e["transport"] for e in ends.values()} == {transport}
    assert {e["operation_id"] for e in events if e["event_name"].startswith("mcp.elicitation.")} == {
        ends[asks]["operation_id"]
    }
    assert not [e for e in events if e["event_name"] in ("mcp.rpc.invalid_frame", "producer.dropped")]
    assert not [e for e in events if e.get("reason") == "unmatched"]
    assert [e["health"] for e in events if e["event_name"] == "mcp.server.health_changed"][:2] == ["connecting", "up"]
    assert any(tool["name"] == "echo" for e in events if e["event_name"] == "mcp.tools.listed" for tool in e["tools"])
    assert "Ann Onymous" not in json.dumps([e for e in events if e["event_name"] != "mcp.rpc.response"])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_stdio(mode: str, tmp_path: Path, env: dict[str, str]) -> None:
    sink = tmp_path / "events.jsonl"
    command = [*PROXY, "stdio", "--server", "all", "--sink", f"jsonl:{sink}", "--", *SERVER, "--stdio"]
    asyncio.run(
        asyncio.wait_for(
            session(stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=ROOT)), mode),
            60,
        )
    )
    check(told(sink, 4), mode, "stdio")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_http(mode: str, tmp_path: Path, env: dict[str, str], server: int) -> None:
    sink, port = tmp_path / "events.jsonl", free_port()
    command = [*PROXY, "http", "--listen", f"127.0.0.1:{port}", "--route", f"all=http://127.0.0.1:{server}/mcp"]
    with subprocess.Popen(
        [*command, "--sink", f"jsonl:{sink}"], env=env, cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        listening(port)
        asyncio.run(asyncio.wait_for(session(f"http://127.0.0.1:{port}/mcp/all", mode), 60))
        try:
            check(told(sink, 4), mode, "streamable-http")
        finally:
            process.terminate()
