"""Hermes tool hooks → tool.call.*: which call an event belongs to, and which of two tellers of one call is heard."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from schemas.events import Approval, PolicyInfo
from schemas.identity import span_id
from services.adapters.calls import Call
from services.adapters.context import Scope, Tool
from services.adapters.hermes import outcome, tools
from services.adapters.hermes.payload import PLACED, SHELL, Payload, task_of_turn
from services.adapters.values import mapping, number, rest, text

PRE, POST = "pre_tool_call", "post_tool_call"
Answer = Literal["allow_once", "allow_session", "allow_always", "deny", "timeout", "unknown"]
DECISIONS: dict[str, Answer] = {
    "once": "allow_once",
    "session": "allow_session",
    "always": "allow_always",
    "deny": "deny",
    "timeout": "timeout",
    "smart_approve": "allow_once",
    "smart_deny": "deny",
}
_DECIDED = "tool.call.approval_decided"
_SMART = "smart"
_BY_HUMAN = "BLOCKED: User denied"
_PLUGIN_RULE = re.compile(r"<([^<>]+)> \(plugin approval rule\)")
_TAKEN = (
    *PLACED,
    "args",
    "duration_ms",
    "error_message",
    "error_type",
    "result",
    "status",
    "tool_call_id",
    "tool_name",
)


def before(read: Payload) -> None:
    """tool.call.started."""
    name = read.text("tool_name")
    if name is None:
        _observe(read, "unknown_shape", read.scope())
        return
    key, arguments = _key(read, name), _arguments(read)
    known = read.context.find(key)
    if known is not None and known.started and _other_form(known.start_hook, read, PRE):
        _observe(read, "duplicate", read.scope(known))
        return
    outer = _outer(read)
    read.context.start(
        key,
        tools.describe(name, read.toolset, read.context),
        _inside(read.scope(outer), outer),
        arguments=arguments,
        cwd=_cwd(read, arguments),
        hook=read.hook,
        tool_call_id=read.text("tool_call_id"),
        parent_call_id=outer.call_id if outer else None,
        native=rest(read.kwargs, *_TAKEN),
    )


def after(read: Payload) -> None:
    """The end of a call."""
    name = read.text("tool_name")
    if name is None:
        _observe(read, "unknown_shape", read.scope())
        return
    context, key = read.context, _key(read, name)
    call = context.find(key)
    if call is not None and call.ended and _other_form(call.end_hook, read, POST):
        _observe(read, "duplicate", read.scope(call))
        return
    outer = None if call and call.parent_call_id else _outer(read)
    parent = call.parent_call_id if call and call.parent_call_id else outer.call_id if outer else None
    scope = _inside(read.scope(call or outer), outer)
    tool = tools.describe(name, read.toolset, context)
    arguments: Any = _arguments(read)
    found = outcome.read(name, arguments, read.kwargs)
    if found.error_type == "plugin_block" and (found.message or "").startswith(_BY_HUMAN):
        _denied(read, key, tool, scope, call)
    native = rest(read.kwargs, *_TAKEN)
    cwd = _cwd(read, arguments)
    if call is not None and call.started:
        # A hook or middleware may have changed the arguments after pre_tool_call; these are the ones that ran.
        same = context.capture.hash(arguments) == call.input_hash
        native.update({} if same or call.input_hash is None else {"arguments_rewritten": True})
    failed = found.outcome in ("error", "timeout", "cancelled", "blocked")
    context.end(
        key,
        tool,
        scope,
        found.outcome,
        found.evidence,
        arguments=arguments,
        output=read.kwargs.get("result"),
        is_error_result=found.outcome != "ok" if found.evidence == "is_error" else None,
        cwd=cwd,
        hook=read.hook,
        tool_call_id=read.text("tool_call_id"),
        parent_call_id=parent,
        duration_ms=number(read.kwargs.get("duration_ms")),
        exit_code=found.exit_code,
        error=context.error(found.message, type=found.error_type, code=found.exit_code) if failed else None,
        policy=PolicyInfo(decision="deny", reason=context.text(found.message)) if found.outcome == "blocked" else None,
        background=found.background,
        native=native,
    )


def approval_requested(read: Payload) -> None:
    """tool.call.approval_requested, where a human is asked."""
    if read.text("surface") == _SMART:
        # A model decides first; if it cannot, a human is asked in a hook call of its own.
        _observe(read, "smart_approval", read.scope(_asked(read)))
        return
    reason = read.context.text(read.text("description"))
    _approval(read, "tool.call.approval_requested", policy=PolicyInfo(decision="ask", reason=reason))


def approval_decided(read: Payload) -> None:
    """tool.call.approval_decided."""
    by = read.text("decided_by") or (_SMART if read.text("surface") == _SMART else None)
    decision = DECISIONS.get(read.text("choice") or "", "unknown")
    _approval(read, _DECIDED, approval=Approval(decision=decision, decided_by=read.context.ident(by)))


def _approval(read: Payload, name: str, **fields: Any) -> None:
    context, tool_call_id, call = read.context, read.text("tool_call_id"), _asked(read)
    fields["native"] = rest(read.kwargs, *_TAKEN, "command", "description", "decided_by")
    if tool_call_id is None:
        _observe(read, "unknown_shape", read.scope())
    elif call is not None:
        context.about(call, name, hook=read.hook, **fields)
    else:
        rule = _PLUGIN_RULE.fullmatch(read.text("command") or "")
        tool = tools.describe(rule[1] if rule else tools.TERMINAL, None, context)
        context.call(name, _key(read, ""), tool, read.scope(), hook=read.hook, tool_call_id=tool_call_id, **fields)


def _key(read: Payload, name: str) -> tuple[str, str, str]:
    """Session, turn and native id. Calls from inside execute_code have none of them: a thread makes them one by one."""
    tool_call_id = read.text("tool_call_id")
    if tool_call_id:
        return read.session_id or "", read.text("turn_id") or "", tool_call_id
    return read.session_id or "", read.text("task_id") or "", f"{read.thread}~{name}"


def _other_form(told_by: str | None, read: Payload, name: str) -> bool:
    return told_by in (name, f"{SHELL}{name}") and told_by != read.hook


def _outer(read: Payload) -> Call | None:
    """The open execute_code call from whose inside a call without ids is made: the one in the same task."""
    task = read.text("task_id")
    if read.text("tool_call_id") or not task:
        return None
    task = read.context.ident(task)
    found = [c for c in read.context.calls.open_by_tool(tools.EXECUTE_CODE) if task_of_turn(c.turn_id) == task]
    return found[-1] if found else None


def _inside(scope: Scope, outer: Call | None) -> Scope:
    if outer is None:
        return scope
    return replace(scope, parent_span_id=span_id(outer.call_id))


def _arguments(read: Payload) -> Any:
    given = read.kwargs.get("args")
    return {} if given is None else given


def _cwd(read: Payload, arguments: Any) -> str | None:
    return text(mapping(arguments).get("workdir")) or read.cwd


def _asked(read: Payload) -> Call | None:
    return read.context.find(_key(read, "")) if read.text("tool_call_id") else None


def _denied(read: Payload, key: tuple[str, str, str], tool: Tool, scope: Scope, call: Call | None) -> None:
    """The answer to a plugin's own request for approval: in the CLI no hook tells it, only the call's refusal."""
    if call is not None and call.approval_decided:
        return
    read.context.call(
        _DECIDED,
        key,
        tool,
        scope,
        hook=read.hook,
        tool_call_id=read.text("tool_call_id"),
        approval=Approval(decision="deny", inferred=True),
        synthetic=True,
        cause="refused_call",
    )


def _observe(read: Payload, reason: str, scope: Scope) -> None:
    native = rest(read.kwargs, *_TAKEN, "command", "description")
    read.context.observed(read.hook, read.kwargs, scope, reason, native=native)
