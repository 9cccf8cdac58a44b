"""What is remembered of one tool call and of one session, and what follows from it.

A million open calls must fit in 1 GiB, so what the derived event copies from the start is kept as one JSON array.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import orjson

NEVER = 1 << 62
"""A log time (ms) after every other."""
MAX_APPROVALS = 64
"""Approval records kept per call, the earliest; a call with more is counted, not remembered better."""
MAX_SESSION_ENDS = 32
"""Ends kept per session, the latest: a resumed session can end often."""

ASKED, ALLOWED = 0, 1

COPIED = (
    "tenant_id",
    "workspace_id",
    "user_id_hash",
    "trace_id",
    "span_id",
    "parent_span_id",
    "agent_runtime",
    "agent_version",
    "agent_id",
    "agent_role",
    "session_id",
    "root_session_id",
    "parent_session_id",
    "session_key",
    "turn_id",
    "run_id",
    "model_call_id",
    "labels",
    "tool_call_id",
    "tool_name",
    "tool_source",
    "mcp",
)
"""Fields that a derived event has from the start of its call; the array begins with the start's timestamp."""

Verdict: TypeAlias = tuple[str, int, int, str | None]
"""Kind (`timed_out`, `abandoned`), log time at which it came true (ms), deadline (ms), cause."""


def pack(started: dict[str, Any]) -> bytes:
    """What will be said about the call later, from its `tool.call.started`."""
    get = started.get
    packed = orjson.dumps([started["timestamp"], *[get(name) for name in COPIED]])
    # orjson's bytes keep the 4 KiB buffer that they were written to; a copy has its own size.
    return bytes(memoryview(packed))


def unpack(packed: bytes) -> tuple[str, dict[str, Any]]:
    """The start's timestamp, and the copied fields that it had."""
    values = orjson.loads(packed)
    fields = {name: value for name, value in zip(COPIED, values[1:], strict=True) if value is not None}
    return values[0], fields


class Session:
    """The calls of a session that are not closed (one id, or a set of them), and when and why it ended, sorted.

    `remembered` counts the ends that are young enough to matter for a start that is still to come.
    """

    __slots__ = ("calls", "ends", "name", "remembered")

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: str | set[str] | None = None
        self.ends: tuple[tuple[int, str], ...] = ()
        self.remembered = 0

    def add(self, call_id: str) -> None:
        if self.calls is None or self.calls == call_id:
            self.calls = call_id
        elif isinstance(self.calls, str):
            self.calls = {self.calls, call_id}
        else:
            self.calls.add(call_id)

    def discard(self, call_id: str) -> None:
        if self.calls == call_id:
            self.calls = None
        elif isinstance(self.calls, set):
            self.calls.discard(call_id)
            if not self.calls:
                self.calls = None

    def ids(self) -> list[str]:
        if self.calls is None:
            return []
        return [self.calls] if isinstance(self.calls, str) else sorted(self.calls)


class Call:
    """One call: earliest start and earliest end by log time (NEVER if unseen), and its approval records in order."""

    __slots__ = ("approvals", "closed", "end_ms", "packed", "said", "session", "start_ms", "ttl_ms", "wake_s")

    def __init__(self) -> None:
        self.start_ms = NEVER
        self.end_ms = NEVER
        self.ttl_ms = 0
        self.packed: bytes | None = None
        self.session: Session | None = None
        self.approvals: list[tuple[int, int]] | None = None
        self.closed = False
        self.said: Verdict | None = None
        self.wake_s = 0

    def deadline(self, approval_ttl_ms: int) -> tuple[int, bool]:
        """When the call runs out, and whether it waits for a decision then.

        The clock starts at the start with the call's TTL. A request for approval that comes before it ran out gives it
        the approval TTL instead, the decision starts it anew.
        """
        deadline, waiting = self.start_ms + self.ttl_ms, False
        for at_ms, kind in self.approvals or ():
            if at_ms > deadline:
                break
            waiting = kind == ASKED
            if waiting:
                deadline = max(deadline, at_ms + approval_ttl_ms)
            else:
                deadline = max(at_ms, self.start_ms) + self.ttl_ms
        return deadline, waiting

    def session_end(self, deadline: int) -> tuple[int, str] | None:
        """The first end of its session while the call ran: log time in ms, and cause."""
        if self.session is not None:
            for end in self.session.ends:
                if self.start_ms <= end[0] <= deadline:
                    return end
        return None

    def last_ms(self) -> int:
        """Log time of the last record that decided about it."""
        times = [ms for ms in (self.start_ms, self.end_ms) if ms != NEVER]
        return max([*times, *(at_ms for at_ms, _ in self.approvals or ())])
