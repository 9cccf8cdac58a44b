"""Reads the journal in seq order and gives it to a sink; remembers how far the sink has it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from services.collector.journal import Journal, Position
from services.collector.metrics import Metrics
from services.collector.sinks import Sink, SinkError
from services.collector.state import write_atomic

log = logging.getLogger(__name__)

_BATCH_BYTES = 1 << 20
_SAVE_EVERY_S = 0.5
_RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SAY_EVERY_S = 60.0


class Publisher:
    """One sink's reader. After a crash it begins at the last saved position: records repeat with their seq, none is missing."""

    def __init__(
        self, journal: Journal, sink: Sink, pointer: Path, metrics: Metrics, damaged: Callable[[Position], None]
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._pointer = pointer
        self._metrics = metrics
        self._damaged = damaged
        self._wake = asyncio.Event()
        self._saved_at = 0.0
        self._said_at = 0.0
        self.stopping = False
        self.failed = False
        self.position, self.published = self._load()
        self.caught_up = asyncio.Event()

    def wake(self) -> None:
        """New lines are in the journal."""
        self.caught_up.clear()
        self._wake.set()

    async def run(self) -> None:
        """Publish until `stopping` is set and the journal is read to its end, or the task is cancelled."""
        try:
            while True:
                self._wake.clear()
                if await self._step():
                    continue
                self._save()
                self.caught_up.set()
                if self.stopping:
                    return
                await self._wake.wait()
        finally:
            self._save()

    async def _step(self) -> bool:
        lines = self._journal.read(self.position, _BATCH_BYTES)
        if not lines:
            return False
        for line in lines:
            if line.events is None:
                self._damaged(line.position)
        events = [event for line in lines for event in line.events or []]
        if events:
            await self._deliver(events)
            producer = events[-1]["producer"]
            self.published = (producer["epoch"], producer["seq"])
            self._metrics.published.labels(self._sink.name).inc(len(events))
        self.position = lines[-1].next
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self._save()
        return True

    async def _deliver(self, events: list[dict]) -> None:  # type: ignore[type-arg]
        tries = 0
        while True:
            try:
                await self._sink.send(events, time.time_ns() // 1_000_000)
            except SinkError as error:
                self.failed = True
                self._metrics.publish_errors.labels(self._sink.name).inc()
                now = time.monotonic()
                if now - self._said_at > _SAY_EVERY_S:
                    self._said_at = now
                    log.warning("%s; %d events wait in the journal", error, len(events))
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1
            else:
                if self.failed:
                    log.warning("publishing to %s again after %d failed tries", self._sink.name, tries)
                self.failed, self._said_at = False, 0.0
                return

    def _load(self) -> tuple[Position, tuple[int, int]]:
        try:
            data = orjson.loads(self._pointer.read_bytes())
            return Position.from_json(data["position"]), (int(data["epoch"]), int(data["seq"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Position(), (0, 0)

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        epoch, seq = self.published
        try:
            write_atomic(self._pointer, orjson.dumps({"position": self.position.to_json(), "epoch": epoch, "seq": seq}))
        except OSError as error:
            log.warning("cannot save %s (%s); records will repeat after a restart", self._pointer, error.strerror)
