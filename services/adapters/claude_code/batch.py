"""PostToolBatch: all calls of one model message are over, and those without an end of their own never ran.

Its entries hold no error flag, only the text or blocks that the model gets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from schemas.events import ToolBatch
from services.adapters import stdin_hooks
from services.adapters.calls import Call
from services.adapters.claude_code import tools
from services.adapters.context import Tool
from services.adapters.stdin_hooks import OWN_END, Hook
from services.adapters.values import text

_INVALID, _INVALID_END = "<tool_use_error>", "</tool_use_error>"
_INVALID_KINDS = {
    "Error: No such tool available": "tool_not_found",
    "InputValidationError": "invalid_arguments",
}

# Texts by which the client says that a call did not run. Any other may be a hook's or a person's own words.
_REFUSALS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("hook_denied", re.compile(r"PreToolUse:[^\n]{1,200} hook error: ")),
    ("rule_denied", re.compile(r"Permission to use [^\n]{1,5000} has been denied\.")),
    ("not_granted", re.compile(r"Claude requested permissions to use [^\n]{1,500}, but you haven't granted it yet\.")),
    ("not_granted", re.compile(r"[^\n]{1,5000} needs approval\. ")),
)


def completed(hook: Hook) -> None:
    """tool.batch.completed, and before it the ends that follow from it."""
    entries = hook.payload.get("tool_calls")
    if not isinstance(entries, list):
        hook.observed("unknown_shape", withhold=("tool_calls",))
        return
    hook.taken.add("tool_calls")
    ids = [_entry(hook, entry) for entry in entries if isinstance(entry, dict) and text(entry.get("tool_use_id"))]
    hook.ctx.event(
        ToolBatch,
        "tool.batch.completed",
        hook.scope,
        hook=hook.name,
        call_ids=tuple(ids),
        count=len(entries),
        native=hook.rest(unreadable_entries=len(entries) - len(ids) or None),
    )


def _entry(hook: Hook, entry: Mapping[str, Any]) -> str:
    """Close the entry's call if nothing did; gives the id of that call."""
    call_id, response = text(entry.get("tool_use_id")) or "", entry.get("tool_response")
    asked = {} if entry.get("tool_input") is None else entry["tool_input"]
    said = response if isinstance(response, str) else ""
    invalid = said.startswith(_INVALID)
    call = hook.ctx.find(hook.key(call_id))
    if call is not None and call.ended and not invalid and call.end_hook in OWN_END:
        return call.call_id
    if call is not None and call.ended and call.end_hook == hook.name and hook.same_input(call, asked):
        return call.call_id
    if invalid:
        return _refused_unseen(hook, entry, call, asked, said)
    if call is None or not call.started:
        # Its hooks were not seen: the collector came later, or only some are registered. How it ended is not told.
        made = hook.ctx.end(
            hook.key(call_id),
            _tool(hook, entry),
            hook.scope,
            "unknown",
            "inferred",
            arguments=asked,
            output=response,
            cwd=hook.cwd,
            hook=hook.name,
            tool_call_id=call_id,
            cause="batch",
        )
        return made.call_id
    if not said:
        # A refusal is told as text, so the call ran and its own hook was lost.
        hook.ctx.end_open(call, "unknown", "inferred", "batch", hook=hook.name)
        return call.call_id
    refusal = next((kind for kind, pattern in _REFUSALS if pattern.match(said)), None)
    stdin_hooks.decide_by_end(hook, call, "deny")
    hook.ctx.end_open(
        call,
        "blocked",
        "hook" if refusal else "inferred",
        "batch",
        hook=hook.name,
        error=hook.ctx.error(said, type=refusal or "refused"),
    )
    return call.call_id


def _refused_unseen(hook: Hook, entry: Mapping[str, Any], call: Call | None, asked: Any, said: str) -> str:
    """A call that the client refused before any hook: unknown tool, arguments against the schema, a bare `sleep 30`."""
    ctx, tool, call_id = hook.ctx, _tool(hook, entry), text(entry.get("tool_use_id")) or ""
    inner = said.removeprefix(_INVALID).removesuffix(_INVALID_END)
    kind = next((kind for start, kind in _INVALID_KINDS.items() if inner.startswith(start)), "tool_use_error")
    unseen = call is None or call.ended
    if unseen:
        ctx.start(
            hook.key(call_id),
            tool,
            hook.scope,
            arguments=asked,
            cwd=hook.cwd,
            hook=hook.name,
            tool_call_id=call_id,
            cause="batch",
            synthetic=True,
        )
    made = ctx.end(
        hook.key(call_id),
        tool,
        hook.scope,
        "error",
        "hook",
        output=said,
        is_error_result=True,
        hook=hook.name,
        tool_call_id=call_id,
        error=ctx.error(inner, type=kind),
        cause="batch",
    )
    return made.call_id


def _tool(hook: Hook, entry: Mapping[str, Any]) -> Tool:
    return tools.describe(hook.ctx, text(entry.get("tool_name")) or "unknown", None)
