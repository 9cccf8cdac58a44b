"""The wire between the process that forwards MCP traffic and the one that looks at a copy of it.

A record is a head of 26 bytes (little-endian: kind u8, side u8, channel u64, time u64, length u64) and its data. The time is
nanoseconds since 1970 by a clock that never goes back (`clock_ns`). A channel is one stdio process or one HTTP exchange.
The writer never blocks and holds a bounded number of bytes; what does not fit is counted, not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

HEAD = struct.Struct("<BBQQQ")
_GATHER = 64
_GATHER_S, _GATHER_BYTES = 0.005, 64 << 10
"""What is written within so long, or up to so many bytes, goes in one call: half the cost of a small exchange."""
_OPEN, _CLOSE = 1, 8


class Kind(IntEnum):
    """What a record says; its data is JSON where a form is given here, bytes as they came otherwise."""

    OPEN = _OPEN
    """{"server", "transport", "command"?, "pid"?, "http"?: {"method", "target", "headers": {lower-case name: value}}}"""
    HEAD = 2
    """HTTP: the head of the answer, {"status", "headers": {lower-case name: value}}; also a second one after 1xx."""
    DATA = 3
    END = 4
    """The side will send no more (end of the HTTP body, end of file of a pipe)."""
    GAP = 5
    """{"bytes"}: so many bytes of this side passed here and were not copied."""
    STDERR = 6
    EXIT = 7
    """{"code"} or {"signal"}: the server's process ended."""
    CLOSE = _CLOSE
    """{"reason"}: the channel is over; `done`, or who broke it off: `client`, `upstream`, `connect`, `timeout`."""
    LOST = 9
    """{"records"}: so many records, of any channel, were not written at all."""


class Side(IntEnum):
    """Who sent the bytes."""

    CLIENT = 0
    SERVER = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record as the reader gives it."""

    kind: Kind
    channel: int
    side: Side
    at_ns: int
    data: bytes

    def json(self) -> dict[str, Any]:
        """The data of a record whose kind is JSON."""
        found: dict[str, Any] = json.loads(self.data or b"{}")
        return found


_ANCHOR_NS = time.time_ns() - time.monotonic_ns()


def clock_ns() -> int:
    """Nanoseconds since 1970, anchored when the process started and never going back."""
    return _ANCHOR_NS + time.monotonic_ns()


class Tap:
    """The writer. Every method returns at once and raises nothing; call all of them on the event loop's thread.

    Past `max_bytes` waiting, the bytes of DATA and STDERR are only counted (a GAP at their place); past twice of it no
    record is kept, and a LOST one says how many.
    """

    def __init__(self, max_bytes: int = 8 << 20) -> None:
        self.max_bytes = max_bytes
        self.waiting = 0
        self._records: deque[tuple[bytes, bytes]] = deque()
        self._sent = 0
        self._gaps: dict[tuple[int, Side], int] = {}
        self._lost = 0
        self._open: dict[int, bytes] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.Handle | None = None
        self._hurried = False
        self._ending: asyncio.Future[None] | None = None

    def open(self, channel: int, about: dict[str, Any]) -> None:
        """A channel begins."""
        data = json.dumps(about).encode()
        self._open[channel] = data
        self._put(Kind.OPEN, channel, Side.CLIENT, data)

    def data(self, channel: int, side: Side, data: bytes) -> None:
        """Bytes that were forwarded; `data` must not change afterwards."""
        self._bytes(Kind.DATA, channel, side, data)

    def stderr(self, channel: int, data: bytes) -> None:
        """Bytes that the server wrote to its standard error."""
        self._bytes(Kind.STDERR, channel, Side.SERVER, data)

    def say(self, kind: Kind, channel: int, side: Side, about: dict[str, Any] | None = None) -> None:
        """HEAD, END, EXIT."""
        self._put(kind, channel, side, json.dumps(about).encode() if about else b"")

    def close(self, channel: int, reason: str = "done") -> None:
        """A channel is over."""
        self._open.pop(channel, None)
        for side in Side:
            self._gap(channel, side)
        self._put(Kind.CLOSE, channel, Side.CLIENT, json.dumps({"reason": reason}).encode())

    def attach(self, connection: socket.socket) -> None:
        """From now on send to this socket (made non-blocking); what waits goes first, after the channels open now."""
        connection.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._schedule()

    def detach(self) -> None:
        """The reader is gone: the socket is closed, a record half sent counts as lost, open channels are told again to
        the next reader with `"resumed": true`.
        """
        if self._socket is None:
            return
        assert self._loop is not None
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        if self._sent and self._records:
            head, data = self._records.popleft()
            self.waiting -= len(head) + len(data)
            self._lost += 1
        self._sent = 0
        for channel, about in reversed(self._open.items()):
            again = json.dumps(json.loads(about) | {"resumed": True}).encode()
            head = HEAD.pack(Kind.OPEN, Side.CLIENT, channel, clock_ns(), len(again))
            self._records.appendleft((head, again))
            self.waiting += len(head) + len(again)

    async def end(self, within_s: float) -> None:
        """Send what waits, for at most so long, then close the socket: the reader sees the end of the tap."""
        if self._socket is not None and (self._records or self._lost):
            self._ending = asyncio.get_running_loop().create_future()
            self._flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending, within_s)
        if self._socket is not None:
            assert self._loop is not None
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    # parts

    def _bytes(self, kind: Kind, channel: int, side: Side, data: bytes) -> None:
        if self.waiting + len(data) > self.max_bytes:
            self._gaps[channel, side] = self._gaps.get((channel, side), 0) + len(data)
            self._schedule()
            return
        self._gap(channel, side)
        self._put(kind, channel, side, data)

    def _gap(self, channel: int, side: Side) -> None:
        missed = self._gaps.pop((channel, side), 0)
        if missed:
            self._put(Kind.GAP, channel, side, json.dumps({"bytes": missed}).encode())

    def _put(self, kind: Kind, channel: int, side: Side, data: bytes) -> None:
        if kind is Kind.END:
            self._gap(channel, side)
        if self.waiting > 2 * self.max_bytes:
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            self._append(Kind.LOST, 0, Side.CLIENT, json.dumps({"records": lost}).encode())
        self._append(kind, channel, side, data)
        self._schedule()

    def _append(self, kind: Kind, channel: int, side: Side, data: bytes) -> None:
        head = HEAD.pack(kind, side, channel, clock_ns(), len(data))
        self._records.append((head, data))
        self.waiting += len(head) + len(data)

    def _schedule(self) -> None:
        """Sending comes after what the loop has to forward now, and some of it together."""
        if self._socket is None or self._loop is None:
            return
        if self._due is None:
            self._due = self._loop.call_later(_GATHER_S, self._flush)
        elif self.waiting > _GATHER_BYTES and not self._hurried:
            self._hurried = True
            self._due.cancel()
            self._due = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._due, self._hurried = None, False
        connection = self._socket
        if connection is None or self._loop is None:
            return
        while self._records:
            try:
                sent = connection.sendmsg(self._buffers())
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(connection, self._flush)
                return
            except OSError:
                self.detach()
                return
            self._drop(sent)
        self._loop.remove_writer(connection)
        if self._lost and not self._records:
            lost, self._lost = self._lost, 0
            self._append(Kind.LOST, 0, Side.CLIENT, json.dumps({"records": lost}).encode())
            self._schedule()
        elif self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def _buffers(self) -> list[memoryview]:
        found: list[memoryview] = []
        skip = self._sent
        for head, data in self._records:
            for part in (head, data):
                if skip >= len(part):
                    skip -= len(part)
                    continue
                found.append(memoryview(part)[skip:])
                skip = 0
            if len(found) >= _GATHER:
                break
        return found

    def _drop(self, sent: int) -> None:
        self._sent += sent
        while self._records:
            head, data = self._records[0]
            size = len(head) + len(data)
            if self._sent < size:
                return
            self._sent -= size
            self.waiting -= size
            self._records.popleft()


class Reader:
    """Bytes of a tap into records, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Record]:
        """The records that are whole now. Raises ValueError for what no Tap wrote."""
        self._buffer += chunk
        start = 0
        try:
            while len(self._buffer) - start >= HEAD.size:
                kind, side, channel, at_ns, length = HEAD.unpack_from(self._buffer, start)
                end = start + HEAD.size + length
                if len(self._buffer) < end:
                    break
                data = bytes(memoryview(self._buffer)[start + HEAD.size : end])
                start = end
                yield Record(Kind(kind), channel, Side(side), at_ns, data)
        finally:
            del self._buffer[:start]
