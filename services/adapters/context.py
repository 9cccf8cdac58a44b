"""What an adapter is given beside the payload, and the one way in which it makes events.

An adapter says what a payload means (`start`, `end`, `event`); ids, times, hashes, facts and redaction are done here, so the four
adapters cannot differ in them and no raw content outlives the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from schemas.clock import MAX_MS, to_rfc3339
from schemas.content import Content
from schemas.events import (
    ErrorInfo,
    Event,
    EventBase,
    Evidence,
    Mcp,
    Observed,
    Outcome,
    Runtime,
    ToolCall,
    ToolSource,
    to_json,
)
from schemas.facts import Facts
from schemas.identity import MAX_EVENTS_PER_DELIVERY, call_id, event_id, join_key, span_id, trace_id
from services.adapters.calls import Call, CallTable
from services.capture.content import Capture

E = TypeVar("E", bound=EventBase)
Direction = Literal["input", "output"]

_MAX_AGE_MS = 90 * 86_400_000
_MAX_AHEAD_MS = 86_400_000
MAX_EVENTS = min(MAX_EVENTS_PER_DELIVERY, 10_000)

_STATUS = {
    "tool.call.started": "started",
    "tool.call.approval_requested": "started",
    "tool.call.approval_decided": "started",
    "tool.call.completed": "completed",
    "tool.call.error": "error",
    "tool.call.blocked": "blocked",
    "tool.result.persisted": "completed",
}
_END_NAME = {"ok": "tool.call.completed", "unknown": "tool.call.completed", "blocked": "tool.call.blocked"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose event it is: the ids of the payload, as the runtime gives them (redacted when used)."""

    session_id: str | None = None
    root_session_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    agent_role: str | None = None
    agent_version: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    model_call_id: str | None = None
    trace_id: str | None = None
    parent_span_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """What is called: the runtime's own name, where it comes from, and the MCP side if there is one."""

    name: str
    source: ToolSource = "unknown"
    kind: str | None = None
    mcp: Mcp | None = None


@dataclass(slots=True)
class Context:
    """One delivery of one payload.

    `delivery_id` is the UUIDv7 that the forwarder or plugin made, `happened_ms` when it says the hook fired, `observed_ms` when the
    collector accepted it (both ms since the epoch). `calls` is read here and changed only by the events that are made. `ready`
    holds the JSON forms of `events`.
    """

    runtime: Runtime
    adapter: str
    delivery_id: str
    happened_ms: int
    observed_ms: int
    capture: Capture
    calls: CallTable
    tenant_id: str | None = None
    workspace_id: str | None = None
    agent_version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    ready: list[dict[str, Any]] = field(default_factory=list)

    def happened_at(self, seconds: float | None) -> None:
        """Take the payload's own time (seconds since the epoch) for the delivery's, unless it is missing or implausible."""
        ms = None if seconds is None else int(min(seconds, MAX_MS) * 1000)
        if ms is not None and self.observed_ms - _MAX_AGE_MS <= ms <= self.observed_ms + _MAX_AHEAD_MS:
            self.happened_ms = ms

    def event(
        self,
        model: type[E],
        event_name: str,
        scope: Scope,
        /,
        *,
        hook: str | None = None,
        at_ms: int | None = None,
        **fields: Any,
    ) -> E:
        """Make one event, fold it into the call table, and keep it as a result of this delivery.

        `native` may be given as the payload's leftover fields; it is redacted and bounded here. `at_ms` (since the epoch) is
        for what happened at another time than the hook fired.
        """
        if len(self.events) >= MAX_EVENTS:
            raise ValueError(f"more than {MAX_EVENTS} events in one delivery")
        if "native" in fields:
            fields["native"] = self.capture.native(fields["native"])
        # The base has no event_name: each model narrows it to its own names.
        made = model(  # type: ignore[call-arg]
            event_name=event_name,
            event_id=event_id(self.delivery_id, len(self.events)),
            timestamp=to_rfc3339(self.happened_ms if at_ms is None else at_ms),
            observed_at=to_rfc3339(self.observed_ms),
            agent_runtime=self.runtime,
            source_adapter=self.adapter,
            source_event_name=self.ident(hook),
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            labels=dict(self.labels),
            **self._ids(scope),
            **fields,
        )
        ready = to_json(made)
        self.calls.apply_json(ready)
        self.events.append(made)  # type: ignore[arg-type]
        self.ready.append(ready)
        return made

    def start(
        self,
        key: Iterable[str | None],
        tool: Tool,
        scope: Scope,
        *,
        arguments: Any = None,
        cwd: str | None = None,
        hook: str | None = None,
        **fields: Any,
    ) -> ToolCall:
        """tool.call.started for the call that `key` names (the runtime's ids, see schemas/identity and design of call_key)."""
        return self.call("tool.call.started", key, tool, scope, arguments=arguments, cwd=cwd, hook=hook, **fields)

    def end(
        self,
        key: Iterable[str | None],
        tool: Tool,
        scope: Scope,
        outcome: Outcome,
        evidence: Evidence,
        *,
        arguments: Any = None,
        output: Any = None,
        is_error_result: bool | None = None,
        cwd: str | None = None,
        hook: str | None = None,
        **fields: Any,
    ) -> ToolCall:
        """The end of a call; its event name follows the outcome, so a proven failure is tool.call.error whatever the hook."""
        if output is not None:
            fields["output"] = self.content(output, direction="output", is_error_result=is_error_result)
        return self.call(
            _END_NAME.get(outcome, "tool.call.error"),
            key,
            tool,
            scope,
            arguments=arguments,
            result=output,
            cwd=cwd,
            hook=hook,
            outcome=outcome,
            outcome_evidence=evidence,
            **fields,
        )

    def end_open(
        self, call: Call, outcome: Outcome, evidence: Evidence, cause: str, *, hook: str | None = None, **fields: Any
    ) -> ToolCall:
        """Close a call of the table that some other event proves to be over, e.g. a batch or the session's end."""
        return self.about(
            call,
            _END_NAME.get(outcome, "tool.call.error"),
            hook=hook,
            outcome=outcome,
            outcome_evidence=evidence,
            cause=cause,
            synthetic=True,
            **fields,
        )

    def about(self, call: Call, event_name: str, *, hook: str | None = None, **fields: Any) -> ToolCall:
        """Any tool.call.* event of a call of the table, for payloads that do not name the call or say less of it."""
        scope = Scope(
            session_id=call.session_id,
            root_session_id=call.root_session_id,
            session_key=call.session_key,
            agent_id=call.agent_id,
            turn_id=call.turn_id,
            run_id=call.run_id,
            trace_id=call.trace_id,
        )
        return self.event(
            ToolCall,
            event_name,
            scope,
            hook=hook,
            **self._call_fields(call.call_key, call.occurrence, call.tool_call_id),
            tool_name=call.tool_name,
            tool_source=call.tool_source,
            tool_kind=call.tool_kind,
            mcp=Mcp.model_validate(call.mcp) if call.mcp else None,
            parent_call_id=call.parent_call_id,
            wrapper=call.wrapper,
            status=_STATUS[event_name],
            **fields,
        )

    def call(
        self,
        event_name: str,
        key: Iterable[str | None],
        tool: Tool,
        scope: Scope,
        *,
        arguments: Any = None,
        result: Any = None,
        cwd: str | None = None,
        hook: str | None = None,
        tool_call_id: str | None = None,
        **fields: Any,
    ) -> ToolCall:
        """Any tool.call.* event of the call that `key` names. `arguments` fill input and facts, `result` adds output facts."""
        call_key = self.call_key(key)
        if arguments is not None:
            fields.setdefault("input", self.content(arguments))
        facts = self._facts(tool, arguments, result, cwd)
        occurrence = self.calls.next_occurrence(call_key, event_name)
        return self.event(
            ToolCall,
            event_name,
            scope,
            hook=hook,
            **self._call_fields(call_key, occurrence, tool_call_id),
            tool_name=self.ident(tool.name) or "unknown",
            tool_source=tool.source,
            tool_kind=tool.kind,
            mcp=self._mcp(tool.mcp),
            facts=facts,
            status=_STATUS[event_name],
            **fields,
        )

    def observed(self, hook: str, payload: Any, scope: Scope, reason: str, **fields: Any) -> Observed:
        """agent.event.observed: a hook without an event of its own; its size and keyed hash are kept."""
        content = self.capture.content(payload, direction="output")
        return self.event(
            Observed,
            "agent.event.observed",
            scope,
            hook=hook,
            size_bytes=content.size_bytes,
            hash=content.hash or "",
            reason=reason,
            **fields,
        )

    # content

    def content(self, value: Any, *, direction: Direction = "input", is_error_result: bool | None = None) -> Content:
        """Size, hash and redacted summary of a value, by the capture level of its direction."""
        content = self.capture.content(value, direction=direction)
        return content if is_error_result is None else content.model_copy(update={"is_error_result": is_error_result})

    def error(self, message: str | None, *, type: str | None = None, code: str | int | None = None) -> ErrorInfo:
        """An error whose message is redacted and cut."""
        return ErrorInfo(
            type=self.ident(type),
            message_summary=None if message is None else self.capture.text(message),
            code=self.ident(code) if isinstance(code, str) else code,
        )

    def text(self, value: str | None) -> str | None:
        """Free text, redacted and cut."""
        return None if value is None else self.capture.text(value)

    def ident(self, value: str | None) -> str | None:
        """An id or name, redacted; None and the empty text stay None."""
        return self.capture.ident(value) if value else None

    def call_key(self, key: Iterable[str | None]) -> str:
        """Tenant, runtime and the runtime's ids of a call, as one text."""
        return join_key(self.tenant_id or "", self.runtime, *((self.ident(part) or "") for part in key))

    def find(self, key: Iterable[str | None]) -> Call | None:
        """The latest call of a key, if the table knows one."""
        return self.calls.latest(self.call_key(key))

    # parts

    def _ids(self, scope: Scope) -> dict[str, Any]:
        session, key = self.ident(scope.session_id), self.ident(scope.session_key)
        # A sub-agent that is announced by its session key has its root and parent under that name.
        known_root = (self.calls.root_of(session) if session else None) or (self.calls.root_of(key) if key else None)
        parent = (self.calls.parent_of(session) if session else None) or (self.calls.parent_of(key) if key else None)
        root = known_root or self.ident(scope.root_session_id) or session
        turn, run = self.ident(scope.turn_id), self.ident(scope.run_id)
        return {
            "session_id": session,
            "root_session_id": root,
            "parent_session_id": parent,
            "session_key": key,
            "agent_id": self.ident(scope.agent_id),
            "agent_role": self.ident(scope.agent_role),
            "agent_version": self.ident(scope.agent_version) or self.agent_version,
            "turn_id": turn,
            "run_id": run,
            "model_call_id": self.ident(scope.model_call_id),
            "trace_id": scope.trace_id or (trace_id(self.runtime, root, run or turn or "") if root else None),
            "parent_span_id": scope.parent_span_id,
        }

    def _call_fields(self, call_key: str, occurrence: int, tool_call_id: str | None) -> dict[str, Any]:
        identity = call_id(call_key, occurrence)
        return {
            "call_key": call_key,
            "occurrence": occurrence,
            "call_id": identity,
            "span_id": span_id(identity),
            "tool_call_id": self.ident(tool_call_id),
        }

    def _facts(self, tool: Tool, arguments: Any, result: Any, cwd: str | None) -> Facts | None:
        found: list[Facts] = []
        if arguments is not None:
            found.append(self.capture.facts(tool.source, tool.name, arguments, cwd))
        if result is not None:
            found.append(self.capture.output_facts(result))
        if not found:
            return None
        merged = found[0]
        if len(found) > 1 and (found[1].secret_kinds or found[1].fingerprints):
            merged = merged.model_copy(
                update={
                    "secret_kinds": tuple(dict.fromkeys(merged.secret_kinds + found[1].secret_kinds)),
                    "fingerprints": tuple(dict.fromkeys(merged.fingerprints + found[1].fingerprints)),
                    "truncated": merged.truncated or found[1].truncated,
                }
            )
        return merged

    def _mcp(self, mcp: Mcp | None) -> Mcp | None:
        if mcp is None:
            return None
        return mcp.model_copy(
            update={
                "server_name": self.ident(mcp.server_name),
                "safe_server_name": self.ident(mcp.safe_server_name),
                "tool_name": self.ident(mcp.tool_name),
            }
        )
