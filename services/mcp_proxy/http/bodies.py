"""Where the body of an HTTP/1.1 message ends (RFC 9112 sections 6 and 7). Bytes are looked at, never changed."""

from __future__ import annotations

import re

_MAX_LINE = 4 << 10
_MAX_TRAILERS = 64 << 10
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_UNFINISHED = re.compile(rb"[\t\x20-\x7e\x80-\xff]*\r?")


class Body:
    """A body as it comes. `done` once its end was seen; `fault` says why its framing cannot be read any further."""

    __slots__ = ("done", "fault")

    def __init__(self) -> None:
        self.done = False
        self.fault: str | None = None

    def feed(self, data: bytes, start: int) -> tuple[int, bytes]:
        """From `start` on: where the bytes of this body end in `data`, and its content in them, framing removed."""
        raise NotImplementedError

    def end(self) -> None:
        """The sender closed the connection."""


class Length(Body):
    """Content-Length, or no body at all."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size
        self.done = not size

    def feed(self, data: bytes, start: int) -> tuple[int, bytes]:
        """See Body."""
        end = min(len(data), start + self._left)
        self._left -= end - start
        self.done = not self._left
        return end, data[start:end]


class UntilClose(Body):
    """An answer that lasts until the connection ends."""

    __slots__ = ()

    def feed(self, data: bytes, start: int) -> tuple[int, bytes]:
        """See Body."""
        return len(data), data[start:]

    def end(self) -> None:
        """See Body."""
        self.done = True


class Tunnel(UntilClose):
    """What follows 101 Switching Protocols: no longer HTTP, until either side closes."""

    __slots__ = ()


class Chunked(Body):
    """Transfer-Encoding: chunked, with extensions and trailers."""

    __slots__ = ("_left", "_line", "_state", "_trailers")

    def __init__(self) -> None:
        super().__init__()
        self._state = self._size
        self._line = b""
        self._left = self._trailers = 0

    @property
    def cut(self) -> int | None:
        """At the end of what was fed: how many bytes of the chunk are to come, 0 between chunks, None inside framing."""
        if self._left or self.done:
            return self._left
        return 0 if self._state == self._size and not self._line else None

    def feed(self, data: bytes, start: int) -> tuple[int, bytes]:
        """See Body."""
        pieces: list[bytes] = []
        at, size = start, len(data)
        while at < size and not self.done:
            if self._left:
                end = min(size, at + self._left)
                pieces.append(data[at:end])
                self._left -= end - at
                at = end
                continue
            end = data.find(b"\n", at) + 1
            line = self._line + data[at : end or size]
            if len(line) > _MAX_LINE or not (end or _UNFINISHED.fullmatch(line)):
                self.fault = "a chunk's framing that is not one"
                break
            if end:
                self._line = b""
                if not self._state(line):
                    self.fault = "a chunk's framing that is not one"
                    break
            else:
                self._line = line
            at = end or size
        return at, pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # the three kinds of line

    def _size(self, line: bytes) -> bool:
        found = _SIZE.fullmatch(line)
        if found is None:
            return False
        self._left = int(found[1], 16)
        self._state = self._after if self._left else self._trailer
        return True

    def _after(self, line: bytes) -> bool:
        self._state = self._size
        return line == b"\r\n"

    def _trailer(self, line: bytes) -> bool:
        self.done = line == b"\r\n"
        self._trailers += len(line)
        return self.done or (self._trailers <= _MAX_TRAILERS and _TRAILER.fullmatch(line) is not None)
