"""OpenClaw's tool hooks → tool.call.*: which call an event belongs to, and what is made up where a hook is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from schemas.events import Approval, PolicyInfo
from schemas.identity import call_id, span_id
from services.adapters.context import Scope, Tool
from services.adapters.openclaw import outcome, tools
from services.adapters.openclaw.payload import PLACED, Payload
from services.adapters.values import mapping, number, rest, text

REQUESTED = "gateway:plugin.approval.requested"
RESOLVED = "gateway:plugin.approval.resolved"
RESOLUTION = "requireApproval.onResolution"
DECIDED = "tool.call.approval_decided"

Answer = Literal["allow_once", "allow_always", "deny", "timeout", "cancelled"]
DECISIONS: dict[str, Answer] = {
    "allow-once": "allow_once",
    "allow-always": "allow_always",
    "deny": "deny",
    "timeout": "timeout",
    "cancelled": "cancelled",
}

_DETAILS = ("deniedReason", "exitReason", "exitSignal", "failureKind", "noOutputTimedOut", "pid", "status", "timedOut")
_TAKEN = ("toolName", "toolCallId", "params", "result", "error", "durationMs", "toolKind", *PLACED)


def before(read: Payload) -> None:
    """tool.call.started."""
    name = read.text("toolName")
    if name is None:
        _not_a_call(read)
        return
    tool_call_id = read.text("toolCallId")
    params = _params(read)
    scope = read.scope(under=True)
    parent = _parent(read, tool_call_id)
    read.context.start(
        read.key(tool_call_id, name),
        tools.describe(
            name, read.context, kind=read.context.ident(text(read.event.get("toolKind"))), server=read.server
        ),
        _inside(scope, parent),
        arguments=params,
        cwd=_cwd(params, None),
        hook=read.hook,
        tool_call_id=tool_call_id,
        parent_call_id=parent,
        wrapper=tools.wraps(name, params),
        user_id_hash=read.user(mapping(read.fields.get("requester")).get("senderId")),
        native=_native(read),
    )


def after(read: Payload) -> None:
    """The end of a call, and its start where no hook told it (unknown tool, bad arguments, blocked above)."""
    name = read.text("toolName")
    if name is None:
        _not_a_call(read)
        return
    context, event = read.context, read.event
    tool_call_id, params, result = read.text("toolCallId"), _params(read), event.get("result")
    details = mapping(mapping(result).get("details"))
    duration = number(event.get("durationMs"))
    key = read.key(tool_call_id, name)
    call = context.find(key)
    tool = tools.describe(name, context, kind=call.tool_kind if call else None, details=details)
    scope = read.scope(call, under=True)
    parent = _parent(read, tool_call_id)
    shared: dict[str, Any] = {
        "hook": read.hook,
        "tool_call_id": tool_call_id,
        "parent_call_id": parent,
        "wrapper": tools.wraps(name, params),
    }
    told = call is not None and call.started
    if not told:
        context.start(
            key,
            tool,
            _inside(scope, parent),
            arguments=params,
            cwd=_cwd(params, details),
            at_ms=context.happened_ms - int(duration or 0),
            synthetic=True,
            cause="after_without_before",
            **shared,
        )
    found = outcome.read(name, text(event.get("error")), result)
    if found.error_type in outcome.ANSWERS and not (call and call.approval_decided):
        answer = outcome.ANSWERS[found.error_type]
        _denied(read, key, tool, scope, tool_call_id=tool_call_id, answer=answer)
    output = mapping(result).get("content", result)
    native = _native(read)
    native.update(
        {f"details.{field}": details[field] for field in _DETAILS if details.get(field) not in (None, "", False)}
    )
    if told and call is not None:
        # before_tool_call saw the parameters before other plugins rewrote them; these are the ones that ran.
        same = context.capture.hash(params) == call.input_hash
        native.update({} if same or call.input_hash is None else {"params_rewritten": True})
    failed = found.outcome in ("error", "timeout", "cancelled", "blocked")
    context.end(
        key,
        tool,
        _inside(scope, parent),
        found.outcome,
        found.evidence,
        arguments=params if told else None,
        output=output,
        is_error_result=_is_error(found),
        cwd=_cwd(params, details),
        duration_ms=duration,
        exit_code=found.exit_code,
        error=context.error(found.message, type=found.error_type, code=found.exit_code) if failed else None,
        policy=PolicyInfo(decision="deny", reason=context.text(found.message)) if found.outcome == "blocked" else None,
        background=found.background,
        native=native,
        **shared,
    )


def persisted(read: Payload) -> None:
    """tool.result.persisted: what of a result goes to the transcript, after other plugins changed it."""
    context, tool_call_id = read.context, read.text("toolCallId")
    key = read.text("sessionKey")
    call = context.calls.find_native(context.runtime, context.ident(tool_call_id) or "", context.ident(key))
    if call is None:
        read.context.observed(read.hook, read.event, read.scope(), "unknown_call")
        return
    message = mapping(read.event.get("message"))
    context.about(
        call,
        "tool.result.persisted",
        hook=read.hook,
        output=context.content(message.get("content"), direction="output"),
        native=rest({"isError": message.get("isError"), "isSynthetic": read.event.get("isSynthetic")}),
    )


def approval(read: Payload, name: str, about: Mapping[str, Any], **fields: Any) -> None:
    """An event of the request for approval, or of its answer, that `about` names by toolCallId and, at best, runId.

    Gateway and plugin both tell the one answer: the second is only observed.
    """
    context, tool_call_id, run = read.context, text(about.get("toolCallId")), text(about.get("runId"))
    key = (run or "", tool_call_id or "")
    call = None
    if tool_call_id and run:
        call = context.find(key)
    elif tool_call_id:
        call = context.calls.find_native(context.runtime, context.ident(tool_call_id) or "")
    request = Payload(read.hook, about, {}, context)
    if not tool_call_id or (call is None and not run):
        reason = "unknown_call" if tool_call_id else "unknown_shape"
        context.observed(read.hook, read.event, request.scope(), reason, native=fields.get("native"))
    elif call is None:
        tool = tools.describe(text(about.get("toolName")) or "unknown", context)
        context.call(name, key, tool, request.scope(), hook=read.hook, tool_call_id=tool_call_id, **fields)
    elif name == DECIDED and call.approval_decided:
        context.observed(read.hook, read.event, request.scope(call), "duplicate", native=fields.get("native"))
    else:
        context.about(call, name, hook=read.hook, **fields)


def _denied(
    read: Payload, key: tuple[str, str], tool: Tool, scope: Scope, *, tool_call_id: str | None, answer: outcome.Answer
) -> None:
    """The answer to another plugin's request for approval: no hook tells it, only the call's refusal."""
    read.context.call(
        DECIDED,
        key,
        tool,
        scope,
        hook=read.hook,
        tool_call_id=tool_call_id,
        approval=Approval(decision=answer, inferred=True),
        synthetic=True,
        cause="refused_call",
    )


def _not_a_call(read: Payload) -> None:
    read.context.observed(read.hook, read.event, read.scope(), "unknown_shape", native=rest(read.event, *_TAKEN))


def _params(read: Payload) -> Any:
    params = read.event.get("params")
    return {} if params is None else params


def _cwd(params: Any, details: Mapping[str, Any] | None) -> str | None:
    given = mapping(params)
    return text(given.get("workdir")) or text(given.get("cwd")) or text((details or {}).get("cwd"))


def _parent(read: Payload, tool_call_id: str | None) -> str | None:
    """The bridge call around this one. Its hook may come later, so a call not known yet is taken to be its first."""
    outer = tools.outer_id(tool_call_id) if tool_call_id else None
    if outer is None:
        return None
    key = read.key(outer, None)
    known = read.context.find(key)
    return known.call_id if known else call_id(read.context.call_key(key), 1)


def _inside(scope: Scope, parent_call_id: str | None) -> Scope:
    if parent_call_id is None:
        return scope
    return replace(scope, parent_span_id=span_id(parent_call_id))


def _native(read: Payload) -> dict[str, Any]:
    requester = mapping(read.fields.get("requester"))
    native = rest(read.event, *_TAKEN)
    native.update(rest({"channelId": read.fields.get("channelId"), "requester": rest(requester, "senderId")}))
    return native


def _is_error(found: outcome.Reading) -> bool | None:
    if found.evidence == "is_error":
        return found.outcome != "ok"
    return None
