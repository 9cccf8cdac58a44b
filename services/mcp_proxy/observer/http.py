"""A channel of the tap that is an HTTP exchange: streamable HTTP (2025-03-26 and later) and HTTP+SSE (2024-11-05)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from schemas.events import HttpInfo
from services.mcp_proxy.observer.connection import Carrier, Connection
from services.mcp_proxy.observer.decoding import Decoder, Unreadable
from services.mcp_proxy.observer.frames import Frame, Gather
from services.mcp_proxy.observer.messages import Message, messages
from services.mcp_proxy.observer.operations import digest
from services.mcp_proxy.observer.records import about, number
from services.mcp_proxy.observer.sse import Event, Events
from services.mcp_proxy.tap import Kind, Record, Side

if TYPE_CHECKING:
    from services.mcp_proxy.observer.hub import Hub

MAX_IDS = 64
"""Ids of a stream's last events, by which its resumption is known."""
MAX_HELD_NS = 5_000_000_000
"""So long an `initialize` waits for the head of its answer, which names the session."""


class Exchange:
    """One request and its answer."""

    def __init__(self, hub: Hub, server: str, channel: int, opened: dict[str, Any], at_ns: int) -> None:
        http = opened.get("http")
        http = http if isinstance(http, dict) else {}
        headers = http.get("headers")
        given: dict[str, str] = (
            {str(name): value for name, value in headers.items() if isinstance(value, str)}
            if isinstance(headers, dict)
            else {}
        )
        self._hub, self._server, self._channel = hub, server, channel
        self._method = str(http.get("method") or "").upper()
        content = given.get("content-type", "application/json").lower()
        accept = given.get("accept", "text/event-stream").lower()
        self.relevant = (
            (self._method == "POST" and "json" in content)
            or (self._method == "GET" and "text/event-stream" in accept)
            or self._method == "DELETE"
        )
        self._session = given.get("mcp-session-id") or None
        self._last_id = given.get("last-event-id")
        stream = opened.get("stream")
        self._legacy = stream if isinstance(stream, int) and opened.get("transport") == "sse" else None
        if self._legacy is not None:
            self.connection = hub.legacy(server, self._legacy, at_ns)
        elif self._session is not None:
            self.connection = hub.session(server, self._session, at_ns)
        else:
            self.connection = hub.stateless(server, at_ns)
        self.connection.exchanges += self.relevant
        maker = hub.maker
        self._carrier = Carrier(
            "" if self._legacy is not None or self._session is not None else f"{channel}:",
            origin=maker.origin(given),
            protocol_version=maker.ident(given.get("mcp-protocol-version")),
        )
        self._asked = Gather(hub.room)
        self._asked_decoder = Decoder(given.get("content-encoding", ""))
        self._asked_over = False
        self._held: list[tuple[Message, int]] = []
        self._got = Gather(hub.room)
        self._got_decoder = Decoder("")
        self._events: Events | None = None
        self._ids: deque[str] = deque(maxlen=MAX_IDS)
        self._seen: frozenset[str] = frozenset()
        self._status: int | None = None
        self._unread: str | None = None
        self._gap = False
        self._over = False

    def take(self, record: Record) -> None:
        """Any record of the channel but its OPEN."""
        kind, side, at_ns = record.kind, record.side, record.at_ns
        if not self.relevant:
            return
        if kind is Kind.DATA:
            if side is Side.CLIENT:
                self._request_bytes(record.data)
            else:
                self._answer_bytes(record.data, at_ns)
        elif kind is Kind.HEAD:
            self._head(about(record), at_ns)
        elif kind is Kind.END:
            if side is Side.CLIENT:
                self._request_over(at_ns)
            else:
                self._answer_over(at_ns)
        elif kind is Kind.GAP:
            self.gap(side, at_ns, number(about(record).get("bytes")))
        elif kind is Kind.CLOSE:
            self._close(str(about(record).get("reason")), at_ns)

    def tick(self, now_ns: int) -> None:
        """An answer's head that does not come."""
        if self._held and now_ns - self._held[0][1] > MAX_HELD_NS:
            self._release()

    def gap(self, side: Side, at_ns: int, size: int = 0) -> None:
        """So many bytes of this side were not copied; 0 where only some may be missing."""
        self.connection.seen_ns = at_ns
        if side is Side.CLIENT:
            self._asked.miss(size)
            return
        self._gap = True
        self.connection.gap(side, self._carrier.open.values() or None)
        if self._events is not None:
            self._events.gap()
        else:
            self._got.miss(size)
        if self._got_decoder.coding not in ("", "identity"):
            self._unread = "gap"

    # the request

    def _request_bytes(self, data: bytes) -> None:
        try:
            for piece in self._asked_decoder.feed(data):
                self._asked.add(piece)
        except Unreadable as error:
            self._asked.cut = str(error)
            self._asked.size += len(data)

    def _request_over(self, at_ns: int, *, cut: bool = False) -> None:
        """The request is whole, or (`cut`) no more of it matters."""
        if self._asked_over:
            return
        self._asked_over = True
        if self._method != "POST":
            return
        found = list(messages(self._asked.take()))
        if cut and found and found[0].reason == "not_json":
            found[0].reason = "unfinished"
        alone = self._session is None and self._legacy is None
        if alone and self._status is None and any(message.method == "initialize" for message in found):
            self._held = [(message, at_ns) for message in found]
            return
        for message in found:
            self.connection.take(message, Side.CLIENT, at_ns, self._carrier)

    def _release(self) -> None:
        held, self._held = self._held, []
        for message, at_ns in held:
            self.connection.take(message, Side.CLIENT, at_ns, self._carrier)

    # the answer

    def _head(self, head: dict[str, Any], at_ns: int) -> None:
        status, headers = head.get("status"), head.get("headers")
        if not isinstance(status, int) or status < 200 or self._status is not None:
            return
        self._status = status
        headers = headers if isinstance(headers, dict) else {}
        session = headers.get("mcp-session-id")
        if self._session is None and isinstance(session, str) and session and self._legacy is None and status < 400:
            self._session = session
            if self._held:
                self._move(self._hub.session(self._server, session, at_ns))
        session_hash = self._hub.session_hash(self._session) if self._session else None
        self._carrier.http = HttpInfo(status=status, mcp_session_hash=session_hash)
        self._release()
        if status in (429, 503):
            self.connection.bad("throttled", at_ns)
        elif status >= 500:
            self.connection.bad("http", at_ns)
        self._got_decoder = Decoder(str(headers.get("content-encoding") or ""))
        if str(headers.get("content-type") or "").lower().startswith("text/event-stream"):
            self._events = Events(self._hub.room)
            if self._method == "GET" and self._last_id and status == 200:
                self._resume(digest(self._last_id))

    def _move(self, connection: Connection) -> None:
        """It belongs to a connection that it names itself."""
        self.connection.exchanges -= 1
        connection.exchanges += 1
        self.connection, self._carrier.scope = connection, ""

    def _resume(self, last: str) -> None:
        """This stream goes on with one that broke off."""
        before = self.connection.resume(last)
        if before is not None:
            self._carrier.open, self._carrier.scope = before.carrier.open, before.carrier.scope
            self._ids.extend(before.ids)
            self._seen = frozenset(before.ids)

    def _answer_bytes(self, data: bytes, at_ns: int) -> None:
        if self._unread is not None:
            self._got.size += len(data)
            return
        try:
            for piece in self._got_decoder.feed(data):
                if self._events is None:
                    self._got.add(piece)
                else:
                    for event in self._events.feed(piece):
                        self._event(event, at_ns)
        except Unreadable as error:
            self._unread = str(error)
            self._got.drop()
            self._got.add(data)

    def _event(self, event: Event, at_ns: int) -> None:
        if event.id:
            name = digest(event.id)
            if name in self._seen:
                # Sent again because the client may have missed it; here it was seen.
                return
            self._ids.append(name)
        if event.type == "endpoint" and self._method == "GET" and self._session is None:
            self._legacy = self._channel
            self._move(self._hub.legacy(self._server, self._channel, at_ns))
        elif event.type == "message":
            for message in messages(event.data):
                self.connection.take(message, Side.SERVER, at_ns, self._carrier)

    def _answer_over(self, at_ns: int) -> None:
        """The answer is whole."""
        if self._over:
            return
        self._over = True
        self._request_over(at_ns, cut=True)
        self._release()
        status = self._status or 0
        frame = self._got.take() if self._events is None or self._unread else None
        if frame is not None and self._method == "POST" and self._unread is None and frame.size:
            self._body(frame, at_ns)
        if self._session is not None and self._legacy is None:
            if status == 404:
                self._rest(at_ns, "error", "session_not_found", frame)
                self._hub.end_session(self._server, self._session, at_ns, "error", "session_not_found")
            elif self._method == "DELETE" and status < 300:
                self._hub.end_session(self._server, self._session, at_ns, "cancelled", "session_deleted")
        if status >= 400:
            self._rest(at_ns, "error", f"http_{status}", frame)
        elif self._unread is not None:
            self._rest(at_ns, "completed", f"unread_{self._unread}", frame)
        elif self._legacy is not None:
            if self._method == "GET":
                self._hub.end_legacy(self._server, self._channel, at_ns, "stream_ended")
        elif not self._detached(at_ns):
            self._rest(at_ns, "stream_aborted" if self._events else "error", "no_answer", frame)

    def _body(self, frame: Frame, at_ns: int) -> None:
        """A JSON body; of what is none, and the answer to no message, nothing is told but by its status."""
        failed = (self._status or 0) >= 300
        for message in messages(frame):
            if message.kind != "invalid" or not failed:
                self.connection.take(message, Side.SERVER, at_ns, self._carrier)

    def _close(self, reason: str, at_ns: int) -> None:
        """The exchange is over, whole or not."""
        self.connection.exchanges -= 1
        self._request_over(at_ns, cut=True)
        self._release()
        self._asked.drop()
        if self._events is not None:
            self._events.end()
        if self._over:
            self._got.drop()
            return
        self._over = True
        frame = self._got.take()
        connection, carrier = self.connection, self._carrier
        word = f"closed_by_{self._hub.maker.ident(reason[:32]) or 'unknown'}"
        if reason == "connect":
            self._rest(at_ns, "error", "connect", frame)
            connection.changed(connection.health.refused("connect"), at_ns)
        elif self._legacy is not None and self._method == "GET":
            self._hub.end_legacy(self._server, self._channel, at_ns, word)
        elif reason == "client" and (carrier.protocol_version or connection.party.protocol_version or "") >= "2026":
            # Since 2026-07-28 a client takes a request back by closing its stream.
            self._rest(at_ns, "cancelled", word, frame)
        elif not self._detached(at_ns):
            aborted = bool(carrier.open)
            self._rest(at_ns, "stream_aborted", word, frame)
            if aborted and reason == "upstream":
                connection.bad("aborted", at_ns)

    def _detached(self, at_ns: int) -> bool:
        """Whether what is open may still be answered: on a stream that goes on with this one."""
        if not self._carrier.open or not self._ids:
            return not self._carrier.open
        self.connection.detach(self._carrier, tuple(self._ids), at_ns)
        return True

    def _rest(self, at_ns: int, status: str, reason: str, frame: Frame | None) -> None:
        """What was asked here ends so."""
        if self._gap and status not in ("cancelled",):
            reason = "gap"
        carrier, connection = self._carrier, self.connection
        pendings = [pending for pending in carrier.open.values() if connection.requests.is_open(pending)]
        carrier.open.clear()
        side = self._hub.maker.raw_side(frame) if frame is not None and frame.size else None
        connection.give_up(pendings, at_ns, status, reason, http=carrier.http, response=side)
