"""Keeps a stack of parts running: starts them in order, starts again what dies, ends all in reverse order."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from schemas.errors import UserError
from services.embedded import run_file
from services.embedded.host import FolderLock, ensure_folder
from services.embedded.part import Part, PartProcess
from services.embedded.pidfile import reap_all, start_mark
from services.embedded.run_file import Endpoints, PartState, RunFile

__all__ = ["Part", "StopRequested", "Supervisor"]

_log = logging.getLogger(__name__)

_WATCH_S = 0.2
_BACKOFF_S = 0.5
_BACKOFF_MAX_S = 30.0
_STEADY_S = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequested(Exception):
    """SIGTERM, SIGINT or SIGHUP came while a part was being started; ends the Supervisor's `with` block quietly."""


@dataclass(slots=True)
class _Watched:
    process: PartProcess
    up_since: float
    restarts: int = 0
    failures: int = 0
    due: float | None = None


class Supervisor:
    """A running stack in `state_dir`, which it alone holds: logs/PART.log, PART.pid and run.json.

        with Supervisor(folder) as stack:
            stack.start(broker.part())
            stack.start(Part("sink", [sys.executable, "-P", "-m", "…"], env={…}, ready=…))
            stack.publish(Endpoints(kafka_bootstrap=broker.bootstrap))
            stack.run()

    Only in a main thread: inside the block SIGTERM, SIGINT and SIGHUP ask for the end of the stack.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = Path(state_dir).absolute()
        self._watched: dict[str, _Watched] = {}
        self._endpoints: Endpoints | None = None
        self._written: dict[str, PartState] = {}
        self._started_ms = 0
        self._stop = False
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Take the folder, and end what a stack that was killed left in it. UserError if another stack holds it."""
        ensure_folder(self.state_dir)
        lock = FolderLock(self.state_dir)
        with ExitStack() as held:
            lock.acquire()
            held.callback(lock.release)
            for number in _SIGNALS:
                held.callback(signal.signal, number, signal.signal(number, self._on_signal))
            reap_all(self.state_dir)
            held.callback(run_file.remove, self.state_dir)
            self._held = held.pop_all()
        self._started_ms = time.time_ns() // 1_000_000
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._held.close()
        return kind is not None and issubclass(kind, StopRequested)

    def start(self, part: Part) -> None:
        """Start a part and return once it is ready.

        Raises NotReadyError if it ends before or takes longer than its `ready_timeout_s`, StopRequested on a signal.
        """
        if part.name in self._watched:
            raise ValueError(f"a part named {part.name} runs already")
        process = PartProcess(part, self.state_dir)
        self._held.callback(process.stop)
        process.start()
        self._watched[part.name] = _Watched(process, time.monotonic())
        if not process.wait_ready(part.ready_timeout_s, lambda: self._stop):
            raise StopRequested

    def publish(self, endpoints: Endpoints) -> None:
        """Write the run file, and keep it true from now on."""
        self._endpoints, self._written = endpoints, {}
        self._write_run_file()

    def run(self) -> None:
        """Watch the parts until a signal asks for the end."""
        while not self._stop:
            for watched in self._watched.values():
                try:
                    self._look_after(watched)
                except (UserError, OSError) as error:
                    # Such as a full disk. A part that stays down for it gets its next try at the next look.
                    _log.warning("%s: %s", watched.process.part.name, error)
            with suppress(OSError):
                self._write_run_file()
            time.sleep(_WATCH_S)

    def states(self) -> dict[str, PartState]:
        """Each part by name, in the order of their start."""
        return {
            name: PartState(watched.process.pid, watched.restarts, str(watched.process.log))
            for name, watched in self._watched.items()
        }

    def _look_after(self, watched: _Watched) -> None:
        now = time.monotonic()
        if watched.process.pid is not None:
            if watched.failures and now - watched.up_since > _STEADY_S:
                watched.failures = 0
        elif watched.due is None:
            delay = min(_BACKOFF_S * 2**watched.failures, _BACKOFF_MAX_S)
            watched.failures += 1
            watched.due = now + delay
            name, log = watched.process.part.name, watched.process.log
            _log.warning("%s ended by itself; next start in %.1f s; see %s", name, delay, log)
        elif now >= watched.due:
            watched.up_since, watched.due = now, None
            watched.restarts += 1
            watched.process.stop()
            watched.process.start()

    def _write_run_file(self) -> None:
        """Unless it says so already: a write that failed, such as on a full disk, is made up for at the next look."""
        mark, states = start_mark(os.getpid()), self.states()
        if self._endpoints is not None and mark is not None and states != self._written:
            run_file.write(self.state_dir, RunFile(os.getpid(), mark, self._started_ms, self._endpoints, states))
            self._written = states

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
