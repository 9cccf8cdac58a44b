"""Starts the process that looks at the copy of the traffic, and starts it again when it dies. Forwarding never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from services.mcp_proxy.tap import Tap

COMMAND = (sys.executable, "-P", "-m", "services.mcp_proxy.observe")
"""`-P`: the proxy runs in a folder of the client's choice, which must not decide what is imported."""

_NICE = 19
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_STEADY_S = 60.0
"""A process that lived so long is started again after the first pause."""
_QUICK_DEATHS = 3
_END_WITHIN_S = 1.0
_MAX_LOG = 1 << 20


def complain(line: str) -> None:
    """One line for a person on standard error, if that can be had without waiting."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"agenttrace: {line}\n".encode(errors="replace"))


class Observing:
    """The observer process of this forwarder, and the tap to it."""

    def __init__(self, arguments: Sequence[str] = (), *, max_bytes: int = 8 << 20) -> None:
        self.tap = Tap(max_bytes)
        self.pid: int | None = None
        """Of the process that observes now."""
        self._arguments = tuple(arguments)
        self._keeping: asyncio.Task[None] | None = None
        self._complained = False

    async def start(self) -> None:
        """Start the process and keep it running. What prevents that is told in one line on standard error, never raised."""
        process = await self._spawn()
        self._keeping = asyncio.create_task(self._keep(process))

    async def close(self) -> None:
        """Send what waits (at most 1 s), then end the tap; the process flushes and exits by itself."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await self.tap.end(_END_WITHIN_S)

    async def _keep(self, process: subprocess.Popen[bytes] | None) -> None:
        loop = asyncio.get_running_loop()
        pause, quick = _FIRST_PAUSE_S, 0
        while True:
            started = loop.time()
            if process is not None:
                await _ended(process)
                self.pid = None
                self.tap.detach()
                lived = loop.time() - started
                quick = quick + 1 if lived < _STEADY_S else 0
                if lived >= _STEADY_S:
                    pause = _FIRST_PAUSE_S
                if quick == _QUICK_DEATHS:
                    self._complain(f"it ended {quick} times soon after its start, last with {process.returncode}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            process = await self._spawn()

    async def _spawn(self) -> subprocess.Popen[bytes] | None:
        here, there = socket.socketpair()
        try:
            with there:
                # In a thread: who starts a process stands still until it runs.
                process = await asyncio.to_thread(_run, there.fileno(), self._arguments)
        except OSError as error:
            here.close()
            self._complain(error.strerror or str(error))
            return None
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        self.pid = process.pid
        self.tap.attach(here)
        return process

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            complain(f"MCP traffic passes unobserved, the observing process does not run ({why}); see {_log_file()}")


def _run(descriptor: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    with _log() as log:
        return subprocess.Popen(
            [*COMMAND, str(descriptor), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(descriptor,),
            start_new_session=True,
        )


def _log_file() -> Path:
    # services.config says the same and costs more to import than the rest of the forwarder.
    home = os.environ.get("AGENTTRACE_HOME", "")
    return Path(home if home.startswith("/") else os.path.expanduser("~/.agenttrace")) / "logs" / "mcp-proxy.log"  # noqa: PTH111


@contextlib.contextmanager
def _log() -> Iterator[IO[bytes] | int]:
    """Where the observer's own output goes: a file that is begun anew past 1 MiB (one older is kept), else nowhere."""
    file = None
    with contextlib.suppress(OSError):
        path = _log_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_LOG:
            path.replace(path.with_suffix(".log.1"))
        file = open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
    if file is None:
        yield subprocess.DEVNULL
    else:
        with file:
            yield file


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Returns once the process has ended, and reaps it."""
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or a sandbox that forbids it
        while process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(1)
        return
    over = asyncio.Event()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    process.poll()
