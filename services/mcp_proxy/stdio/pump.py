"""Bytes from one descriptor to another, at once and as they came; a slow reader holds up its own writer and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import stat
import sys
from collections.abc import Callable

CHUNK = 1 << 16
"""Bytes read at once, and the most that a direction holds back: what a pipe of Linux holds."""


class Stream:
    """One end of a pipe, socket, terminal or file, read and written without waiting.

    A descriptor that other processes share must not be made non-blocking, for that would change it for them: a pipe or
    terminal is opened once more for us alone, a socket is used with MSG_DONTWAIT, any other is written after a poll.
    """

    def __init__(self, descriptor: int, *, writing: bool = False, ours: bool = False) -> None:
        kind = os.fstat(descriptor).st_mode
        self._given = descriptor
        self._socket: socket.socket | None = None
        self._careful = False
        self.descriptor = descriptor
        self.can_wait = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)
        """Whether an event loop can wait for it; files are always ready."""
        if ours:
            os.set_blocking(descriptor, False)
        elif stat.S_ISSOCK(kind):
            self._socket = socket.socket(fileno=os.dup(descriptor))
            self.descriptor = self._socket.fileno()
        elif self.can_wait:
            how = (os.O_WRONLY if writing else os.O_RDONLY) | os.O_NONBLOCK | os.O_NOCTTY
            try:
                self.descriptor = os.open(f"/proc/self/fd/{descriptor}", how)
            except OSError:
                self._careful = True

    def read(self) -> bytes:
        """What is there, at most CHUNK; nothing at the end. Raises BlockingIOError."""
        if self._socket is not None:
            return self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
        if self._careful and not self._is_ready(select.POLLIN):
            raise BlockingIOError
        return os.read(self.descriptor, CHUNK)

    def write(self, data: memoryview) -> int:
        """How many bytes were taken. Raises BlockingIOError, and other OSErrors when nobody will read them."""
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        if self._careful:
            if not self._is_ready(select.POLLOUT):
                raise BlockingIOError
            data = data[: select.PIPE_BUF]  # a pipe that is ready takes so much without waiting
        return os.write(self.descriptor, data)

    def close(self) -> None:
        """Let go of it, so that the other end sees it; a standard descriptor becomes /dev/null."""
        if self._socket is not None:
            self._socket.close()
        elif self.descriptor != self._given:
            os.close(self.descriptor)
        if self._given > 2:
            os.close(self._given)
            return
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._given)
        os.close(nothing)

    def _is_ready(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self.descriptor, event)
        return bool(poll.poll(0))


class HangUps:
    """Tells when nobody is at the other end any more, also while nothing is read or written. Linux; elsewhere silent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._then: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if sys.platform == "linux" else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._told)

    def watch(self, stream: Stream, then: Callable[[], None], *, writer: bool = False) -> None:
        """Call `then` once when nobody reads from the other end (or, of a `writer`, will write there)."""
        if self._epoll is not None and stream.can_wait:
            # The end of a pipe and errors are told unasked; that a socket's peer still reads but writes no more is not.
            self._epoll.register(stream.descriptor, select.EPOLLRDHUP if writer else 0)
            self._then[stream.descriptor] = then

    def forget(self, stream: Stream) -> None:
        """Before the stream is closed."""
        if self._epoll is not None and self._then.pop(stream.descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(stream.descriptor)

    def _told(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            if (then := self._then.pop(descriptor, None)) is not None:
                self._epoll.unregister(descriptor)
                then()


class Pump:
    """One direction. `copied(data)` follows each forwarded chunk; `ended(unread)` comes once, when both ends are let go of:
    `unread` says that nobody reads the sink any more, else the source has no more.
    """

    def __init__(
        self,
        source: Stream,
        sink: Stream,
        hang_ups: HangUps,
        copied: Callable[[bytes], None],
        ended: Callable[[bool], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source, sink
        self._hang_ups = hang_ups
        self._copied, self._ended = copied, ended
        self._waiting = memoryview(b"")
        self.over = False
        self.moved_at = self._loop.time()
        """Loop time of the last byte that the sink took."""
        hang_ups.watch(sink, lambda: self._stop(unread=True))
        self._listen()

    def _stop(self, *, unread: bool) -> None:
        """Let go of both ends now; each neighbour sees what it would see without us."""
        if self.over:
            return
        self.over = True
        for stream, remove in ((self._source, self._loop.remove_reader), (self._sink, self._loop.remove_writer)):
            self._hang_ups.forget(stream)
            if stream.can_wait:
                remove(stream.descriptor)
            stream.close()
        self._ended(unread)

    def _listen(self) -> None:
        if self._source.can_wait:
            self._loop.add_reader(self._source.descriptor, self._read)
        else:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self.over or self._waiting:
            return
        try:
            data = self._source.read()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # a terminal that hung up, a connection that was reset
            data = b""
        if not data:
            self._stop(unread=False)
            return
        self._waiting = memoryview(data)
        self._write()
        self._copied(data)
        if self.over:
            return
        if self._waiting:
            if self._source.can_wait:
                self._loop.remove_reader(self._source.descriptor)
            self._loop.add_writer(self._sink.descriptor, self._go_on)
        elif not self._source.can_wait:
            self._loop.call_soon(self._read)

    def _go_on(self) -> None:
        self._write()
        if not self.over and not self._waiting:
            self._loop.remove_writer(self._sink.descriptor)
            self._listen()

    def _write(self) -> None:
        try:
            while self._waiting:
                self._waiting = self._waiting[self._sink.write(self._waiting) :]
                self.moved_at = self._loop.time()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # nobody reads this any more
            self._stop(unread=True)
