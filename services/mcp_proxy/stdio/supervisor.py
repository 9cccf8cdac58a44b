"""The process between the forwarder and the server: starts the server, and ends everything below itself when it is time.

On Linux it adopts the orphans below it (prctl(2) PR_SET_CHILD_SUBREAPER), so that a child that leaves its group or session
is still found. Elsewhere only the server's process group is. It is forked and imports nothing more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
STOP = b"."
"""The only order: see that the server ends soon. The end of the pipe of orders says the same."""

REPORT = struct.Struct("<Bi")
STARTED, EXITED = 1, 2
"""Reports: the server's process id, the server's wait status. The end of the pipe: nothing is left below."""

TERM_AFTER_S, KILL_AFTER_S = 2.75, 3.75
"""Since the first reason to end. Clients of the official SDKs wait 2 s and then signal, so the server has what they give."""
LEFT_TERM_AFTER_S, LEFT_KILL_AFTER_S = 1.0, 2.0
"""For what the server left behind when it exited."""
_KILL_AGAIN_S, _KILL_FOR_S = 0.05, 5.0
"""What does not die of it is not ours to end: another user's, or held up in the kernel."""
_NEVER = float("inf")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Orphans below this process become its children, on Linux."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def supervise(
    command: Sequence[str], stdio: tuple[int, int, int], orders: int, reports: int, mask: Iterable[int]
) -> NoReturn:
    """Run the command on `stdio` under the signal mask `mask`; exits once nothing is left below."""
    try:
        _Supervisor(command, stdio, orders, reports, mask).run()
    except BaseException:
        os._exit(os.EX_SOFTWARE)  # the forwarder sees the end of the reports, and ends what is below
    os._exit(0)


class _Supervisor:
    def __init__(
        self, command: Sequence[str], stdio: tuple[int, int, int], orders: int, reports: int, mask: Iterable[int]
    ) -> None:
        os.setsid()  # what a terminal sends to the client's group comes once, by the forwarder
        adopt_orphans()
        self._orders, self._reports = orders, reports
        self._term_at = self._kill_at = self._give_up_at = _NEVER
        self._alive = True
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_only)
        me = os.getpid()
        self._server = os.fork()
        if self._server == 0:
            _become(command, stdio, mask, me)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        for descriptor in (nothing, *stdio):
            os.close(descriptor)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _wake_only)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._report(STARTED, self._server)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._reap() and time.monotonic() < self._give_up_at:
            for descriptor, _ in poll.poll(self._pause_ms()):
                if descriptor == self._wake:
                    for number in os.read(self._wake, 4096):
                        if number in FORWARDED:
                            self._signalled(number)
                    continue
                if not os.read(self._orders, 64):  # the forwarder is gone
                    poll.unregister(self._orders)
                self._end_within(TERM_AFTER_S, KILL_AFTER_S)
            now = time.monotonic()
            if now >= self._kill_at:
                self._kill_at = now + _KILL_AGAIN_S
                self._signal_all(signal.SIGKILL)
            elif now >= self._term_at:
                self._term_at = _NEVER
                self._signal_all(signal.SIGTERM)

    def _signalled(self, number: int) -> None:
        if self._alive:
            send(os.killpg, self._server, number)
        self._end_within(TERM_AFTER_S, KILL_AFTER_S)

    def _end_within(self, term_after: float, kill_after: float) -> None:
        now = time.monotonic()
        if self._kill_at > now + kill_after:
            self._term_at, self._kill_at = now + term_after, now + kill_after
            self._give_up_at = self._kill_at + _KILL_FOR_S

    def _reap(self) -> bool:
        """Whether anything is left below."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server:
                self._alive = False
                self._report(EXITED, status)
                self._end_within(LEFT_TERM_AFTER_S, LEFT_KILL_AFTER_S)

    def _signal_all(self, number: int) -> None:
        if sys.platform != "linux":
            send(os.killpg, self._server, number)
            return
        for pid in below(os.getpid()):
            send(os.kill, pid, number)

    def _pause_ms(self) -> float | None:
        at = min(self._term_at, self._kill_at)
        return None if at == _NEVER else max(0.0, at - time.monotonic()) * 1000 + 1

    def _report(self, kind: int, value: int) -> None:
        try:
            os.write(self._reports, REPORT.pack(kind, value))
        except OSError:
            pass  # the forwarder is gone


def below(pid: int, *, but: int | None = None) -> list[int]:
    """The processes that descend from `pid`, as /proc says now, parents first; without `but` and what is below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not imported here
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything, parentheses too.
                state, parent = file.read().rpartition(b")")[2].split(None, 2)[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z" and int(name) != but:
            children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one, ())
    return found


def send(kill: Callable[[int, int], None], to: int, number: int) -> None:
    """`os.kill` or `os.killpg`, whether or not that process is still there."""
    try:
        kill(to, number)
    except (ProcessLookupError, PermissionError):
        pass


def _become(command: Sequence[str], stdio: tuple[int, int, int], mask: Iterable[int], supervisor: int) -> NoReturn:
    """Be the server. What prevents that is one line on its standard error and the exit code a shell gives it."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(os.EX_SOFTWARE)
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, a server expects them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], list(command))
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        hint = "install it, or give its full path" if missing else "is it a program that you may run?"
        os.write(2, f"agenttrace: cannot run {command[0]}: {error.strerror}; {hint}\n".encode(errors="replace"))
        os._exit(127 if missing else 126)
    finally:
        os._exit(126)


def _wake_only(number: int, frame: object) -> None:
    """The number goes through the wake-up pipe; the default action must not happen."""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        unused = ctypes.c_ulong(0)
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), unused, unused, unused)
