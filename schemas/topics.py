"""Every Kafka topic: which events it carries, its key, and its explicit configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.identity import canonical_name, join_key

Kind = Literal["input", "derived", "control", "internal"]

MAX_VALUE_BYTES = 512 * 1024
"""A record's value is cut to this when it is journalled; topics accept twice as much, so none blocks a publisher."""
EMBEDDED_PARTITIONS = 4
PARTITIONS = 12

_DAY_MS = 86_400_000
KEPT_LONG = 400 * _DAY_MS
KEPT_SHORT = 7 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `config` is passed to the broker as it stands; `events` are the event names it carries."""

    name: str
    kind: Kind
    key: str
    events: tuple[str, ...] = ()
    retention_ms: int = KEPT_LONG
    compacted: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        """Broker configuration, every value explicit."""
        settings = {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": "-1" if self.compacted else str(self.retention_ms),
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(2 * MAX_VALUE_BYTES),
            "compression.type": "producer",
            "min.insync.replicas": "1",
        }
        return {**settings, **self.extra}


TOOL_CALL = "agenttrace.tool.call"
MCP_RPC = "agenttrace.mcp.rpc"
AGENT_ACTIVITY = "agenttrace.agent.activity"
POLICY_DECISION = "agenttrace.policy.decision"
TOOL_CALL_DERIVED = "agenttrace.tool.call.derived"
TRACE_LINK = "agenttrace.trace.link"
RISK_FINDING = "agenttrace.risk.finding"
RISK_FINDING_OCSF = "agenttrace.risk.finding.ocsf"
FINDING_STATUS = "agenttrace.finding.status"
TOOL_METRIC = "agenttrace.tool.metric"
ALERT = "agenttrace.alert"
DLQ = "agenttrace.dlq"
RULES = "agenttrace.rules"
METRIC_PARTIAL = "agenttrace.internal.metric-partial"
MCP_CALL = "agenttrace.internal.mcp-call"
RULE_MATCH = "agenttrace.internal.rule-match"
CHECKPOINT = "agenttrace.internal.checkpoint"

_SESSION_KEY = "tenant|root_session_id"

TOPICS: tuple[Topic, ...] = (
    Topic(
        TOOL_CALL,
        "input",
        _SESSION_KEY,
        (
            "tool.call.started",
            "tool.call.approval_requested",
            "tool.call.approval_decided",
            "tool.call.blocked",
            "tool.call.completed",
            "tool.call.error",
            "tool.result.persisted",
            "tool.batch.completed",
        ),
    ),
    Topic(
        MCP_RPC,
        "input",
        _SESSION_KEY,
        (
            "mcp.rpc.request",
            "mcp.rpc.response",
            "mcp.rpc.error",
            "mcp.rpc.notification",
            "mcp.rpc.invalid_frame",
            "mcp.server.health_changed",
            "mcp.server.stderr",
            "mcp.elicitation.requested",
            "mcp.elicitation.completed",
            "mcp.tools.listed",
        ),
    ),
    Topic(
        AGENT_ACTIVITY,
        "input",
        _SESSION_KEY,
        (
            "agent.run.started",
            "agent.run.ended",
            "session.started",
            "session.ended",
            "session.compacted",
            "turn.started",
            "turn.ended",
            "user.prompt.submitted",
            "subagent.started",
            "subagent.ended",
            "llm.call.started",
            "llm.call.ended",
            "llm.input.observed",
            "llm.output.observed",
            "agent.config.changed",
            "agent.event.observed",
            "agent.payload.quarantined",
            "producer.dropped",
            "producer.heartbeat",
        ),
    ),
    Topic(POLICY_DECISION, "input", _SESSION_KEY, ("policy.decision.created",)),
    Topic(TOOL_CALL_DERIVED, "derived", "event_id", ("tool.call.timed_out", "tool.call.abandoned")),
    Topic(TRACE_LINK, "derived", "event_id", ("trace.link.created",)),
    Topic(RISK_FINDING, "derived", "finding_id", ("risk.finding.created", "risk.finding.updated")),
    Topic(RISK_FINDING_OCSF, "derived", "finding_id"),
    Topic(FINDING_STATUS, "control", "finding_id", ("finding.status.changed",)),
    Topic(
        TOOL_METRIC,
        "derived",
        "tenant|runtime|server|tool",
        ("metric.window.closed",),
        retention_ms=KEPT_SHORT,
    ),
    Topic(ALERT, "derived", "event_id", ("alert.raised", "alert.resolved")),
    Topic(DLQ, "control", "key of the refused record"),
    Topic(RULES, "control", "rule pack hash", compacted=True),
    Topic(METRIC_PARTIAL, "internal", "tenant|runtime|server|tool", retention_ms=KEPT_SHORT),
    Topic(MCP_CALL, "internal", "tenant|canonical server", retention_ms=KEPT_SHORT),
    Topic(RULE_MATCH, "internal", "tenant|rule|group value", retention_ms=KEPT_SHORT),
    Topic(
        CHECKPOINT,
        "internal",
        "part|partition|slot|number",
        compacted=True,
        # What is written anew every 30 s must not wait for the default 1 GiB or 7 days before it is compacted.
        extra={"segment.bytes": str(64 << 20), "segment.ms": "3600000", "delete.retention.ms": "3600000"},
    ),
)

BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}
TOPIC_OF_EVENT: dict[str, str] = {name: topic.name for topic in TOPICS for name in topic.events}
INPUT_TOPICS: tuple[str, ...] = tuple(topic.name for topic in TOPICS if topic.kind == "input")

DROP_CLASSES: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "agent.event.observed",
            "agent.run.started",
            "llm.call.started",
            "llm.call.ended",
            "llm.input.observed",
            "llm.output.observed",
            "mcp.rpc.notification",
            "mcp.server.health_changed",
            "mcp.server.stderr",
            "producer.heartbeat",
            "session.compacted",
            "session.started",
            "subagent.started",
            "tool.batch.completed",
            "tool.result.persisted",
            "turn.started",
            "turn.ended",
        }
    ),
    frozenset(
        {
            "mcp.elicitation.requested",
            "mcp.rpc.request",
            "mcp.tools.listed",
            "tool.call.started",
            "user.prompt.submitted",
        }
    ),
)
"""What a journal without room lets go of, first to last: lifecycle and message noise, then ordinary calls. All other
names (ends, errors, blocks, approvals, decisions, changed configurations, receipts) are the last class, which is kept.
"""
LAST_CLASS = len(DROP_CLASSES)
_CLASS_OF = {name: number for number, names in enumerate(DROP_CLASSES) for name in names}


def drop_class(event_name: str) -> int:
    """0 … LAST_CLASS: how early events of this name are let go of when there is no room."""
    return _CLASS_OF.get(event_name, LAST_CLASS)


HEADER_SCHEMA = "at_schema"
HEADER_KIND = "at_kind"
KIND_CONTROL = b"control"
"""Value of the header `at_kind` on progress records of internal topics; consumers of data skip them."""


def record_key(event: Mapping[str, Any]) -> bytes:
    """Kafka key of an event (its JSON form), by the topic table.

    Inputs: tenant and root session, so that all that one agent does is in one partition; without a session the
    producer's id stands in, so that order is kept where nothing better is known.
    """
    name = event["event_name"]
    tenant = event.get("tenant_id") or ""
    kind = BY_NAME[TOPIC_OF_EVENT[name]]
    if kind.kind == "input":
        session = event.get("root_session_id") or event.get("session_id") or event.get("connection_id")
        if not session:
            session = (event.get("producer") or {}).get("id") or ""
        return join_key(tenant, session).encode()
    if kind.key == "finding_id":
        return str(event["finding_id"]).encode()
    if kind.name == TOOL_METRIC:
        group = (event.get("agent_runtime") or "", event.get("mcp_server") or "", event.get("tool_name") or "")
        return join_key(tenant, group[0], canonical_name(group[1]), group[2]).encode()
    return str(event["event_id"]).encode()
