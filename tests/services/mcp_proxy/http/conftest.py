"""A relay on real sockets, a server whose connections a test scripts, and what the tap said."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from services.mcp_proxy.http.hub import Hub
from services.mcp_proxy.http.routes import Routes, parse_route
from services.mcp_proxy.tap import Kind, Reader, Record, Side, Tap

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test on both loops: which one runs depends on the platform."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Conversation:
    """A client's connection to the relay (or, to compare, to the upstream)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        """The head of the next answer, blank line included."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)

    async def bytes(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), 5)

    async def rest(self) -> bytes:
        """All until the connection ends."""
        return await asyncio.wait_for(self.reader.read(), 5)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of an answer with Content-Length."""
        head = await self.head()
        found = re.search(rb"(?i)content-length: *(\d+)", head)
        return head, await self.bytes(int(found[1])) if found else b""

    async def closed(self) -> bool:
        """Whether the other side ends the connection, nothing more being said."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        return True

    def close(self) -> None:
        self.writer.close()


class World:
    """Upstreams, the relay in front of them, and its tap."""

    def __init__(self) -> None:
        self.tap = Tap()
        self.records: list[Record] = []
        self.hub: Hub | None = None
        self.port = 0
        self._servers: list[asyncio.Server] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._conversations: list[Conversation] = []
        self._arrived = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def upstream(self, handler: Handler, tls: ssl.SSLContext | None = None) -> int:
        """Serve with this handler of a connection. Returns the port."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._handlers.add(task)
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await handler(reader, writer)
            finally:
                self._handlers.discard(task)
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def relay(self, *routes: str, tls: ssl.SSLContext | None = None) -> None:
        """The relay with such routes, listening on `port`."""
        here, there = socket.socketpair()
        there.setblocking(False)
        self.tap.attach(here)
        self._reading = asyncio.create_task(self._read(there))
        self.hub = Hub(Routes([parse_route(route) for route in routes]), self.tap, tls)
        server = await asyncio.get_running_loop().create_server(self.hub, "127.0.0.1", 0)
        self._servers.append(server)
        self.port = int(server.sockets[0].getsockname()[1])

    async def connect(self, port: int | None = None) -> Conversation:
        """A new connection to the relay, or to a port."""
        conversation = Conversation(*await asyncio.open_connection("127.0.0.1", port or self.port, limit=1 << 22))
        self._conversations.append(conversation)
        return conversation

    async def said(self, kind: Kind, channel: int = 1) -> Record:
        """The first record of this kind."""

        def find() -> Record | None:
            return next((r for r in self.records if r.kind is kind and r.channel == channel), None)

        async with asyncio.timeout(5):
            while (found := find()) is None:
                self._arrived.clear()
                await self._arrived.wait()
        return found

    async def closed(self, channel: int = 1) -> str:
        """Why the exchange was over."""
        return str((await self.said(Kind.CLOSE, channel)).json()["reason"])

    def content(self, side: Side, channel: int = 1) -> bytes:
        """The body of one side as the tap has it."""
        return b"".join(r.data for r in self.records if (r.kind, r.side, r.channel) == (Kind.DATA, side, channel))

    async def tapped(self, side: Side, size: int, channel: int = 1) -> bytes:
        """`content`, once the tap has so many bytes of it."""
        async with asyncio.timeout(5):
            while len(self.content(side, channel)) < size:
                self._arrived.clear()
                await self._arrived.wait()
        return self.content(side, channel)

    async def end(self) -> None:
        for server in self._servers:
            server.close()
        for conversation in self._conversations:
            if not conversation.writer.is_closing():
                conversation.writer.transport.abort()
        if self.hub is not None:
            await self.hub.stop(0)
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self.tap.end(1)
        if self._reading is not None:
            await self._reading
        for server in self._servers:
            await server.wait_closed()

    async def _read(self, connection: socket.socket) -> None:
        reader = Reader()
        with connection:
            while chunk := await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
                self.records.extend(reader.feed(chunk))
                self._arrived.set()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Nothing runs yet. What runs at the end is ended; what the loop had to complain about fails the test."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    world = World()
    yield world
    await world.end()
    assert complaints == []


class Scripted:
    """An upstream that reads one request (of this many bytes of body), says this, and so on."""

    def __init__(self, *answers: bytes, body: int = 0, close: bool = False) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._answers, self._body, self._close = answers, body, close

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self._answers:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            self.bodies.append(await reader.readexactly(self._body))
            writer.write(answer)
        if not self._close:
            await reader.read()


def ok(body: bytes = b"{}", *headers: bytes) -> bytes:
    """A plain answer."""
    head = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
