"""Follows one tap: reads it, lets the Observer understand it, and gives its events to the outlet and to whoever looks on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.config import CaptureConfig, CaptureSide, Config
from schemas.errors import UserError
from schemas.events import EventBase, to_json
from services import config as configuration
from services.capture.content import Capture, CaptureLevel, CaptureSettings
from services.capturing import from_config
from services.forwarder.protocol import ENV_SOCKET, ENV_SPOOL_MAX_BYTES, ENV_SPOOL_MAX_FILES, SPOOL_FOLDER
from services.mcp_proxy import agent
from services.mcp_proxy.inbox import MAX_WAITING, Inbox
from services.mcp_proxy.live import Live
from services.mcp_proxy.observer import Observer, ObserverSettings
from services.mcp_proxy.outlet import Outlet
from services.mcp_proxy.spooling import Spool
from services.mcp_proxy.tap import Kind, Reader, Record, Side, clock_ns
from services.mcp_proxy.ways import CollectorWay, JsonlWay, Way

log = logging.getLogger(__name__)

TICK_S = 1.0
FLUSH_S = 3.0
_EXAMINED = frozenset({"request", "response", "content", "facts"})
"""What the Capture made of texts that it searched whole; the last check is for all the rest."""
_TURN_S = 0.02
"""So long at most the loop works on records before sending has its turn."""


class Watch:
    """One tap with all that hangs on it."""

    def __init__(self, inbox: Inbox, *, sink: str | None, timeout_ms: int | None) -> None:
        self._inbox = inbox
        self._config, self._capture, home = _settings()
        self._outlet = Outlet(_way(sink, home, self._config), self._common())
        self._live = Live(home)
        self._timeout_ms = timeout_ms
        self._observer: Observer | None = None
        self._open: set[int] = set()
        self._seen_ns = 0
        self._said: set[str] = set()

    async def run(self) -> None:
        """Until the tap ends; then everything is flushed."""
        self._outlet.start()
        await self._live.start()
        ticking = asyncio.create_task(self._tick())
        try:
            await self._read()
        except ValueError as error:
            log.error("the tap cannot be read further: %s", error)
        ticking.cancel()
        for channel in sorted(self._open):
            # The forwarder was killed: nobody says for it that its channels are over.
            self._record(Record(Kind.CLOSE, channel, Side.CLIENT, self._now_ns(), b'{"reason":"client"}'))
        await self._live.close()
        await self._outlet.close(FLUSH_S)

    async def _read(self) -> None:
        reader = Reader()
        began = time.monotonic()
        while (chunk := await self._inbox.get()) is not None:
            for record in reader.feed(chunk):
                self._record(record)
                if time.monotonic() - began > _TURN_S:
                    await asyncio.sleep(0)
                    began = time.monotonic()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._observer is not None:
                self._press()
                self._publish(self._observer.tick(self._now_ns()))

    def _record(self, record: Record) -> None:
        self._seen_ns = max(self._seen_ns, record.at_ns)
        if record.kind is Kind.OPEN:
            self._open.add(record.channel)
        elif record.kind is Kind.CLOSE:
            self._open.discard(record.channel)
        if not self._config.mcp.proxy.enabled:
            return
        if self._observer is None:
            self._observer = Observer(self._capture, self._observer_settings(record))
        self._press()
        try:
            self._publish(self._observer.record(record))
        except Exception as error:
            # It must cost one record, not the process: what is open now would be forgotten with it.
            self._say(f"a record was not understood: {_where(error)}")

    def _press(self) -> None:
        """Under pressure the observer looks at sizes and hashes only, until what waited is worked off."""
        assert self._observer is not None
        if self._outlet.pressed or self._inbox.waiting > MAX_WAITING // 2:
            self._observer.metadata_only = True
        elif self._observer.metadata_only and self._inbox.waiting == 0:
            self._observer.metadata_only = False

    def _publish(self, events: list[EventBase]) -> None:
        if not events:
            return
        forms: list[dict[str, Any]] = []
        for event in events:
            form = to_json(event)
            clean, found = self._capture.scrub({name: form[name] for name in form if name not in _EXAMINED})
            if found:
                self._say(f"a secret was masked only by the last check, in {form['event_name']}")
                form |= clean
            forms.append(form)
        self._outlet.put(forms)
        self._live.put(forms)

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.error("%s", what)

    def _now_ns(self) -> int:
        # While records wait, the answer to an open request may be among them: no time passes before it is read.
        return max(self._seen_ns, clock_ns()) if self._inbox.waiting == 0 else self._seen_ns

    def _common(self) -> dict[str, Any]:
        ours = self._config.collector
        found = {"tenant_id": ours.tenant_id, "workspace_id": ours.workspace_id, "labels": dict(ours.labels)}
        return {name: value for name, value in found.items() if value}

    def _observer_settings(self, first: Record) -> ObserverSettings:
        about = first.json() if first.kind is Kind.OPEN else {}
        # An HTTP proxy serves whoever comes; the agent in whose shell it was started is none of them.
        known = agent.find() if about.get("transport") == "stdio" else agent.Agent()
        settings = ObserverSettings(
            **self._common(),
            agent_runtime=known.runtime,
            session_id=known.session_id,
            publish=self._config.mcp.proxy,
        )
        return settings if self._timeout_ms is None else replace(settings, timeout_ms=self._timeout_ms)


async def watch(inbox: Inbox, *, sink: str | None, timeout_ms: int | None) -> None:
    """Follow the tap to its end, or until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(sign, inbox.end)
    await Watch(inbox, sink=sink, timeout_ms=timeout_ms).run()


def _where(error: Exception) -> str:
    """The kind of an error and its place; its text could hold what passed."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


def _settings() -> tuple[Config, Capture, Path]:
    """The configuration, its Capture and the home. With a configuration that cannot be read nobody knows what may be
    kept: then it is sizes and hashes only, of the default tenant, and the log says so.
    """
    try:
        home = configuration.home()
    except UserError as error:
        home = Path.home() / ".agenttrace"
        log.error("%s; %s is used instead", error, home)
    try:
        config = configuration.load().config
        return config, from_config(config, home), home
    except UserError as error:
        log.error("%s; until this is mended nothing of what is said is kept, only sizes and hashes", error)
    nothing = CaptureSide(mode="off")
    config = Config(capture=CaptureConfig(input=nothing, output=nothing))
    try:
        return config, from_config(config, home), home
    except UserError:
        # No key: hashes that can be compared with none others.
        settings = CaptureSettings(os.urandom(32), "none", CaptureLevel.OFF, CaptureLevel.OFF)
        return config, Capture(settings), home


def _way(sink: str | None, home: Path, config: Config) -> Way:
    if sink is not None:
        kind, _, name = sink.partition(":")
        if kind == "jsonl" and name:
            return JsonlWay(Path(name).absolute())
        log.error("--sink must be jsonl:FILE, not %s; events go to the collector", sink)
    socket = Path(os.environ.get(ENV_SOCKET) or home / config.collector.socket)
    bounds = {
        name: int(os.environ[variable])
        for name, variable in (("max_files", ENV_SPOOL_MAX_FILES), ("max_bytes", ENV_SPOOL_MAX_BYTES))
        if os.environ.get(variable, "").isdecimal()
    }
    return CollectorWay(socket, Spool(home / SPOOL_FOLDER, **bounds))
