"""Starts a real collector in this process, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from services.capture.content import Capture, CaptureSettings
from services.collector.journal import Journal
from services.collector.service import Collector, CollectorSettings
from services.collector.sinks import JsonlSink, Sink, SinkError

PRE = {
    "session_id": "s-1",
    "hook_event_name": "PreToolUse",
    "cwd": "/home/dev/project",
    "tool_name": "Bash",
    "tool_input": {"command": "echo hello"},
    "tool_use_id": "toolu_1",
}
POST = {**PRE, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "hello", "stderr": ""}, "duration_ms": 5}


@functools.cache
def capture() -> Capture:
    """One Capture for all tests: it takes about a second to build."""
    return Capture(CaptureSettings(hash_key=b"the key of all these tests", key_id="00000001"))


def settings(home: Path, sinks: list[Sink] | None = None, **fields: Any) -> CollectorSettings:
    """Settings of a collector below `home`, with a JSON-lines sink unless others are given."""
    home.mkdir(parents=True, exist_ok=True)
    return CollectorSettings(
        folder=home / "collector",
        socket=home / "collector.sock",
        spool=home / "spool",
        capture=capture(),
        sinks=[JsonlSink(home / "events.jsonl")] if sinks is None else sinks,
        **fields,
    )


@contextlib.asynccontextmanager
async def running(given: CollectorSettings) -> AsyncIterator[Collector]:
    """A collector that answers; stopped in order at the end."""
    collector = Collector(given)
    ready = asyncio.Event()
    given.on_ready = lambda port: ready.set()
    task = asyncio.create_task(collector.run())
    waiting = asyncio.create_task(ready.wait())
    done, _ = await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=20)
    if task in done:
        waiting.cancel()
        task.result()
    assert ready.is_set()
    try:
        yield collector
    finally:
        collector.stop()
        await asyncio.wait_for(task, timeout=20)


@contextlib.asynccontextmanager
async def client(collector: Collector, *, socket: bool = False) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the loopback door, or of the socket."""
    connector = aiohttp.UnixConnector(str(collector.settings.socket)) if socket else None
    base = "http://agenttrace" if socket else f"http://127.0.0.1:{collector.port}"
    async with aiohttp.ClientSession(base, connector=connector) as session:
        yield session


def named(home: Path, event_name: str) -> list[dict[str, Any]]:
    """The journalled events of one name."""
    return [event for event in all_journalled(home) if event["event_name"] == event_name]


async def post(collector: Collector, body: bytes, runtime: str = "claude_code", **headers: str) -> tuple[int, bytes]:
    """POST one payload by loopback HTTP; status and answer."""
    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{collector.port}/hooks/{runtime}"
        async with client.post(url, data=body, headers=headers) as response:
            return response.status, await response.read()


def journalled(home: Path) -> list[dict[str, Any]]:
    """All events of the journal, without heartbeats."""
    return [event for event in all_journalled(home) if event["event_name"] != "producer.heartbeat"]


def all_journalled(home: Path) -> Iterator[dict[str, Any]]:
    """All events of the journal."""
    for line in Journal(home / "collector" / "journal").lines():
        yield from line.events or []


def published(home: Path) -> list[dict[str, Any]]:
    """All events of the JSON-lines sink."""
    return [orjson.loads(line) for line in (home / "events.jsonl").read_bytes().splitlines()]


async def until(reached: Callable[[], bool], within_s: float = 20) -> None:
    """Wait for a condition; AssertionError when it does not come."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, "condition not reached in time"
        await asyncio.sleep(0.02)


class Memory:
    """A sink that keeps what it got; refuses while `away`."""

    def __init__(self, name: str, away: bool) -> None:
        self.name = name
        self.away = away
        self.events: list[dict[str, Any]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        if self.away:
            raise SinkError("away")
        self.events += events
