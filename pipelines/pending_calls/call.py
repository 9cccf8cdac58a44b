"""What is remembered of one tool call, and what follows from it.

A million open calls must fit in 1 GiB: what a derived event copies from the start is kept as two texts, one of them
shared by the calls that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson

from pipelines.runtime.port import Event

NEVER = 1 << 62
"""A log time (ms) after every other."""
MAX_APPROVALS = 64
"""Approval records kept per call, the earliest; a call with more is counted, not remembered better."""

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
"""Fields that a derived event has from the start of its call."""
_ALIKE = (
    "tenant_id",
    "workspace_id",
    "user_id_hash",
    "agent_runtime",
    "agent_version",
    "agent_id",
    "agent_role",
    "labels",
    "tool_name",
    "tool_source",
    "mcp",
)
"""Those of them that many calls have alike."""
_OWN = (
    "timestamp",
    "trace_id",
    "span_id",
    "parent_span_id",
    "parent_session_id",
    "session_key",
    "turn_id",
    "run_id",
    "model_call_id",
    "tool_call_id",
)
"""The others. After them come the root session, unless it is the session, and the session, if it has no name."""

Verdict: TypeAlias = tuple[str, int, int, str | None]
"""Kind (`timed_out`, `abandoned`), log time at which it came true (ms), deadline (ms), cause."""
Ends: TypeAlias = tuple[tuple[int, str], ...]
"""Log times (ms) at which a session ended, and why, sorted."""


def rank(started: Mapping[str, Any]) -> bytes:
    """Orders starts of one call and one log time: the least of them stands."""
    get = started.get
    return orjson.dumps([started["timestamp"], *[get(name) for name in COPIED]])


def session_name(event: Event) -> str | None:
    """Tenant and session of an event; None without a session."""
    name = event.get("session_id")
    if not name:
        return None
    tenant = event.get("tenant_id")
    return f"{tenant}\n{name}" if tenant else name


def pack(started: Event) -> tuple[str, str]:
    """What will be said about the call later: a text that is alike for many calls, and one that is its own."""
    get = started.get
    own = [get(name) for name in _OWN]
    session, root = get("session_id"), get("root_session_id")
    if not session or type(session) is not str:
        own += (root, session)
    elif root != session:
        own.append(root)
    return _json([get(name) for name in _ALIKE]), _lines(own)


def unpack(alike: str, own: str, session: str | None) -> Event:
    """The fields that were packed of a start with this session_name."""
    fields = dict(zip(_ALIKE, orjson.loads(alike), strict=True))
    values = _split(own)
    fields.update(zip(_OWN, values, strict=False))
    rest = values[len(_OWN) :]
    if len(rest) == 2:
        fields["root_session_id"], fields["session_id"] = rest
    else:
        assert session is not None
        tenant = fields["tenant_id"]
        fields["session_id"] = session[len(f"{tenant}\n") :] if tenant else session
        fields["root_session_id"] = rest[0] if rest else fields["session_id"]
    return fields


def _json(values: list[Any]) -> str:
    try:
        return orjson.dumps(values).decode()
    except TypeError:
        # Nested deeper than can be written: no derived event could have it.
        return orjson.dumps([value if type(value) is str else None for value in values]).decode()


def _lines(values: list[Any]) -> str:
    """Values as lines, an empty one for None; as JSON where that would not give them back."""
    try:
        text = "\n".join([value or "" for value in values])
    except TypeError:
        return _json(values)
    return text if _split(text) == values else _json(values)


def _split(text: str) -> list[Any]:
    if text.startswith("["):
        values: list[Any] = orjson.loads(text)
        return values
    return [value or None for value in text.split("\n")]


class Call:
    """One call: earliest start and earliest end by log time (NEVER if unseen), and its approval records in order.

    What will be said of it is in `own`: the start itself while the call is young, then packed, with `alike`. `due` is
    the list of calls to wake in which it stands.
    """

    __slots__ = ("alike", "approvals", "closed", "due", "end_ms", "own", "said", "session", "start_ms", "ttl_ms")

    def __init__(
        self, start_ms: int = NEVER, end_ms: int = NEVER, ttl_ms: int = 0, session: str | None = None, own: Any = None
    ) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.ttl_ms = ttl_ms
        self.session = session
        self.own: Event | str | None = own
        self.alike: str | None = None
        self.approvals: list[tuple[int, int]] | None = None
        self.closed = False
        self.said: Verdict | None = None
        self.due: list[str] | None = None

    def started(self) -> Event:
        """The start, or those fields of it that are kept."""
        if isinstance(self.own, str):
            assert self.alike is not None
            return unpack(self.alike, self.own, self.session)
        assert self.own is not None
        return self.own

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

    def session_end(self, ends: Ends, deadline: int) -> tuple[int, str] | None:
        """The first end of its session while the call ran: log time in ms, and cause."""
        for end in ends:
            if self.start_ms <= end[0] <= deadline:
                return end
        return None

    def last_ms(self) -> int:
        """Log time of the last record that decided about it."""
        times = [ms for ms in (self.start_ms, self.end_ms) if ms != NEVER]
        return max([*times, *(at_ms for at_ms, _ in self.approvals or ())])
