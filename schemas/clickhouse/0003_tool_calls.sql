-- One row a tool call, folded from its events in whatever order, number and batches they come. Every state is idempotent: a min
-- or max. Where several fields belong together the state is the max of one whole tuple that begins with (rank, event_id), which
-- is argMax over that pair; separate argMax columns would mix events, since argMax skips rows whose value is NULL. (argMaxState
-- of the tuple says the same; as a plain tuple it is written at two thirds of the cost and read by its parts.)
-- Rank of an end: proven 2, inferred 1; of the opening: the start 3, an end 2, other events of the call 1.
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
        agent_role String, workspace_id String, user_id_hash String, parent_session_id String, turn_id String,
        run_id String, model_call_id String, span_id String, parent_span_id String, parent_call_id String,
        tool_call_id String, occurrence UInt32, tool_name String, tool_source String, tool_kind String,
        mcp_server String, mcp_tool String, mcp_operation String, mcp_name_guess Bool, source_adapter String,
        wrapper Bool, synthetic Bool, labels Array(Tuple(String, String)), input_bytes Nullable(UInt64), input_hash String,
        input_summary String, secret_kinds Array(String), fingerprints Array(String), topic String, partition Int32,
        offset Int64)) CODEC(ZSTD(1)),
    ending SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, at DateTime64(6, 'UTC'), status String, outcome String, outcome_evidence String,
        exit_code Nullable(Int64), duration_ms Nullable(Float64), error_type String, error_code String,
        error_message String, output_bytes Nullable(UInt64), output_hash String, output_summary String,
        is_error_result Nullable(Bool), secret_kinds Array(String), fingerprints Array(String), cause String,
        policy_id String, policy_decision String, policy_reason String, risk_level String, topic String,
        partition Int32, offset Int64)) CODEC(ZSTD(1)),
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
    INDEX by_trace trace_id TYPE bloom_filter(0.01),
    INDEX by_time first_at TYPE minmax
)
ENGINE = AggregatingMergeTree
ORDER BY call_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS tool_calls_mv TO tool_calls_raw AS
WITH e.event_name IN ('tool.call.completed', 'tool.call.error', 'tool.call.blocked') AS is_end
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
        toUInt8(multiIf(e.event_name = 'tool.call.started', 3, is_end, 2, 1)), e.event_id, at,
        e.agent_runtime, e.agent_version, e.agent_id,
        e.agent_role, e.workspace_id, e.user_id_hash, e.parent_session_id, e.turn_id,
        e.run_id, e.model_call_id, e.span_id, e.parent_span_id, e.parent_call_id,
        e.tool_call_id, e.occurrence, e.tool_name, e.tool_source, e.tool_kind,
        e.mcp.server_name, e.mcp.tool_name, e.mcp.operation, e.mcp.name_guess, e.source_adapter,
        e.wrapper, e.synthetic, arrayZip(mapKeys(e.labels), mapValues(e.labels)), e.input.size_bytes, e.input.hash,
        leftUTF8(e.input.summary, 4096), e.facts.secret_kinds, e.facts.fingerprints, toString(_topic), _partition,
        _offset)) AS opening,
    maxIf((
        toUInt8(if(e.outcome_evidence IN ('exit_status', 'is_error', 'jsonrpc_error', 'hook'), 2, 1)), e.event_id, at,
        e.status, e.outcome, e.outcome_evidence,
        e.exit_code, e.duration_ms, e.error.type, e.error.code,
        e.error.message_summary, e.output.size_bytes, e.output.hash, leftUTF8(e.output.summary, 4096),
        e.output.is_error_result, e.facts.secret_kinds, e.facts.fingerprints, e.cause,
        e.policy.policy_id, e.policy.decision, e.policy.reason, e.policy.risk_level, toString(_topic),
        _partition, _offset), is_end) AS ending,
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
        e.agent_role, '', '', '', e.turn_id,
        e.run_id, '', e.span_id, '', '',
        e.tool_call_id, toUInt32(0), e.tool_name, e.tool_source, '',
        e.mcp.server_name, e.mcp.tool_name, '', false, '',
        false, false, CAST([], 'Array(Tuple(String, String))'), CAST(NULL, 'Nullable(UInt64)'), '',
        '', CAST([], 'Array(String)'), CAST([], 'Array(String)'), toString(_topic), _partition,
        _offset)) AS opening,
    maxIf(verdict, e.event_name = 'tool.call.timed_out') AS timed_out,
    maxIf(verdict, e.event_name = 'tool.call.abandoned') AS abandoned
FROM decoded_derived AS d
WHERE e.call_id != '' AND e.event_name IN ('tool.call.timed_out', 'tool.call.abandoned')
GROUP BY call_id;

-- `status` is the truth about the call as far as it is known: an end's own status; abandoned or timed_out where the pipelines
-- say so and no end came; else started. `late`: the end came after the call had been given up. `duration_ms` is what the
-- runtime measured, `elapsed_ms` lies between the two events.
CREATE OR REPLACE VIEW tool_calls AS
WITH
    opening.rank = 3 AS has_start,
    ending.rank > 0 AS has_end,
    timed_out.event_id != '' AND NOT timed_out.retracted AS is_timed_out,
    abandoned.event_id != '' AND NOT abandoned.retracted AS is_abandoned,
    is_timed_out OR is_abandoned AS is_given_up
SELECT
    tenant_id,
    call_id,
    first_at,
    multiIf(has_start, opening.at, is_abandoned, abandoned.started_at, is_timed_out, timed_out.started_at, NULL)
        AS started_at,
    if(has_end, ending.at, NULL) AS ended_at,
    multiIf(has_end, ending.status, is_abandoned, 'abandoned', is_timed_out, 'timed_out', 'started') AS status,
    multiIf(has_end, ending.outcome, is_abandoned, abandoned.outcome, is_timed_out, timed_out.outcome, '') AS outcome,
    multiIf(has_end, ending.outcome_evidence, is_given_up, 'inferred', '') AS outcome_evidence,
    has_end AND is_given_up AS late,
    ending.duration_ms AS duration_ms,
    if(has_start AND has_end, greatest(0, dateDiff('microsecond', opening.at, ending.at) / 1000), NULL) AS elapsed_ms,
    opening.agent_runtime AS agent_runtime,
    opening.agent_version AS agent_version,
    opening.agent_id AS agent_id,
    opening.agent_role AS agent_role,
    opening.workspace_id AS workspace_id,
    opening.user_id_hash AS user_id_hash,
    session_id,
    root_session_id,
    opening.parent_session_id AS parent_session_id,
    opening.turn_id AS turn_id,
    opening.run_id AS run_id,
    opening.model_call_id AS model_call_id,
    trace_id,
    opening.span_id AS span_id,
    opening.parent_span_id AS parent_span_id,
    opening.parent_call_id AS parent_call_id,
    opening.tool_call_id AS tool_call_id,
    opening.occurrence AS occurrence,
    opening.tool_name AS tool_name,
    opening.tool_source AS tool_source,
    opening.tool_kind AS tool_kind,
    opening.mcp_server AS mcp_server,
    opening.mcp_tool AS mcp_tool,
    opening.mcp_operation AS mcp_operation,
    opening.mcp_name_guess AS mcp_name_guess,
    opening.source_adapter AS source_adapter,
    opening.wrapper AS wrapper,
    opening.synthetic AS synthetic,
    background,
    CAST(opening.labels, 'Map(String, String)') AS labels,
    opening.input_bytes AS input_bytes,
    opening.input_hash AS input_hash,
    opening.input_summary AS input_summary,
    ending.output_bytes AS output_bytes,
    ending.output_hash AS output_hash,
    ending.output_summary AS output_summary,
    ending.is_error_result AS is_error_result,
    ending.exit_code AS exit_code,
    ending.error_type AS error_type,
    ending.error_code AS error_code,
    ending.error_message AS error_message,
    arrayDistinct(arrayConcat(opening.secret_kinds, ending.secret_kinds)) AS secret_kinds,
    arrayDistinct(arrayConcat(opening.fingerprints, ending.fingerprints)) AS fingerprints,
    approval_requested_at,
    if(approval.event_id != '', approval.at, NULL) AS approval_decided_at,
    approval.decision AS approval_decision,
    approval.decided_by AS approval_decided_by,
    ending.policy_id AS policy_id,
    ending.policy_decision AS policy_decision,
    ending.policy_reason AS policy_reason,
    ending.risk_level AS risk_level,
    multiIf(is_timed_out, timed_out.deadline, is_abandoned, abandoned.deadline, NULL) AS deadline,
    (is_timed_out AND timed_out.maybe_blocked) OR (is_abandoned AND abandoned.maybe_blocked) AS maybe_blocked,
    multiIf(has_end, ending.cause, is_abandoned, abandoned.cause, is_timed_out, timed_out.cause, '') AS cause,
    if(has_start, opening.event_id, '') AS start_event_id,
    multiIf(has_end, ending.event_id, is_abandoned, abandoned.event_id, is_timed_out, timed_out.event_id, '')
        AS end_event_id,
    _log_time,
    multiIf(has_end, ending.topic, is_abandoned, abandoned.topic, is_timed_out, timed_out.topic, opening.topic) AS _topic,
    multiIf(has_end, ending.partition, is_abandoned, abandoned.partition, is_timed_out, timed_out.partition,
            opening.partition) AS _partition,
    multiIf(has_end, ending.offset, is_abandoned, abandoned.offset, is_timed_out, timed_out.offset, opening.offset)
        AS _offset
FROM tool_calls_raw FINAL;
