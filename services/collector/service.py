"""Runs a collector: recovery, doors, publishers, spool, heartbeats, and an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from schemas.errors import UserError
from schemas.events import Heartbeat
from services.adapters.calls import CallTable
from services.adapters.registry import ADAPTERS, normalise_parsed, parse
from services.capture.content import Capture
from services.collector import spool
from services.collector.app import Doors
from services.collector.intake import Identity, Intake, replay_into
from services.collector.journal import Journal, Position
from services.collector.metrics import Metrics
from services.collector.publisher import Publisher
from services.collector.sinks import Sink
from services.collector.state import Seen, Snapshot, hold, load_snapshot, next_epoch, save_snapshot

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
SNAPSHOT_S = 60.0
TICK_S = 1.0
STOP_S = 8.0
_MAX_SOCKET_PATH = 100


@dataclass(slots=True)
class CollectorSettings:
    """What a collector needs to run; paths are absolute."""

    folder: Path
    socket: Path
    spool: Path
    capture: Capture
    sinks: list[Sink]
    host: str = "127.0.0.1"
    port: int = 0
    tenant_id: str | None = None
    workspace_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    fsync_before_answer: bool = False
    journal_max_bytes: int = 1 << 30
    on_ready: Callable[[int], None] | None = None


class Collector:
    """One running collector. `port` is the loopback port in use once started."""

    def __init__(self, settings: CollectorSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._lock = hold(settings.folder)
        self.journal = Journal(settings.folder / "journal")
        self._snapshot_path = settings.folder / "snapshot.json"
        self.intake = self._recover()
        self.publishers = [
            Publisher(self.journal, sink, settings.folder / f"published-{sink.name}.json", self.metrics, self._damaged)
            for sink in settings.sinks
        ]
        self._started = time.monotonic()
        self._stop = asyncio.Event()
        self.port = 0

    async def run(self) -> None:
        """Serve until `stop` is called or SIGTERM or SIGINT comes. Raises UserError for what keeps it from starting."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(sign, self.stop)
        for sink in self.settings.sinks:
            await sink.start()
        runner = web.AppRunner(Doors(self.intake, self._wake, self.not_ready).app(), access_log=None)
        await runner.setup()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._open_doors(runner)
            tasks = [asyncio.create_task(publisher.run()) for publisher in self.publishers]
            tasks.append(asyncio.create_task(self._housekeeping()))
            log.info("collector ready: socket %s, http://%s:%d", self.settings.socket, self.settings.host, self.port)
            if self.settings.on_ready:
                self.settings.on_ready(self.port)
            stop = asyncio.create_task(self._stop.wait())
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            for task in done - {stop}:
                task.result()
        finally:
            await runner.cleanup()
            self.settings.socket.unlink(missing_ok=True)
            await self._wind_up(tasks)

    def stop(self) -> None:
        """Ask `run` to end in order."""
        self._stop.set()

    def not_ready(self) -> list[str]:
        """Why events are not flowing; empty when they are."""
        return [f"sink {p._sink.name} does not take events" for p in self.publishers if p.failed]

    # start

    def _recover(self) -> Intake:
        settings = self.settings
        snapshot = load_snapshot(self._snapshot_path)
        if snapshot is None:
            snapshot = Snapshot(Position(), 0, 0, CallTable(), Seen())
        producer, epoch = next_epoch(settings.folder)
        identity = Identity(producer, epoch)
        if snapshot.epoch:
            identity.previous_epoch, identity.previous_seq = snapshot.epoch, snapshot.seq
        lines = 0
        for line in self.journal.recover(snapshot.position):
            if line.events is None:
                self._damaged(line.position)
            else:
                replay_into(snapshot.calls, snapshot.seen, identity, line.events)
                lines += 1
        if lines:
            log.info("recovered %d deliveries from the journal", lines)
        self.journal.open_epoch(epoch)
        return Intake(
            journal=self.journal,
            calls=snapshot.calls,
            seen=snapshot.seen,
            identity=identity,
            capture=settings.capture,
            metrics=self.metrics,
            tenant_id=settings.tenant_id,
            workspace_id=settings.workspace_id,
            labels=settings.labels,
            max_bytes=settings.journal_max_bytes,
            journal_bytes=self.journal.size(),
        )

    async def _open_doors(self, runner: web.AppRunner) -> None:
        settings = self.settings
        tcp = web.TCPSite(runner, settings.host, settings.port)
        try:
            await tcp.start()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise UserError(
                    f"port {settings.port} on {settings.host} is in use; stop what holds it or set collector.port "
                    "(0 takes a free one)",
                    exit_code=os.EX_UNAVAILABLE,
                ) from None
            raise UserError(f"collector cannot listen on {settings.host}:{settings.port}: {error}") from None
        self.port = runner.addresses[0][1]
        settings.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.socket.unlink(missing_ok=True)
        path = str(settings.socket)
        folder = -1
        if len(path.encode()) > _MAX_SOCKET_PATH:
            # sun_path holds 108 bytes; a descriptor of the folder names it in few.
            folder = os.open(settings.socket.parent, os.O_RDONLY | os.O_DIRECTORY)
            path = f"/proc/self/fd/{folder}/{settings.socket.name}"
        umask = os.umask(0o177)
        try:
            await web.UnixSite(runner, path).start()
        except OSError as error:
            raise UserError(f"collector cannot listen on {settings.socket}: {error}") from None
        finally:
            os.umask(umask)
            if folder >= 0:
                os.close(folder)

    # while it runs

    def _wake(self) -> None:
        for publisher in self.publishers:
            publisher.wake()
        if self.settings.fsync_before_answer:
            self.journal.sync()

    def _damaged(self, position: Position) -> None:
        log.error(
            "journal %s: the line at byte %d does not fit its checksum and is left out",
            position.segment,
            position.offset,
        )

    async def _housekeeping(self) -> None:
        heartbeat = snapshot = time.monotonic()
        await self._drain_spool()
        self._heartbeat()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if self.journal.dirty:
                try:
                    await asyncio.to_thread(self.journal.sync)
                except OSError as error:
                    log.error("journal cannot be synced: %s", error.strerror)
            await self._drain_spool()
            self.intake.settle_drops(_now_ms())
            if now - heartbeat >= HEARTBEAT_S:
                heartbeat = now
                self._heartbeat()
            if now - snapshot >= SNAPSHOT_S:
                snapshot = now
                self._snapshot()
            for publisher in self.publishers:
                self.metrics.unpublished.labels(publisher._sink.name).set(self._unpublished(publisher.position))

    async def _drain_spool(self) -> None:
        folder = self.settings.spool
        try:
            spool.take_drops(folder, self._spool_drop)
            for path in [*spool.torn(folder), *spool.pending(folder)]:
                await self._drain_one(path)
        except OSError as error:
            log.warning("spool %s cannot be read: %s", folder, error.strerror)

    async def _drain_one(self, path: Path) -> None:
        try:
            item = await asyncio.to_thread(spool.read, path)
        except FileNotFoundError:
            return
        adapter = ADAPTERS.get(item.runtime)
        if adapter is None:
            log.warning("spool folder %s belongs to no runtime; its files stay", path.parent.name)
            return
        if not self.intake.is_repeat(item.delivery_id):
            context = self.intake.context(adapter.runtime, item.delivery_id, _now_ms())
            parsed = await asyncio.to_thread(parse, item.body)
            if not self.intake.is_repeat(item.delivery_id):
                self.intake.commit(context, normalise_parsed(parsed, context))
        self.journal.sync()
        path.unlink(missing_ok=True)
        self.metrics.hooks.labels(item.runtime, "spool").inc()
        self.metrics.spool_drained.labels(item.runtime).inc()
        self._wake()

    def _spool_drop(self, runtime: str, count: int, size: int) -> None:
        self.intake.dropped(f"spool_full_{runtime}", count, size)

    def _heartbeat(self) -> None:
        epoch = self.intake.identity.epoch
        published = min((p.published[1] if p.published[0] == epoch else 0 for p in self.publishers), default=0)
        uptime = int((time.monotonic() - self._started) * 1000)
        self.intake.own(Heartbeat, "producer.heartbeat", _now_ms(), published_through=published, uptime_ms=uptime)
        self._wake()

    def _snapshot(self) -> None:
        intake = self.intake
        try:
            self.journal.sync()
            save_snapshot(
                self._snapshot_path,
                Snapshot(self.journal.end, intake.identity.epoch, intake.identity.seq, intake.calls, intake.seen),
            )
        except OSError as error:
            log.warning("snapshot cannot be written: %s", error.strerror)
            return
        acknowledged = min([self.journal.end, *(publisher.position for publisher in self.publishers)])
        if self.journal.drop_before(acknowledged):
            intake.journal_bytes = self.journal.size()

    def _unpublished(self, position: Position) -> int:
        total = 0
        for name in self.journal.segments():
            if name >= position.segment:
                size = (self.journal.folder / name).stat().st_size
                total += size - (position.offset if name == position.segment else 0)
        return total

    # stop

    async def _wind_up(self, tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            tasks[-1].cancel()
            self.intake.settle_drops(_now_ms())
            await self._publish_rest()
            self._heartbeat()
            await self._publish_rest()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sink in self.settings.sinks:
            await sink.stop()
        self._snapshot()
        self.journal.close()
        self._lock.close()

    async def _publish_rest(self) -> None:
        self._wake()
        waiting = [publisher.caught_up.wait() for publisher in self.publishers if not publisher.failed]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waiting), timeout=STOP_S / 2)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
