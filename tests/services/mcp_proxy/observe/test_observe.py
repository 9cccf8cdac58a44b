"""The observer process on a real tap: to a collector, over its death and absence, and over its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from schemas.events import EVENT
from services.collector import service
from services.mcp_proxy.tap import HEAD, Kind, Side
from tests.services.collector.running import running, settings

from .parts import CollectorProcess, Json, Proxied, ended_calls, journal, lost, spooled, until
from .test_tail import Tail

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


@contextmanager
def proxied(home: Path, *arguments: str, **env: str) -> Iterator[Proxied]:
    """A proxy whose observer ends with the test."""
    proxy = Proxied(home, *arguments, env=env)
    try:
        yield proxy
    finally:
        proxy.kill()


def calls_of(events: list[Json]) -> dict[str, list[str]]:
    """Event names by operation, of tool calls."""
    found: dict[str, list[str]] = {}
    for event in events:
        if event.get("method") == "tools/call":
            found.setdefault(event["operation_id"], []).append(event["event_name"])
    return found


async def test_calls_arrive_once_and_the_process_ends_with_its_tap(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with proxied(tmp_path) as proxy:
            for number in range(200):
                proxy.call(number)
            await until(lambda: ended_calls(journal(tmp_path))["completed"] == 200, "all calls in the journal")
            await proxy.end()
    found = calls_of(journal(tmp_path))
    assert len(found) == 200
    assert all(names == ["mcp.rpc.request", "mcp.rpc.response"] for names in found.values())
    assert not (tmp_path / "proxies" / f"{proxy.process.pid}.sock").exists()
    for event in journal(tmp_path):
        EVENT.validate_json(orjson.dumps(event))
        assert (event.get("mcp_server"), event["connection_id"]) == ("files", journal(tmp_path)[0]["connection_id"])


async def test_a_server_that_is_gone_before_the_observer_is_up_is_seen_whole(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        for number in range(300):
            proxy.call(number, result={"content": [{"type": "text", "text": "x" * 20_000}]})
        await proxy.end()
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path), "the spool is empty")
    assert ended_calls(journal(tmp_path)) == {"completed": 300}


async def test_a_dead_collector_from_the_start_and_then_one_that_lives(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        for number in range(100):
            proxy.call(number)
        await until(lambda: spooled(tmp_path), "the spool takes events")
        collector = await CollectorProcess(tmp_path).ready()
        try:
            await until(lambda: ended_calls(journal(tmp_path))["completed"] == 100, "all calls in the journal")
            for number in range(100, 150):
                proxy.call(number)
            await proxy.end()
            await until(lambda: not spooled(tmp_path), "the spool is empty")
        finally:
            collector.stop()
    found = calls_of(journal(tmp_path))
    assert len(found) == 150
    assert all(names == ["mcp.rpc.request", "mcp.rpc.response"] for names in found.values())


async def test_5000_calls_while_the_collector_is_dead_arrive_or_are_told(tmp_path: Path) -> None:
    """The collector dies with kill -9 in the middle; the spool is too small for the rest."""
    collector = await CollectorProcess(tmp_path).ready()
    with proxied(tmp_path, AGENTTRACE_SPOOL_MAX_BYTES=str(2 << 20)) as proxy:
        try:
            for number in range(300):
                proxy.call(number)
            await until(lambda: ended_calls(journal(tmp_path))["completed"] >= 100, "some calls in the journal")
        finally:
            collector.kill()
        for number in range(300, 5300):
            proxy.call(number)
            if number % 50 == 0:
                await asyncio.sleep(0)
        await proxy.end(90)
    files = sum(path.stat().st_size for path in spooled(tmp_path))
    assert files <= (2 << 20) + 8192
    collector = await CollectorProcess(tmp_path).ready()
    try:
        await until(lambda: not spooled(tmp_path), "the spool is empty")
    finally:
        collector.stop()
    found = journal(tmp_path)
    assert len({event["event_id"] for event in found}) == len(found)
    observed = [event for event in found if event.get("method") == "tools/call"]
    others = [
        event for event in found if event.get("method") != "tools/call" and event["event_name"] != "producer.dropped"
    ]
    assert lost(found) > 0
    # Besides the calls there is what tells of the server: it came up, and it went.
    assert len(observed) + lost(found) in range(2 * 5300, 2 * 5300 + 8 - len(others) + 1)


async def test_an_observer_killed_in_the_middle_costs_what_it_held(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with proxied(tmp_path) as proxy:
            for number in range(50):
                proxy.call(number)
            await until(lambda: ended_calls(journal(tmp_path))["completed"] == 50, "fifty calls in the journal")
            first = proxy.process.pid
            assert (tmp_path / "proxies" / f"{first}.sock").exists()
            proxy.kill()
            # As the forwarder does it.
            proxy.tap.detach()
            for number in range(50, 100):
                proxy.call(number)
            proxy.spawn()
            await until(lambda: ended_calls(journal(tmp_path))["completed"] == 100, "the rest in the journal")
            await proxy.end()
    assert not list((tmp_path / "proxies").iterdir())
    found = [event["event_id"] for event in journal(tmp_path)]
    assert len(found) == len(set(found))
    assert not spooled(tmp_path)


async def test_a_forwarder_killed_in_the_middle_leaves_no_open_call(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with proxied(tmp_path) as proxy:
            proxy.call(1)
            proxy.client({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}})
            await until(lambda: len(calls_of(journal(tmp_path))) == 2, "both requests in the journal")
            await proxy.cut()
    assert all(len(names) == 2 for names in calls_of(journal(tmp_path)).values())


async def test_a_file_alone_without_a_collector(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with proxied(tmp_path / "home", "--sink", f"jsonl:{path}") as proxy:
        for number in range(30):
            proxy.call(number)
        await proxy.end()
    found = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert ended_calls(found) == {"completed": 30}
    assert not spooled(tmp_path / "home")


async def test_a_call_without_an_answer_is_a_timeout(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with proxied(tmp_path, "--sink", f"jsonl:{path}", "--timeout-ms", "300") as proxy:
        proxy.client({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}})

        def ends() -> dict[str, int]:
            text = path.read_bytes() if path.exists() else b""
            return ended_calls([orjson.loads(line) for line in text.splitlines()])

        await until(lambda: ends() == {"timeout": 1}, "a timeout")
        proxy.server({"jsonrpc": "2.0", "id": 2, "result": {"content": []}})
        await until(lambda: ends() == {"timeout": 1, "late": 1}, "the late result")
        await proxy.end()


async def test_a_request_to_end_is_obeyed_and_nothing_is_lost(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        for number in range(20):
            proxy.call(number)
        await until(lambda: proxy.tap.waiting == 0 and (tmp_path / "proxies").exists(), "sent, and the process is up")
        proxy.process.terminate()
        assert await asyncio.to_thread(proxy.process.wait, 30) == 0
    found = [orjson.loads(line) for path in spooled(tmp_path) for line in path.read_bytes().splitlines()]
    assert ended_calls(found) == {"completed": 20}


@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
async def test_the_agents_session_is_that_of_a_stdio_proxys_client(tmp_path: Path, transport: str) -> None:
    session = "5f2b7b52-6c4e-4d0e-9d0a-0a4b1c8f1c11"
    link = tmp_path / "claude"
    link.symlink_to(sys.executable)
    run = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], close_fds=False).returncode)"
    proxy = Proxied(
        tmp_path, env={"CLAUDE_CODE_SESSION_ID": session}, below=(str(link), "-c", run), transport=transport
    )
    try:
        proxy.call(1)
        await proxy.end()
    finally:
        proxy.kill()
    found = [orjson.loads(line) for path in spooled(tmp_path) for line in path.read_bytes().splitlines()]
    told = {(event.get("session_id"), event["agent_runtime"]) for event in found}
    assert told == ({(session, "claude_code")} if transport == "stdio" else {(None, "other")})


async def test_tail_shows_a_running_proxy(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        looking = Tail(tmp_path)
        try:
            with proxied(tmp_path) as proxy:
                await until(lambda: f"proxy {proxy.process.pid}: attached" in looking.err, "attached")
                proxy.call(1)
                proxy.server({"jsonrpc": "2.0", "id": 99, "method": "ping"})
                proxy.call(2, "write", result={"content": [{"type": "text", "text": "disk full"}], "isError": True})
                await until(lambda: "tools/call write" in looking.out, "the line of a call")
                await proxy.end()
                await until(lambda: f"proxy {proxy.process.pid}: ended" in looking.err, "ended")
        finally:
            looking.stop()
    [read] = [line for line in looking.out.splitlines() if "tools/call read" in line]
    [written] = [line for line in looking.out.splitlines() if "tools/call write" in line]
    assert read.split()[1:5] == ["files", "tools/call", "read", "ok"]
    assert written.split()[1:5] == ["files", "tools/call", "write", "error"]
    assert "Traceback" not in looking.err


@pytest.mark.parametrize("wrong", ["agenttrace: [not a mapping", "agenttrace:\n  captur: {}\n"])
async def test_a_broken_configuration_is_told_in_the_log_and_only_sizes_and_hashes_are_kept(
    tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "agenttrace.yaml").write_text(wrong)
    with proxied(tmp_path) as proxy:
        for number in range(3):
            proxy.call(number)
        await proxy.end()
    log = proxy.log.read_text()
    assert log.count("agenttrace.yaml:") == 1
    assert "Traceback" not in log
    found = [orjson.loads(line) for path in spooled(tmp_path) for line in path.read_bytes().splitlines()]
    assert ended_calls(found) == {"completed": 3}
    assert "text of" not in repr(found)
    assert all(event["response"]["size_bytes"] for event in found if event["event_name"] == "mcp.rpc.response")


async def test_a_proxy_that_is_switched_off_publishes_nothing(tmp_path: Path) -> None:
    with proxied(tmp_path, AGENTTRACE_MCP__PROXY__ENABLED="false") as proxy:
        proxy.call(1)
        await proxy.end()
    assert not spooled(tmp_path)


async def test_what_is_no_tap_ends_the_process_in_order(tmp_path: Path) -> None:
    with proxied(tmp_path) as proxy:
        proxy.call(1)
        await until(lambda: proxy.tap.waiting == 0, "sent")
        assert proxy.tap._socket is not None
        proxy.tap._socket.setblocking(True)
        proxy.tap._socket.sendall(HEAD.pack(77, 0, 1, 0, 0))
        assert await asyncio.to_thread(proxy.process.wait, 30) == 0
    assert "the tap cannot be read further" in proxy.log.read_text()
    assert spooled(tmp_path)


async def test_under_pressure_only_sizes_are_kept_and_afterwards_everything_again(tmp_path: Path) -> None:
    """A backlog of half of what the process holds of the tap."""
    path = tmp_path / "calls.jsonl"
    with proxied(tmp_path, "--sink", f"jsonl:{path}") as proxy:
        proxy.tap.max_bytes = 64 << 20
        os.kill(proxy.process.pid, 19)
        for number in range(900):
            proxy.call(number, result={"content": [{"type": "text", "text": f"{number} " + "x" * 30_000}]})
        os.kill(proxy.process.pid, 18)

        def found() -> list[Json]:
            text = path.read_bytes() if path.exists() else b""
            whole = text[: text.rfind(b"\n") + 1]
            return [orjson.loads(line) for line in whole.splitlines()]

        await until(lambda: ended_calls(found())["completed"] == 900, "all calls", 60)
        proxy.call(1000)
        await proxy.end()
    answers = [event for event in found() if event["event_name"] == "mcp.rpc.response"]
    assert len(answers) == 901
    assert any("summary" not in event["response"] for event in answers)
    assert "summary" in answers[-1]["response"]
    assert all(event["response"]["size_bytes"] > 40 and event["response"]["hash"] for event in answers)


async def test_stderr_and_gaps_and_losses_of_the_tap_pass(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with proxied(tmp_path, "--sink", f"jsonl:{path}") as proxy:
        proxy.tap.stderr(1, b"listening\n")
        proxy.tap.say(Kind.GAP, 1, Side.SERVER, {"bytes": 70})
        proxy.tap.say(Kind.LOST, 0, Side.CLIENT, {"records": 3})
        for side in Side:
            proxy.tap.data(1, side, b"rest of a line that nobody knows\n")
        proxy.call(5)
        await proxy.end()
    found = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert ended_calls(found) == {"completed": 1}
    assert "mcp.server.stderr" in {event["event_name"] for event in found}
    assert lost(found) == 3
