"""Reads the journal in seq order and gives it to a sink; remembers how far the sink has it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import UserError
from schemas.events import SeqRange
from services.collector.files import write_atomic
from services.collector.journal import Journal, Line, Position
from services.collector.metrics import Metrics
from services.collector.sinks import Sink, SinkError

log = logging.getLogger(__name__)

_BATCH_BYTES = 1 << 20
_GATHER_S = 0.02
_RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SAY_EVERY_S = 60.0

Lost = Callable[[list[SeqRange], list[Position]], None]
"""Told of seqs that the journal no longer has, and where the damaged lines before the last event read are."""


class Publisher:
    """One sink's reader. After a crash it begins at the last saved position: records repeat with their seq, none is
    missing.

    `published` is the (epoch, seq) of the last event the sink has; (0, 0) before the first.
    """

    def __init__(self, journal: Journal, sink: Sink, pointer: Path, metrics: Metrics, lost: Lost) -> None:
        self.sink = sink
        self._journal = journal
        self._pointer = pointer
        self._metrics = metrics
        self._lost = lost
        self._wake = asyncio.Event()
        self._said_at = 0.0
        self._damaged: list[Position] = []
        self.failed = False
        position, self.published = read_pointer(pointer)
        # A pointer ahead of the journal (which was lost or put back) would wait for lines that never come.
        self.position = min(position, journal.end)
        self._saved = (position, self.published)
        self._unsaved = False
        self._reading = ""
        self._read = self.published
        self.caught_up = asyncio.Event()

    def wake(self) -> None:
        """New lines are in the journal."""
        self.caught_up.clear()
        self._wake.set()

    async def run(self) -> None:
        """Publish until the task is cancelled."""
        while True:
            self._wake.clear()
            try:
                if await self._step():
                    continue
            except OSError as error:
                self._trouble(f"the journal cannot be read ({error.strerror})", 0)
                await asyncio.sleep(_RETRY_S[-1])
                continue
            self.failed = False
            self.caught_up.set()
            await self._wake.wait()
            # One batch for what comes together.
            await asyncio.sleep(_GATHER_S)

    @property
    def saved(self) -> Position:
        """Where a start after a crash begins."""
        return self._saved[0]

    @property
    def segments(self) -> set[str]:
        """Segments that a position points into or whose events are under way."""
        return {self.position.segment, self.saved.segment, self._reading}

    async def save(self) -> bool:
        """Write the pointer file if it has changed, in a thread; whether it is as of this call."""
        now = (self.position, self.published)
        if now == self._saved:
            return True
        (epoch, seq), data = self.published, self.position.to_json()
        try:
            dump = orjson.dumps({"position": data, "epoch": epoch, "seq": seq})
            await asyncio.to_thread(write_atomic, self._pointer, dump)
            self._saved, self._unsaved = now, False
            return True
        except OSError as error:
            if not self._unsaved:
                self._unsaved = True
                log.warning("cannot save %s (%s); records will repeat after a restart", self._pointer, error.strerror)
            return False

    async def _step(self) -> bool:
        if self.position == self._journal.end:
            return False
        lines = self._journal.read(self.position, _BATCH_BYTES)
        if not lines:
            return False
        self._reading = lines[0].position.segment
        events = [event for line in lines for event in self._checked(line)]
        if events:
            await self._deliver(events)
            self._metrics.published.labels(self.sink.name).inc(len(events))
        self.published = self._read
        self.position = lines[-1].next
        return True

    def _checked(self, line: Line) -> list[dict[str, Any]]:
        """The line's events; a gap before them is told. What was dropped is passed over: its receipt is in the journal."""
        if line.events is None:
            self._damaged.append(line.position)
            log.error(
                "journal %s: the line at byte %d does not fit its checksum and is left out",
                line.position.segment,
                line.position.offset,
            )
            return []
        if line.dropped:
            epoch, first, last = line.dropped
            self._pass(gaps_between(self._read, {"epoch": epoch, "seq": first}), (epoch, last))
        for event in line.events:
            producer = event["producer"]
            self._pass(gaps_between(self._read, producer), (producer["epoch"], producer["seq"]))
        return line.events

    def _pass(self, gaps: list[SeqRange], stamp: tuple[int, int]) -> None:
        if gaps or self._damaged:
            self._lost(gaps, self._damaged)
            self._damaged = []
        self._read = stamp

    async def _deliver(self, events: list[dict[str, Any]]) -> None:
        tries = 0
        while True:
            try:
                await self.sink.send(events, time.time_ns() // 1_000_000)
            except Exception as error:
                # Also what no sink should raise: one more try costs less than a collector that is gone.
                told = isinstance(error, SinkError | UserError)
                self._trouble(str(error) if told else f"{self.sink.name}: {type(error).__name__}", len(events))
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1
            else:
                if self.failed:
                    log.warning("publishing to %s again after %d failed tries", self.sink.name, tries)
                self.failed, self._said_at = False, 0.0
                return

    def _trouble(self, what: str, waiting: int) -> None:
        self.failed = True
        self._metrics.publish_errors.labels(self.sink.name).inc()
        now = time.monotonic()
        if now - self._said_at > _SAY_EVERY_S:
            self._said_at = now
            log.warning("%s; %d events wait in the journal", what, waiting)


def pointer_path(folder: Path, sink: Sink) -> Path:
    """The file in the state folder that says how far a sink has the journal."""
    return folder / f"published-{sink.name}.json"


def read_pointer(path: Path) -> tuple[Position, tuple[int, int]]:
    """Position and last (epoch, seq) of a pointer file; the start of everything where there is none or it cannot be
    read.
    """
    try:
        data = orjson.loads(path.read_bytes())
        return Position.from_json(data["position"]), (int(data["epoch"]), int(data["seq"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Position(), (0, 0)


def gaps_between(last: tuple[int, int], producer: Mapping[str, Any]) -> list[SeqRange]:
    """Seqs that were given after `last` and before this producer stamp, as far as the stamp tells."""
    epoch, seq = producer["epoch"], producer["seq"]
    if last == (0, 0):
        return []
    gaps = []
    if epoch == last[0]:
        gaps.append((epoch, last[1] + 1, seq - 1))
    elif epoch > last[0]:
        before = producer.get("previous_epoch") or 0
        if before >= last[0]:
            gaps.append((before, last[1] + 1 if before == last[0] else 1, producer["previous_seq"]))
        gaps.append((epoch, 1, seq - 1))
    return [SeqRange(epoch=epoch, first=first, last=through) for epoch, first, through in gaps if through >= first]
