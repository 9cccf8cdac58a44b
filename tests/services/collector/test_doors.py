"""The doors: who may call, how much at once, what answers look like, and deliveries that race with themselves."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.config import CollectorConfig, Config, JsonlSink, Sinks
from schemas.identity import new_delivery_id
from services.collector import app
from services.collector.app import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from services.collector.settings import from_config
from services.forwarder import protocol

from .running import POST, PRE, client, journalled, post, running, settings

pytestmark = pytest.mark.integration


def event(number: int) -> dict[str, Any]:
    return {
        "event_name": "agent.config.changed",
        "event_id": new_delivery_id(1_796_000_000_000 + number),
        "timestamp": "2026-11-30T20:06:12.123Z",
        "source_adapter": "x/1",
    }


@pytest.mark.parametrize("size", [200, 2 << 20])
async def test_a_delivery_sent_twice_at_once_is_journalled_once(tmp_path: Path, size: int) -> None:
    header = {protocol.HEADER_DELIVERY: new_delivery_id()}
    body = orjson.dumps({**PRE, "tool_input": {"command": "x" * size}})

    async def slowly(collector: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", collector.port)
        head = f"POST /hooks/codex HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        writer.write((head + f"{protocol.HEADER_DELIVERY}: {header[protocol.HEADER_DELIVERY]}\r\n\r\n").encode())
        await writer.drain()
        await started.wait()
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    started = asyncio.Event()
    async with running(settings(tmp_path)) as collector:
        racing = [asyncio.create_task(slowly(collector)) for _ in range(2)]
        await asyncio.sleep(0.1)
        started.set()
        await asyncio.gather(*racing, post(collector, body, "codex", **header))
    assert len(journalled(tmp_path)) == 1


async def test_a_batch_over_its_bounds_is_refused_in_one_line(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector, client(collector) as session:
        many = [event(number) for number in range(MAX_BATCH_EVENTS + 1)]
        async with session.post("/api/v1/events", data=orjson.dumps(many)) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"] == "1001 events in one request; at most 1000: send smaller batches"
        async with session.post("/api/v1/events", data=b"[" + b" " * MAX_BATCH_BYTES) as answer:
            assert answer.status == 413
            assert "at most 1048576" in (await answer.json())["error"]
        assert journalled(tmp_path) == []
        async with session.post("/api/v1/events", data=orjson.dumps(many[:-1])) as answer:
            assert await answer.json() == {"accepted": MAX_BATCH_EVENTS, "refused": []}
    assert len(journalled(tmp_path)) == MAX_BATCH_EVENTS


async def test_hooks_go_between_the_chunks_of_a_batch(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector, client(collector) as session:
        batch = asyncio.create_task(session.post("/api/v1/events", data=orjson.dumps([event(n) for n in range(1000)])))
        answered = 0
        while not batch.done():
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{answered}"}))
            answered += 1
        (await batch).release()
    names = [entry["event_name"] for entry in journalled(tmp_path)]
    first, last = names.index("agent.config.changed"), len(names) - 1 - names[::-1].index("agent.config.changed")
    assert "tool.call.started" in names[first:last]


async def test_the_socket_is_refused_to_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path)) as collector:
        async with (
            client(collector, socket=True) as session,
            session.post("/hooks/codex", data=orjson.dumps(PRE)) as answer,
        ):
            assert answer.status == 200
        # The peer is this process: let the collector believe that it runs as somebody else.
        peer = struct.pack("3i", os.getpid(), os.getuid() + 1, 0)
        monkeypatch.setattr(app, "_PEER", Peer(peer))
        async with (
            client(collector, socket=True) as session,
            session.post("/hooks/codex", data=orjson.dumps(POST)) as answer,
        ):
            assert answer.status == 403
            assert f"not {os.getuid() + 1}" in (await answer.json())["error"]
    assert len(journalled(tmp_path)) == 1


class Peer:
    """Unpacks another peer than the kernel told."""

    size = 12

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def unpack(self, told: bytes) -> tuple[int, ...]:
        assert struct.unpack("3i", told)[:2] == (os.getpid(), os.getuid())
        return struct.unpack("3i", self._packed)


async def test_where_a_token_is_asked_for_the_loopback_door_wants_it_and_the_socket_does_not(tmp_path: Path) -> None:
    async with running(settings(tmp_path, token="right")) as collector:
        body = orjson.dumps(PRE)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}, {"Authorization": "é"}):
            async with client(collector) as session, session.post("/hooks/codex", data=body, headers=headers) as answer:
                assert answer.status == 401
                assert "collector.token" in (await answer.json())["error"]
            async with (
                client(collector) as session,
                session.post("/api/v1/events", data=b"[]", headers=headers) as answer,
            ):
                assert answer.status == 401
        assert (await post(collector, body, Authorization="Bearer right"))[0] == 200
        async with client(collector) as session, session.get("/healthz") as answer:
            assert answer.status == 200
        async with client(collector, socket=True) as session, session.post("/hooks/codex", data=body) as answer:
            assert answer.status == 200
    assert len(journalled(tmp_path)) == 2


def test_the_token_is_made_once_for_this_user_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "new" / "home"
    monkeypatch.setenv("AGENTTRACE_HOME", str(home))
    sinks = Sinks(jsonl=JsonlSink(enabled=True))
    free = from_config(Config(sinks=sinks), None)
    path = home / "collector.token"
    assert free.token is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == home.parent.stat().st_mode & 0o777 == 0o700
    closed = from_config(Config(sinks=sinks, collector=CollectorConfig(require_token=True)), None)
    assert closed.token == path.read_text().strip()
    assert len(closed.token) >= 32


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "POST /hooks/codex",
        "POST /hooks/nobody",
        "GET /nothing",
        "PUT /healthz",
    ],
)
async def test_every_answer_has_a_length(tmp_path: Path, request_line: str) -> None:
    async with running(settings(tmp_path)) as collector:
        for family, address in ((socket.AF_INET, collector.port), (socket.AF_UNIX, collector.settings.socket)):
            if family is socket.AF_INET:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(str(address)))
            else:
                reader, writer = await asyncio.open_unix_connection(str(address))
            writer.write(f"{request_line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b"content-length:" in head
            assert b"transfer-encoding" not in head
            writer.close()


async def test_a_hook_that_hangs_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with running(settings(tmp_path)) as collector:
        _, writer = await asyncio.open_connection("127.0.0.1", collector.port)
        writer.write(b"POST /hooks/codex HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.1)
        began = loop.time()
    assert loop.time() - began < 6
    writer.close()
