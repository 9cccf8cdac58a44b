"""Which event loop a collector runs on, and that it stops in order on either."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from services import loops
from services.collector import loop
from services.collector.service import Collector

from .running import journalled, post, published, settings


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_a_collector_runs_on_uvloop() -> None:
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loop.run(name()) == "uvloop"


def test_without_uvloop_a_collector_runs_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    try:
        assert importlib.reload(loops).new_event_loop is asyncio.new_event_loop
    finally:
        monkeypatch.undo()
        importlib.reload(loops)


@pytest.mark.parametrize("factory", [loops.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_collector_in_order(factory: loops.Factory, sign: signal.Signals, tmp_path: Path) -> None:
    given = settings(tmp_path)

    async def serve() -> None:
        collector = Collector(given)

        async def hook_and_signal() -> None:
            assert await post(collector, b'{"hook_event_name": "PreToolUse"}') == (200, b"{}")
            os.kill(os.getpid(), sign)

        sent: list[asyncio.Task[None]] = []
        given.on_ready = lambda _port: sent.append(asyncio.create_task(hook_and_signal()))
        await asyncio.wait_for(collector.run(), 20)
        sent[0].result()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())
    assert not given.socket.exists()
    assert [event["event_id"] for event in published(tmp_path) if event["event_name"] != "producer.heartbeat"] == [
        event["event_id"] for event in journalled(tmp_path)
    ]
    assert len(journalled(tmp_path)) == 1
