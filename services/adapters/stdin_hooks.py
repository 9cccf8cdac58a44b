"""What the hook systems of Claude Code and Codex have in common.

Both hand over one flat JSON object per hook, name calls by session, agent and tool_use_id, ask for approval without naming the
call, and leave calls unclosed that only a later hook proves to be over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.clock import from_rfc3339
from schemas.content import Content
from schemas.events import Approval, Outcome
from services.adapters.calls import Call
from services.adapters.context import Context, Scope, Tool

REPEAT_MS = 2_000
"""A second start of an open call with equal input within this time is the same hook registered twice, not a call."""

MAX_CLOSED_AT_ONCE = 2_000
"""Open calls that one payload closes; what is left times out in the pipelines, and the payload's own event is never lost."""


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
        """A text; whole numbers are taken as text, the empty text and other types as absent."""
        value = self.payload.get(name)
        if type(value) is int:
            value = str(value)
        if not isinstance(value, str):
            return None
        self.taken.add(name)
        return value or None

    def number(self, name: str) -> float | None:
        """A finite number that is not negative."""
        value = self.payload.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            return None
        self.taken.add(name)
        return float(value)

    def true(self, name: str) -> bool:
        """Whether a flag is set; anything but a boolean is not."""
        value = self.payload.get(name)
        if isinstance(value, bool):
            self.taken.add(name)
        return value is True

    def value(self, name: str) -> Any:
        """Any JSON value."""
        self.taken.add(name)
        return self.payload.get(name)

    def rest(self, **more: Any) -> dict[str, Any]:
        """The fields that were not taken, and `more` where it says something."""
        left = {name: value for name, value in self.payload.items() if name not in self.taken and value is not None}
        return {**left, **{name: value for name, value in more.items() if value is not None}}

    def key(self, tool_use_id: str) -> tuple[str | None, str | None, str]:
        """The parts of the call's key."""
        return self.scope.session_id, self.scope.agent_id, tool_use_id

    def observed(self, reason: str, *, withhold: Iterable[str] = ()) -> None:
        """agent.event.observed for this payload; of `withhold`, which is content, only size and hash are kept."""
        self.taken.update(withhold)
        self.ctx.observed(self.name, self.payload, self.scope, reason, native=self.rest())


def arguments(hook: Hook) -> Any:
    """The tool's input; an absent one counts as an empty object."""
    value = hook.value("tool_input")
    return {} if value is None else value


def is_repeated_start(hook: Hook, call: Call | None, tool: Tool, content: Content) -> bool:
    """Whether this start is one that was told already, because a hook is registered in two places."""
    if call is None or call.ended or not call.started or call.synthetic_start:
        return False
    if call.tool_name != hook.ctx.ident(tool.name) or call.input_hash != content.hash:
        return False
    return abs(hook.ctx.happened_ms - from_rfc3339(call.timestamp)) <= REPEAT_MS


def is_repeated_end(hook: Hook, call: Call | None, content: Content) -> bool:
    """Whether this hook ended the call already; a call id in use again would have started again."""
    return (
        call is not None
        and call.started
        and call.ended
        and call.end_hook == hook.ctx.ident(hook.name)
        and call.input_hash == content.hash
    )


def request_approval(hook: Hook, tool: Tool, asked: Any, also: Any = None) -> None:
    """tool.call.approval_requested of a payload that names no call.

    The call is the only one of this agent and tool with equal input (`asked`, or `also` where the runtime adds to it): open, or
    just ended, since the request can arrive late; else the agent's only open call of the tool, whose input a hook rewrote. With
    several equal ones nothing is guessed: the request then stands alone under a key of its own.
    """
    ctx = hook.ctx
    content = ctx.content(asked)
    hashes = {content.hash} if also is None else {content.hash, ctx.content(also).hash}
    session, agent, name = ctx.ident(hook.scope.session_id) or "", ctx.ident(hook.scope.agent_id), ctx.ident(tool.name)
    turn = ctx.ident(hook.scope.turn_id)

    def alike(calls: Iterable[Call]) -> list[Call]:
        return [call for call in calls if call.tool_name == name and call.agent_id == agent]

    running = alike(ctx.calls.open_calls(session))
    equal = [call for call in running if call.input_hash in hashes]
    if not equal:
        over = [call for call in alike(ctx.calls.ended_calls(session)) if call.input_hash in hashes]
        equal = [call for call in over if call.turn_id == turn and not call.approval_decided]
    if not equal and len(running) == 1 and not running[0].approval_open:
        equal = running
    if len(equal) != 1:
        key = (hook.scope.session_id, hook.scope.agent_id, f"approval:{ctx.delivery_id}")
        ctx.call(
            "tool.call.approval_requested",
            key,
            tool,
            hook.scope,
            arguments=asked,
            cwd=hook.cwd,
            hook=hook.name,
            native=hook.rest(equal_calls=len(equal)),
        )
        return
    call = equal[0]
    ended_by = call.end_hook if call.ended else None
    ctx.about(call, "tool.call.approval_requested", hook=hook.name, input=content, native=hook.rest())
    if ended_by is not None:
        decide(hook, call, "deny" if call.outcome == "blocked" else "allow_once", "late_request")


def decide(hook: Hook, call: Call, decision: str, cause: str, decided_by: str | None = None) -> None:
    """tool.call.approval_decided where no hook tells the decision and `cause` implies it."""
    hook.ctx.about(
        call,
        "tool.call.approval_decided",
        hook=hook.name,
        approval=Approval.model_validate({"decision": decision, "decided_by": decided_by, "inferred": True}),
        cause=cause,
        synthetic=True,
    )


def close(hook: Hook, calls: Iterable[Call], outcome: Outcome, cause: str) -> None:
    """End calls that this payload proves to be over, though nothing tells how they ended."""
    for call in list(calls)[:MAX_CLOSED_AT_ONCE]:
        if call.approval_open:
            decide(hook, call, "cancelled" if outcome == "cancelled" else "unknown", cause)
        hook.ctx.end_open(call, outcome, "inferred", cause, hook=hook.name)


def open_calls(hook: Hook) -> list[Call]:
    """Open calls of the payload's agent; the main agent has no id."""
    ctx = hook.ctx
    return ctx.calls.open_calls(
        ctx.ident(hook.scope.session_id) or "", agent_id=ctx.ident(hook.scope.agent_id), any_agent=False
    )


def all_open_calls(hook: Hook) -> list[Call]:
    """Open calls of the payload's session, those of sub-agents included."""
    return hook.ctx.calls.open_calls(hook.ctx.ident(hook.scope.session_id) or "")
