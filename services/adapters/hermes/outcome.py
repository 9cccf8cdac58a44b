"""How a post_tool_call says what became of the call: the recorded contract's table (Hermes Agent 0.19.0) as code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.events import Evidence, Outcome
from services.adapters.hermes.tools import DELEGATE, TERMINAL
from services.adapters.values import integer, mapping, text

TIMED_OUT = 124
"""Exit code that Hermes gives a command it stopped at its time-out."""
_MAX_PARSED = 16 << 20
_FAILED = frozenset({"error", "failed", "failure"})


@dataclass(frozen=True, slots=True)
class Reading:
    """An outcome and what proves it. `message` is raw text of the payload; `background`: the work goes on."""

    outcome: Outcome
    evidence: Evidence
    error_type: str | None = None
    message: str | None = None
    exit_code: int | None = None
    background: bool = False


def read(tool: str, arguments: Any, kwargs: Mapping[str, Any]) -> Reading:
    """The outcome of one post_tool_call; `kwargs` as the hook got them."""
    status, kind = text(kwargs.get("status")), text(kwargs.get("error_type"))
    result = parsed(kwargs.get("result"))
    said = text(result.get("status"))
    message = text(kwargs.get("error_message")) or text(result.get("error"))
    exit_code = integer(result.get("exit_code"))
    if status == "blocked" or said == "blocked":
        # The human gate's refusal comes as an error of the tool.
        return Reading("blocked", "hook", "approval_denied" if status == "error" else kind or "blocked", message)
    if status == "cancelled" or said == "cancelled":
        return Reading("cancelled", "hook", kind or "cancelled", message)
    if status == "timeout":
        return Reading("timeout", "hook", kind or "timeout", message, exit_code)
    if exit_code == TIMED_OUT:
        return Reading("timeout", "exit_status", "timeout", message, exit_code)
    if status == "error" or result.get("error"):
        proof: Evidence = "exit_status" if exit_code else "hook" if kind == "thread_missing_result" else "is_error"
        return Reading("error", proof, kind or "tool_error", message, exit_code)
    if _goes_on(tool, arguments, said):
        return Reading("unknown", "none", background=True)
    if exit_code == 0:
        return Reading("ok", "exit_status", exit_code=0)
    if exit_code is not None:
        return Reading("error", "exit_status", "exit_status", exit_code=exit_code)
    if said in _FAILED or result.get("success") is False:
        return Reading("error", "is_error", "tool_error", message or text(result.get("message")))
    # Hermes says `ok` of every result without a top-level `error`: that proves something only where the result has the
    # form in which its tools report errors.
    if result and tool != TERMINAL and status == "ok":
        return Reading("ok", "is_error")
    return Reading("unknown", "none")


def parsed(result: Any) -> Mapping[str, Any]:
    """The object that a result's JSON text holds; empty for plain text, other values and multimodal results."""
    if not isinstance(result, str) or len(result) > _MAX_PARSED or not result.lstrip().startswith("{"):
        return {}
    try:
        return mapping(orjson.loads(result))
    except (orjson.JSONDecodeError, RecursionError):
        return {}


def _goes_on(tool: str, arguments: Any, status: str | None) -> bool:
    if tool == DELEGATE:
        return status == "dispatched"
    return tool == TERMINAL and mapping(arguments).get("background") is True
