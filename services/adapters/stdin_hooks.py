"""What the hook systems of Claude Code and Codex have in common.

Both hand over one flat JSON object per hook, name calls by session, agent and tool_use_id, ask for approval without
naming the call, and leave calls unclosed that only a later hook proves to be over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from schemas.clock import from_rfc3339
from schemas.content import Content
from schemas.events import Approval, Evidence, Outcome, Prompt, Session, Subagent, Turn
from services.adapters import values
from services.adapters.calls import Call
from services.adapters.context import Context, Scope, Tool

V = TypeVar("V")

OWN_END = frozenset({"PostToolUse", "PostToolUseFailure", "PermissionDenied"})
"""Hooks that tell the end of the call they name. An end by any other hook is inferred and gives way to theirs."""

REPEAT_MS = 2_000
"""A second start of an open call with equal input within this time is one hook registered twice, not a call."""

MAX_CLOSED_AT_ONCE = 2_000
"""Open calls that one payload closes, so that its own event always fits; the rest times out in the pipelines."""


@dataclass(slots=True)
class Hook:
    """One payload, read field by field. What nobody could use stays in `rest()`, so that it reaches `native`."""

    name: str
    payload: Mapping[str, Any]
    ctx: Context
    scope: Scope = field(default_factory=Scope)
    cwd: str | None = None
    taken: set[str] = field(default_factory=set)

    def text(self, name: str) -> str | None:
        """A non-empty text (an integer as its digits)."""
        return self._take(name, values.text)

    def ident(self, name: str) -> str | None:
        """A text that is an id or a name, redacted."""
        return self.ctx.ident(self.text(name))

    def number(self, name: str) -> float | None:
        """A finite number that is not negative."""
        return self._take(name, values.number)

    def size(self, name: str) -> int | None:
        """A count."""
        return self._take(name, values.size)

    def true(self, name: str) -> bool:
        """Whether a flag is set; what is no boolean is not taken."""
        return self._take(name, lambda value: value if isinstance(value, bool) else None) is True

    def value(self, name: str) -> Any:
        """Any JSON value."""
        self.taken.add(name)
        return self.payload.get(name)

    def arguments(self) -> Any:
        """The tool's input; an absent one counts as an empty object."""
        value = self.value("tool_input")
        return {} if value is None else value

    def same_input(self, call: Call, asked: Any) -> bool:
        """Whether the call had this input; never where hashes of inputs are not kept."""
        return call.input_hash is not None and call.input_hash == self.ctx.content(asked).hash

    def output(self, name: str) -> Content | None:
        """Any JSON value as content that a model or tool gave."""
        value = self.value(name)
        return None if value is None else self.ctx.content(value, direction="output")

    def rest(self, **more: Any) -> dict[str, Any]:
        """The fields that were not taken, and `more` where it says something."""
        return {**values.rest(self.payload, *self.taken), **values.rest(more)}

    def key(self, tool_use_id: str) -> tuple[str | None, str | None, str]:
        """The parts of a call's key."""
        return self.scope.session_id, self.scope.agent_id, tool_use_id

    def observed(self, reason: str, *, withhold: Iterable[str] = ()) -> None:
        """agent.event.observed for this payload; of `withhold`, which is content, only size and hash are kept."""
        self.taken.update(withhold)
        self.ctx.observed(self.name, self.payload, self.scope, reason, native=self.rest())

    def _take(self, name: str, read: Callable[[Any], V | None]) -> V | None:
        found = read(self.payload.get(name))
        if found is not None:
            self.taken.add(name)
        return found


def read(payload: Mapping[str, Any], ctx: Context, *, turn: str) -> Hook:
    """The payload with the fields that all hooks have taken; `turn` names the one that holds the turn's id."""
    hook = Hook("unknown", payload, ctx)
    hook.name = hook.text("hook_event_name") or hook.text("hook") or "unknown"
    hook.scope = Scope(
        session_id=hook.text("session_id"),
        agent_id=hook.text("agent_id"),
        agent_role=hook.text("agent_type"),
        turn_id=hook.text(turn),
    )
    cwd = payload.get("cwd")
    hook.cwd = cwd if isinstance(cwd, str) else None
    return hook


# tool calls


def start(hook: Hook, tool: Tool, call_id: str, **native: Any) -> None:
    """tool.call.started, unless it was told already because the hook is registered in two places."""
    asked, call = hook.arguments(), hook.ctx.find(hook.key(call_id))
    if _is_repeated_start(hook, call, tool, asked):
        hook.observed("repeated")
        return
    hook.ctx.start(
        hook.key(call_id),
        tool,
        hook.scope,
        arguments=asked,
        cwd=hook.cwd,
        hook=hook.name,
        tool_call_id=call_id,
        native=hook.rest(**native),
    )


def end(
    hook: Hook,
    tool: Tool,
    call_id: str,
    outcome: Outcome,
    evidence: Evidence,
    *,
    native: Mapping[str, Any] | None = None,
    decided_by: str | None = None,
    **fields: Any,
) -> None:
    """The end of a call as its own hook tells it, and the answer to a request for approval that this implies."""
    ran_with, call = hook.arguments(), hook.ctx.find(hook.key(call_id))
    if _is_repeated_end(hook, call, ran_with):
        hook.observed("repeated")
        return
    if call is not None:
        decide_by_end(hook, call, "deny" if outcome == "blocked" else "allow_once", decided_by)
    duration = hook.number("duration_ms")
    hook.ctx.end(
        hook.key(call_id),
        tool,
        hook.scope,
        outcome,
        evidence,
        arguments=ran_with,
        cwd=hook.cwd,
        hook=hook.name,
        tool_call_id=call_id,
        duration_ms=duration,
        native=hook.rest(**(native or {})),
        **fields,
    )


def _is_repeated_start(hook: Hook, call: Call | None, tool: Tool, asked: Any) -> bool:
    if call is None or call.ended or not call.started or call.synthetic_start:
        return False
    if abs(hook.ctx.happened_ms - from_rfc3339(call.timestamp)) > REPEAT_MS:
        return False
    return call.tool_name == hook.ctx.ident(tool.name) and hook.same_input(call, asked)


def _is_repeated_end(hook: Hook, call: Call | None, ran_with: Any) -> bool:
    # A call id in use again would have started again; where that start was lost, the input most likely differs.
    return (
        call is not None
        and call.started
        and call.ended
        and call.end_hook == hook.ctx.ident(hook.name)
        and hook.same_input(call, ran_with)
    )


def open_calls(hook: Hook) -> list[Call]:
    """Open calls of the payload's agent; the main agent has no id."""
    ctx = hook.ctx
    session, agent = ctx.ident(hook.scope.session_id) or "", ctx.ident(hook.scope.agent_id)
    return ctx.calls.open_calls(session, agent_id=agent, any_agent=False)


def all_open_calls(hook: Hook) -> list[Call]:
    """Open calls of the payload's session, those of sub-agents included."""
    return hook.ctx.calls.open_calls(hook.ctx.ident(hook.scope.session_id) or "")


def close(hook: Hook, calls: Iterable[Call], outcome: Outcome, cause: str) -> None:
    """End calls that this payload proves to be over, though nothing tells how they ended."""
    for call in list(calls)[:MAX_CLOSED_AT_ONCE]:
        if call.approval_open:
            _decide(hook, call, "cancelled" if outcome == "cancelled" else "unknown", cause)
        hook.ctx.end_open(call, outcome, "inferred", cause, hook=hook.name)


# approvals


def request_approval(hook: Hook, tool: Tool, asked: Any, also: Any = None) -> None:
    """tool.call.approval_requested of a payload that names no call.

    The call is the only one of this agent and tool with equal input (`asked`, or `also` where the runtime adds to it):
    open, or just ended, since the request can arrive late; else the agent's only open call of the tool, whose input a
    hook rewrote. With several equal ones nothing is guessed: the request then stands alone under a key of its own.
    """
    ctx = hook.ctx
    content = ctx.content(asked)
    hashes = {content.hash, None if also is None else ctx.content(also).hash} - {None}
    session, turn = ctx.ident(hook.scope.session_id) or "", ctx.ident(hook.scope.turn_id)
    name = ctx.ident(tool.name)
    running = [call for call in open_calls(hook) if call.tool_name == name]
    equal = [call for call in running if call.input_hash in hashes]
    # A shell of an earlier turn may still run; the turn decides only between calls, since a sub-agent's can change.
    equal = [call for call in equal if call.turn_id == turn] or equal
    if not equal:
        agent = ctx.ident(hook.scope.agent_id)
        equal = [
            call
            for call in ctx.calls.ended_calls(session)
            if call.tool_name == name
            and call.agent_id == agent
            and call.turn_id == turn
            and call.input_hash in hashes
            and not call.approval_decided
        ]
    if not equal and len(running) == 1 and not running[0].approval_open:
        equal = running
    if len(equal) != 1:
        ctx.call(
            "tool.call.approval_requested",
            hook.key(f"approval:{ctx.delivery_id}"),
            tool,
            hook.scope,
            arguments=asked,
            cwd=hook.cwd,
            hook=hook.name,
            native=hook.rest(equal_calls=len(equal)),
        )
        return
    call = equal[0]
    ctx.about(call, "tool.call.approval_requested", hook=hook.name, input=content, native=hook.rest())
    if call.ended:
        ran = (call.end_hook or "").startswith("PostToolUse")
        decision = "deny" if call.outcome == "blocked" else "allow_once" if ran else "unknown"
        _decide(hook, call, decision, "late_request")


def decide_by_end(hook: Hook, call: Call, decision: str, decided_by: str | None = None) -> None:
    """The answer to a request for approval that the call's end implies, also where an earlier end implied another."""
    revised = call.ended and call.approval_decided and call.end_hook not in OWN_END
    if call.approval_open or revised:
        _decide(hook, call, decision, hook.name, decided_by)


def _decide(hook: Hook, call: Call, decision: str, cause: str, decided_by: str | None = None) -> None:
    approval = Approval.model_validate({"decision": decision, "decided_by": decided_by, "inferred": True})
    hook.ctx.about(call, "tool.call.approval_decided", hook=hook.name, approval=approval, cause=cause, synthetic=True)


# sessions, turns, sub-agents


def session(hook: Hook, event_name: str, reason: str, **fields: Any) -> None:
    """session.*; `reason` names the payload's field that says why."""
    why, model = hook.ident(reason), hook.ident("model")
    hook.ctx.event(
        Session, event_name, hook.scope, hook=hook.name, reason=why, model=model, native=hook.rest(), **fields
    )


def prompt(hook: Hook, origin: str, **native: Any) -> None:
    """turn.started and user.prompt.submitted."""
    ctx, asked, origin_id = hook.ctx, hook.value("prompt"), hook.ctx.ident(origin)
    ctx.event(Turn, "turn.started", hook.scope, hook=hook.name, reason=origin_id)
    ctx.event(
        Prompt,
        "user.prompt.submitted",
        hook.scope,
        hook=hook.name,
        origin=origin_id,
        content=None if asked is None else ctx.content(asked),
        native=hook.rest(**native),
    )


def turn_ended(hook: Hook, reason: str, **fields: Any) -> None:
    """turn.ended with the agent's last message."""
    content = hook.output("last_assistant_message")
    hook.ctx.event(
        Turn, "turn.ended", hook.scope, hook=hook.name, reason=reason, content=content, native=hook.rest(), **fields
    )


def subagent_started(hook: Hook, launchers: Callable[[Call], bool]) -> None:
    """subagent.started. Its parent is the open call that launches an agent, if there is just one."""
    launches = [call for call in all_open_calls(hook) if launchers(call)]
    # With several under way nothing says which it was; PostToolUse of the launch names the child.
    _subagent(hook, "subagent.started", parent_call_id=launches[0].call_id if len(launches) == 1 else None)


def subagent_ended(hook: Hook) -> None:
    """subagent.ended, and the end of the calls that the sub-agent left open."""
    if hook.scope.agent_id is not None:
        close(hook, open_calls(hook), "unknown", "subagent_stop")
    _subagent(hook, "subagent.ended", content=hook.output("last_assistant_message"))


def _subagent(hook: Hook, event_name: str, **fields: Any) -> None:
    ctx = hook.ctx
    ctx.event(
        Subagent,
        event_name,
        hook.scope,
        hook=hook.name,
        child_agent_id=ctx.ident(hook.scope.agent_id),
        agent_type=ctx.ident(hook.scope.agent_role),
        native=hook.rest(),
        **fields,
    )
