"""How an after_tool_call says what became of the call: the recorded contract's table (OpenClaw 2026.9.6) as code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from schemas.events import Evidence, Outcome
from services.adapters.openclaw.tools import SHELL, SPAWN
from services.adapters.values import integer, items, mapping, text

_BARE = frozenset({"error", "failed"})
_NOT_OVER = frozenset({"running", "accepted"})
_REFUSED = {
    "Denied by user": "approval_denied",
    "Approval timed out": "approval_timeout",
    "Plugin approval unavailable": "approval_unavailable",
    "Tool call blocked because before_tool_call hook failed": "hook_failed",
}
Answer = Literal["deny", "timeout", "cancelled"]
ANSWERS: dict[str, Answer] = {
    "approval_denied": "deny",
    "approval_timeout": "timeout",
    "approval_unavailable": "cancelled",
}
"""What a refusal says about the request for approval before it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An outcome and what proves it. `message` is raw text of the payload; `background`: the work goes on."""

    outcome: Outcome
    evidence: Evidence
    error_type: str | None = None
    message: str | None = None
    exit_code: int | None = None
    background: bool = False


def read(tool: str, error: str | None, result: Any) -> Reading:
    """The outcome of one after_tool_call; `error` and `result` as the event gives them."""
    details = mapping(mapping(result).get("details"))
    status = text(details.get("status"))
    # The `process` tool reports the exit code of another call's process, not its own.
    exit_code = None if tool == "process" else integer(details.get("exitCode"))
    if status == "blocked":
        reason = text(details.get("reason")) or error
        return Reading("blocked", "hook", text(details.get("deniedReason")) or "blocked", reason)
    if details.get("timedOut") is True:
        kind = text(details.get("failureKind")) or "timeout"
        return Reading("timeout", "hook", kind, first_text(result) or error, exit_code)
    if error:
        return _failed(error, details, result, exit_code)
    if status in _NOT_OVER and (tool in SHELL or tool == SPAWN):
        return Reading("unknown", "none", background=True)
    if exit_code == 0:
        return Reading("ok", "exit_status", exit_code=0)
    if exit_code is not None or text(details.get("exitSignal")):
        return Reading("error", "exit_status", "exit_status", exit_code=exit_code)
    if status in _BARE:
        return Reading("error", "is_error", "tool_error", text(details.get("error")) or first_text(result))
    if tool in SHELL or not isinstance(result, dict):
        return Reading("unknown", "none")
    # For anything but a shell command OpenClaw sets `error` when the tool threw or its result is marked as an error.
    return Reading("ok", "is_error")


def first_text(result: Any) -> str | None:
    """The first text of a result's content."""
    for part in items(mapping(result).get("content")):
        found = text(mapping(part).get("text"))
        if found:
            return found
    return None


def _failed(error: str, details: Mapping[str, Any], result: Any, exit_code: int | None) -> Reading:
    refused = next((kind for start, kind in _REFUSED.items() if error.startswith(start)), None)
    if refused is None and "(gateway unavailable)" in error:
        refused = "approval_unavailable"
    if refused:
        return Reading("blocked", "hook", refused, error)
    if error == "Aborted":
        return Reading("cancelled", "hook", "aborted", error)
    if exit_code:
        return Reading("error", "exit_status", "exit_status", exit_code=exit_code)
    message = (first_text(result) or error) if error in _BARE else error
    return Reading("error", "is_error", _kind(error, details), message)


def _kind(error: str, details: Mapping[str, Any]) -> str:
    if text(details.get("mcpServer")):
        return "mcp_error"
    if not details and error.startswith("Validation failed for tool"):
        return "invalid_arguments"
    if not details and error.startswith("Tool ") and error.endswith(" not found"):
        return "tool_not_found"
    return "tool_error"
