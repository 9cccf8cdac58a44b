"""Every event AgentTrace publishes, as strict frozen pydantic models. A record's JSON is one of these, nulls left out.

Times are RFC 3339 UTC text with milliseconds; sizes are bytes; durations are milliseconds. An unknown field is an error: what
a runtime says beyond these fields travels redacted and bounded under `native`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from schemas.content import Content
from schemas.facts import Facts

Timestamp = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}Z$")]
Uuid = Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
TraceId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SpanId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Size = Annotated[int, Field(ge=0)]

Runtime = Literal["openclaw", "claude_code", "codex", "hermes", "other"]
Severity = Literal["debug", "info", "warning", "critical"]
ToolSource = Literal["core", "mcp", "plugin", "shell", "file", "web", "browser", "unknown"]
Transport = Literal["stdio", "sse", "streamable-http", "unknown"]
Outcome = Literal["ok", "error", "blocked", "cancelled", "timeout", "unknown"]
Evidence = Literal["exit_status", "is_error", "jsonrpc_error", "hook", "inferred", "none"]
CallStatus = Literal["started", "completed", "error", "blocked", "unknown"]
Decision = Literal["allow", "deny", "ask", "rewrite", "redact", "shadow", "degrade", "annotate", "none"]
RiskLevel = Literal["low", "medium", "high", "critical"]


class Model(BaseModel):
    """Base of all parts: strict, frozen, no unknown field."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Producer(Model):
    """Who journalled the event. `seq` is gapless per (id, epoch) over all topics together.

    The first event of an epoch names the last (epoch, seq) of the epoch before it.
    """

    id: str
    epoch: int = Field(ge=1)
    seq: int = Field(ge=1)
    previous_epoch: int | None = None
    previous_seq: int | None = None


class EventBase(Model):
    """Fields that every event has."""

    event_id: Uuid
    event_version: Literal["1.0"] = "1.0"
    timestamp: Timestamp = Field(description="when it happened, by the producer's clock")
    observed_at: Timestamp | None = Field(default=None, description="when the collector accepted it")
    trace_id: TraceId | None = None
    span_id: SpanId | None = None
    parent_span_id: SpanId | None = None
    tenant_id: str | None = None
    workspace_id: str | None = None
    user_id_hash: str | None = None
    agent_runtime: Runtime = "other"
    agent_version: str | None = None
    agent_id: str | None = None
    agent_role: str | None = None
    session_id: str | None = None
    root_session_id: str | None = None
    parent_session_id: str | None = None
    session_key: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    model_call_id: str | None = None
    source_adapter: str = Field(description="adapter and its contract version, e.g. claude_code/1")
    source_event_name: str | None = Field(default=None, description="the native hook's name")
    producer: Producer | None = Field(default=None, description="stamped when the event is journalled")
    severity: Severity = "info"
    labels: dict[str, str] = Field(default_factory=dict)
    native: dict[str, Any] = Field(
        default_factory=dict, description="bounded, redacted: what the payload says beyond these fields"
    )


class Mcp(Model):
    """The MCP side of a tool call. `name_guess` marks a server and tool split that the payload does not prove."""

    server_name: str | None = None
    safe_server_name: str | None = None
    tool_name: str | None = None
    operation: Literal["tool", "resources_list", "resources_read", "prompts_list", "prompts_get"] | None = None
    transport: Transport | None = None
    protocol_version: str | None = None
    name_guess: bool = False


class ErrorInfo(Model):
    """Why a call failed; the message is redacted and truncated."""

    type: str | None = None
    message_summary: str | None = None
    code: str | int | None = None
    stack_hash: str | None = None


class PolicyInfo(Model):
    """The decision that applied to the call."""

    policy_id: str | None = None
    decision: Decision = "none"
    reason: str | None = None
    risk_level: RiskLevel | None = None


class Approval(Model):
    """A human's (or a hook's) answer to a request for approval."""

    decision: Literal["allow_once", "allow_session", "allow_always", "deny", "timeout", "cancelled", "unknown"]
    decided_by: str | None = None
    inferred: bool = False


class ToolCall(EventBase):
    """tool.call.* of one call; joined on `call_id`.

    `tool_call_id` is the runtime's own and not unique; `call_key` names it within its scope and `occurrence` counts re-use.
    The event name follows the outcome: what nothing proves is `tool.call.completed` with outcome `unknown`.
    """

    event_name: Literal[
        "tool.call.started",
        "tool.call.approval_requested",
        "tool.call.approval_decided",
        "tool.call.blocked",
        "tool.call.completed",
        "tool.call.error",
        "tool.result.persisted",
    ]
    call_id: Uuid
    call_key: str
    occurrence: int = Field(ge=1)
    parent_call_id: Uuid | None = Field(default=None, description="the call from whose inside this one was made")
    tool_call_id: str | None = None
    tool_name: str
    tool_source: ToolSource = "unknown"
    tool_kind: str | None = None
    mcp: Mcp | None = None
    input: Content | None = None
    output: Content | None = None
    facts: Facts | None = None
    status: CallStatus
    outcome: Outcome | None = None
    outcome_evidence: Evidence | None = None
    exit_code: int | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    error: ErrorInfo | None = None
    policy: PolicyInfo | None = None
    approval: Approval | None = None
    cause: str | None = Field(default=None, description="what an inferred start or end was inferred from")
    background: bool = Field(default=False, description="the call's work goes on after this event")
    wrapper: bool = Field(default=False, description="a bridge call; the call it makes is an event of its own")
    synthetic: bool = Field(default=False, description="no hook said this; it follows from other events")
    evidence_refs: tuple[str, ...] = ()


class ToolBatch(EventBase):
    """tool.batch.completed: all calls of one model message are over."""

    event_name: Literal["tool.batch.completed"]
    call_ids: tuple[Uuid, ...] = ()
    count: int = Field(ge=0)


class DerivedToolCall(EventBase):
    """tool.call.timed_out and .abandoned: what the pipelines infer of a call that never ended."""

    event_name: Literal["tool.call.timed_out", "tool.call.abandoned"]
    version: int = Field(ge=0)
    state: Literal["complete", "partial"] = "complete"
    retracted: bool = False
    call_id: Uuid
    tool_call_id: str | None = None
    tool_name: str
    tool_source: ToolSource = "unknown"
    mcp: Mcp | None = None
    started_at: Timestamp
    deadline: Timestamp | None = None
    ttl_ms: int | None = None
    outcome: Literal["timeout", "cancelled", "unknown"]
    outcome_evidence: Literal["inferred"] = "inferred"
    maybe_blocked: bool = False
    cause: str | None = None


class RpcSide(Model):
    """One direction of an MCP exchange."""

    size_bytes: Size = 0
    hash: str | None = None
    summary: str | None = None
    redaction_applied: bool = False


class HttpInfo(Model):
    """The HTTP facts of an MCP exchange."""

    status: int | None = None
    mcp_session_hash: str | None = None


class ProtocolError(Model):
    """A JSON-RPC 2.0 error object, its message redacted."""

    code: int
    message_summary: str | None = None


class McpRpc(EventBase):
    """mcp.rpc.*: one frame on an MCP connection; `operation_id` joins the ids of one operation."""

    event_name: Literal[
        "mcp.rpc.request", "mcp.rpc.response", "mcp.rpc.error", "mcp.rpc.notification", "mcp.rpc.invalid_frame"
    ]
    connection_id: str | None = None
    mcp_server: str
    transport: Transport
    direction: Literal["client_to_server", "server_to_client"]
    method: str | None = None
    jsonrpc_id: str | None = None
    jsonrpc_id_type: Literal["string", "integer", "number", "null"] | None = None
    operation_id: str | None = None
    protocol_version: str | None = None
    http: HttpInfo | None = None
    request: RpcSide | None = None
    response: RpcSide | None = None
    is_error_result: bool | None = None
    protocol_error: ProtocolError | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    duration_server_ms: Annotated[float, Field(ge=0)] | None = None
    duration_human_ms: Annotated[float, Field(ge=0)] | None = None
    status: Literal[
        "started",
        "completed",
        "error",
        "timeout",
        "cancelled",
        "stream_aborted",
        "late",
        "input_required",
        "task_pending",
    ]
    parent_call_id: Uuid | None = None
    parent_operation_id: Uuid | None = Field(
        default=None, description="the client's operation inside which the server asked, or the task that this acts on"
    )
    tool_name: str | None = None
    arguments_hash: str | None = None
    facts: Facts | None = None
    reason: str | None = Field(default=None, description="one word: why it ended so, or what is odd about the frame")
    progress_count: Size | None = Field(default=None, description="notifications of progress until the end")
    frames: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="how many frames this event stands for, where it is not one"
    )


class McpServer(EventBase):
    """Health and stderr of an MCP server. `declared_…` is what it calls itself."""

    event_name: Literal["mcp.server.health_changed", "mcp.server.stderr"]
    connection_id: str | None = None
    mcp_server: str
    transport: Transport = "unknown"
    health: Literal["connecting", "up", "degraded", "down", "backoff"] | None = None
    reason: str | None = None
    content: Content | None = None
    declared_name: str | None = None
    declared_version: str | None = None
    protocol_version: str | None = None


class McpElicitation(EventBase):
    """A question that an MCP server puts to a person, and the answer's kind."""

    event_name: Literal["mcp.elicitation.requested", "mcp.elicitation.completed"]
    connection_id: str | None = None
    mcp_server: str
    operation_id: Uuid | None = Field(default=None, description="the client's operation that waits for the answer")
    mode: str | None = None
    content: Content | None = None
    action: str | None = None


class McpTool(Model):
    """One tool as a server declared it; `fingerprint` hashes name, description and schemas."""

    name: str
    fingerprint: str
    description_hash: str | None = None
    schema_hash: str | None = None


class McpTools(EventBase):
    """mcp.tools.listed: one page of what a server declared. The list is whole if the page is neither `continued` (asked
    for with a cursor) nor has `more` after it. Of a page with more than 1,000 tools each event has a part, `count` all.
    """

    event_name: Literal["mcp.tools.listed"]
    connection_id: str | None = None
    mcp_server: str
    transport: Transport = "unknown"
    tools: tuple[McpTool, ...] = ()
    count: int = Field(ge=0)
    continued: bool = False
    more: bool = False


class AgentRun(EventBase):
    """agent.run.*: one run of an agent loop. `success` is the runtime's claim, not a proof."""

    event_name: Literal["agent.run.started", "agent.run.ended"]
    success: bool | None = None
    reason: str | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    error: ErrorInfo | None = None


class Session(EventBase):
    """session.*: `reason` is the runtime's word for why it started, ended or was compacted."""

    event_name: Literal["session.started", "session.ended", "session.compacted"]
    reason: str | None = None
    model: str | None = None
    synthetic: bool = False
    content: Content | None = None


class Turn(EventBase):
    """turn.*: from a prompt to the agent's answer."""

    event_name: Literal["turn.started", "turn.ended"]
    reason: str | None = None
    success: bool | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    error: ErrorInfo | None = None
    content: Content | None = None


class Prompt(EventBase):
    """user.prompt.submitted: size and hash of what the user (or a task in the user's place) asked."""

    event_name: Literal["user.prompt.submitted"]
    origin: str | None = None
    content: Content | None = None


class Subagent(EventBase):
    """subagent.*: `child_session_id` where the child has a session of its own, else `child_agent_id`."""

    event_name: Literal["subagent.started", "subagent.ended"]
    child_agent_id: str | None = None
    child_session_id: str | None = None
    child_run_id: str | None = None
    agent_type: str | None = None
    status: str | None = None
    parent_call_id: Uuid | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    content: Content | None = None


class Usage(Model):
    """Token counts of a model call as the runtime gives them."""

    input_tokens: Size | None = None
    output_tokens: Size | None = None
    cache_read_tokens: Size | None = None
    cache_write_tokens: Size | None = None
    reasoning_tokens: Size | None = None
    total_tokens: Size | None = None


class LlmCall(EventBase):
    """llm.call.*: one request to a model provider; retries count in `attempt`."""

    event_name: Literal["llm.call.started", "llm.call.ended"]
    provider: str | None = None
    model: str | None = None
    attempt: int | None = None
    status: Literal["started", "completed", "error", "cancelled", "unknown"]
    finish_reason: str | None = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None


class LlmContent(EventBase):
    """llm.input.observed and llm.output.observed: what went to or came from a model, by size and hash."""

    event_name: Literal["llm.input.observed", "llm.output.observed"]
    provider: str | None = None
    model: str | None = None
    usage: Usage | None = None
    content: Content | None = None


class ConfigChanged(EventBase):
    """agent.config.changed: a configuration, instruction or memory file that steers the agent."""

    event_name: Literal["agent.config.changed"]
    origin: str | None = None
    path: str | None = None


class Observed(EventBase):
    """agent.event.observed: a hook that has no event of its own, or whose shape is not known."""

    event_name: Literal["agent.event.observed"]
    size_bytes: Size
    hash: str
    reason: str


class Quarantined(EventBase):
    """agent.payload.quarantined: a payload that could not be read. Only its size and hash are kept."""

    event_name: Literal["agent.payload.quarantined"]
    size_bytes: Size
    hash: str
    reason: str
    detail: str | None = None


class SeqRange(Model):
    """Sequence numbers `first` … `last`, both included."""

    epoch: int
    first: int
    last: int


class Dropped(EventBase):
    """producer.dropped: the receipt for what could not be kept. `ranges` are empty for what never got a seq.

    `by_class` counts by drop class ("0" lifecycle and message noise, "1" ordinary calls, "2" the rest), or by runtime
    where a payload was never read.
    """

    event_name: Literal["producer.dropped"]
    reason: str
    count: int = Field(ge=0)
    size_bytes: Size = 0
    by_class: dict[str, int] = Field(default_factory=dict)
    ranges: tuple[SeqRange, ...] = ()
    merkle_root: str | None = Field(
        default=None,
        description="sha256:<hex>, the RFC 9162 tree hash of the dropped events' JSON as journalled, in seq order",
    )


class Heartbeat(EventBase):
    """producer.heartbeat: all seq ≤ `published_through` of this epoch are in Kafka."""

    event_name: Literal["producer.heartbeat"]
    published_through: int = Field(ge=0)
    uptime_ms: int = Field(ge=0)


class PolicyDecision(EventBase):
    """policy.decision.created: one decision, allow included."""

    event_name: Literal["policy.decision.created"]
    decision_id: Uuid
    call_id: Uuid | None = None
    policy_id: str
    decision: Decision
    mode: Literal["enforce", "shadow"] = "shadow"
    reason: str | None = None
    risk_level: RiskLevel | None = None


class TraceLink(EventBase):
    """trace.link.created: a hook's call and a wire operation are the same act, with this confidence."""

    event_name: Literal["trace.link.created"]
    version: int = Field(ge=0)
    retracted: bool = False
    call_id: Uuid
    operation_id: str
    method: str
    confidence: Annotated[float, Field(ge=0, le=1)]


class EvidenceRef(Model):
    """Where an event that supports a finding lies."""

    event_id: Uuid
    event_name: str
    topic: str
    partition: int
    offset: int
    timestamp: Timestamp
    call_id: Uuid | None = None


class ScoreParts(Model):
    """Parts of a risk score; the score is their sum."""

    tool_risk_base: float = 0
    param_risk: float = 0
    output_risk: float = 0
    sequence_risk: float = 0
    identity_risk: float = 0
    environment_risk: float = 0
    anomaly_risk: float = 0


class RuleRef(Model):
    """The rule that spoke."""

    id: str
    version: int
    pack_hash: str


class Finding(EventBase):
    """risk.finding.*: one per (rule, group, cooldown bucket); further evidence gives a higher version."""

    event_name: Literal["risk.finding.created", "risk.finding.updated"]
    finding_id: Uuid
    version: int = Field(ge=0)
    state: Literal["complete", "partial"] = "complete"
    retracted: bool = False
    risk: Literal["info", "low", "medium", "high", "critical"]
    title: str
    description: str | None = None
    rule: RuleRef
    group_by: str
    group: str
    tags: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    first_seen: Timestamp
    last_seen: Timestamp
    evidence: tuple[EvidenceRef, ...]
    evidence_count: int = Field(ge=1)
    overflow: bool = False
    score: float
    score_parts: ScoreParts
    mcp_server: str | None = None
    tool_name: str | None = None
    policy_action: str | None = None
    status: Literal["open"] = "open"


class FindingStatus(EventBase):
    """finding.status.changed: what a person decided about a finding."""

    event_name: Literal["finding.status.changed"]
    finding_id: Uuid
    version: int = Field(ge=0)
    status: Literal["open", "acknowledged", "resolved", "false_positive"]
    note: str | None = None
    by: str | None = None


class Metric(EventBase):
    """metric.window.closed: one window of one key; late events give the window again with a higher version.

    `sketch` maps a log-bucket index to a count: bucket i holds durations in (base^i, base^(i+1)] ms, base 2^(1/32), the
    OpenTelemetry exponential histogram at scale 5; `zero_count` holds durations of 0.
    """

    event_name: Literal["metric.window.closed"]
    version: int = Field(ge=0)
    state: Literal["complete", "partial"] = "complete"
    provisional: bool = False
    window: Literal["1m", "5m", "1h"]
    window_start: Timestamp
    window_ms: int
    source_partition: int
    tool_source: ToolSource = "unknown"
    mcp_server: str | None = None
    tool_name: str
    count: Size
    outcomes: dict[str, int] = Field(default_factory=dict)
    error_rate: Annotated[float, Field(ge=0, le=1)]
    timeouts: Size = 0
    in_flight: Size = 0
    input_bytes: Size = 0
    output_bytes: Size = 0
    zero_count: Size = 0
    sketch: dict[str, int] = Field(default_factory=dict)
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class Alert(EventBase):
    """alert.*: raised from a finding or a metric, for people."""

    event_name: Literal["alert.raised", "alert.resolved"]
    alert_id: Uuid
    version: int = Field(ge=0)
    finding_id: Uuid | None = None
    title: str
    summary: str | None = None


Event: TypeAlias = Annotated[
    ToolCall
    | ToolBatch
    | DerivedToolCall
    | McpRpc
    | McpServer
    | McpElicitation
    | McpTools
    | AgentRun
    | Session
    | Turn
    | Prompt
    | Subagent
    | LlmCall
    | LlmContent
    | ConfigChanged
    | Observed
    | Quarantined
    | Dropped
    | Heartbeat
    | PolicyDecision
    | TraceLink
    | Finding
    | FindingStatus
    | Metric
    | Alert,
    Field(discriminator="event_name"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Validates any event: `EVENT.validate_json(value)`; raises pydantic.ValidationError."""


def to_json(event: EventBase) -> dict[str, Any]:
    """The JSON form of an event: what has its default is left out, but for version, runtime and severity."""
    fields = event.model_dump(exclude_defaults=True)
    fields["event_version"] = event.event_version
    fields["agent_runtime"] = event.agent_runtime
    fields["severity"] = event.severity
    return fields
