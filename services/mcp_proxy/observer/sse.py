"""Server-sent events (WHATWG HTML, 9.2): the frames that a stream carries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from services.mcp_proxy.observer.frames import Frame, Gather, Room

_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_DATA = b"data:"
_MAX_FIELD = 4096
"""Bytes of a line that is no data; what is longer is a comment or of no use here."""


@dataclass(slots=True)
class Event:
    """One event: its type (`message` where none is given), its data, and its own id if it has one."""

    type: str
    data: Frame
    id: str | None


class Events:
    """Bytes of a `text/event-stream` into events. Raises nothing; an event that is cut off at the end is dropped."""

    def __init__(self, room: Room) -> None:
        self._gather = Gather(room)
        self._line = b""
        self._in_data = False
        self._has_data = False
        self._after_cr = False
        self._at_start = True
        self._type = ""
        self._gap = False
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end within these bytes."""
        start = 0
        if self._after_cr and chunk:
            self._after_cr = False
            start = chunk[:1] == b"\n"
        for end in _END.finditer(chunk, start):
            event = self._ended(chunk[start : end.start()])
            start = end.end()
            if event is not None:
                yield event
        if chunk[-1:] == b"\r":
            self._after_cr = True
        if start < len(chunk):
            self._begun(chunk[start:])

    def gap(self) -> None:
        """Bytes are missing here. The event in which they were cannot be read."""
        self._gap = True
        self._line = b""
        self._in_data = False
        self._gather.cut = "gap"

    def end(self) -> int:
        """The stream is over; how many bytes of an unfinished event there were."""
        return self._gather.drop()

    # lines

    def _begun(self, piece: bytes) -> None:
        """A piece of a line that goes on. The data of an event may be long, so it is not kept a second time."""
        if self._in_data:
            self._gather.add(piece)
            return
        line = self._line + piece
        if len(line) > len(_DATA) + len(_BOM) and self._plain(line).startswith(_DATA):
            self._data(self._plain(line)[len(_DATA) :])
            self._line, self._in_data, self._at_start = b"", True, False
        else:
            self._line = line[:_MAX_FIELD]

    def _ended(self, piece: bytes) -> Event | None:
        if self._in_data:
            self._gather.add(piece)
            self._in_data = False
            return None
        line = self._plain(self._line + piece)
        self._line, self._at_start = b"", False
        if not line:
            return self._dispatch()
        if line.startswith(_DATA):
            self._data(line[len(_DATA) :])
        elif line == b"data":
            self._data(b"")
        else:
            name, _, value = line[:_MAX_FIELD].partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                self._type = value.decode("utf-8", "replace")
            elif name == b"id" and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        return None

    def _plain(self, line: bytes) -> bytes:
        return line.removeprefix(_BOM) if self._at_start else line

    def _data(self, value: bytes) -> None:
        if self._has_data:
            self._gather.add(b"\n")
        self._has_data = True
        self._gather.add(value.removeprefix(b" "))

    def _dispatch(self) -> Event | None:
        kind, self._type = self._type or "message", ""
        id, self._id = self._id, None
        has, self._has_data = self._has_data, False
        # After a gap the blank line may end another event than the one that is here in part.
        if not has and not self._gap:
            return None
        self._gap = False
        return Event(kind, self._gather.take(), id)
