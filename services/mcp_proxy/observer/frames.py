"""Bytes into frames: a frame is one line of a stdio stream, the data of one event of an SSE stream, or one HTTP body.

A frame of up to MAX_WHOLE bytes is kept whole. A longer one is hashed and searched for secrets as it comes, and of its
text only the beginning and the end are kept. All frames of an observer together hold at most MAX_HELD bytes; beyond
that nothing but size and hash is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.capture.content import MAX_HASHED_BYTES, Capture
from services.capture.keyed import Keyed, Running
from services.capture.redaction import Finding

MAX_WHOLE = MAX_HASHED_BYTES
MAX_HELD = 64 << 20
EDGE = 64 << 10
"""Bytes kept of the beginning and of the end of a frame that is too large to be kept."""
_WINDOW, _OVERLAP = 256 << 10, 8 << 10
_MAX_FINDINGS = 64


@dataclass(slots=True)
class Frame:
    """One frame. `body` is None where it was too large: then `head` and `tail` are its edges (empty where there was no
    room for them), `hash` is over its bytes, and `findings` are the secrets seen in it.
    """

    size: int
    body: bytes | None
    hash: str | None = None
    head: bytes = b""
    tail: bytes = b""
    findings: tuple[Finding, ...] = ()
    cut: str | None = None
    """Why it is not what was sent: `gap` (bytes were not copied), `unfinished` (the stream ended within it)."""


class Room:
    """What all frames of one observer hold, and how they are to be looked at now."""

    def __init__(self, capture: Capture, limit: int = MAX_HELD) -> None:
        self.capture = capture
        self.keyed = Keyed(capture.settings.hash_key)
        self.limit = limit
        self.held = 0
        self.scan = True
        """Whether large frames are searched for secrets."""


class Gather:
    """Collects one frame after the other. `add` its bytes as they come; `take` gives the frame and begins the next."""

    __slots__ = ("_digest", "_findings", "_head", "_parts", "_room", "_tail", "_window", "cut", "size")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._parts: list[bytes] = []
        self._clear()

    def _clear(self) -> None:
        self._parts.clear()
        self.size = 0
        self.cut: str | None = None
        self._digest: Running | None = None
        self._head = self._tail = self._window = b""
        self._findings: dict[Finding, None] = {}

    def add(self, data: bytes) -> None:
        """The next bytes of the frame."""
        self.size += len(data)
        if self._digest is None:
            if self.size <= MAX_WHOLE and self._room.held + len(data) <= self._room.limit:
                self._parts.append(data)
                self._room.held += len(data)
                return
            whole = b"".join(self._parts)
            self._room.held -= len(whole)
            self._parts.clear()
            self._digest = self._room.keyed.running()
            data = whole + data
        self._digest.update(data)
        if self._room.held + EDGE + _WINDOW > self._room.limit:
            self._hold(b"", b"", b"")
            return
        tail = data[-EDGE:] if len(data) >= EDGE else (self._tail + data)[-EDGE:]
        window = self._search(self._window + data) if self._room.scan else b""
        self._hold(self._head or data[:EDGE], tail, window)

    def take(self) -> Frame:
        """The frame that ends here."""
        if self._digest is None:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._room.held -= len(body)
            frame = Frame(self.size, body, cut=self.cut)
        else:
            if self._window:
                self._find(self._window)
            findings = tuple(self._findings)[:_MAX_FINDINGS]
            digest = f"hmac-sha256:{self._room.capture.settings.key_id}:raw:{self._digest.hex()}"
            frame = Frame(self.size, None, digest, self._head, self._tail, findings, self.cut)
            self._hold(b"", b"", b"")
        self._clear()
        return frame

    def miss(self, size: int) -> None:
        """So many bytes are missing; 0 where some may be, which nothing tells between two frames."""
        if size or self.size:
            self.cut = "gap"
            self.size += size

    def drop(self) -> int:
        """Forget the frame; how long it was."""
        size = self.size
        self._room.held -= sum(map(len, self._parts)) + len(self._head) + len(self._tail) + len(self._window)
        self._clear()
        return size

    def _hold(self, head: bytes, tail: bytes, window: bytes) -> None:
        before = len(self._head) + len(self._tail) + len(self._window)
        self._head, self._tail, self._window = head, tail, window
        self._room.held += len(head) + len(tail) + len(window) - before

    def _search(self, window: bytes) -> bytes:
        """Look through all but the end, which the next window begins with."""
        if len(window) < _WINDOW:
            return window
        self._find(window)
        return window[-_OVERLAP:]

    def _find(self, window: bytes) -> None:
        for start in range(0, len(window), _WINDOW):
            if len(self._findings) < _MAX_FINDINGS:
                found = self._room.capture.redactor.scan(window[max(0, start - _OVERLAP) : start + _WINDOW])
                self._findings.update(dict.fromkeys(found))


class Lines:
    """Frames of a stdio stream: they end at 0x0A and nowhere else (MCP, transports, stdio)."""

    def __init__(self, room: Room) -> None:
        self._gather = Gather(room)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that end within these bytes."""
        start = 0
        gather = self._gather
        while (end := data.find(b"\n", start)) >= 0:
            if not gather.size and gather.cut is None and end - start <= MAX_WHOLE:
                if end > start:
                    yield Frame(end - start, data[start:end])
            else:
                gather.add(data[start:end])
                yield gather.take()
            start = end + 1
        if start < len(data):
            gather.add(data[start:])

    def gap(self, size: int) -> None:
        """So many bytes are missing here: the frame in which they were cannot be read."""
        self._gather.miss(size)

    def end(self) -> Iterator[Frame]:
        """The stream is over: what is left was no whole frame."""
        if self._gather.size or self._gather.cut:
            self._gather.cut = self._gather.cut or "unfinished"
            yield self._gather.take()
