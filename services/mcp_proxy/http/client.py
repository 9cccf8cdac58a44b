"""A client's connection: its requests go to upstream connections that are opened for it alone.

Exchanges of one client connection pass one at a time, in order; requests sent ahead wait. What one side does with its
connection (keeps it, half-closes it, ends it, breaks it) is done to the other. No time limit is imposed.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from services.mcp_proxy.http import own
from services.mcp_proxy.http.bodies import Tunnel, UntilClose
from services.mcp_proxy.http.exchange import Exchange
from services.mcp_proxy.http.heads import MAX_HEAD, BadHead, check_beginning
from services.mcp_proxy.http.intake import Intake
from services.mcp_proxy.http.routes import own_authorities
from services.mcp_proxy.http.upstream import HIGH, Upstream, reset_on_close

if TYPE_CHECKING:
    from services.mcp_proxy.http.hub import Hub

_LINGER_S = 5.0
_own_authorities = lru_cache(maxsize=64)(own_authorities)


class Client(asyncio.Protocol):
    """The connection of a client."""

    __slots__ = (
        "_discarding",
        "_ended",
        "_exchange",
        "_held",
        "_hub",
        "_intake",
        "_transport",
        "_upstreams",
        "_waiting",
        "slow",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._upstreams: dict[bytes, Upstream] = {}
        self._exchange: Exchange | None = None
        self._waiting = b""
        self._held: set[object] = set()
        self._ended = False
        self._discarding: asyncio.TimerHandle | None = None
        self.slow = False

    # what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Opened."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH)
        self._hub.clients.add(self)
        address, port = transport.get_extra_info("sockname")[:2]
        self._intake = Intake(self._hub, _own_authorities(address, port))

    def data_received(self, data: bytes) -> None:
        """Bytes of the request under way, of the next one, or of one that has to wait."""
        if self._discarding is not None:
            return
        exchange = self._exchange
        if exchange is not None and not exchange.request.done:
            end = self._pass_on(exchange, data)
            if end == len(data):
                return
            data = data[end:]
        self._waiting += data
        if self._exchange is None:
            self._next()
        elif len(self._waiting) > MAX_HEAD:
            self.hold(self)

    def eof_received(self) -> bool:
        """The client sends no more. Who reads a stream of events and closes is gone; else it may wait for its answer."""
        self._ended = True
        exchange = self._exchange
        if exchange is None or self._discarding is not None or exchange.streams or isinstance(exchange.request, Tunnel):
            return False
        self._pass_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by whomever: so is all that was opened for it."""
        self._hub.clients.discard(self)
        if not self._hub.clients:
            self._hub.empty.set()
        self._finish("client")
        if self._discarding is not None:
            self._discarding.cancel()
        for upstream in list(self._upstreams.values()):
            upstream.abort()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.slow = True
        for upstream in self._upstreams.values():
            upstream.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.slow = False
        for upstream in self._upstreams.values():
            upstream.resume()

    # what its upstreams say

    def hold(self, reason: object) -> None:
        """Read no more from the client until every reason is released."""
        if not self._held and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held.add(reason)

    def release(self, reason: object) -> None:
        """See hold."""
        if reason in self._held:
            self._held.discard(reason)
            if not self._held and not self._transport.is_closing():
                self._transport.resume_reading()

    def answer(self, exchange: Exchange, data: bytes) -> None:
        """Bytes of an answer."""
        if data:
            exchange.answered = True
            self._transport.write(data)

    def begin_answer(self, exchange: Exchange) -> None:
        """The head of the last answer to a request was read."""
        answer = exchange.answer
        assert answer is not None
        if answer.status == 101:
            exchange.request = Tunnel()
            waiting, self._waiting = self._waiting, b""
            if waiting:
                self._pass_on(exchange, waiting)
        elif exchange.endpoint is not None and (
            not exchange.streams or b"content-encoding" in answer.fields or b"mcp-session-id" in answer.fields
        ):
            exchange.endpoint = None

    def answered(self, exchange: Exchange, upstream: Upstream) -> None:
        """The answer is whole."""
        assert exchange.answer is not None
        keep = exchange.keep and exchange.answer.keep
        if not exchange.request.done and keep:
            # The upstream reads on, so that the next request can follow.
            return
        self._finish("done")
        upstream.exchange = None
        if keep:
            self._next()
            return
        upstream.close()
        self._close(whole=exchange.request.done and not self._waiting)

    def unanswered(self, exchange: Exchange, reason: str, message: str) -> None:
        """There is no answer to be had, or no more of it that could be passed on."""
        self._finish(reason)
        if exchange.answered:
            for upstream in list(self._upstreams.values()):
                upstream.abort()
            self._transport.close()
        else:
            self._say(own.answer(502, {"error": message}, exchange.method))

    def forget(self, upstream: Upstream) -> None:
        """The connection to an upstream is no more."""
        if self._upstreams.get(upstream.route.origin) is upstream:
            del self._upstreams[upstream.route.origin]
        self.release(upstream)

    def lost(self, upstream: Upstream) -> None:
        """The connection to an upstream is closed."""
        self.forget(upstream)
        exchange, upstream.exchange = upstream.exchange, None
        if exchange is None:
            if self._exchange is None and not self._upstreams and not self._waiting and self._discarding is None:
                self._transport.close()
            return
        body = exchange.answer.body if exchange.answer else None
        if body is not None and body.done:
            self._finish("done")
            self._close(whole=exchange.request.done and not self._waiting)
            return
        self._finish("upstream")
        if isinstance(body, UntilClose):
            # Here a plain end of the connection would say that the answer is whole.
            reset_on_close(self._transport)
            self._transport.abort()
        else:
            self._transport.close()

    # when the proxy stops

    def stop(self) -> None:
        """No exchange after the one under way; streams have no end to wait for."""
        if self._exchange is None or self._exchange.streams:
            self._transport.close()
        else:
            self._exchange.keep = False

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # parts

    def _next(self) -> None:
        """Begin with the next request, if its head is whole."""
        while self._exchange is None and self._waiting and not self._transport.is_closing():
            data = self._waiting
            while data.startswith(b"\r\n"):
                data = data[2:]
            end = data.find(b"\r\n\r\n", 0, MAX_HEAD) + 4
            try:
                if end < 4:
                    self._waiting = data
                    if data and data != b"\r":
                        check_beginning(data)
                    break
                begun = self._intake.read(data[:end])
            except BadHead as error:
                status = 431 if len(data) > MAX_HEAD and end < 4 else 400
                self._say(own.answer(status, {"error": f"the request was refused: {error}"}))
                return
            if isinstance(begun, bytes):
                self._say(begun)
                return
            self._waiting = b""
            self._exchange, head = begun
            self._send(self._exchange, head, data, end)
        if self._ended and self._exchange is None:
            # What is left will not become a request any more.
            self._close(whole=True)
        elif len(self._waiting) <= MAX_HEAD:
            self.release(self)

    def _send(self, exchange: Exchange, head: bytes, data: bytes, start: int) -> None:
        route = exchange.found.route
        upstream = self._upstreams.get(route.origin)
        if upstream is None:
            upstream = self._upstreams[route.origin] = Upstream(self, route)
            upstream.connect(self._hub.tls if route.tls else None)
        upstream.exchange = exchange
        if exchange.request.done:
            upstream.write(head)
            self._waiting = data[start:]
        else:
            self._waiting = data[self._pass_on(exchange, data, start, head) :]
        if self._ended:
            self._pass_end()

    def _pass_on(self, exchange: Exchange, data: bytes, start: int = 0, head: bytes = b"") -> int:
        """Bytes of a request's body to its upstream. Returns where they end."""
        end = exchange.asked(data, start)
        upstream = self._upstreams.get(exchange.found.route.origin)
        if upstream is not None:
            upstream.write(head + (data[start:end] if start or end < len(data) else data))
        if exchange.request.fault:
            self._finish("client")
            if exchange.answered:
                self._transport.abort()
            else:
                self._say(own.answer(400, {"error": f"the request was refused: {exchange.request.fault}"}))
            return len(data)
        if exchange.request.done and exchange.answer and exchange.answer.body.done and upstream is not None:
            self.answered(exchange, upstream)
        return end

    def _pass_end(self) -> None:
        """The client's end of file to the upstream of its last request."""
        if self._exchange is not None and not self._waiting:
            upstream = self._upstreams.get(self._exchange.found.route.origin)
            if upstream is not None:
                upstream.write_eof()

    def _finish(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close(reason)
            if exchange.learned is not None:
                self._hub.routes.forget(exchange.learned, exchange.channel)

    def _say(self, answer: bytes) -> None:
        """An answer of the proxy's own."""
        self._transport.write(answer)
        self._close(whole=False)

    def _close(self, *, whole: bool) -> None:
        """Close once all is written. Unless `whole`, the client may still be sending: were its bytes left unread, it
        would get a reset in place of the answer.
        """
        for upstream in list(self._upstreams.values()):
            upstream.close()
        if whole or self._ended:
            self._transport.close()
        elif self._discarding is None:
            self._transport.write_eof()
            self._discarding = asyncio.get_running_loop().call_later(_LINGER_S, self._lingered)
            self._waiting = b""
            self._held.clear()
            self._transport.resume_reading()

    def _lingered(self) -> None:
        if self._transport.get_write_buffer_size():
            self._discarding = asyncio.get_running_loop().call_later(_LINGER_S, self._lingered)
        else:
            self._transport.abort()
