"""The hot path of the doors: a plain hook is answered on its connection, without the HTTP framework (docs/adr/0011).

What is not exactly one hook of the usual form (another path, an odd or repeated header, chunks, a large body, bytes that
come before the last answer) is aiohttp's, with its whole connection from there on.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import orjson
from aiohttp import web

from services.adapters.registry import ADAPTERS, NEUTRAL_ANSWER, normalise
from services.collector.app import Doors, is_local
from services.collector.heavy import HEAVY_BYTES
from services.forwarder.protocol import HEADER_DELIVERY

_BUFFER_BYTES = 64 << 10
_MAX_HEAD = 8 << 10
_START = b"POST /hooks/"
_HEAD = re.compile(
    _START
    + rb"([a-z0-9_-]{1,32}) HTTP/1\.1\r\n((?:[A-Za-z0-9-]{1,64}: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n)+)\r\n"
)
_HOST, _LENGTH, _CONNECTION, _DELIVERY = b"host", b"content-length", b"connection", HEADER_DELIVERY.lower().encode()
# Those that change nothing about how a hook is read. Any other header may.
_IDLE = (
    b"accept accept-encoding accept-language authorization cache-control content-type sec-fetch-mode user-agent "
    b"x-agenttrace-oversized x-agenttrace-pid"
)
_KNOWN = frozenset((*_IDLE.split(), _HOST, _LENGTH, _CONNECTION, _DELIVERY))


class Asked(NamedTuple):
    """The head of a plain hook. The body lies from `start` to `end` of what was received."""

    name: str
    delivery: str | None
    host: str
    close: bool
    start: int
    end: int


def read_head(data: bytes) -> Asked | None:
    """The head of a plain hook; None for anything else."""
    found = _HEAD.match(data)
    if found is None:
        return None
    headers: dict[bytes, bytes] = {}
    for line in found[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name not in _KNOWN or name in headers:
            return None
        headers[name] = value
    runtime, length, connection = found[1].decode(), headers.get(_LENGTH, b""), headers.get(_CONNECTION, b"").lower()
    if runtime not in ADAPTERS or _HOST not in headers or connection not in (b"", b"keep-alive", b"close"):
        return None
    if not length.isdigit() or len(length) > 7 or int(length) > HEAVY_BYTES:
        return None
    delivery, start = headers.get(_DELIVERY), found.end()
    return Asked(
        runtime,
        None if delivery is None else delivery.decode(),
        headers[_HOST].decode(),
        connection == b"close",
        start,
        start + int(length),
    )


class Connection(asyncio.BufferedProtocol):
    """One connection, until it is aiohttp's."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # Of the hook under way: its bytes so far, how many are worth another look, and its head once that is whole.
        self._received: list[bytes] = []
        self._size = self._wanted = 0
        self._asked: Asked | None = None
        self._answering: asyncio.Task[None] | None = None
        self._closing = self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Opened."""
        self._transport = cast(asyncio.Transport, transport)
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whomever."""
        self._server.gone(self)

    def pause_writing(self) -> None:
        """Nobody reads the answers: no more hooks from here until somebody does."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The answers are read again."""
        self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: one buffer for all, since each read is looked at before the next."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer a hook once it is whole."""
        data = bytes(self._server.buffer[:nbytes])
        if self._received or self._answering:
            self._received.append(data)
            self._size += len(data)
            if self._size < self._wanted or self._answering:
                return
            data = b"".join(self._received)
        asked = self._asked or read_head(data)
        if asked is not None and len(data) >= asked.end:
            self._received, self._size, self._wanted, self._asked = [], 0, 0, None
            self._hook(asked, data)
        elif asked is not None or _may_be_plain(data):
            self._received, self._size, self._asked = [data], len(data), asked
            self._wanted = asked.end if asked else 0
        else:
            self._pass_on(data)

    def finish(self) -> None:
        """The collector stops: no more hooks than the one under way."""
        self._closing = True
        if not self._received and not self._answering:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._answering:
            self._answering.cancel()
        self._transport.abort()

    # parts

    def _hook(self, asked: Asked, data: bytes) -> None:
        began, doors = time.perf_counter(), self._server.doors
        # Who is at the other end of a socket stays the same; by TCP the head tells.
        if not self._known:
            if not doors.admits(self._socket, asked.host):
                self._pass_on(data)
                return
            self._known = is_local(self._socket)
        intake, body, after = doors.intake, data[asked.start : asked.end], data[asked.end :]
        try:
            context = intake.context(ADAPTERS[asked.name].runtime, asked.delivery, time.time_ns() // 1_000_000)
            taken = intake.take(context, partial(normalise, body))
        except Exception as error:
            intake.fault(asked.name, len(body), error)
            taken = True
        refused = doors.settle(self._socket, asked.name, asked.delivery, len(body), taken)
        waiting = doors.written() if taken else None
        if waiting is not None:
            self._transport.pause_reading()
            self._received = [after] if after else []
            self._answering = asyncio.ensure_future(self._answer_later(waiting, asked, began))
            return
        self._answer(asked, refused, began)
        if after:
            self._pass_on(after)

    def _answer(self, asked: Asked, refused: str | None, began: float) -> None:
        close = asked.close or self._closing
        if refused is None:
            answer = _answer(200, NEUTRAL_ANSWER, close, int(time.time()))
            self._server.doors.intake.metrics.handler.observe(time.perf_counter() - began)
        else:
            answer = _answer(503, orjson.dumps({"error": refused}), close, int(time.time()))
        self._transport.write(answer)
        if close:
            self._transport.close()

    async def _answer_later(self, waiting: Awaitable[Any], asked: Asked, began: float) -> None:
        try:
            await waiting
        except Exception:
            self._transport.abort()
            raise
        self._answering = None
        self._answer(asked, None, began)
        after, self._received = b"".join(self._received), []
        if not self._transport.is_closing():
            self._transport.resume_reading()
            if after:
                self._pass_on(after)

    def _pass_on(self, data: bytes) -> None:
        """From these bytes on the connection is aiohttp's."""
        if self._transport.is_closing():
            return
        handler = self._server.rest()
        self._server.gone(self)
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(data)


class Server:
    """What a runner serves: plain hooks here, all else by aiohttp's own server."""

    def __init__(self, doors: Doors, rest: web.Server) -> None:
        self.doors = doors
        self.rest = rest
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._open: set[Connection] = set()
        self._empty = asyncio.Event()

    def __call__(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        """A connection to look after."""
        self._open.add(connection)

    def gone(self, connection: Connection) -> None:
        """Closed, or aiohttp's."""
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def pre_shutdown(self) -> None:
        """Close what waits for a next hook."""
        for connection in list(self._open):
            connection.finish()
        self.rest.pre_shutdown()

    async def shutdown(self, within_s: float | None = None) -> None:
        """Give hooks under way `within_s` seconds, then close all."""
        await asyncio.gather(self._shutdown(within_s), self.rest.shutdown(within_s))

    async def _shutdown(self, within_s: float | None) -> None:
        self._empty.clear()
        if self._open:
            try:
                await asyncio.wait_for(self._empty.wait(), within_s)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()


class Runner(web.AppRunner):
    """Serves the doors' application with its hot path in front."""

    def __init__(self, doors: Doors, **kwargs: Any) -> None:
        super().__init__(doors.app(), **kwargs)
        self._doors = doors

    async def _make_server(self) -> web.Server:
        return cast(web.Server, Server(self._doors, await super()._make_server()))


def _may_be_plain(data: bytes) -> bool:
    """Whether this can be the first bytes of a plain hook's head."""
    start = data[: len(_START)]
    return start == _START[: len(start)] and len(data) <= _MAX_HEAD and b"\r\n\r\n" not in data


@lru_cache(maxsize=8)
def _answer(status: int, body: bytes, close: bool, second: int) -> bytes:
    reason = {200: "OK", 503: "Service Unavailable"}[status]
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Date: {formatdate(second, usegmt=True)}\r\n{'Connection: close' + chr(13) + chr(10) if close else ''}\r\n"
    )
    return head.encode() + body
