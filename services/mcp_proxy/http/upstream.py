"""A connection to an upstream, opened for one client connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from services.mcp_proxy.http.bodies import Length
from services.mcp_proxy.http.exchange import Exchange
from services.mcp_proxy.http.heads import Answer, BadHead, check_beginning, read_answer
from services.mcp_proxy.http.own import trouble
from services.mcp_proxy.http.repeats import Repeats
from services.mcp_proxy.http.routes import Route

if TYPE_CHECKING:
    from services.mcp_proxy.http.client import Client

HIGH = 256 << 10
"""Bytes that may wait for a slow reader; past it the writer at the other end is not read."""
_LEFT_BEHIND, _READ = 1 << 20, 64 << 10


class Upstream(asyncio.Protocol):
    """Exchanges pass one at a time; `exchange` is the one under way."""

    __slots__ = (
        "_client",
        "_connecting",
        "_early",
        "_early_end",
        "_early_size",
        "_head",
        "_repeats",
        "_transport",
        "exchange",
        "route",
    )

    def __init__(self, client: Client, route: Route) -> None:
        self._client = client
        self.route = route
        self.exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._early_size = 0
        self._early_end = False
        self._head = b""
        self._repeats: Repeats[Answer] = Repeats()

    # what its client says

    def connect(self, tls: ssl.SSLContext | None) -> None:
        """Begin to connect; what is written until then waits."""
        self._connecting = asyncio.get_running_loop().create_task(self._connect(tls))

    def write(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._transport is not None:
            self._transport.write(data)
            return
        self._early.append(data)
        self._early_size += len(data)
        if self._early_size > HIGH:
            self._client.hold(self)

    def write_eof(self) -> None:
        """The client sends no more. TLS has no half-closed connection."""
        self._early_end = True
        if self._transport is not None and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def pause(self) -> None:
        """The client reads slowly."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """See pause."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once all is written."""
        if self._transport is None:
            self.abort()
        else:
            self.exchange = None
            self._transport.close()

    def abort(self) -> None:
        """Close at once, connected or not."""
        self.exchange = None
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()

    # what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Opened."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH)
        self.route.trouble = None
        if self._client.slow:
            self._transport.pause_reading()
        early, self._early = b"".join(self._early), []
        self._transport.write(early)
        if self._early_end:
            self.write_eof()
        if self._transport.get_write_buffer_size() <= HIGH:
            self._client.release(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer under way."""
        exchange, client = self.exchange, self._client
        if exchange is None or (exchange.answer is not None and exchange.answer.body.done):
            # Nobody asked for these. Passed on, they would be taken for the answer to the next request.
            assert self._transport is not None
            self._transport.abort()
            return
        start = 0
        if exchange.answer is None:
            data, self._head = self._head + data, b""
            try:
                start = self._read_heads(exchange, data)
            except BadHead as error:
                client.unanswered(exchange, "upstream", f"route '{self.route.name}': the answer was refused: {error}")
                return
            if exchange.answer is None:
                self._head = data[start:]
                client.answer(exchange, data[:start])
                return
            client.begin_answer(exchange)
        end, changed = exchange.got(data, start)
        if changed is not None:
            client.answer(exchange, data[:start] + changed)
        else:
            client.answer(exchange, data if end == len(data) else data[:end])
        body = exchange.answer.body
        if body.fault:
            client.unanswered(exchange, "upstream", body.fault)
        elif body.done:
            if end < len(data):
                exchange.keep = False
            client.answered(exchange, self)

    def eof_received(self) -> bool:
        """The upstream sends no more, so there is nothing more to tell it either."""
        if self.exchange is not None:
            self._client.answer(self.exchange, self.exchange.ended())
        assert self._transport is not None
        self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whomever."""
        if exc is not None and self.exchange is not None:
            self._read_what_is_left()
        self._client.lost(self)

    def pause_writing(self) -> None:
        """The upstream reads slowly."""
        self._client.hold(self)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._client.release(self)

    # parts

    def _read_heads(self, exchange: Exchange, data: bytes) -> int:
        """Where the heads end that are whole: any number of 1xx, then the one of the answer."""
        start = 0
        while exchange.answer is None and start < len(data):
            end = data.find(b"\r\n\r\n", start) + 4
            if end < 4:
                check_beginning(data[start:], answer=True)
                break
            exchange.head(self._answer(data[start:end], exchange.method))
            start = end
        return start

    def _answer(self, head: bytes, method: bytes) -> Answer:
        if method == b"HEAD":
            return read_answer(head, method)
        repeated = self._repeats.find(head)
        if repeated is not None:
            known, size = repeated
            return replace(known, body=Length(int(size)))
        answer = read_answer(head, method)
        if answer.status == 200:
            self._repeats.keep(head, answer)
        return answer

    def _read_what_is_left(self) -> None:
        """After a failed write: an upstream that answers before it has read the request (413) and closes resets the
        connection, while its answer may still lie in the socket.
        """
        assert self._transport is not None
        if self.route.tls:
            return
        descriptor = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            for _ in range(_LEFT_BEHIND // _READ):
                data = os.read(descriptor, _READ)
                if not data or self.exchange is None:
                    break
                self.data_received(data)

    async def _connect(self, tls: ssl.SSLContext | None) -> None:
        loop, route = asyncio.get_running_loop(), self.route
        try:
            await loop.create_connection(
                lambda: self, route.host, route.port, ssl=tls, server_hostname=route.host if tls else None
            )
        except OSError as error:
            route.trouble = trouble(route, error)
            exchange, self.exchange = self.exchange, None
            self._client.forget(self)
            if exchange is not None:
                self._client.unanswered(exchange, "connect", route.trouble)


def reset_on_close(transport: asyncio.Transport) -> None:
    """The other end is to see the connection broken, not ended."""
    with (
        contextlib.suppress(OSError),
        socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same,
    ):
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
