"""A channel of the tap that is a stdio process."""

from __future__ import annotations

from typing import Any

from services.mcp_proxy.observer.connection import Carrier, Connection
from services.mcp_proxy.observer.frames import Frame, Lines, Room
from services.mcp_proxy.observer.messages import messages
from services.mcp_proxy.observer.noise import Stderr
from services.mcp_proxy.observer.records import about, number
from services.mcp_proxy.tap import Kind, Record, Side


class StdioChannel:
    """Lines of both sides, standard error, and the end of the process."""

    def __init__(self, connection: Connection, room: Room) -> None:
        self.connection = connection
        self._carrier = Carrier()
        self._lines = (Lines(room), Lines(room))
        self._stderr = Stderr(connection.maker, connection.party)
        self._exited = False

    def take(self, record: Record) -> None:
        """Any record of the channel but its OPEN."""
        kind, side, at_ns = record.kind, record.side, record.at_ns
        if kind is Kind.DATA:
            for frame in self._lines[side].feed(record.data):
                self._frame(frame, side, at_ns)
        elif kind is Kind.STDERR:
            self._stderr.feed(record.data, at_ns)
        elif kind is Kind.GAP:
            self.gap(side, at_ns, number(about(record).get("bytes")))
        elif kind is Kind.END:
            for frame in self._lines[side].end():
                self._frame(frame, side, at_ns)
        elif kind is Kind.EXIT:
            self._exit(about(record), at_ns)
        elif kind is Kind.CLOSE:
            self._close(str(about(record).get("reason")), at_ns)

    def tick(self, now_ns: int) -> None:
        """What is due."""
        self._stderr.turn(now_ns)
        self.connection.tick(now_ns)

    def gap(self, side: Side, at_ns: int, size: int = 0) -> None:
        """Bytes of this side were not copied; the frame in which they were is told when it ends."""
        self._lines[side].gap(size)
        self.connection.gap(side)
        self.connection.seen_ns = at_ns

    def _frame(self, frame: Frame, side: Side, at_ns: int) -> None:
        for message in messages(frame):
            self.connection.take(message, side, at_ns, self._carrier)

    def _exit(self, how: dict[str, Any], at_ns: int) -> None:
        number = how.get("signal")
        word = f"signal {number}" if isinstance(number, int) else f"exit code {how.get('code')}"[:64]
        self._over("error", "server_exited", word, at_ns)

    def _close(self, reason: str, at_ns: int) -> None:
        if self._exited:
            # What came after it answers nothing.
            self._rest(at_ns)
            return
        word = self.connection.maker.ident(reason[:32]) or "unknown"
        self._over("stream_aborted", f"closed_by_{word}", f"closed: {word}", at_ns)

    def _over(self, status: str, reason: str, word: str, at_ns: int) -> None:
        self._exited = True
        self._rest(at_ns)
        self.connection.close(at_ns, status, reason)
        self.connection.changed(self.connection.health.ended(word), at_ns)

    def _rest(self, at_ns: int) -> None:
        """What had no end."""
        for side, lines in zip(Side, self._lines, strict=True):
            for frame in lines.end():
                self._frame(frame, side, at_ns)
        self._stderr.turn(at_ns, over=True)
