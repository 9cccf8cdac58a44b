"""Runs a collector: recovery, doors, publishers, spool, heartbeats, and an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from schemas.errors import UserError
from schemas.events import Dropped, Heartbeat, SeqRange
from services.adapters.calls import CallTable
from services.adapters.registry import ADAPTERS
from services.capture.content import Capture
from services.collector import spool
from services.collector.app import Doors
from services.collector.files import private, write_atomic
from services.collector.finished import take_file
from services.collector.heavy import take
from services.collector.hot import Runner
from services.collector.journal import KEEP_BYTES, SEGMENT_BYTES, Journal, Position
from services.collector.metrics import Metrics
from services.collector.publisher import Publisher, pointer_path
from services.collector.recovery import recover
from services.collector.room import Room
from services.collector.sinks import Sink
from services.collector.state import Seen, Snapshot, freeze_snapshot, hold, load_snapshot
from services.forwarder.protocol import SPOOL_EVENTS, Drops

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
SNAPSHOT_S = 60.0
TICK_S = 1.0
ANSWERS_S = 2.0
PUBLISH_S = 1.5
"""A stop waits this long for answers under way, and then this long for the sinks; with what they need to close it
takes less than 8 s.
"""
DRAIN_FILES = 500
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
    token: str | None = None
    fsync_before_answer: bool = False
    journal_max_bytes: int = 1 << 30
    on_ready: Callable[[int], None] | None = None


class Collector:
    """One running collector. `port` is the loopback port in use once started."""

    def __init__(self, settings: CollectorSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._lock = hold(settings.folder)
        self.journal = Journal(settings.folder / "journal", min(SEGMENT_BYTES, settings.journal_max_bytes // 8))
        self._snapshot_path = settings.folder / "snapshot.json"
        snapshot = load_snapshot(self._snapshot_path) or Snapshot(Position(), 0, 0, CallTable(), Seen())
        self._kept = snapshot.position
        self._gaps = snapshot.told
        self._odd: set[str] = set()
        self._sync_problem: str | None = None
        self.intake = recover(settings, self.journal, snapshot, self.metrics)
        self.publishers = [
            Publisher(self.journal, sink, pointer_path(settings.folder, sink), self.metrics, self._lost)
            for sink in settings.sinks
        ]
        self._room = Room(self.journal, self.intake, self.publishers, self._sync)
        self._crowded = False
        self._nudge = asyncio.Event()
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
        doors = Doors(self.intake, self._written, self.not_ready, self.settings.token)
        runner = Runner(doors, access_log=None, shutdown_timeout=ANSWERS_S)
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
            for sign in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(sign)

    def stop(self) -> None:
        """Ask `run` to end in order."""
        self._stop.set()
        self._nudge.set()

    def not_ready(self) -> list[str]:
        """Why events are not flowing; empty when they are."""
        reasons = [
            f"sink {publisher.sink.name} does not take events" for publisher in self.publishers if publisher.failed
        ]
        if self.intake.refusal:
            reasons.append(f"the journal takes no events ({self.intake.refusal})")
        elif self.intake.problem:
            reasons.append(f"the journal takes no events ({self.intake.problem}); only what must not be lost is kept")
        if self._sync_problem:
            reasons.append(f"the journal cannot be synced ({self._sync_problem})")
        return reasons

    # start

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
        private(settings.socket.parent)
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

    def _written(self) -> Awaitable[None] | None:
        """Something is in the journal: to the sinks, after it is on the disk where that was asked for."""
        if self.settings.fsync_before_answer:
            return self._sync_first()
        self._wake()
        return None

    async def _sync_first(self) -> None:
        await self._sync()
        self._wake()

    def _wake(self) -> None:
        for publisher in self.publishers:
            publisher.wake()
        if self._room.needed and not self._crowded:
            self._crowded = True
            self._nudge.set()

    async def _sync(self) -> bool:
        """Whether all that was journalled is on the disk."""
        try:
            await asyncio.to_thread(self._sync_all)
        except OSError as error:
            if self._sync_problem is None:
                log.error("journal %s cannot be synced: %s", self.journal.folder, error.strerror)
            self.metrics.failures.labels("sync").inc()
            self._sync_problem = error.strerror or type(error).__name__
            return False
        self._sync_problem = None
        return True

    def _sync_all(self) -> None:
        self.journal.sync()
        self.intake.reserve.sync()
        self.intake.losses.page.sync()

    def _lost(self, gaps: list[SeqRange], damaged: list[Position]) -> None:
        """A publisher met a gap in the journal; the first one to meet it has it told."""
        ranges = [gap for gap in gaps if (gap.epoch, gap.first, gap.last) not in self._gaps]
        lines = [position for position in damaged if position not in self._gaps]
        self._gaps.update((gap.epoch, gap.first, gap.last) for gap in ranges)
        self._gaps.update(lines)
        if ranges:
            self.intake.losses.lost(ranges)
        elif lines and not gaps:
            # Damaged lines at an epoch's end: nobody knows which seqs they held.
            self.intake.losses.lost_lines(lines)
        self.intake.settle(_now_ms())

    async def _housekeeping(self) -> None:
        jobs: list[tuple[float, Callable[[], Coroutine[Any, Any, object]]]] = [
            (0, self._tick),
            (HEARTBEAT_S, self._beat),
            (SNAPSHOT_S, self._snapshot),
        ]
        due = [0.0, 0.0, time.monotonic() + SNAPSHOT_S]
        while not self._stop.is_set():
            for number, (every, job) in enumerate(jobs):
                now = time.monotonic()
                if now < due[number]:
                    continue
                due[number] = now + every
                try:
                    await job()
                except Exception as error:
                    # A round that fails is tried again; ending the collector would cost every agent its record.
                    self.metrics.failures.labels("housekeeping").inc()
                    log.error("housekeeping: %s", _said(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nudge.wait(), TICK_S)
            self._nudge.clear()

    async def _tick(self) -> None:
        if self.journal.dirty or self.intake.reserve.dirty or self.intake.losses.page.dirty:
            await self._sync()
        if self.intake.refusal or self.intake.problem or self._room.needed:
            await self._make_room()
        self._crowded = self._room.needed
        self.intake.reserve.allocate()
        self.metrics.reserved.set(self.intake.reserve.used)
        await self._take_drops()
        while not self._stop.is_set() and await self._drain_spool():
            pass
        self.intake.settle(_now_ms())
        for publisher in self.publishers:
            await publisher.save()
            self.metrics.unpublished.labels(publisher.sink.name).set(self.journal.size_from(publisher.position))

    async def _beat(self) -> None:
        self._heartbeat()

    async def _make_room(self) -> None:
        """The journal nears its bound or its disk is full: let go of all that every sink has, then of the least of the
        rest; then try to write.
        """
        await self._snapshot(keep_bytes=0)
        if self._room.needed and not self.intake.disk_full:
            await self._room.make(self._kept)
        if self.intake.problem:
            self.intake.resume()
            self._heartbeat()

    async def _drain_spool(self) -> bool:
        """One round; whether there may be more to take at once."""
        taken: list[Path] = []
        for path in await asyncio.to_thread(self._spooled):
            if len(taken) == DRAIN_FILES or self.intake.refusal or self.intake.problem or self._stop.is_set():
                break
            if await self._drain_one(path):
                taken.append(path)
        if not taken or not await self._sync():
            # Unsynced files stay: the next round meets them as repeats.
            return False
        await asyncio.to_thread(self._remove, taken)
        for path in taken:
            if path.parent.name != SPOOL_EVENTS:
                self.metrics.hooks.labels(path.parent.name, "spool").inc()
            self.metrics.spool_drained.labels(path.parent.name).inc()
        self._wake()
        return len(taken) == DRAIN_FILES

    def _spooled(self) -> list[Path]:
        found: list[Path] = []
        for path in spool.strangers(self.settings.spool):
            self._say_once(path, "is no folder of a known runtime; it stays as it is")
        for folder in spool.folders(self.settings.spool):
            try:
                found += spool.pending(folder)
            except OSError as error:
                self._say_once(folder, f"cannot be read ({error.strerror})")
        return sorted(found, key=spool.age)

    async def _drain_one(self, path: Path) -> bool:
        """Whether the delivery is in the journal now."""
        runtime = path.parent.name
        try:
            if runtime == SPOOL_EVENTS:
                return await take_file(self.intake, path, _now_ms())
            item = await asyncio.to_thread(spool.read, path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._say_once(path, f"cannot be read ({error.strerror}); it stays")
            return False
        try:
            return await take(self.intake, ADAPTERS[runtime].runtime, item.delivery_id, item.body, _now_ms(), kept=True)
        except Exception as error:
            self.intake.fault(runtime, len(item.body), error)
            with contextlib.suppress(OSError):
                spool.set_aside(path)
            return False

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._say_once(path, f"was taken but cannot be removed ({error.strerror})")

    async def _take_drops(self) -> None:
        """Receipts for what forwarders could not even spool."""
        try:
            for path, drops in spool.drops(self.settings.spool):
                count = len(drops.named) + drops.unnamed
                if count and not (self._drop_receipt(path.parent.name, drops, count) and await self._sync()):
                    continue
                path.unlink()
        except OSError as error:
            self._say_once(self.settings.spool, f"cannot be read ({error.strerror})")

    def _drop_receipt(self, runtime: str, drops: Drops, count: int) -> bool:
        reason = f"spool_full_{runtime}"
        if self.intake.own(
            Dropped,
            "producer.dropped",
            _now_ms(),
            reason=reason,
            count=count,
            size_bytes=sum(size for _, size in drops.named),
            native={"at_least": True} if drops.at_least else {},
            severity="critical",
        ):
            self.metrics.dropped.labels(reason).inc(count)
            return True
        return False

    def _say_once(self, path: Path, what: str) -> None:
        if str(path) not in self._odd:
            self._odd.add(str(path))
            log.warning("spool: %s %s", path, what)

    def _heartbeat(self) -> None:
        epoch = self.intake.identity.epoch
        published = min((p.published[1] if p.published[0] == epoch else 0 for p in self.publishers), default=0)
        # A gap that no receipt names yet is not published.
        gaps = [gap.first - 1 for gap in self.intake.losses.unaccounted() if gap.epoch == epoch]
        through = min([published, *gaps])
        uptime = int((time.monotonic() - self._started) * 1000)
        self.intake.own(Heartbeat, "producer.heartbeat", _now_ms(), published_through=through, uptime_ms=uptime)
        self._wake()

    async def _snapshot(self, keep_bytes: int | None = None) -> None:
        """Save the state, then delete segments that neither it nor a sink needs, but for the newest `keep_bytes`."""
        if self._room.unfinished:
            return
        intake, settings = self.intake, self.settings
        position = self.journal.end
        try:
            if position != self._kept:
                identity = intake.identity
                told = self._gaps - intake.losses.untold()
                frozen = freeze_snapshot(Snapshot(position, *identity.last, intake.calls, intake.seen, told))
                if await self._sync():
                    await asyncio.to_thread(lambda: write_atomic(self._snapshot_path, frozen()))
                    self._kept = position
        except OSError as error:
            # The last saved one still tells which segments may go.
            self.metrics.failures.labels("snapshot").inc()
            if keep_bytes is None:
                log.warning("snapshot %s cannot be written: %s", self._snapshot_path, error.strerror)
        if keep_bytes is None:
            keep_bytes = min(KEEP_BYTES, settings.journal_max_bytes // 4)
        for publisher in self.publishers:
            # A pointer to a segment that is gone would have what was published told as lost.
            if not await publisher.save() and intake.reserve.spare():
                await publisher.save()
        free = min([self._kept, *(publisher.saved for publisher in self.publishers)])
        if self.journal.drop_before(free, keep_bytes):
            intake.journal_bytes = self.journal.size()

    # stop

    async def _wind_up(self, tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            # Its files are written in threads, which no cancelling stops: let it end.
            self._stop.set()
            await asyncio.wait(tasks[-1:], timeout=TICK_S)
            self.intake.settle(_now_ms())
            if await self._publish_rest():
                self._heartbeat()
                await self._publish_rest()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(sink.stop() for sink in self.settings.sinks), return_exceptions=True)
        for publisher in self.publishers:
            await publisher.save()
        await self._snapshot()
        try:
            self.journal.close()
        except OSError as error:
            log.error("journal %s cannot be synced: %s", self.journal.folder, error.strerror)
        self.intake.close()
        self._lock.close()

    async def _publish_rest(self) -> bool:
        """Whether every sink that worked has all that is in the journal."""
        self._wake()
        waiting = [asyncio.create_task(p.caught_up.wait()) for p in self.publishers if not p.failed]
        if not waiting:
            return False
        _, late = await asyncio.wait(waiting, timeout=PUBLISH_S)
        for task in late:
            task.cancel()
        return not late


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error.strerror}" if isinstance(error, OSError) else type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
