"""What counts as the end of a call, and which of several ends of one call counts.

Duplicates and second opinions (a hook and a batch, a timeout and a late answer) are normal; every number that counts
calls rests on this one choice, so it depends on the ends alone and not on the order in which they were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from schemas.events import Outcome

SAME_CALL_MS = 5 * 60_000
"""Two ends of one call at most this far apart are one end; further apart, both count."""

MAX_ENDS = 16
"""Ends kept of one call: the strongest."""

_TOOL_OUTCOME = {
    "tool.call.completed": "unknown",
    "tool.call.error": "error",
    "tool.call.blocked": "blocked",
    "tool.call.timed_out": "timeout",
    "tool.call.abandoned": "unknown",
}
OUTCOMES: tuple[str, ...] = get_args(Outcome)
_RPC_OUTCOME = {
    "completed": "ok",
    "late": "ok",
    "error": "error",
    "stream_aborted": "error",
    "timeout": "timeout",
    "cancelled": "cancelled",
}
"""Status of an MCP answer to an outcome. `input_required` and `task_pending` are missing: the operation goes on."""

TOOL_ENDS = frozenset(_TOOL_OUTCOME)
RPC_ENDS = frozenset({"mcp.rpc.response", "mcp.rpc.error"})
INFERRED = frozenset({"tool.call.timed_out", "tool.call.abandoned"})
KNOWN = frozenset({"ok", "error", "timeout"})
"""Outcomes that say whether a call worked; an error rate is over these."""
FAILED = frozenset({"error", "timeout"})


class End(NamedTuple):
    """One end of a call, ordered by strength: said by a runtime before inferred, the earlier before the later."""

    inferred: bool
    ms: int
    event_id: str
    payload: Any


def outcome_of(event: Mapping[str, Any]) -> str | None:
    """The outcome that an event proves, or None if it ends no call (a wrapper's end, an answer that asks for more)."""
    name = event["event_name"]
    outcome = _TOOL_OUTCOME.get(name)
    if outcome is not None:
        if event.get("wrapper"):
            return None
        said = event.get("outcome")
        return str(said) if said in OUTCOMES else outcome
    if name not in RPC_ENDS:
        return None
    outcome = _RPC_OUTCOME.get(event.get("status") or ("error" if name == "mcp.rpc.error" else "completed"))
    if outcome == "ok" and (event.get("is_error_result") or name == "mcp.rpc.error"):
        return "error"
    return outcome


def call_ref(event: Mapping[str, Any]) -> str:
    """What joins the events of one call: call_id, or for the wire the operation, or the connection's request id."""
    if event["event_name"][:8] != "mcp.rpc.":
        ref = event.get("call_id")
        if type(ref) is str and ref:
            return ref
    else:
        operation = event.get("operation_id")
        if operation:
            return f"rpc:{operation}"
        if event.get("jsonrpc_id") is not None:
            connection = event.get("connection_id") or event.get("session_id") or ""
            return f"rpc:{connection}|{event['jsonrpc_id']}"
    return f"event:{event['event_id']}"


def counting(ends: Sequence[End]) -> Sequence[End]:
    """Those ends of one call that count: none with a stronger one within SAME_CALL_MS of it."""
    if len(ends) < 2:
        return ends
    return [end for end in ends if not any(other < end and abs(other.ms - end.ms) <= SAME_CALL_MS for other in ends)]


def add_end(ends: list[End], end: End) -> bool:
    """Keep an end of a call, sorted; False if it is a duplicate (of equal ids the earliest time stays)."""
    for place, known in enumerate(ends):
        if known.event_id == end.event_id:
            if known[:3] <= end[:3]:
                return False
            del ends[place]
            break
    ends.append(end)
    if len(ends) > 1:
        ends.sort(key=lambda known: known[:3])
        del ends[MAX_ENDS:]
    return True


def remove_end(ends: list[End], event_id: str) -> bool:
    """Forget an end that was taken back; False if it was not known."""
    for place, known in enumerate(ends):
        if known.event_id == event_id:
            del ends[place]
            return True
    return False
