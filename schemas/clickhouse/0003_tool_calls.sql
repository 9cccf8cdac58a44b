-- One row a tool call, folded from its events in whatever order, number and batches they come. Every state is idempotent: a min
-- or max. What belongs together is the max of one whole tuple that begins with (rank, event_id): argMax over that pair, so
-- that all its fields come from one event. (Separate argMax columns would mix events, since argMax skips rows whose value is
-- NULL. argMaxState of the tuple says the same; the plain tuple costs half at insert and a fifth when read.)
-- Rank of an end: proven 2, inferred 1; of the opening: the start 3, an end 2, other events of the call 1, derived 0. What is
-- long lies in tuples of its own, under the same rank and id, so that counting calls does not read their texts.
CREATE TABLE IF NOT EXISTS tool_calls_raw
(
    call_id String CODEC(ZSTD(1)),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(Delta(8), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    root_session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    trace_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    first_at SimpleAggregateFunction(min, DateTime64(6, 'UTC')) CODEC(Delta(8), ZSTD(1)),
    background SimpleAggregateFunction(max, Bool),
    approval_requested_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))),
    opening SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, at DateTime64(6, 'UTC'), agent_runtime String, agent_version String, agent_id String,
        agent_role String, workspace_id String, user_id_hash String, parent_session_id String, turn_id String, run_id String,
        model_call_id String, span_id String, parent_span_id String, parent_call_id String, tool_call_id String,
        occurrence UInt32, tool_name String, tool_source String, tool_kind String, mcp_server String, mcp_tool String,
        mcp_operation String, mcp_name_guess Bool, source_adapter String, wrapper Bool, synthetic Bool,
        topic String, partition Int32, offset Int64)) CODEC(ZSTD(1)),
    opening_content SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, labels Array(Tuple(String, String)), bytes Nullable(UInt64), hash String, summary String,
        secret_kinds Array(String), fingerprints Array(String))) CODEC(ZSTD(1)),
    ending SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, at DateTime64(6, 'UTC'), status String, outcome String, outcome_evidence String,
        exit_code Nullable(Int64), duration_ms Nullable(Float64), error_type String, error_code String, cause String,
        policy_id String, policy_decision String, risk_level String, topic String, partition Int32, offset Int64))
        CODEC(ZSTD(1)),
    ending_content SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, error_message String, policy_reason String, bytes Nullable(UInt64), hash String,
        summary String, is_error_result Nullable(Bool), secret_kinds Array(String), fingerprints Array(String)))
        CODEC(ZSTD(1)),
    approval SimpleAggregateFunction(max, Tuple(
        event_id String, at DateTime64(6, 'UTC'), decision String, decided_by String, inferred Bool)) CODEC(ZSTD(1)),
    timed_out SimpleAggregateFunction(max, Tuple(
        version UInt64, event_id String, retracted Bool, started_at Nullable(DateTime64(6, 'UTC')),
        deadline Nullable(DateTime64(6, 'UTC')), state String, outcome String, maybe_blocked Bool, cause String,
        topic String, partition Int32, offset Int64)) CODEC(ZSTD(1)),
    abandoned SimpleAggregateFunction(max, Tuple(
        version UInt64, event_id String, retracted Bool, started_at Nullable(DateTime64(6, 'UTC')),
        deadline Nullable(DateTime64(6, 'UTC')), state String, outcome String, maybe_blocked Bool, cause String,
        topic String, partition Int32, offset Int64)) CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_root_session root_session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01)
)
ENGINE = AggregatingMergeTree
ORDER BY call_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS tool_calls_mv TO tool_calls_raw AS
WITH
    e.event_name IN ('tool.call.completed', 'tool.call.error', 'tool.call.blocked') AS is_end,
    toUInt8(multiIf(e.event_name = 'tool.call.started', 3, is_end, 2, 1)) AS opening_rank,
    toUInt8(if(e.outcome_evidence IN ('exit_status', 'is_error', 'jsonrpc_error', 'hook'), 2, 1)) AS ending_rank
SELECT
    e.call_id AS call_id,
    max(d._log_time) AS _log_time,
    max(e.tenant_id) AS tenant_id,
    max(e.session_id) AS session_id,
    max(e.root_session_id) AS root_session_id,
    max(e.trace_id) AS trace_id,
    min(at) AS first_at,
    max(e.background) AS background,
    min(if(e.event_name = 'tool.call.approval_requested', at, NULL)) AS approval_requested_at,
    max((
        opening_rank, e.event_id, at, e.agent_runtime, e.agent_version, e.agent_id,
        e.agent_role, e.workspace_id, e.user_id_hash, e.parent_session_id, e.turn_id, e.run_id,
        e.model_call_id, e.span_id, e.parent_span_id, e.parent_call_id, e.tool_call_id,
        e.occurrence, e.tool_name, e.tool_source, e.tool_kind, e.mcp.server_name, e.mcp.tool_name,
        e.mcp.operation, e.mcp.name_guess, e.source_adapter, e.wrapper, e.synthetic,
        toString(_topic), _partition, _offset)) AS opening,
    max((
        opening_rank, e.event_id, arrayZip(mapKeys(e.labels), mapValues(e.labels)), e.input.size_bytes, e.input.hash,
        leftUTF8(e.input.summary, 4096), e.facts.secret_kinds, e.facts.fingerprints)) AS opening_content,
    maxIf((
        ending_rank, e.event_id, at, e.status, e.outcome, e.outcome_evidence,
        e.exit_code, e.duration_ms, e.error.type, e.error.code, e.cause,
        e.policy.policy_id, e.policy.decision, e.policy.risk_level, toString(_topic), _partition, _offset), is_end) AS ending,
    maxIf((
        ending_rank, e.event_id, e.error.message_summary, e.policy.reason, e.output.size_bytes, e.output.hash,
        leftUTF8(e.output.summary, 4096), e.output.is_error_result, e.facts.secret_kinds, e.facts.fingerprints), is_end)
        AS ending_content,
    maxIf((e.event_id, at, e.approval.decision, e.approval.decided_by, e.approval.inferred),
        e.event_name = 'tool.call.approval_decided') AS approval
FROM decoded_events AS d
WHERE e.call_id != '' AND startsWith(e.event_name, 'tool.')
GROUP BY call_id;

CREATE MATERIALIZED VIEW IF NOT EXISTS tool_calls_derived_mv TO tool_calls_raw AS
WITH
    parseDateTime64BestEffortOrNull(e.started_at, 6, 'UTC') AS started,
    (e.version, e.event_id, e.retracted, started, parseDateTime64BestEffortOrNull(e.deadline, 6, 'UTC'),
     if(e.state = '', 'complete', e.state), e.outcome, e.maybe_blocked, e.cause, toString(_topic), _partition, _offset)
        AS verdict
SELECT
    e.call_id AS call_id,
    max(d._log_time) AS _log_time,
    max(e.tenant_id) AS tenant_id,
    max(e.session_id) AS session_id,
    max(e.root_session_id) AS root_session_id,
    max(e.trace_id) AS trace_id,
    min(ifNull(started, at)) AS first_at,
    max((
        toUInt8(0), e.event_id, at, e.agent_runtime, '', e.agent_id,
        e.agent_role, '', '', '', e.turn_id, e.run_id,
        '', e.span_id, '', '', e.tool_call_id,
        toUInt32(0), e.tool_name, e.tool_source, '', e.mcp.server_name, e.mcp.tool_name,
        '', false, '', false, false,
        toString(_topic), _partition, _offset)) AS opening,
    maxIf(verdict, e.event_name = 'tool.call.timed_out') AS timed_out,
    maxIf(verdict, e.event_name = 'tool.call.abandoned') AS abandoned
FROM decoded_derived AS d
WHERE e.call_id != '' AND e.event_name IN ('tool.call.timed_out', 'tool.call.abandoned')
GROUP BY call_id;

-- `status` is the truth about the call as far as it is known: an end's own status; abandoned or timed_out where the pipelines
-- say so and no end came; else started. `late`: the end came after the call had been given up. `duration_ms` is what the
-- runtime measured, `elapsed_ms` lies between the two events. The tuples are read under other names on purpose: a part of one
-- that is named directly (opening.rank) is read as a column of its own, and FINAL then takes it from any row.
CREATE OR REPLACE VIEW tool_calls AS
WITH
    opening AS o,
    opening_content AS oc,
    ending AS n,
    ending_content AS nc,
    approval AS a,
    timed_out AS t,
    abandoned AS b,
    o.rank = 3 AS has_start,
    n.rank > 0 AS has_end,
    t.event_id != '' AND NOT t.retracted AS is_timed_out,
    b.event_id != '' AND NOT b.retracted AS is_abandoned,
    is_timed_out OR is_abandoned AS is_given_up
SELECT
    tenant_id,
    call_id,
    first_at,
    multiIf(has_start, o.at, is_abandoned, b.started_at, is_timed_out, t.started_at, NULL) AS started_at,
    if(has_end, n.at, NULL) AS ended_at,
    multiIf(has_end, n.status, is_abandoned, 'abandoned', is_timed_out, 'timed_out', 'started') AS status,
    multiIf(has_end, n.outcome, is_abandoned, b.outcome, is_timed_out, t.outcome, '') AS outcome,
    multiIf(has_end, n.outcome_evidence, is_given_up, 'inferred', '') AS outcome_evidence,
    has_end AND is_given_up AS late,
    n.duration_ms AS duration_ms,
    if(has_start AND has_end, greatest(0, dateDiff('microsecond', o.at, n.at) / 1000), NULL) AS elapsed_ms,
    o.agent_runtime AS agent_runtime,
    o.agent_version AS agent_version,
    o.agent_id AS agent_id,
    o.agent_role AS agent_role,
    o.workspace_id AS workspace_id,
    o.user_id_hash AS user_id_hash,
    session_id,
    root_session_id,
    o.parent_session_id AS parent_session_id,
    o.turn_id AS turn_id,
    o.run_id AS run_id,
    o.model_call_id AS model_call_id,
    trace_id,
    o.span_id AS span_id,
    o.parent_span_id AS parent_span_id,
    o.parent_call_id AS parent_call_id,
    o.tool_call_id AS tool_call_id,
    o.occurrence AS occurrence,
    o.tool_name AS tool_name,
    o.tool_source AS tool_source,
    o.tool_kind AS tool_kind,
    o.mcp_server AS mcp_server,
    o.mcp_tool AS mcp_tool,
    o.mcp_operation AS mcp_operation,
    o.mcp_name_guess AS mcp_name_guess,
    o.source_adapter AS source_adapter,
    o.wrapper AS wrapper,
    o.synthetic AS synthetic,
    background,
    CAST(oc.labels, 'Map(String, String)') AS labels,
    oc.bytes AS input_bytes,
    oc.hash AS input_hash,
    oc.summary AS input_summary,
    nc.bytes AS output_bytes,
    nc.hash AS output_hash,
    nc.summary AS output_summary,
    nc.is_error_result AS is_error_result,
    n.exit_code AS exit_code,
    n.error_type AS error_type,
    n.error_code AS error_code,
    nc.error_message AS error_message,
    arrayDistinct(arrayConcat(oc.secret_kinds, nc.secret_kinds)) AS secret_kinds,
    arrayDistinct(arrayConcat(oc.fingerprints, nc.fingerprints)) AS fingerprints,
    approval_requested_at,
    if(a.event_id != '', a.at, NULL) AS approval_decided_at,
    a.decision AS approval_decision,
    a.decided_by AS approval_decided_by,
    n.policy_id AS policy_id,
    n.policy_decision AS policy_decision,
    nc.policy_reason AS policy_reason,
    n.risk_level AS risk_level,
    multiIf(is_timed_out, t.deadline, is_abandoned, b.deadline, NULL) AS deadline,
    (is_timed_out AND t.maybe_blocked) OR (is_abandoned AND b.maybe_blocked) AS maybe_blocked,
    multiIf(has_end, n.cause, is_abandoned, b.cause, is_timed_out, t.cause, '') AS cause,
    if(has_start, o.event_id, '') AS start_event_id,
    multiIf(has_end, n.event_id, is_abandoned, b.event_id, is_timed_out, t.event_id, '') AS end_event_id,
    _log_time,
    multiIf(has_end, n.topic, is_abandoned, b.topic, is_timed_out, t.topic, o.topic) AS _topic,
    multiIf(has_end, n.partition, is_abandoned, b.partition, is_timed_out, t.partition, o.partition) AS _partition,
    multiIf(has_end, n.offset, is_abandoned, b.offset, is_timed_out, t.offset, o.offset) AS _offset
FROM tool_calls_raw FINAL
SETTINGS optimize_functions_to_subcolumns = 0;
