"""A real collector: answers, journal, recovery, spool, bad input, and its refusals."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket as sockets
from pathlib import Path

import aiohttp
import orjson
import pytest

from schemas.errors import UserError
from schemas.identity import new_delivery_id
from services.collector.service import Collector
from services.collector.sinks import JsonlSink
from services.forwarder import protocol

from .running import POST, PRE, all_journalled, journalled, post, published, running, settings, until

pytestmark = pytest.mark.integration


async def test_a_hook_is_answered_neutrally_and_its_events_are_published_in_seq_order(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        for payload in (PRE, POST):
            assert await post(collector, orjson.dumps(payload)) == (200, b"{}")
    events = published(tmp_path)
    assert [event["producer"]["seq"] for event in events] == list(range(1, len(events) + 1))
    calls = [event for event in events if event["event_name"].startswith("tool.call")]
    assert [event["event_name"] for event in calls] == ["tool.call.started", "tool.call.completed"]
    assert calls[0]["call_id"] == calls[1]["call_id"]
    last = [event for event in events if event["event_name"] == "producer.heartbeat"][-1]
    assert last["published_through"] == last["producer"]["seq"] - 1


async def test_the_unix_socket_is_for_this_user_only_and_long_paths_work(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 100) / ("y" * 60)
    async with running(settings(home)) as collector:
        path = collector.settings.socket
        assert path.stat().st_mode & 0o777 == 0o600
        connector = aiohttp.UnixConnector(os.path.relpath(path)) if len(os.path.relpath(path)) < 100 else None
        folder = os.open(path.parent, os.O_RDONLY)
        connector = connector or aiohttp.UnixConnector(f"/proc/self/fd/{folder}/{path.name}")
        async with aiohttp.ClientSession(connector=connector) as client:
            async with client.post("http://agenttrace/hooks/codex", data=orjson.dumps(PRE)) as response:
                assert response.status == 200
        os.close(folder)
    assert not path.exists()


async def test_a_repeated_delivery_is_journalled_once_also_after_a_restart(tmp_path: Path) -> None:
    delivery = new_delivery_id()
    for _ in range(2):
        async with running(settings(tmp_path)) as collector:
            for _ in range(3):
                await post(collector, orjson.dumps(PRE), **{protocol.HEADER_DELIVERY: delivery})
    assert len(journalled(tmp_path)) == 1


async def test_a_restart_goes_on_with_open_calls_and_a_new_epoch(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        await post(collector, orjson.dumps(PRE))
    async with running(settings(tmp_path)) as collector:
        assert len(collector.intake.calls) == 1
        await post(collector, orjson.dumps(POST))
        assert len(collector.intake.calls) == 0
    calls = journalled(tmp_path)
    assert calls[0]["call_id"] == calls[1]["call_id"]
    first = next(event for event in all_journalled(tmp_path) if event["producer"]["epoch"] == 2)
    last = [event for event in all_journalled(tmp_path) if event["producer"]["epoch"] == 1][-1]
    assert first["producer"]["previous_epoch"] == 1
    assert first["producer"]["previous_seq"] == last["producer"]["seq"]


async def test_recovery_from_the_journal_alone_equals_recovery_from_a_snapshot(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        for number in range(20):
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"toolu_{number % 7}"}))
        await post(collector, orjson.dumps({**POST, "tool_use_id": "toolu_3"}))
    with_snapshot = Collector(settings(tmp_path))
    state = with_snapshot.intake.calls.dump()
    with_snapshot._lock.close()
    (tmp_path / "collector" / "snapshot.json").unlink()
    without = Collector(settings(tmp_path))
    assert without.intake.calls.dump() == state
    without._lock.close()


async def test_a_second_collector_on_the_same_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        with pytest.raises(UserError, match=rf"another collector \(pid {os.getpid()}\).*AGENTTRACE_HOME"):
            Collector(settings(tmp_path))


async def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="port .* is in use; .*collector.port"):
            async with running(settings(tmp_path, port=taken.getsockname()[1])):
                pass


def test_a_state_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = settings(tmp_path)
    given.folder = tmp_path / "file" / "collector"
    with pytest.raises(UserError, match="cannot be written.*AGENTTRACE_HOME"):
        Collector(given)


BAD = {
    "empty": (b"", "invalid_json"),
    "cut": (b'{"session_id": "s', "invalid_json"),
    "binary": (bytes(range(256)) * 20, "invalid_json"),
    "list": (b"[1, 2]", "not_an_object"),
    "text": (b'"hello"', "not_an_object"),
    "deep": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, None),
    "nan": (b'{"a": NaN}', "invalid_json"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("runtime", ["claude_code", "codex", "openclaw", "hermes"])
async def test_bad_bodies_get_the_neutral_answer_and_are_quarantined(tmp_path: Path, name: str, runtime: str) -> None:
    body, reason = BAD[name]
    async with running(settings(tmp_path)) as collector:
        assert await post(collector, body, runtime) == (200, b"{}")
    [event] = journalled(tmp_path)
    assert event["event_name"] == "agent.payload.quarantined"
    assert event["size_bytes"] == len(body)
    assert event["hash"].startswith("hmac-sha256:")
    assert reason in (None, event["reason"])


WRONG_TYPES = [
    {**PRE, "tool_input": "text"},
    {**PRE, "tool_input": [1]},
    {**PRE, "tool_use_id": None},
    {**PRE, "tool_use_id": 7},
    {**PRE, "session_id": {"a": 1}},
    {**PRE, "hook_event_name": 5},
    {**PRE, "tool_name": None},
    {"hook": "before_tool_call", "event": 3, "ctx": []},
    {"hook": None},
    {"hook": "pre_tool_call", "kwargs": "x"},
    {},
]


@pytest.mark.parametrize("runtime", ["claude_code", "codex", "openclaw", "hermes"])
async def test_wrong_types_are_answered_and_give_at_least_one_event_each(tmp_path: Path, runtime: str) -> None:
    async with running(settings(tmp_path)) as collector:
        for payload in WRONG_TYPES:
            delivery = new_delivery_id()
            answer = await post(collector, orjson.dumps(payload), runtime, **{protocol.HEADER_DELIVERY: delivery})
            assert answer == (200, b"{}")
            assert delivery[:-4] in {event["event_id"][:-4] for event in journalled(tmp_path)}


async def test_a_body_over_the_limit_is_told_by_size_and_sha256(tmp_path: Path) -> None:
    body = b'{"a": "' + b"x" * (protocol.MAX_BODY_BYTES + 5) + b'"}'
    async with running(settings(tmp_path)) as collector:
        assert await post(collector, body) == (200, b"{}")
    [event] = journalled(tmp_path)
    assert (event["reason"], event["size_bytes"]) == ("oversized", len(body))
    assert event["hash"] == "sha256:" + hashlib.sha256(body).hexdigest()


async def test_no_other_hook_waits_for_a_large_one(tmp_path: Path) -> None:
    large = orjson.dumps({**POST, "tool_response": {"stdout": "line of output 42\n" * 1_700_000}})
    assert 24 << 20 < len(large) <= protocol.MAX_BODY_BYTES
    async with running(settings(tmp_path)) as collector:
        task = asyncio.create_task(post(collector, large))
        small: list[float] = []
        loop = asyncio.get_running_loop()
        while not task.done():
            began = loop.time()
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{len(small)}"}))
            small.append(loop.time() - began)
        assert await task == (200, b"{}")
        # The client of this test shares the loop, so its own sending of 24 MiB is in these figures too.
        assert len(small) > 5
        assert sorted(small)[len(small) // 2] < 0.1
    assert any(event.get("output", {}).get("size_bytes", 0) > 20 << 20 for event in journalled(tmp_path))


async def test_an_unknown_runtime_is_told_which_there_are(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        status, body = await post(collector, b"{}", "cursor")
    assert status == 404
    assert b"claude_code, codex, hermes, openclaw" in body


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
async def test_a_web_page_cannot_reach_the_collector(tmp_path: Path, headers: dict[str, str]) -> None:
    async with running(settings(tmp_path)) as collector:
        status, _ = await post(collector, orjson.dumps(PRE), **headers)
    assert status == 403
    assert journalled(tmp_path) == []


async def test_the_spool_is_drained_in_order_and_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "spool" / "claude_code"
    folder.mkdir(parents=True)
    head = f"{protocol.SPOOL_MAGIC} pid=1\n".encode()
    ids = [new_delivery_id(1_796_000_000_000 + number * 1000) for number in range(5)]
    for number, delivery in reversed(list(enumerate(ids))):
        (folder / delivery).write_bytes(head + orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
    (folder / "not-a-delivery-id").write_bytes(b"\x00garbage")
    (folder / ".dropped").write_bytes(f"{new_delivery_id()} 0000000120\n".encode())
    stale = folder / ".tmp.01990000-0000-7000-8000-000000000000"
    stale.write_bytes(b"agenttrace-sp")
    os.utime(stale, (1, 1))
    async with running(settings(tmp_path)):
        await until(lambda: not [path for path in folder.iterdir() if path.is_file()])
    events = journalled(tmp_path)
    calls = [event["tool_call_id"] for event in events if event["event_name"] == "tool.call.started"]
    assert calls == [f"t{number}" for number in range(5)]
    assert [event["timestamp"] for event in events if "tool_call_id" in event] == sorted(
        event["timestamp"] for event in events if "tool_call_id" in event
    )
    assert sum(event["event_name"] == "agent.payload.quarantined" for event in events) == 2
    [receipt] = [event for event in events if event["event_name"] == "producer.dropped"]
    assert (receipt["reason"], receipt["count"], receipt["size_bytes"]) == ("spool_full_claude_code", 1, 120)


async def test_events_of_other_producers_are_taken_or_refused_one_by_one(tmp_path: Path) -> None:
    good = {
        "event_name": "mcp.rpc.notification",
        "event_id": new_delivery_id(),
        "timestamp": "2026-11-30T20:06:12.123Z",
        "source_adapter": "mcp_proxy/1",
        "mcp_server": "files",
        "transport": "stdio",
        "direction": "server_to_client",
        "status": "completed",
    }
    async with running(settings(tmp_path)) as collector, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{collector.port}/api/v1/events"
        async with client.post(url, json=[good, {**good, "status": "odd"}, 7, good]) as response:
            assert response.status == 200
            answer = await response.json()
    assert answer["accepted"] == 2
    assert [row["index"] for row in answer["refused"]] == [1, 2]
    assert "status" in answer["refused"][0]["error"]
    [event] = journalled(tmp_path)
    assert event["producer"]["seq"] >= 1


async def test_health_readiness_and_metrics(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        await post(collector, orjson.dumps(PRE))
        async with aiohttp.ClientSession() as client:
            base = f"http://127.0.0.1:{collector.port}"
            for path in ("/healthz", "/readyz"):
                async with client.get(base + path) as response:
                    assert response.status == 200
            async with client.get(base + "/metrics") as response:
                text = await response.text()
    assert 'agenttrace_collector_hooks_total{door="http",runtime="claude_code"} 1.0' in text
    assert "agenttrace_collector_open_calls 1.0" in text


def test_a_sink_file_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"sinks\.jsonl\.path .* cannot be written"):
        asyncio.run(JsonlSink(tmp_path / "file" / "events.jsonl").start())
