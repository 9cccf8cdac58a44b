"""What a server says beside the protocol: its standard error, and lines on its standard output that are no messages."""

from __future__ import annotations

from typing import Any

from schemas.events import McpServer, RpcSide
from services.mcp_proxy.observer.frames import Frame
from services.mcp_proxy.observer.making import Maker, Party
from services.mcp_proxy.observer.messages import Message
from services.mcp_proxy.tap import Side

MAX_STDERR = 64 << 10
"""Bytes of standard error looked at in one turn of STDERR_NS; what is beyond is only counted."""
STDERR_NS = 2_000_000_000
MAX_INVALID = 30
"""Invalid frames told one by one in INVALID_NS; the others are told together."""
INVALID_NS = 60_000_000_000
_BEGIN, _END = b"-----BEGIN", b"-----END"
_MAX_KEY_LINES = 200


class Stderr:
    """Standard error of one process: an event for what came in two seconds, redacted as one text, so that a secret is
    not cut in two by the way in which it was written.
    """

    def __init__(self, maker: Maker, party: Party) -> None:
        self._maker = maker
        self._party = party
        self._kept = bytearray()
        self._beyond = 0
        self._since_ns = 0

    def feed(self, data: bytes, at_ns: int) -> None:
        """Bytes as they came."""
        self.turn(at_ns)
        if not self._kept and not self._beyond:
            self._since_ns = at_ns
        room = max(0, MAX_STDERR - len(self._kept))
        self._kept += data[:room]
        self._beyond += max(0, len(data) - room)

    def turn(self, now_ns: int, *, over: bool = False) -> None:
        """Tell what is due; all of it when it is `over`."""
        if not (self._kept or self._beyond) or (not over and now_ns - self._since_ns < STDERR_NS):
            return
        full = len(self._kept) >= MAX_STDERR
        # Whole lines, and keys whole.
        end = len(self._kept) if over else self._kept.rfind(b"\n") + 1
        begun = self._kept.rfind(_BEGIN, 0, end)
        if begun >= 0 and not over and self._kept.find(_END, begun, end) < 0:
            end = begun
        if not end and not full:
            return
        if not end or (full and end < MAX_STDERR):
            # What is left of a line or key that does not fit is not told: without its beginning it could not be redacted.
            self._beyond += len(self._kept) - end
            del self._kept[end:]
        text = bytes(self._kept[:end])
        del self._kept[:end]
        content = self._maker.content(text.decode("utf-8", "replace"), "output")
        content = content.model_copy(update={"size_bytes": len(text) + self._beyond})
        self._maker.event(
            McpServer,
            "mcp.server.stderr",
            self._since_ns,
            connection_id=self._party.connection_id,
            mcp_server=self._party.server,
            transport=self._party.transport,
            agent_runtime=self._party.runtime,
            content=content,
            reason="sampled" if self._beyond else None,
        )
        self._beyond, self._since_ns = 0, now_ns


class Invalid:
    """Frames of one connection that are no messages."""

    def __init__(self, maker: Maker, party: Party) -> None:
        self._maker = maker
        self._party = party
        self._turn_ns = 0
        self._told = 0
        self._more: dict[tuple[Side, str], tuple[int, int]] = {}
        self._in_key = 0

    def take(self, message: Message, side: Side, at_ns: int) -> None:
        """One of them."""
        self.turn(at_ns)
        reason = message.reason or "not_jsonrpc"
        hidden = self._key_inside(message.frame)
        if self._told >= MAX_INVALID:
            frames, size = self._more.get((side, reason), (0, 0))
            self._more[side, reason] = frames + 1, size + message.size
            return
        if not self._told:
            self._turn_ns = at_ns
        self._told += 1
        body = message.frame.body
        summary = None
        if body is not None and not hidden and message.frame.cut is None and not self._maker.metadata_only:
            summary = self._maker.shown(body)
        self._tell(side, at_ns, reason, self._maker.raw_side(message.frame, summary))

    def turn(self, now_ns: int, *, over: bool = False) -> None:
        """Tell what was counted, when the minute is over."""
        if not self._told or (not over and now_ns - self._turn_ns < INVALID_NS):
            return
        self._told = 0
        more, self._more = self._more, {}
        for (side, reason), (frames, size) in more.items():
            self._tell(side, now_ns, reason, RpcSide(size_bytes=size), frames)

    def _key_inside(self, frame: Frame) -> bool:
        """Whether the line is one of a private key that is printed line by line."""
        body = frame.body or frame.head
        if _BEGIN in body and _END not in body:
            self._in_key = _MAX_KEY_LINES
            return True
        inside = self._in_key > 0
        self._in_key = 0 if _END in body else max(0, self._in_key - 1)
        return inside

    def _tell(self, side: Side, at_ns: int, reason: str, raw: RpcSide, frames: int | None = None) -> None:
        which: dict[str, Any] = {"request" if side is Side.CLIENT else "response": raw}
        maker, party = self._maker, self._party
        maker.rpc("mcp.rpc.invalid_frame", at_ns, party, side, "error", reason=reason, frames=frames, **which)
