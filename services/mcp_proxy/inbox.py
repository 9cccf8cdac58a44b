"""The reading end of a tap, read by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque

MAX_WAITING = 16 << 20
"""Bytes of the tap held here; beyond it they wait in the forwarder, which counts what it cannot hold either."""
_READ = 1 << 18


class Inbox:
    """The tap's bytes, read from the first moment of the process on: a server may have come and gone before all that is
    needed to understand it is imported.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.waiting = 0
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        threading.Thread(target=self._read, name="tap", daemon=True).start()

    async def get(self) -> bytes | None:
        """The next bytes; None at the end of the tap."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            with self._changed:
                if self._chunks:
                    chunk = self._chunks.popleft()
                    self.waiting -= len(chunk)
                    self._changed.notify()
                    return chunk
                if self._ended:
                    return None
            await self._arrived.wait()

    def end(self) -> None:
        """Take no more: what is here is the rest."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = self._connection.recv(_READ)
            except OSError:
                chunk = b""
            with self._changed:
                self._changed.wait_for(lambda: self.waiting < MAX_WAITING)
                if chunk:
                    self._chunks.append(chunk)
                    self.waiting += len(chunk)
                else:
                    self._ended = True
                loop = self._loop
            if loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._arrived.set)
