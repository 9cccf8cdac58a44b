"""Stands between a client and a server on the loopback, so that a test can make the server slow or silent."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

HOST = "127.0.0.1"
_CHUNK = 1 << 16


class Proxy:
    """Forwards TCP to a port. `delay_s` is added to each piece in either direction; `hold` lets nothing through."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self.delay_s = 0.0
        self.held_bytes = 0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def dsn(self) -> str:
        """The same DSN by way of this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login = self._target.netloc.rpartition("@")[0]
        return self._target._replace(netloc=f"{login}@{HOST}:{port}" if login else f"{HOST}:{port}").geturl()

    def hold(self) -> None:
        """Keep from now on what comes, in either direction."""
        self._open.clear()

    def release(self) -> None:
        """Let through what was held, and what comes."""
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        for one, other in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(one, other))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await asyncio.sleep(self.delay_s)
                if not self._open.is_set():
                    self.held_bytes += len(data)
                    await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.release()
        self._server.close()
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
