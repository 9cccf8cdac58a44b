"""One long-running program of a stack: how it is started, known to be ready, and ended without an orphan."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import UserError
from services.embedded import deathsig
from services.embedded.pidfile import PidFile

_POLL_S = 0.02
_LOG_BYTES = 8 * 1024 * 1024
_STACK_FRAME = re.compile(r"\s+(at |\.\.\.)|\s*$")

ANALYSIS_NICE = 5
"""Of what looks at events or stores them, so that agents on the same machine, and their hooks, come first."""


class NotReadyError(UserError):
    """A part that ended, or was not ready in time, while it was being started."""

    def __init__(self, message: str, *, port_taken: bool) -> None:
        super().__init__(message, exit_code=os.EX_UNAVAILABLE)
        self.port_taken = port_taken


@dataclass(frozen=True, slots=True)
class Part:
    """What to run. `env` is added to the owner's; `log` is `logs/NAME.log` of the state folder unless given.

    `ready` is asked many times a second until it says True, and must return within a second or two; it may raise
    OSError for "not yet". `nice` is how far it steps back from the processor for others. A Python part should be run as
    `[sys.executable, "-P", "-m", MODULE, …]`: without -P a folder `services` in the working directory would be taken
    for ours.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    log: Path | None = None
    cwd: Path | None = None
    ready_timeout_s: float = 60
    grace_s: float = 10
    nice: int = 0


class PartProcess:
    """A part that runs as a child of this process, in a session of its own, with a pid file and a log in `state_dir`.

    Its own session keeps a Ctrl-C meant for the owner from it, so that the owner can end its parts in order.
    """

    def __init__(self, part: Part, state_dir: Path) -> None:
        self.part = part
        self.log = part.log or state_dir / "logs" / f"{part.name}.log"
        self._pid_file = PidFile(state_dir / f"{part.name}.pid")
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The pid while it runs, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it. Raises UserError if its folder takes no more files or the system no more processes."""
        try:
            self._process = self._launch()
            self._pid_file.write(self._process.pid)
            if self.part.nice:
                os.setpriority(os.PRIO_PROCESS, self._process.pid, self.part.nice)
        except OSError as error:
            raise UserError(
                f"cannot start {self.part.name}: {error.strerror} ({error.filename or self.log}); "
                "mend that and start again",
                exit_code=os.EX_OSERR,
            ) from None

    def _launch(self) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Rotation only here: the running program holds the file open.
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        wrapper = [sys.executable, "-I", "-S", deathsig.__file__, str(os.getpid())]
        with open(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
            self._log_start = log.tell()
            return _spawn(
                lambda: subprocess.Popen(
                    [*wrapper, *self.part.argv],
                    env={**os.environ, **self.part.env},
                    cwd=self.part.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=0o077,
                )
            )

    def wait_ready(self, timeout_s: float, stopped: Callable[[], bool] = lambda: False) -> bool:
        """True once the part is ready, False if `stopped` says so first.

        Raises NotReadyError, with the last line of the log, if the part ends or `timeout_s` seconds pass before.
        """
        deadline = time.monotonic() + timeout_s
        while not stopped():
            if self.pid is None:
                raise self._not_ready("did not start")
            if self._is_ready():
                return True
            if time.monotonic() > deadline:
                raise self._not_ready(f"was not ready after {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        return False

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the whole group after the part's grace; returns when it has ended."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.part.grace_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._process = None
        self._pid_file.clear()

    def _log_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 65_536))
                return file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []

    def _is_ready(self) -> bool:
        try:
            return self.part.ready()
        except OSError:
            return False

    def _not_ready(self, what: str) -> NotReadyError:
        lines = self._log_lines()
        line = next((line.strip() for line in reversed(lines) if not _STACK_FRAME.match(line)), "")
        told = f'its log ends with "{line}"' if line else "it wrote nothing"
        return NotReadyError(
            f"{self.part.name} {what}: {told}; see {self.log}",
            port_taken=any("Address already in use" in line for line in lines),
        )


_Call = Callable[[], "subprocess.Popen[bytes]"]
_calls: queue.SimpleQueue[tuple[_Call, Future[subprocess.Popen[bytes]]]] | None = None
_calls_lock = threading.Lock()


def _spawn(call: _Call) -> subprocess.Popen[bytes]:
    """Run `call` in a thread that lives as long as the process.

    The kernel sends the death signal when the *thread* that forked ends; a caller's own thread may be a
    pool's.
    """
    global _calls
    with _calls_lock:
        if _calls is None:
            _calls = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(_calls,), name="spawner", daemon=True).start()
    future: Future[subprocess.Popen[bytes]] = Future()
    _calls.put((call, future))
    return future.result()


def _serve(calls: queue.SimpleQueue[tuple[_Call, Future[subprocess.Popen[bytes]]]]) -> None:
    while True:
        call, future = calls.get()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def _forget_spawner() -> None:
    global _calls
    _calls = None


# A forked child has the queue but not the thread that serves it.
os.register_at_fork(after_in_child=_forget_spawner)
