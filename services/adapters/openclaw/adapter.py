"""OpenClaw plugin hooks → events.

Source of the format: the hooks of OpenClaw 2026.9.6 as recorded (tests/fixtures/openclaw). A payload is
`{"hook", "event", "ctx"}`; diagnostics, gateway approval events and approval resolutions come without `ctx`. The plugin
adds "ts" (seconds since the epoch) and, where the configuration tells, the tool's "mcpServer".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from schemas.events import (
    AgentRun,
    Approval,
    Event,
    LlmCall,
    LlmContent,
    PolicyInfo,
    Prompt,
    Runtime,
    Session,
    Subagent,
    Usage,
)
from services.adapters.calls import Call
from services.adapters.context import MAX_EVENTS, Context, Scope
from services.adapters.openclaw import calls
from services.adapters.openclaw.payload import CTX_FIELDS, PLACED, Payload
from services.adapters.openclaw.tools import SPAWN
from services.adapters.values import integer, items, mapping, number, rest, size, text

RUNTIME: Final[Runtime] = "openclaw"
CONTRACT: Final = "openclaw/1"
VERSIONS: Final = ("2026.9.6",)

# Content and addresses of people: an event that has no field for them tells their size and hash, never their text.
_UNTOLD = (
    "activeProjectKeys",
    "assistantTexts",
    "body",
    "cleanedBody",
    "content",
    "ctx",
    "from",
    "historyMessages",
    "lastAssistant",
    "lastAssistantMessage",
    "message",
    "messages",
    "params",
    "payload",
    "prompt",
    "queuedInjections",
    "senderId",
    "sessionFile",
    "systemPrompt",
    "to",
    "tools",
    "transcriptPath",
)


def normalise(payload: Mapping[str, Any], context: Context) -> list[Event]:
    """Events of one hook call. Unknown hooks and shapes become agent.event.observed; no JSON object makes it raise."""
    hook = text(payload.get("hook")) or "unknown"
    event = payload.get("event")
    if event is None and hook == calls.RESOLUTION:
        event = rest(payload, "hook", "ts")
    ctx = mapping(payload.get("ctx"))
    fields = {name: ctx[name] for name in CTX_FIELDS if name in ctx}
    context.happened_at(number(payload.get("ts")))
    read = Payload(hook, mapping(event), fields, context, text(payload.get("mcpServer")))
    if not isinstance(event, dict):
        context.observed(hook, event, read.scope(), "unknown_shape" if hook in _KNOWN else "unknown_hook")
        return context.events
    if hook.startswith("diagnostic:"):
        _diagnostic(read)
        return context.events
    if hook not in _SESSION_HOOKS:
        _infer_session(read)
    handler = _HANDLERS.get(hook)
    if handler is not None:
        handler(read)
    else:
        _observe(read, "no_event_of_its_own" if hook in _KNOWN else "unknown_hook")
    return context.events


def _observe(read: Payload, reason: str, scope: Scope | None = None) -> None:
    said = rest(read.event, *PLACED, *_UNTOLD)
    native = {name: value for name, value in said.items() if not isinstance(value, (dict, list))}
    read.context.observed(read.hook, read.event, scope or read.scope(), reason, native=native)


def _diagnostic(read: Payload) -> None:
    # Hooks tell the same calls with arguments and results; a second start or end from here would be a second call.
    read.context.observed(
        read.hook, read.event, read.scope(), "diagnostic", native=rest(read.event, *PLACED), severity="debug"
    )


# sessions


def _infer_session(read: Payload) -> None:
    """A session that no session_start announced (`agent --local`, a sub-agent, a collector that came later)."""
    scope = read.scope()
    if not read.text("sessionId"):
        return
    state = read.context.calls.session(read.context.ident(scope.session_id) or "")
    again = state is not None and state.synthetic and state.ended and read.hook in _RUN_STARTS
    if state is None or again or not (state.started or state.ended):
        read.context.event(Session, "session.started", scope, hook=read.hook, synthetic=True)


def _session_start(read: Payload) -> None:
    scope = read.scope()
    before = _session_of(read, scope.session_key)
    if before and before != read.context.ident(scope.session_id):
        _close(read, before, "session_start")
    resumed = read.text("resumedFrom")
    read.context.event(
        Session,
        "session.started",
        scope,
        hook=read.hook,
        reason="resumed" if resumed else None,
        native=rest(read.event, *PLACED),
    )


def _session_end(read: Payload) -> None:
    scope = read.scope()
    if scope.session_id:
        _close(read, read.context.ident(scope.session_id) or "", "session_end")
    read.context.event(
        Session,
        "session.ended",
        scope,
        hook=read.hook,
        reason=read.context.ident(read.text("reason")),
        native=rest(read.event, *PLACED, "reason", "sessionFile"),
    )


def _compacted(read: Payload) -> None:
    read.context.event(
        Session,
        "session.compacted",
        read.scope(),
        hook=read.hook,
        reason=read.context.ident(text(read.fields.get("trigger"))),
        native=rest(read.event, *PLACED, "sessionFile"),
    )


def _end_inferred(read: Payload, session: str, scope: Scope, cause: str) -> None:
    """The end of a session that no session_end will tell, because no session_start told its begin."""
    state = read.context.calls.session(session)
    if state is not None and state.synthetic and not state.ended:
        read.context.event(Session, "session.ended", scope, hook=read.hook, reason=cause, synthetic=True)


def _close(read: Payload, session: str, cause: str, *, run_id: str | None = None) -> None:
    found = [call for call in read.context.calls.open_calls(session) if run_id is None or call.run_id == run_id]
    # Bounded, so that the payload's own event always fits into the delivery; the rest times out in the pipelines.
    for call in found[: MAX_EVENTS // 2]:
        read.context.end_open(call, "unknown", "inferred", cause, hook=read.hook)


def _session_of(read: Payload, session_key: str | None) -> str | None:
    key = read.context.ident(session_key)
    return read.context.calls.session_for_key(read.context.runtime, key) if key else None


# runs and models


def _run_start(read: Payload) -> None:
    scope, trace = read.scope(), read.trace
    trigger = read.context.ident(text(read.fields.get("trigger")))
    read.context.event(AgentRun, "agent.run.started", scope, hook=read.hook, reason=trigger, span_id=trace.span_id)
    prompt = read.event.get("prompt")
    if prompt is not None:
        below = read.scope(under=True)
        child = ":subagent:" in (scope.session_key or "")
        read.context.event(
            Prompt,
            "user.prompt.submitted",
            below,
            hook=read.hook,
            origin="subagent" if child else trigger,
            content=read.context.content(prompt),
            user_id_hash=read.user(read.event.get("senderId")),
            native=rest(read.event, *PLACED, *_UNTOLD),
        )


def _run_end(read: Payload) -> None:
    context, scope = read.context, read.scope()
    session, run = context.ident(scope.session_id), context.ident(scope.run_id)
    if session and run:
        _close(read, session, "agent_end", run_id=run)
    success, error = read.event.get("success"), text(read.event.get("error"))
    context.event(
        AgentRun,
        "agent.run.ended",
        scope,
        hook=read.hook,
        span_id=read.trace.span_id,
        success=success if isinstance(success, bool) else None,
        duration_ms=number(read.event.get("durationMs")),
        error=context.error(error) if error else None,
        native={
            **rest({"messageCount": len(items(read.event["messages"])) if "messages" in read.event else None}),
            **rest(read.event, *PLACED, *_UNTOLD, "success", "error", "durationMs"),
        },
    )
    if session:
        _end_inferred(read, session, scope, "agent_end")


def _model_start(read: Payload) -> None:
    _model(read, "llm.call.started", "started")


def _model_end(read: Payload) -> None:
    outcome = text(read.event.get("outcome"))
    _model(read, "llm.call.ended", outcome if outcome in ("completed", "error") else "unknown")


def _model(read: Payload, name: str, status: str) -> None:
    context, event, trace = read.context, read.event, read.trace
    model_call = text(event.get("callId"))
    seen = context.calls.attempts(context.runtime, context.ident(model_call) or "")
    failure = text(event.get("failureKind")) or text(event.get("errorCategory"))
    context.event(
        LlmCall,
        name,
        replace(read.scope(), model_call_id=model_call),
        hook=read.hook,
        span_id=trace.span_id,
        provider=context.ident(text(event.get("provider"))),
        model=context.ident(text(event.get("model"))),
        # A retry has the same callId: tries are numbered in the order in which they come.
        attempt=(seen + 1 if status == "started" else seen or 1) if model_call else None,
        status=status,
        duration_ms=number(event.get("durationMs")),
        error=context.error(None, type=failure) if status == "error" else None,
        native=rest(event, *PLACED, "callId", "provider", "model", "durationMs", "outcome"),
    )


def _llm_input(read: Payload) -> None:
    _llm_content(read, "llm.input.observed", read.event)


def _llm_output(read: Payload) -> None:
    texts = read.event.get("assistantTexts")
    _llm_content(read, "llm.output.observed", texts if texts is not None else read.event.get("lastAssistant"))


def _llm_content(read: Payload, name: str, content: Any) -> None:
    context, event = read.context, read.event
    usage = mapping(event.get("usage"))
    counts = Usage(
        input_tokens=size(usage.get("input")),
        output_tokens=size(usage.get("output")),
        cache_read_tokens=size(usage.get("cacheRead")),
        cache_write_tokens=size(usage.get("cacheWrite")),
        total_tokens=size(usage.get("total")),
    )
    context.event(
        LlmContent,
        name,
        read.scope(under=True),
        hook=read.hook,
        provider=context.ident(text(event.get("provider"))),
        model=context.ident(text(event.get("model"))),
        usage=counts if usage else None,
        content=context.content(content, direction="input" if content is event else "output"),
        native=rest(event, *PLACED, *_UNTOLD, "provider", "model", "usage"),
    )


# sub-agents


def _subagent_start(read: Payload) -> None:
    child = read.text("childSessionKey")
    if child is None:
        _observe(read, "unknown_shape")
        return
    context, spawn = read.context, _spawn_call(read)
    context.event(
        Subagent,
        "subagent.started",
        _requester(read, spawn),
        hook=read.hook,
        # The child's session id does not exist yet; its key is what OpenClaw calls it by, at the start and at the end.
        child_session_id=context.ident(child),
        child_agent_id=context.ident(text(read.event.get("agentId"))),
        child_run_id=context.ident(text(read.event.get("runId"))),
        status="started",
        parent_call_id=spawn.call_id if spawn else None,
        native=rest(read.event, *PLACED, "childSessionKey", "requester"),
    )


def _subagent_end(read: Payload) -> None:
    child = text(read.event.get("targetSessionKey")) or read.text("childSessionKey")
    if child is None:
        _observe(read, "unknown_shape")
        return
    context, error = read.context, text(read.event.get("error"))
    ended = integer(read.event.get("endedAt"))
    session = _session_of(read, child)
    if session:
        _close(read, session, "subagent_ended")
        _end_inferred(read, session, Scope(session_id=session, session_key=child), "subagent_ended")
    native = rest(read.event, *PLACED, "targetSessionKey", "outcome", "error")
    if error:
        native["error"] = context.text(error)
    context.event(
        Subagent,
        "subagent.ended",
        _requester(read, None),
        hook=read.hook,
        at_ms=ended,
        child_session_id=context.ident(child),
        child_run_id=context.ident(text(read.event.get("runId"))),
        status=context.ident(text(read.event.get("outcome"))) or "unknown",
        native=native,
    )


def _requester(read: Payload, spawn: Call | None) -> Scope:
    key = text(read.fields.get("requesterSessionKey"))
    if key is None:
        return Scope()
    scope = read.scope(session_key=key)
    if spawn is None:
        return scope
    return replace(
        scope,
        session_id=scope.session_id or spawn.session_id,
        agent_id=spawn.agent_id or scope.agent_id,
        run_id=spawn.run_id,
        trace_id=spawn.trace_id,
    )


def _spawn_call(read: Payload) -> Call | None:
    session = _session_of(read, text(read.fields.get("requesterSessionKey")))
    spawns = [call for call in read.context.calls.open_calls(session or "") if call.tool_name == SPAWN]
    return spawns[0] if len(spawns) == 1 else None


# approvals


def _approval_requested(read: Payload) -> None:
    request = mapping(read.event.get("request"))
    said = [part for part in (text(request.get("title")), text(request.get("description"))) if part]
    calls.approval(
        read,
        "tool.call.approval_requested",
        request,
        at_ms=integer(read.event.get("createdAtMs")),
        policy=PolicyInfo(decision="ask", reason=read.context.text(": ".join(said)) if said else None),
        native={**rest(request, *_REQUEST_PLACED), **rest(read.event, "request", "createdAtMs")},
    )


def _approval_resolved(read: Payload) -> None:
    word, by = text(read.event.get("decision")) or "", text(read.event.get("resolvedBy"))
    if word == "deny" and by is None and "resolvedBy" in read.event:
        word = "timeout"  # the gateway's own word for a time-out is a denial by nobody
    at_ms = integer(read.event.get("ts"))
    _decided(read, mapping(read.event.get("request")), word, decided_by=by, at_ms=at_ms)


def _approval_resolution(read: Payload) -> None:
    _decided(read, read.event, text(read.event.get("decision")) or "")


def _decided(
    read: Payload, about: Mapping[str, Any], word: str, *, decided_by: str | None = None, at_ms: int | None = None
) -> None:
    known = calls.DECISIONS.get(word)
    calls.approval(
        read,
        calls.DECIDED,
        about,
        at_ms=at_ms,
        approval=Approval(decision=known or "unknown", decided_by=read.context.ident(decided_by)),
        native=rest({"id": read.event.get("id"), "decision": word if known is None else None}),
    )


_REQUEST_PLACED = ("title", "description", "detail", "toolName", "toolCallId", *PLACED)
_RUN_STARTS = frozenset({"before_agent_reply", "before_model_resolve", "agent_turn_prepare", "before_agent_run"})
_SESSION_HOOKS = frozenset({"session_start", "session_end"})

_HANDLERS: dict[str, Callable[[Payload], None]] = {
    "before_tool_call": calls.before,
    "after_tool_call": calls.after,
    "tool_result_persist": calls.persisted,
    calls.REQUESTED: _approval_requested,
    calls.RESOLVED: _approval_resolved,
    calls.RESOLUTION: _approval_resolution,
    "session_start": _session_start,
    "session_end": _session_end,
    "after_compaction": _compacted,
    "before_agent_run": _run_start,
    "agent_end": _run_end,
    "model_call_started": _model_start,
    "model_call_ended": _model_end,
    "llm_input": _llm_input,
    "llm_output": _llm_output,
    "subagent_spawned": _subagent_start,
    "subagent_ended": _subagent_end,
}
_KNOWN = frozenset(_HANDLERS) | {
    "before_model_resolve",
    "agent_turn_prepare",
    "before_prompt_build",
    "before_agent_reply",
    "before_agent_finalize",
    "before_compaction",
    "before_reset",
    "inbound_claim",
    "channel_pairing_requested",
    "message_received",
    "message_sending",
    "reply_payload_sending",
    "message_sent",
    "before_message_write",
    "subagent_delivery_target",
    "subagent_progress",
    "gateway_start",
    "gateway_stop",
    "heartbeat_prompt_contribution",
    "cron_reconciled",
    "cron_changed",
    "skill_proposal_evaluate",
    "skill_proposal_changed",
    "skill_changed",
    "before_dispatch",
    "reply_dispatch",
    "before_install",
    "resolve_exec_env",
}
