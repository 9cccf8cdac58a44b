"""Codex hook payloads as events, by contract `codex/1` (README.md: the table, and what cannot be known).

Format: the client's hook input, recorded with the releases in VERSIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from schemas.events import Event, LlmCall, Runtime, Usage
from services.adapters import stdin_hooks
from services.adapters.codex import tools
from services.adapters.context import Context, Tool
from services.adapters.stdin_hooks import Hook
from services.adapters.values import mapping, size

RUNTIME: Runtime = "codex"
CONTRACT = "codex/1"
VERSIONS = ("0.171.0",)

_STATUS: dict[str | None, Literal["completed", "error", "cancelled"]] = {
    "completed": "completed",
    "failed": "error",
    "cancelled": "cancelled",
}
_USAGE = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "cache_write_input_tokens": "cache_write_tokens",
    "reasoning_output_tokens": "reasoning_tokens",
    "total_tokens": "total_tokens",
}
_NESTED = "exec-"
"""Begins the ids of calls made inside a code-mode script, whose own call has no events."""


def normalise(payload: Mapping[str, Any], ctx: Context) -> list[Event]:
    """Events of one hook payload; one that says nothing becomes agent.event.observed. Known hooks never raise."""
    hook = stdin_hooks.read(payload, ctx, turn="turn_id")
    handler = _HANDLERS.get(hook.name)
    if handler is not None:
        handler(hook)
    elif hook.name == "PreCompact":
        hook.observed("no_event")
    else:
        hook.observed("unknown_hook", withhold=payload.keys())
    return ctx.events


# tool calls


def _tool(hook: Hook) -> Tool:
    return tools.describe(hook.ctx, hook.text("tool_name") or "unknown", hook.payload.get("tool_input"))


def _pre(hook: Hook) -> None:
    call_id, tool = hook.text("tool_use_id"), _tool(hook)
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
    else:
        stdin_hooks.start(hook, tool, call_id, **_native(tool, call_id))


def _post(hook: Hook) -> None:
    call_id, tool, response = hook.text("tool_use_id"), _tool(hook), hook.value("tool_response")
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
        return
    reading = tools.read(tool, response)
    stdin_hooks.end(
        hook,
        tools.proven(tool, reading),
        call_id,
        reading.outcome,
        reading.evidence,
        output=response,
        is_error_result=reading.is_error_result,
        exit_code=reading.exit_code,
        background=reading.background,
        native={**_native(tool, call_id), "child_agent_id": tools.child(tool, response)},
    )


def _native(tool: Tool, call_id: str) -> dict[str, Any]:
    plain = tools.plain_name(tool.name)
    return {
        "plain_name": plain if plain != tool.name else None,
        "nested": True if call_id.startswith(_NESTED) else None,
    }


def _permission_request(hook: Hook) -> None:
    tool, asked, also = _tool(hook), hook.arguments(), None
    if tool.source == "shell" and "description" in mapping(asked):
        # The model's justification is in the request only, so the call itself has none.
        also = {name: value for name, value in asked.items() if name != "description"}
    stdin_hooks.request_approval(hook, tool, asked, also)


# model calls


def _pre_model(hook: Hook) -> None:
    """llm.call.started; all calls of this agent's previous message are over by now, shells that may run on apart.

    A retry proves nothing, since the stream that broke may have started calls already.
    """
    _thread_as_agent(hook)
    if hook.payload.get("attempt_number", 1) == 1:
        over = [call for call in stdin_hooks.open_calls(hook) if call.tool_source != "shell"]
        stdin_hooks.close(hook, over, "unknown", "model_request")
    _model_call(hook, "llm.call.started", "started")


def _post_model(hook: Hook) -> None:
    _thread_as_agent(hook)
    status = _STATUS.get(hook.text("status"), "unknown")
    counts = {ours: size(mapping(hook.payload.get("token_usage")).get(theirs)) for theirs, ours in _USAGE.items()}
    told = any(count is not None for count in counts.values())
    if told:
        hook.taken.add("token_usage")
    message = hook.text("error")
    error = hook.ctx.error(message, type=status) if message or status == "error" else None
    _model_call(hook, "llm.call.ended", status, usage=Usage(**counts) if told else None, error=error)


def _thread_as_agent(hook: Hook) -> None:
    """Model hooks name the thread: the session's own, or a sub-agent's, whose id it is."""
    thread = hook.text("thread_id")
    if hook.scope.agent_id is None and thread != hook.scope.session_id:
        hook.scope = replace(hook.scope, agent_id=thread)


def _model_call(hook: Hook, event_name: str, status: str, **fields: Any) -> None:
    hook.ctx.event(
        LlmCall,
        event_name,
        replace(hook.scope, model_call_id=hook.text("request_id")),
        hook=hook.name,
        status=status,
        model=hook.ident("model"),
        attempt=hook.size("attempt_number"),
        native=hook.rest(),
        **fields,
    )


# sessions, turns, sub-agents


def _session_start(hook: Hook) -> None:
    if hook.payload.get("source") == "compact":
        # The session goes on; PostCompact tells the compaction.
        hook.observed("no_event")
    else:
        stdin_hooks.session(hook, "session.started", "source")


def _session_end(hook: Hook) -> None:
    stdin_hooks.close(hook, stdin_hooks.all_open_calls(hook), "unknown", "session_end")
    stdin_hooks.session(hook, "session.ended", "reason")


def _compacted(hook: Hook) -> None:
    stdin_hooks.session(hook, "session.compacted", "trigger")


def _prompt(hook: Hook) -> None:
    stdin_hooks.prompt(hook, "agent" if hook.scope.agent_id else "user")


def _stop(hook: Hook) -> None:
    stdin_hooks.close(hook, stdin_hooks.open_calls(hook), "unknown", "stop")
    stdin_hooks.turn_ended(hook, "stop")


def _interrupt(hook: Hook) -> None:
    """The turn was cut off. Shells of earlier turns and sub-agents are not touched by it."""
    turn = hook.ctx.ident(hook.scope.turn_id)
    cut = [call for call in stdin_hooks.open_calls(hook) if call.turn_id == turn]
    stdin_hooks.close(hook, cut, "cancelled", "interrupt")
    stdin_hooks.turn_ended(hook, "interrupt")


def _subagent_start(hook: Hook) -> None:
    stdin_hooks.subagent_started(hook, lambda call: tools.plain_name(call.tool_name) == tools.SPAWN)


_HANDLERS: dict[str, Callable[[Hook], None]] = {
    "PreToolUse": _pre,
    "PostToolUse": _post,
    "PermissionRequest": _permission_request,
    "PreModelRequest": _pre_model,
    "PostModelRequest": _post_model,
    "SessionStart": _session_start,
    "SessionEnd": _session_end,
    "PostCompact": _compacted,
    "UserPromptSubmit": _prompt,
    "Stop": _stop,
    "Interrupt": _interrupt,
    "SubagentStart": _subagent_start,
    "SubagentStop": stdin_hooks.subagent_ended,
}
