-- One row a tool call, folded from its events in whatever order, number and batches they come. Every state is idempotent:
-- min, max, and argMin/argMax of one whole tuple, so that all fields of a part come from one event. (Separate argMax columns
-- would mix events, because argMax skips rows whose value is NULL.) Which end stands: a proven one before an inferred one, then
-- the later event id; any end before what the pipelines inferred, whose own records evolve by version.
CREATE TABLE IF NOT EXISTS tool_calls_raw
(
    call_id String CODEC(ZSTD(1)),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    root_session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    trace_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    first_at SimpleAggregateFunction(min, DateTime64(6, 'UTC')),
    background SimpleAggregateFunction(max, Bool),
    approval_requested_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))),
    who AggregateFunction(argMax, Tuple(
        agent_runtime String, agent_version String, agent_id String, agent_role String, workspace_id String,
        user_id_hash String, parent_session_id String, session_key String, turn_id String, run_id String,
        model_call_id String, span_id String, parent_span_id String, parent_call_id String, tool_call_id String,
        call_key String, occurrence UInt32, tool_name String, tool_source String, tool_kind String, mcp_server String,
        mcp_tool String, mcp_operation String, mcp_name_guess Bool, source_adapter String, wrapper Bool,
        labels Map(String, String)), Tuple(UInt8, String)) CODEC(ZSTD(1)),
    start AggregateFunction(argMinIf, Tuple(
        event_id String, at DateTime64(6, 'UTC'), logged_at DateTime64(3, 'UTC'), synthetic Bool,
        input_bytes Nullable(UInt64), input_hash String, input_summary String,
        secret_kinds Array(String), fingerprints Array(String),
        policy Tuple(policy_id String, decision String, reason String, risk_level String),
        topic String, partition Int32, offset Int64), String, UInt8) CODEC(ZSTD(1)),
    ending AggregateFunction(argMaxIf, Tuple(
        event_id String, at DateTime64(6, 'UTC'), logged_at DateTime64(3, 'UTC'), status String, outcome String,
        outcome_evidence String, exit_code Nullable(Int32), duration_ms Nullable(Float64),
        error Tuple(type String, message_summary String, code String),
        input_bytes Nullable(UInt64), input_hash String, input_summary String,
        output_bytes Nullable(UInt64), output_hash String, output_summary String, is_error_result Nullable(Bool),
        secret_kinds Array(String), fingerprints Array(String), cause String,
        policy Tuple(policy_id String, decision String, reason String, risk_level String),
        topic String, partition Int32, offset Int64), Tuple(UInt8, String), UInt8) CODEC(ZSTD(1)),
    approval AggregateFunction(argMaxIf, Tuple(
        event_id String, at DateTime64(6, 'UTC'), decision String, decided_by String, inferred Bool), String, UInt8)
        CODEC(ZSTD(1)),
    timed_out AggregateFunction(argMaxIf, Tuple(
        event_id String, retracted Bool, at DateTime64(6, 'UTC'), started_at Nullable(DateTime64(6, 'UTC')),
        deadline Nullable(DateTime64(6, 'UTC')), state String, outcome String, maybe_blocked Bool, cause String,
        topic String, partition Int32, offset Int64), Tuple(UInt64, String), UInt8) CODEC(ZSTD(1)),
    abandoned AggregateFunction(argMaxIf, Tuple(
        event_id String, retracted Bool, at DateTime64(6, 'UTC'), started_at Nullable(DateTime64(6, 'UTC')),
        deadline Nullable(DateTime64(6, 'UTC')), state String, outcome String, maybe_blocked Bool, cause String,
        topic String, partition Int32, offset Int64), Tuple(UInt64, String), UInt8) CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_root_session root_session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01),
    INDEX by_time first_at TYPE minmax
)
ENGINE = AggregatingMergeTree
ORDER BY call_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS tool_calls_mv TO tool_calls_raw AS
WITH
    event.event_name IN ('tool.call.completed', 'tool.call.error', 'tool.call.blocked') AS is_end,
    event.event_name IN ('tool.call.timed_out', 'tool.call.abandoned') AS is_derived,
    multiIf(event.event_name = 'tool.call.started', 3, is_end, 2, is_derived, 0, 1) AS who_rank,
    if(event.outcome_evidence IN ('exit_status', 'is_error', 'jsonrpc_error', 'hook'), 2, 1) AS end_rank,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), i._log_time) AS at,
    parseDateTime64BestEffortOrNull(event.started_at, 6, 'UTC') AS derived_start,
    (event.event_id, event.retracted, at, derived_start,
     parseDateTime64BestEffortOrNull(event.deadline, 6, 'UTC'), event.state, event.outcome, event.maybe_blocked, event.cause,
     toString(_topic), _partition, _offset) AS derived
SELECT
    event.call_id AS call_id,
    max(i._log_time) AS _log_time,
    max(event.tenant_id) AS tenant_id,
    max(event.session_id) AS session_id,
    max(event.root_session_id) AS root_session_id,
    max(event.trace_id) AS trace_id,
    min(if(is_derived, ifNull(derived_start, at), at)) AS first_at,
    max(event.background) AS background,
    min(if(event.event_name = 'tool.call.approval_requested', at, NULL)) AS approval_requested_at,
    argMaxState((
        event.agent_runtime, event.agent_version, event.agent_id, event.agent_role, event.workspace_id,
        event.user_id_hash, event.parent_session_id, event.session_key, event.turn_id, event.run_id,
        event.model_call_id, event.span_id, event.parent_span_id, event.parent_call_id, event.tool_call_id,
        event.call_key, event.occurrence, event.tool_name, event.tool_source, event.tool_kind, event.mcp.server_name,
        event.mcp.tool_name, event.mcp.operation, event.mcp.name_guess, event.source_adapter, event.wrapper,
        event.labels), (toUInt8(who_rank), event.event_id)) AS who,
    argMinIfState((
        event.event_id, at, i._log_time, event.synthetic,
        event.input.size_bytes, event.input.hash, leftUTF8(event.input.summary, 4096),
        event.facts.secret_kinds, event.facts.fingerprints,
        event.policy, toString(_topic), _partition, _offset),
        event.event_id, event.event_name = 'tool.call.started') AS start,
    argMaxIfState((
        event.event_id, at, i._log_time, event.status, event.outcome,
        event.outcome_evidence, event.exit_code, event.duration_ms, event.error,
        event.input.size_bytes, event.input.hash, leftUTF8(event.input.summary, 4096),
        event.output.size_bytes, event.output.hash, leftUTF8(event.output.summary, 4096), event.output.is_error_result,
        event.facts.secret_kinds, event.facts.fingerprints, event.cause,
        event.policy, toString(_topic), _partition, _offset),
        (toUInt8(end_rank), event.event_id), is_end) AS ending,
    argMaxIfState((event.event_id, at, event.approval.decision, event.approval.decided_by, event.approval.inferred),
        event.event_id, event.event_name = 'tool.call.approval_decided') AS approval,
    argMaxIfState(derived, (event.version, event.event_id), event.event_name = 'tool.call.timed_out') AS timed_out,
    argMaxIfState(derived, (event.version, event.event_id), event.event_name = 'tool.call.abandoned') AS abandoned
FROM ingest AS i
WHERE (endsWith(_topic, 'agenttrace.tool.call') OR endsWith(_topic, 'agenttrace.tool.call.derived')) AND event.call_id != ''
GROUP BY event.call_id;

-- `status` is the truth about the call as far as it is known: an end's own status; abandoned or timed_out where the pipelines
-- say so and no end came; else started. `late`: the end came after the call had been given up. `duration_ms` is what the
-- runtime measured, `elapsed_ms` lies between the two events.
CREATE OR REPLACE VIEW tool_calls AS
WITH
    finalizeAggregation(who) AS w,
    finalizeAggregation(start) AS s,
    finalizeAggregation(ending) AS e,
    finalizeAggregation(approval) AS a,
    finalizeAggregation(timed_out) AS t,
    finalizeAggregation(abandoned) AS b,
    s.event_id != '' AS has_start,
    e.event_id != '' AS has_end,
    t.event_id != '' AND NOT t.retracted AS is_timed_out,
    b.event_id != '' AND NOT b.retracted AS is_abandoned,
    if(is_abandoned, b, t) AS d
SELECT
    tenant_id,
    call_id,
    first_at,
    multiIf(has_start, s.at, is_abandoned OR is_timed_out, d.started_at, NULL) AS started_at,
    if(has_end, e.at, NULL) AS ended_at,
    multiIf(has_end, e.status, is_abandoned, 'abandoned', is_timed_out, 'timed_out', 'started') AS status,
    multiIf(has_end, e.outcome, is_abandoned OR is_timed_out, d.outcome, '') AS outcome,
    multiIf(has_end, e.outcome_evidence, is_abandoned OR is_timed_out, 'inferred', '') AS outcome_evidence,
    has_end AND (is_timed_out OR is_abandoned) AS late,
    if(has_end, e.duration_ms, NULL) AS duration_ms,
    if(has_start AND has_end, greatest(0, dateDiff('microsecond', s.at, e.at) / 1000), NULL) AS elapsed_ms,
    w.agent_runtime AS agent_runtime,
    w.agent_version AS agent_version,
    w.agent_id AS agent_id,
    w.agent_role AS agent_role,
    w.workspace_id AS workspace_id,
    w.user_id_hash AS user_id_hash,
    session_id,
    root_session_id,
    w.parent_session_id AS parent_session_id,
    w.session_key AS session_key,
    w.turn_id AS turn_id,
    w.run_id AS run_id,
    w.model_call_id AS model_call_id,
    trace_id,
    w.span_id AS span_id,
    w.parent_span_id AS parent_span_id,
    w.parent_call_id AS parent_call_id,
    w.tool_call_id AS tool_call_id,
    w.call_key AS call_key,
    w.occurrence AS occurrence,
    w.tool_name AS tool_name,
    w.tool_source AS tool_source,
    w.tool_kind AS tool_kind,
    w.mcp_server AS mcp_server,
    w.mcp_tool AS mcp_tool,
    w.mcp_operation AS mcp_operation,
    w.mcp_name_guess AS mcp_name_guess,
    w.source_adapter AS source_adapter,
    w.wrapper AS wrapper,
    w.labels AS labels,
    background,
    if(has_end, e.exit_code, NULL) AS exit_code,
    if(has_end, e.error.type, '') AS error_type,
    if(has_end, e.error.code, '') AS error_code,
    if(has_end, e.error.message_summary, '') AS error_message,
    if(s.input_hash != '' OR s.input_bytes IS NOT NULL, s.input_bytes, e.input_bytes) AS input_bytes,
    if(s.input_hash != '', s.input_hash, e.input_hash) AS input_hash,
    if(s.input_summary != '', s.input_summary, e.input_summary) AS input_summary,
    e.output_bytes AS output_bytes,
    e.output_hash AS output_hash,
    e.output_summary AS output_summary,
    e.is_error_result AS is_error_result,
    arrayDistinct(arrayConcat(s.secret_kinds, e.secret_kinds)) AS secret_kinds,
    arrayDistinct(arrayConcat(s.fingerprints, e.fingerprints)) AS fingerprints,
    approval_requested_at,
    if(a.event_id != '', a.at, NULL) AS approval_decided_at,
    a.decision AS approval_decision,
    a.decided_by AS approval_decided_by,
    if(e.policy.policy_id != '' OR e.policy.decision != '', e.policy, s.policy) AS policy,
    if(is_timed_out OR is_abandoned, d.deadline, NULL) AS deadline,
    (is_timed_out OR is_abandoned) AND d.maybe_blocked AS maybe_blocked,
    multiIf(has_end, e.cause, is_timed_out OR is_abandoned, d.cause, '') AS cause,
    (is_timed_out OR is_abandoned) AND d.state = 'partial' AS partial,
    s.event_id AS start_event_id,
    multiIf(has_end, e.event_id, is_timed_out OR is_abandoned, d.event_id, '') AS end_event_id,
    _log_time,
    multiIf(has_end, e.topic, is_timed_out OR is_abandoned, d.topic, s.topic) AS _topic,
    multiIf(has_end, e.partition, is_timed_out OR is_abandoned, d.partition, s.partition) AS _partition,
    multiIf(has_end, e.offset, is_timed_out OR is_abandoned, d.offset, s.offset) AS _offset
FROM tool_calls_raw FINAL;
