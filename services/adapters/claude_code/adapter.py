"""Claude Code hook payloads as events, by contract `claude_code/1` (README.md: the table, and what cannot be known).

Format: the client's hook input, recorded with the releases in VERSIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from schemas.events import ConfigChanged, Event, LlmCall, McpElicitation, Runtime
from services.adapters import stdin_hooks
from services.adapters.claude_code import batch, outcome, tools
from services.adapters.context import Context, Tool
from services.adapters.stdin_hooks import Hook
from services.adapters.values import mapping, text

RUNTIME: Runtime = "claude_code"
CONTRACT = "claude_code/1"
VERSIONS = ("2.1.332", "2.1.197")

# Hooks that are known and have no event of their own, with those of their fields that are content.
_UNMAPPED: dict[str, tuple[str, ...]] = {
    "UserPromptExpansion": ("prompt", "command_args"),
    "Setup": (),
    "PreCompact": ("custom_instructions",),
    "PreModelSwitch": (),
    "PostModelSwitch": (),
    "Notification": ("message", "title"),
    "CwdChanged": (),
    "FileChanged": (),
    "DirectoryAdded": (),
    "WorktreeCreate": (),
    "WorktreeRemove": (),
    "TaskCreated": ("task_subject", "task_description"),
    "TaskCompleted": ("task_subject", "task_description"),
    "TeammateIdle": (),
    "MessageDisplay": ("delta",),
    "PreSkillShellCommand": ("tool_input",),
}

_NOTIFICATION = re.compile(r"<(task-id|tool-use-id|status)>([\w.-]{1,100})</\1>")


def normalise(payload: Mapping[str, Any], ctx: Context) -> list[Event]:
    """Events of one hook payload; one that says nothing becomes agent.event.observed. Known hooks never raise."""
    hook = stdin_hooks.read(payload, ctx, turn="prompt_id")
    handler = _HANDLERS.get(hook.name)
    if handler is not None:
        handler(hook)
    elif hook.name in _UNMAPPED:
        hook.observed("no_event", withhold=_UNMAPPED[hook.name])
    else:
        hook.observed("unknown_hook", withhold=payload.keys())
    return ctx.events


def _tool(hook: Hook) -> Tool:
    server = text(mapping(hook.payload.get("mcp_server")).get("name"))
    return tools.describe(hook.ctx, hook.text("tool_name") or "unknown", server)


def _pre(hook: Hook) -> None:
    call_id = hook.text("tool_use_id")
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
    else:
        stdin_hooks.start(hook, _tool(hook), call_id)


def _post(hook: Hook) -> None:
    call_id, tool, response = hook.text("tool_use_id"), _tool(hook), hook.value("tool_response")
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
        return
    reading = outcome.of_response(tool, response)
    stdin_hooks.end(
        hook,
        tool,
        call_id,
        reading.outcome,
        reading.evidence,
        output=reading.output,
        background=reading.background,
        native=reading.native,
    )


def _failure(hook: Hook) -> None:
    call_id, tool, message = hook.text("tool_use_id"), _tool(hook), hook.value("error")
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
        return
    said = message if isinstance(message, str) else None
    reading = outcome.of_failure(tool, said or "", interrupted=hook.true("is_interrupt"))
    stdin_hooks.end(
        hook,
        tool,
        call_id,
        reading.outcome,
        reading.evidence,
        output=message,
        is_error_result=True,
        exit_code=reading.exit_code,
        error=hook.ctx.error(said, type=reading.error_type, code=reading.error_code),
    )


def _permission_request(hook: Hook) -> None:
    stdin_hooks.request_approval(hook, _tool(hook), hook.arguments())


def _permission_denied(hook: Hook) -> None:
    """The classifier of the auto and plan modes refused the call; no other refusal is told by this hook."""
    call_id, tool, reason = hook.text("tool_use_id"), _tool(hook), hook.text("reason")
    if call_id is None:
        hook.observed("unknown_shape", withhold=("tool_input",))
        return
    error = hook.ctx.error(reason, type="classifier_denied")
    stdin_hooks.end(hook, tool, call_id, "blocked", "hook", error=error, decided_by="classifier")


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
    stdin_hooks.session(hook, "session.compacted", "trigger", content=hook.output("compact_summary"))


def _prompt(hook: Hook) -> None:
    asked, source = hook.payload.get("prompt"), hook.text("source")
    if not isinstance(asked, str) or not asked.startswith("<task-notification>"):
        stdin_hooks.prompt(hook, source or "user")
        return
    # The client's own prompt when background work ends; it starts a turn like any other. The result inside may hold
    # such tags too; the client's own come first.
    found = reversed(_NOTIFICATION.findall(asked[:5_000]))
    stdin_hooks.prompt(hook, "task_notification", **{name.replace("-", "_"): value for name, value in found})


def _stop(hook: Hook) -> None:
    """The main agent's answer is complete. Calls of sub-agents go on in the background and stay open."""
    stdin_hooks.close(hook, stdin_hooks.open_calls(hook), "unknown", "stop")
    stdin_hooks.turn_ended(hook, "stop")


def _stop_failure(hook: Hook) -> None:
    """The turn ended by an error of the model's API, the only thing that hooks tell of model calls."""
    ctx = hook.ctx
    stdin_hooks.close(hook, stdin_hooks.open_calls(hook), "unknown", "stop_failure")
    message = hook.text("error_details") or hook.text("last_assistant_message")
    error = ctx.error(message, type=hook.text("error"))
    ctx.event(LlmCall, "llm.call.ended", hook.scope, hook=hook.name, status="error", error=error)
    stdin_hooks.turn_ended(hook, "stop_failure", success=False, error=error)


def _subagent_start(hook: Hook) -> None:
    stdin_hooks.subagent_started(hook, lambda call: call.tool_name in tools.LAUNCHERS)


def _elicitation(hook: Hook) -> None:
    asked = {name: hook.value(name) for name in ("message", "requested_schema", "url") if name in hook.payload}
    _elicit(hook, "mcp.elicitation.requested", asked or None)


def _elicitation_result(hook: Hook) -> None:
    _elicit(hook, "mcp.elicitation.completed", hook.value("content"))


def _elicit(hook: Hook, event_name: str, content: Any) -> None:
    hook.ctx.event(
        McpElicitation,
        event_name,
        hook.scope,
        hook=hook.name,
        mcp_server=hook.ident("mcp_server_name") or "unknown",
        mode=hook.ident("mode"),
        action=hook.ident("action"),
        content=None if content is None else hook.ctx.content(content),
        native=hook.rest(),
    )


def _config_changed(hook: Hook) -> None:
    hook.ctx.event(
        ConfigChanged,
        "agent.config.changed",
        hook.scope,
        hook=hook.name,
        origin=hook.ident("source") or hook.ident("memory_type"),
        path=hook.ctx.text(hook.text("file_path")),
        native=hook.rest(),
    )


_HANDLERS: dict[str, Callable[[Hook], None]] = {
    "PreToolUse": _pre,
    "PostToolUse": _post,
    "PostToolUseFailure": _failure,
    "PostToolBatch": batch.completed,
    "PermissionRequest": _permission_request,
    "PermissionDenied": _permission_denied,
    "SessionStart": _session_start,
    "SessionEnd": _session_end,
    "PostCompact": _compacted,
    "UserPromptSubmit": _prompt,
    "Stop": _stop,
    "StopFailure": _stop_failure,
    "SubagentStart": _subagent_start,
    "SubagentStop": stdin_hooks.subagent_ended,
    "Elicitation": _elicitation,
    "ElicitationResult": _elicitation_result,
    "ConfigChange": _config_changed,
    "InstructionsLoaded": _config_changed,
}
