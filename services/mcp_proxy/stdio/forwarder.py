"""The forwarding process of a stdio server: three directions, the signals, the tap, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from services.loops import new_event_loop
from services.mcp_proxy.observing import Observing, complain
from services.mcp_proxy.stdio import supervisor
from services.mcp_proxy.stdio.launch import Child, Options
from services.mcp_proxy.stdio.pump import HangUps, Pump, Stream
from services.mcp_proxy.stdio.supervisor import EXITED, FORWARDED, REPORT, STARTED, STOP
from services.mcp_proxy.tap import Kind, Side

CHANNEL = 1
_GIVE_UP_AFTER_S = 4.25
"""Since the first order to end: a supervisor that is still there does not work any more."""
_END_ALL_WITHIN_S = 2.0
_STALLED_S = 1.0
"""Of a client that signalled the end and does not read what is left for it."""


def forward(options: Options, child: Child) -> int:
    """Forward until the server and all below it have ended; the server's wait status."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(_Forwarder(options, child).run())


class _Forwarder:
    def __init__(self, options: Options, child: Child) -> None:
        self._loop = asyncio.get_event_loop()
        self._options, self._child = options, child
        self._observing = Observing(options.for_observer())
        self._tap = self._observing.tap
        self._server: int | None = None
        self._status: int | None = None
        self._stopping = self._signalled = False
        self._reason = "upstream"
        self._nothing_left = asyncio.Event()
        self._changed = asyncio.Event()
        self._unread: set[Side] = set()

    async def run(self) -> int:
        loop, child = self._loop, self._child
        os.set_blocking(child.orders, False)
        self._reported()  # the first report is on its way, or the supervisor is gone
        self._tap.open(CHANNEL, self._about())
        outputs = self._pumps()
        loop.add_reader(child.reports, self._reported)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._pass_on, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        await self._observing.start()
        await self._nothing_left.wait()
        if os.waitpid(child.supervisor, 0)[1] != 0:  # noqa: ASYNC222 - it has ended
            await self._end_all()
        await self._drained(outputs)
        status = self._status
        if status is None:
            status = signal.SIGKILL if self._server is not None else os.EX_OSERR << 8
        ended = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
        self._tap.say(Kind.EXIT, CHANNEL, Side.SERVER, ended)
        self._tap.close(CHANNEL, self._reason)
        await self._observing.close()
        return status

    def _about(self) -> dict[str, Any]:
        # Arguments may hold secrets: only how many there are is told.
        parent, command = os.getppid(), self._options.command
        return {
            "server": self._options.server,
            "transport": "stdio",
            "command": [os.path.basename(command[0]), len(command) - 1],  # noqa: PTH119
            "pid": self._server,
            "parent": {"pid": parent, "name": _name_of(parent)},
        }

    def _pumps(self) -> tuple[Pump, Pump]:
        """Start the three directions; those of the server's output."""
        tap, child = self._tap, self._child
        hang_ups = HangUps(self._loop)
        client = Stream(0)
        Pump(
            client,
            Stream(child.stdin, ours=True),
            hang_ups,
            lambda data: tap.data(CHANNEL, Side.CLIENT, data),
            lambda unread: self._side_ended(Side.CLIENT, unread),
        )
        # A server that does not read keeps us from reading the end of the client's stream.
        hang_ups.watch(client, lambda: self._stop("done"), writer=True)
        return (
            Pump(
                Stream(child.stdout, ours=True),
                Stream(1, writing=True),
                hang_ups,
                lambda data: tap.data(CHANNEL, Side.SERVER, data),
                lambda unread: self._side_ended(Side.SERVER, unread),
            ),
            Pump(
                Stream(child.stderr, ours=True),
                Stream(os.dup(2), writing=True),  # 2 itself stays ours, for what must be told at the end
                hang_ups,
                lambda data: tap.stderr(CHANNEL, data),
                lambda _: self._changed.set(),
            ),
        )

    def _side_ended(self, side: Side, unread: bool) -> None:
        self._tap.say(Kind.END, CHANNEL, side)
        self._changed.set()
        if unread:
            self._unread.add(side)
        # Of a server that reads no more the client's death is seen only where the client reads.
        if (side is Side.CLIENT and not unread) or len(self._unread) == 2:
            self._stop("done")

    def _pass_on(self, number: int) -> None:
        if self._server is not None and self._status is None:
            supervisor.send(os.killpg, self._server, number)
        self._signalled = True
        self._stop("client")

    def _stop(self, reason: str) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._status is None:
            self._reason = reason
        self._loop.call_later(_GIVE_UP_AFTER_S, self._give_up)
        with contextlib.suppress(OSError):  # the supervisor is gone, its last report is on its way
            os.write(self._child.orders, STOP)

    def _give_up(self) -> None:
        if not self._nothing_left.is_set():
            os.kill(self._child.supervisor, signal.SIGKILL)

    def _reported(self) -> None:
        reports = os.read(self._child.reports, REPORT.size * 2)
        for kind, value in REPORT.iter_unpack(reports):
            if kind == STARTED:
                self._server = value
            elif kind == EXITED:
                self._status = value
        if not reports:
            self._loop.remove_reader(self._child.reports)
            self._nothing_left.set()

    async def _end_all(self) -> None:
        """The supervisor was killed, what was below it came to us: end it."""
        if self._server is None:
            complain(f"{self._options.server}: the server cannot be started: the system has no process left")
        else:
            complain(
                f"{self._options.server}: the process that watches over the server was killed; the server was ended"
            )
        until = self._loop.time() + _END_ALL_WITHIN_S
        while self._loop.time() < until:
            left = supervisor.below(os.getpid(), but=self._observing.pid)
            for pid in left:
                supervisor.send(os.kill, pid, signal.SIGKILL)
            if self._server is not None and self._status is None:
                with contextlib.suppress(ChildProcessError):
                    pid, status = os.waitpid(self._server, os.WNOHANG)  # noqa: ASYNC222
                    self._status = status if pid else None
            if not left:
                return
            await asyncio.sleep(0.02)

    async def _drained(self, outputs: tuple[Pump, Pump]) -> None:
        """Returns once the client has read the output, or does not although it signalled the end."""
        since = self._loop.time()
        while not all(pump.over for pump in outputs):
            moved_at = max(since, *(pump.moved_at for pump in outputs))
            if self._signalled and self._loop.time() - moved_at > _STALLED_S:
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _STALLED_S / 4)


def _name_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None
