"""The one way in which the observer makes events: ids, times, what is kept of contents, and nothing that is not redacted."""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from schemas.canonical import canonical
from schemas.clock import to_rfc3339
from schemas.config import McpProxy
from schemas.content import Content
from schemas.events import Dropped, EventBase, McpRpc, ProtocolError, RpcSide, Runtime, Transport
from schemas.facts import MAX_ITEMS, Facts
from schemas.identity import MAX_EVENTS_PER_DELIVERY
from services.capture.content import Capture
from services.capture.redaction import Finding, truncate
from services.mcp_proxy.observer.frames import Frame
from services.mcp_proxy.observer.messages import MAX_TEXT, Id, Message
from services.mcp_proxy.tap import Side

if TYPE_CHECKING:
    from services.mcp_proxy.observer.operations import Operation

SOURCE = "mcp_proxy/1"
Direction = Literal["input", "output"]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_ORIGINS = frozenset({"traceparent", "x-agenttrace-trace-id", "x-agenttrace-run-id", "x-agenttrace-session-id"})
# Ids that carry no secret whatever they are: small numbers, short words, UUIDs.
_PLAIN_ID = re.compile(r"-?[0-9]{1,12}|[A-Za-z0-9_.\-]{1,11}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WORDS = ("client_to_server", "server_to_client")
"""By Side."""
_MESSAGE_BYTES = 512
_RUNTIMES: tuple[tuple[str, Runtime], ...] = (
    ("claude-code", "claude_code"),
    ("claude code", "claude_code"),
    ("codex", "codex"),
    ("openclaw", "openclaw"),
    ("hermes", "hermes"),
)


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """`timeout_ms`: a request open longer is told as one that timed out. `agent_runtime` and `session_id`: what is known
    of the agent whose proxy this is; what a request says of itself comes first. `publish`: which methods' frames are told.
    """

    tenant_id: str | None = None
    workspace_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = 300_000
    agent_runtime: Runtime = "other"
    session_id: str | None = None
    publish: McpProxy = field(default_factory=McpProxy)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose trace and session a message belongs to, as its headers or its `_meta` say; redacted."""

    trace_id: str | None = None
    parent_span_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None


@dataclass(slots=True)
class Party:
    """What is known of both ends of a connection. `declared_…` is what the server calls itself."""

    connection_id: str
    server: str
    transport: Transport
    runtime: Runtime
    protocol_version: str | None = None
    declared_name: str | None = None
    declared_version: str | None = None


NOWHERE = Origin()


class Maker:
    """Makes events in the order of time. `metadata_only`: sizes and hashes, no summaries, facts or messages."""

    def __init__(self, capture: Capture, settings: ObserverSettings) -> None:
        self.capture = capture
        self.settings = settings
        self.metadata_only = False
        self.out: list[EventBase] = []
        self._random = random.Random(secrets.token_bytes(32))
        self._delivery, self._ms, self._n = "", -1, 0
        self._common: dict[str, Any] = {"source_adapter": SOURCE}
        self._common |= {
            name: value
            for name, value in (("tenant_id", settings.tenant_id), ("workspace_id", settings.workspace_id))
            if value
        }
        if settings.labels:
            self._common["labels"] = dict(settings.labels)
        self._session = capture.ident(settings.session_id) if settings.session_id else None
        self._muted = {
            family
            for family, told in (
                ("tools/list", settings.publish.capture_tools_list),
                ("tools/call", settings.publish.capture_tools_call),
                ("resources", settings.publish.capture_resources),
                ("prompts", settings.publish.capture_prompts),
            )
            if not told
        }
        self.method = lru_cache(maxsize=1024)(self._method)

    def event(self, model: type[EventBase], name: str, at_ns: int, origin: Origin = NOWHERE, **fields: Any) -> None:
        """Make one event and keep it in `out`."""
        self._make(model, name, at_ns, origin, fields)

    def _make(self, model: type[EventBase], name: str, at_ns: int, origin: Origin, fields: dict[str, Any]) -> None:
        ms = at_ns // 1_000_000
        # Ids sort as the events were made, also within a millisecond.
        if ms > self._ms or self._n >= MAX_EVENTS_PER_DELIVERY:
            self._ms = max(ms, self._ms)
            self._delivery, self._n = self._delivery_id(self._ms), 0
        fields |= self._common
        fields["event_name"] = name
        fields["event_id"] = f"{self._delivery}{self._n:04x}"
        fields["timestamp"] = to_rfc3339(ms)
        session = origin.session_id or self._session
        if session:
            fields["session_id"] = fields["root_session_id"] = session
        if origin is not NOWHERE:
            fields["trace_id"], fields["run_id"] = origin.trace_id, origin.run_id
            fields["parent_span_id"] = origin.parent_span_id
        self._n += 1
        self.out.append(model(**fields))

    def rpc(
        self,
        name: str,
        at_ns: int,
        party: Party,
        side: Side,
        status: str,
        *,
        id: Id | None = None,
        method: str | None = None,
        operation: Operation | None = None,
        origin: Origin = NOWHERE,
        **fields: Any,
    ) -> None:
        """One mcp.rpc event, unless frames of its method are not to be told. `side`: who sent the frame; `method` as it
        came; `origin` counts where there is no operation.
        """
        if method is not None:
            method = self.method(method[:MAX_TEXT])
            if method is None:
                return
            fields["method"] = method
        if id is not None:
            fields["jsonrpc_id"], fields["jsonrpc_id_type"] = self.id(id.text), id.type
        if operation is not None:
            fields["operation_id"], fields["span_id"] = operation.id, operation.span
            origin = operation.origin
        if party.protocol_version is not None:
            fields.setdefault("protocol_version", party.protocol_version)
        fields["connection_id"], fields["mcp_server"] = party.connection_id, party.server
        fields["transport"], fields["agent_runtime"] = party.transport, party.runtime
        fields["direction"], fields["status"] = _WORDS[side], status
        self._make(McpRpc, name, at_ns, origin, fields)

    def _delivery_id(self, ms: int) -> str:
        """As `identity.new_delivery_id`, without its last four digits and without asking the system each millisecond."""
        bits = self._random.getrandbits(58)
        high, low = bits >> 46, bits & (1 << 46) - 1
        ms &= (1 << 48) - 1
        return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{high:03x}-{0x8000 | low >> 32:04x}-{low & 0xFFFFFFFF:08x}"

    def dropped(self, at_ns: int, reason: str, count: int, size: int = 0) -> None:
        """The receipt for what could not be looked at."""
        self.event(Dropped, "producer.dropped", at_ns, reason=reason, count=count, size_bytes=size)

    # what is kept

    def side(self, message: Message, value: Any, direction: Direction, *, shown: bool = True) -> RpcSide:
        """Size of the message, keyed hash of `value`, its summary if allowed (never where not `shown`)."""
        if not message.whole:
            frame = message.frame
            return RpcSide(size_bytes=message.size, hash=frame.hash, redaction_applied=bool(frame.findings))
        capture = self.capture
        if self.metadata_only or not shown:
            settings = capture.settings
            hashed = settings.hash_input if direction == "input" else settings.hash_output
            return RpcSide(size_bytes=message.size, hash=capture.hash(value) if hashed else None)
        content = capture.content(value, direction=direction)
        return RpcSide(
            size_bytes=message.size,
            hash=content.hash,
            summary=content.summary,
            redaction_applied=content.redaction_applied,
        )

    def content(self, value: Any, direction: Direction, *, shown: bool = True) -> Content:
        """As `side`, of a value that is no message."""
        if not self.metadata_only and shown:
            return self.capture.content(value, direction=direction)
        size = len(value.encode("utf-8", "replace")) if isinstance(value, str) else len(canonical(value))
        return Content(size_bytes=size, hash=self.capture.hash(value))

    def shown(self, body: bytes) -> str | None:
        """The beginning of bytes that are no message, as far as the capture level allows."""
        text = body.decode("utf-8", "replace")
        summary = self.capture.content(text, direction="output").summary
        return None if summary is None else truncate(summary, _MESSAGE_BYTES)

    def raw_side(self, frame: Frame, summary: str | None = None) -> RpcSide:
        """Of bytes that are no message."""
        body_hash = self.capture.raw_hash(frame.body) if frame.body is not None else frame.hash
        return RpcSide(size_bytes=frame.size, hash=body_hash, summary=summary, redaction_applied=bool(frame.findings))

    def error(self, error: Mapping[str, Any]) -> ProtocolError:
        """A JSON-RPC error object."""
        code, text = error.get("code"), error.get("message")
        if isinstance(code, float) and code.is_integer():
            code = int(code)
        if isinstance(code, bool) or not isinstance(code, int) or not -(2**63) <= code < 2**63:
            code = 0
        if not isinstance(text, str) or self.metadata_only:
            return ProtocolError(code=code)
        return ProtocolError(code=code, message_summary=self.capture.text(text, _MESSAGE_BYTES))

    def facts(self, message: Message, tool: str, arguments: Any) -> Facts | None:
        """What a call of a tool does."""
        if self.metadata_only:
            return None
        if not message.whole:
            return found_facts(message.frame.findings)
        return self.capture.facts("mcp", tool, arguments, None)

    def output_facts(self, message: Message) -> Facts | None:
        """The secrets in a result; None where there are none."""
        if self.metadata_only:
            return None
        if not message.whole:
            return found_facts(message.frame.findings) if message.frame.findings else None
        facts = self.capture.output_facts(message.result)
        return facts if facts.secret_kinds or facts.fingerprints else None

    def ident(self, value: Any) -> str | None:
        """A name from outside, redacted and bounded; None for what is no text."""
        return self.capture.ident(value[:MAX_TEXT]) or None if isinstance(value, str) and value else None

    def id(self, text: str) -> str:
        """A JSON-RPC id's text."""
        return text if _PLAIN_ID.fullmatch(text) else self.capture.ident(text)

    def _method(self, name: str) -> str | None:
        """The name of a method as it is told; None if its frames are not."""
        if self._muted:
            family = name if name in ("tools/list", "tools/call") else name.partition("/")[0]
            if family in self._muted:
                return None
        return self.capture.ident(name) or "unknown"

    def origin(self, fields: Mapping[str, Any], above: Origin = NOWHERE) -> Origin:
        """From headers or `_meta`; what they do not say is as `above`. `traceparent`: W3C Trace Context."""
        if _ORIGINS.isdisjoint(fields):
            return above
        traced = fields.get("traceparent")
        found = _TRACEPARENT.fullmatch(traced) if isinstance(traced, str) else None
        trace, parent = above.trace_id, above.parent_span_id
        told = fields.get("x-agenttrace-trace-id")
        if isinstance(told, str) and _TRACE_ID.fullmatch(told) and told.strip("0"):
            trace, parent = told, None
        if found and found[1].strip("0") and found[2].strip("0"):
            trace, parent = found[1], found[2]
        run = self.ident(fields.get("x-agenttrace-run-id")) or above.run_id
        session = self.ident(fields.get("x-agenttrace-session-id")) or above.session_id
        if (trace, parent, run, session) == (above.trace_id, above.parent_span_id, above.run_id, above.session_id):
            return above
        return Origin(trace, parent, run, session)

    def runtime(self, client: Any, known: Runtime) -> Runtime:
        """Which agent a client is that says its name (`clientInfo`), where nothing better is known."""
        name = client.get("name") if isinstance(client, dict) else None
        if self.settings.agent_runtime != "other" or not isinstance(name, str):
            return known
        low = name[:256].lower()
        return next((runtime for mark, runtime in _RUNTIMES if mark in low), known)


def found_facts(findings: tuple[Finding, ...]) -> Facts:
    """Of a frame that was too large to be kept: only the secrets in it are known."""
    return Facts(
        secret_kinds=tuple(dict.fromkeys(finding.kind for finding in findings))[:MAX_ITEMS],
        fingerprints=tuple(dict.fromkeys(finding.fingerprint for finding in findings))[:MAX_ITEMS],
        truncated=True,
    )
