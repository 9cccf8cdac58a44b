"""One OpenClaw hook call as the adapter sees it: the event, the ctx fields that are safe to read, and whose it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.adapters.calls import Call
from services.adapters.context import Context, Scope
from services.adapters.values import mapping, text

CTX_FIELDS = (
    "agentId",
    "channel",
    "channelId",
    "childSessionKey",
    "requester",
    "requesterSessionKey",
    "runId",
    "sessionId",
    "sessionKey",
    "toolCallId",
    "toolName",
    "trace",
    "trigger",
)
"""All that is ever read of `ctx`: in gateway_start and reply_dispatch it holds the configuration, keys included."""

PLACED = ("agentId", "runId", "sessionId", "sessionKey", "trace")
"""Fields that every event has a place for."""

_TRACE = re.compile(r"[0-9a-f]{32}")
_SPAN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Trace:
    """W3C ids of the hook's span, as far as they are well-formed."""

    trace_id: str | None = None
    span_id: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """`fields` holds CTX_FIELDS of the hook's ctx, nothing else; `server` is the MCP server, where the plugin knows."""

    hook: str
    event: Mapping[str, Any]
    fields: Mapping[str, Any]
    context: Context
    server: str | None = None

    def text(self, name: str) -> str | None:
        """A field of the event, else of its ctx."""
        return text(self.event.get(name)) or text(self.fields.get(name))

    @property
    def trace(self) -> Trace:
        """The trace that the hook gives, if any."""
        return trace_of(self.fields.get("trace") or self.event.get("trace"))

    def scope(self, call: Call | None = None, *, session_key: str | None = None, under: bool = False) -> Scope:
        """Whose event this is; what the payload leaves out comes from the call or, by session key, from earlier events.

        `under`: the event is a child of the hook's span and not the span itself.
        """
        session = None if session_key else self.text("sessionId")
        key = session_key or self.text("sessionKey") or (call.session_key if call else None)
        if session is None and call is not None:
            session = call.session_id
        if session is None and key is not None:
            session = self.context.calls.session_for_key(self.context.runtime, self.context.ident(key) or "")
        trace = self.trace
        return Scope(
            session_id=session,
            session_key=key,
            agent_id=_agent(session_key) if session_key else self.text("agentId") or (call.agent_id if call else None),
            run_id=None if session_key else self.text("runId") or (call.run_id if call else None),
            trace_id=trace.trace_id or (call.trace_id if call else None),
            parent_span_id=trace.span_id if under else trace.parent_id,
        )

    def user(self, sender_id: Any) -> str | None:
        """Keyed hash of the sender's id, which no event tells in clear."""
        sender = text(sender_id)
        return self.context.capture.hash(sender) if sender else None

    def key(self, tool_call_id: str | None, tool_name: str | None) -> tuple[str, str]:
        """The call's key: run and native id. Without an id calls of one tool follow one another under its name."""
        run = self.text("runId") or self.text("sessionId") or self.text("sessionKey") or ""
        return run, tool_call_id or f"~{tool_name or ''}"


def trace_of(value: Any) -> Trace:
    """The well-formed ids of a `{traceId, spanId, parentSpanId}`."""
    fields = mapping(value)
    return Trace(
        _valid(_TRACE, fields.get("traceId")),
        _valid(_SPAN, fields.get("spanId")),
        _valid(_SPAN, fields.get("parentSpanId")),
    )


def _valid(form: re.Pattern[str], value: Any) -> str | None:
    return value if isinstance(value, str) and form.fullmatch(value) and value.strip("0") else None


def _agent(session_key: str) -> str | None:
    """The agent that a key `agent:AGENT:…` names."""
    parts = session_key.split(":")
    return parts[1] if parts[0] == "agent" and len(parts) > 2 else None
