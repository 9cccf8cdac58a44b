"""Hermes Agent hooks → events.

Source of the format: the plugin hooks and shell hooks of Hermes Agent 0.19.0 as recorded (tests/fixtures/hermes).
A plugin sends `{"hook", "kwargs", "thread"}`, with "ts" (seconds since the epoch) and, for MCP tools, the process's
own "toolset" where it can; a shell hook's stdin comes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from schemas.events import Event, LlmCall, LlmContent, Prompt, Runtime, Session, Subagent, Turn, Usage
from services.adapters.context import MAX_EVENTS, Context, Scope
from services.adapters.hermes import calls
from services.adapters.hermes.payload import PLACED, Payload, read
from services.adapters.hermes.tools import DELEGATE
from services.adapters.values import integer, mapping, number, rest, size, text

RUNTIME: Final[Runtime] = "hermes"
CONTRACT: Final = "hermes/1"
VERSIONS: Final = ("0.19.0",)

_REVIEW_THREAD = "bg-review"

# Content, addresses and live objects: an event that has no field for them tells their size and hash, never their text.
_UNTOLD = (
    "args",
    "assistant_message",
    "assistant_response",
    "base_url",
    "child_goal",
    "child_summary",
    "command",
    "conversation_history",
    "error_message",
    "final_response",
    "original_args",
    "output",
    "request",
    "request_messages",
    "response",
    "response_text",
    "result",
    "sender_id",
    "summary",
    "user_message",
)


def normalise(payload: Mapping[str, Any], context: Context) -> list[Event]:
    """Events of one hook call. Unknown hooks and shapes become agent.event.observed; no JSON object makes it raise."""
    context.happened_at(number(payload.get("ts")))
    found = read(payload, context)
    if found is None:
        hook = text(payload.get("hook")) or "unknown"
        context.observed(hook, payload, Scope(), "unknown_shape" if hook in _KNOWN else "unknown_hook")
        return context.events
    handler = _HANDLERS.get(found.name)
    if found.shell and found.name not in (calls.PRE, calls.POST) and _told_in_process(found):
        _observe(found, "duplicate")
    elif handler is not None:
        handler(found)
    else:
        _observe(found, "no_event_of_its_own" if found.name in _KNOWN else "unknown_hook")
    return context.events


def _told_in_process(found: Payload) -> bool:
    """With plugin and shell hooks both set up, what the plugin tells of a session is enough."""
    session = found.context.ident(found.session_id)
    state = found.context.calls.session(session) if session else None
    return state is not None and state.in_process


def _observe(found: Payload, reason: str) -> None:
    said = rest(found.kwargs, *PLACED, *_UNTOLD)
    native = {name: value for name, value in said.items() if not isinstance(value, (dict, list))}
    if found.text("turn_id") is None:
        native.update(rest({"task_id": found.text("task_id")}))
    call = None
    tool_call_id = found.text("tool_call_id")
    if tool_call_id and found.session_id is None:
        call = found.context.calls.find_native(RUNTIME, found.context.ident(tool_call_id) or "")
    found.context.observed(found.hook, found.kwargs, found.scope(call), reason, native=native)


# sessions and turns


def _session_start(found: Payload) -> None:
    state = found.context.calls.session(found.context.ident(found.session_id) or "")
    if state is not None and state.started and not state.in_process and not state.ended:
        _observe(found, "duplicate")
        return
    found.context.event(
        Session,
        "session.started",
        found.scope(),
        hook=found.hook,
        model=found.context.ident(found.text("model")),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, "model"),
    )


def _session_end(found: Payload) -> None:
    session = found.session_id or found.text("old_session_id")
    if session:
        _close(found, session, None, found.name)
    found.context.event(
        Session,
        "session.ended",
        replace(found.scope(), session_id=session),
        hook=found.hook,
        reason=found.context.ident(found.text("reason")),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, "reason"),
    )


def _turn_start(found: Payload) -> None:
    context, scope = found.context, found.scope()
    context.event(Turn, "turn.started", scope, hook=found.hook, native=rest(found.kwargs, *PLACED, *_UNTOLD, "model"))
    message = found.kwargs.get("user_message")
    if message is None:
        return
    if found.text("platform") == "subagent":
        origin = "subagent"
    else:
        origin = "background_review" if found.thread == _REVIEW_THREAD else "user"
    sender = found.text("sender_id")
    context.event(
        Prompt,
        "user.prompt.submitted",
        scope,
        hook=found.hook,
        origin=origin,
        content=context.content(message),
        user_id_hash=context.capture.hash(sender) if sender else None,
    )
    context.event(
        LlmContent,
        "llm.input.observed",
        scope,
        hook=found.hook,
        model=context.ident(found.text("model")),
        content=context.content(found.kwargs.get("conversation_history")),
    )


def _turn_answer(found: Payload) -> None:
    context = found.context
    context.event(
        LlmContent,
        "llm.output.observed",
        found.scope(),
        hook=found.hook,
        model=context.ident(found.text("model")),
        content=context.content(found.kwargs.get("assistant_response"), direction="output"),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, "model"),
    )


def _turn_end(found: Payload) -> None:
    """on_session_end ends a turn, not a session; calls still open have no hook to end them."""
    context, turn = found.context, found.text("turn_id")
    completed, interrupted = found.kwargs.get("completed"), found.kwargs.get("interrupted")
    if found.session_id:
        _close(found, found.session_id, turn, "turn_end", cancelled=interrupted is True)
    context.event(
        Turn,
        "turn.ended",
        replace(found.scope(), model_call_id=None),
        hook=found.hook,
        success=completed if isinstance(completed, bool) else None,
        reason=context.ident(found.text("reason")) or ("interrupted" if interrupted is True else None),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, "completed", "interrupted", "reason"),
    )


def _close(found: Payload, session: str, turn: str | None, cause: str, *, cancelled: bool = False) -> None:
    context = found.context
    turn = context.ident(turn)
    calls_open = context.calls.open_calls(context.ident(session) or "")
    over = [call for call in calls_open if turn is None or call.turn_id == turn]
    # Bounded, so that the payload's own event always fits into the delivery; the rest times out in the pipelines.
    for call in over[: MAX_EVENTS // 2]:
        context.end_open(call, "cancelled" if cancelled else "unknown", "inferred", cause, hook=found.hook)


# models


def _request_start(found: Payload) -> None:
    _request(found, "llm.call.started", "started")


def _request_end(found: Payload) -> None:
    _request(found, "llm.call.ended", "completed")


def _request_error(found: Payload) -> None:
    _request(found, "llm.call.ended", "error")


def _request(found: Payload, name: str, status: str) -> None:
    context, kwargs = found.context, found.kwargs
    request = found.text("api_request_id")
    seen = context.calls.attempts(RUNTIME, context.ident(request) or "")
    # Tries of one api_request_id are numbered in the order in which they come.
    attempt = seen + 1 if status == "started" else seen or 1
    seconds = number(kwargs.get("api_duration"))
    error, usage = mapping(kwargs.get("error")), mapping(kwargs.get("usage"))
    context.event(
        LlmCall,
        name,
        found.scope(),
        hook=found.hook,
        provider=context.ident(found.text("provider")),
        model=context.ident(found.text("response_model") or found.text("model")),
        attempt=attempt if request else None,
        status=status,
        finish_reason=context.ident(found.text("finish_reason")),
        # api_duration counts from the first try, so it is a later try's duration only together with those before.
        duration_ms=seconds * 1000 if seconds is not None and attempt == 1 else None,
        usage=_usage(usage) if usage else None,
        error=context.error(
            text(error.get("message")), type=text(error.get("type")), code=integer(kwargs.get("status_code"))
        )
        if status == "error"
        else None,
        native=rest(
            kwargs, *PLACED, *_UNTOLD, "provider", "model", "response_model", "finish_reason", "usage", "error"
        ),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        input_tokens=size(usage.get("input_tokens")),
        output_tokens=size(usage.get("output_tokens")),
        cache_read_tokens=size(usage.get("cache_read_tokens")),
        cache_write_tokens=size(usage.get("cache_write_tokens")),
        reasoning_tokens=size(usage.get("reasoning_tokens")),
        total_tokens=size(usage.get("total_tokens")),
    )


# sub-agents


def _subagent_start(found: Payload) -> None:
    context, scope = found.context, _parent_scope(found)
    session, turn = context.ident(scope.session_id), context.ident(scope.turn_id)
    delegating = [
        call
        for call in context.calls.open_calls(session or "")
        if call.tool_name == DELEGATE and (turn is None or call.turn_id == turn)
    ]
    goal = found.kwargs.get("child_goal")
    context.event(
        Subagent,
        "subagent.started",
        scope,
        hook=found.hook,
        child_session_id=context.ident(found.text("child_session_id")),
        child_agent_id=context.ident(found.text("child_subagent_id")),
        agent_type=context.ident(found.text("child_role")),
        status="started",
        parent_call_id=delegating[0].call_id if len(delegating) == 1 else None,
        content=None if goal is None else context.content(goal),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, *_SUBAGENT),
    )


def _subagent_stop(found: Payload) -> None:
    context, child = found.context, found.text("child_session_id")
    status, summary = context.ident(found.text("child_status")), found.kwargs.get("child_summary")
    context.event(
        Subagent,
        "subagent.ended",
        _parent_scope(found),
        hook=found.hook,
        child_session_id=context.ident(child),
        agent_type=context.ident(found.text("child_role")),
        status=status or "unknown",
        duration_ms=number(found.kwargs.get("duration_ms")),
        content=None if summary is None else context.content(summary, direction="output"),
        native=rest(found.kwargs, *PLACED, *_UNTOLD, *_SUBAGENT),
    )
    if child:
        # A child's session has no on_session_finalize of its own.
        _close(found, child, None, "subagent_stop")
        context.event(Session, "session.ended", Scope(session_id=child), hook=found.hook, reason=status, synthetic=True)


def _parent_scope(found: Payload) -> Scope:
    return Scope(
        session_id=found.text("parent_session_id"),
        turn_id=found.text("parent_turn_id"),
        agent_id=found.text("parent_subagent_id"),
    )


_SUBAGENT = (
    "child_role",
    "child_session_id",
    "child_status",
    "child_subagent_id",
    "duration_ms",
    "parent_session_id",
    "parent_subagent_id",
    "parent_turn_id",
)

_HANDLERS: dict[str, Callable[[Payload], None]] = {
    calls.PRE: calls.before,
    calls.POST: calls.after,
    "pre_approval_request": calls.approval_requested,
    "post_approval_response": calls.approval_decided,
    "on_session_start": _session_start,
    "on_session_end": _turn_end,
    "on_session_finalize": _session_end,
    "on_session_reset": _session_end,
    "pre_llm_call": _turn_start,
    "post_llm_call": _turn_answer,
    "pre_api_request": _request_start,
    "post_api_request": _request_end,
    "api_request_error": _request_error,
    "subagent_start": _subagent_start,
    "subagent_stop": _subagent_stop,
}
_KNOWN = frozenset(_HANDLERS) | {
    "kanban_task_blocked",
    "kanban_task_claimed",
    "kanban_task_completed",
    "middleware:llm_execution",
    "middleware:llm_request",
    "middleware:tool_execution",
    "middleware:tool_execution.done",
    "middleware:tool_request",
    "pre_gateway_dispatch",
    "pre_verify",
    "transform_llm_output",
    "transform_terminal_output",
    "transform_tool_result",
}
