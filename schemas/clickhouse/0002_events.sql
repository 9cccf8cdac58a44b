-- One row an event, whatever was delivered how often. Key and partition are functions of the id alone, so that a repeated
-- event meets its first copy in every case; the partition is the month that the UUIDv7 carries, and ids whose month is not
-- plausible (a producer's clock was wrong) share partition 0. Retention counts from the log time, which no producer sets.
CREATE TABLE IF NOT EXISTS events_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64 CODEC(Delta(8), ZSTD(1)),
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    tenant_id LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    event_name LowCardinality(String),
    event_version LowCardinality(String),
    timestamp DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    observed_at Nullable(DateTime64(6, 'UTC')) CODEC(Delta(8), ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    workspace_id LowCardinality(String),
    user_id_hash LowCardinality(String),
    agent_runtime LowCardinality(String),
    agent_version LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(String),
    session_id String CODEC(ZSTD(1)),
    root_session_id String CODEC(ZSTD(1)),
    parent_session_id String CODEC(ZSTD(1)),
    session_key String CODEC(ZSTD(1)),
    turn_id String CODEC(ZSTD(1)),
    run_id String CODEC(ZSTD(1)),
    model_call_id String CODEC(ZSTD(1)),
    source_adapter LowCardinality(String),
    source_event_name LowCardinality(String),
    producer_id LowCardinality(String),
    producer_epoch UInt64 CODEC(ZSTD(1)),
    producer_seq UInt64 CODEC(Delta(8), ZSTD(1)),
    severity LowCardinality(String),
    labels Map(LowCardinality(String), String),
    call_id String CODEC(ZSTD(1)),
    tool_name LowCardinality(String),
    tool_source LowCardinality(String),
    mcp_server LowCardinality(String),
    mcp_tool LowCardinality(String),
    operation_id String CODEC(ZSTD(1)),
    method LowCardinality(String),
    status LowCardinality(String),
    outcome LowCardinality(String),
    outcome_evidence LowCardinality(String),
    duration_ms Nullable(Float64) CODEC(ZSTD(1)),
    error_type LowCardinality(String),
    error_message String CODEC(ZSTD(1)),
    reason LowCardinality(String),
    commands Array(Tuple(argv0 LowCardinality(String), sub LowCardinality(String))),
    paths Array(Tuple(path String, kind LowCardinality(String))) CODEC(ZSTD(1)),
    hosts Array(Tuple(host String, domain String, port Nullable(UInt16), loopback Bool)) CODEC(ZSTD(1)),
    secret_kinds Array(LowCardinality(String)),
    fingerprints Array(String) CODEC(ZSTD(1)),
    payload String CODEC(ZSTD(1)) COMMENT 'the whole event as it was in Kafka, JSON, byte for byte',
    INDEX by_time timestamp TYPE minmax,
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_root_session root_session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01),
    INDEX by_call call_id TYPE bloom_filter(0.01),
    INDEX by_operation operation_id TYPE bloom_filter(0.01),
    INDEX by_fingerprint fingerprints TYPE bloom_filter(0.01)
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY if(toYYYYMM(UUIDv7ToDateTime(toUUIDOrZero(event_id), 'UTC')) BETWEEN 202001 AND 204912,
                toYYYYMM(UUIDv7ToDateTime(toUUIDOrZero(event_id), 'UTC')), 0)
ORDER BY (tenant_id, event_id)
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, min_bytes_for_wide_part = 134217728;

CREATE MATERIALIZED VIEW IF NOT EXISTS events_mv TO events_raw AS
SELECT
    _topic, _partition, _offset, _log_time,
    event.tenant_id AS tenant_id,
    event.event_id AS event_id,
    event.event_name AS event_name,
    event.event_version AS event_version,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS timestamp,
    parseDateTime64BestEffortOrNull(event.observed_at, 6, 'UTC') AS observed_at,
    event.trace_id AS trace_id,
    event.span_id AS span_id,
    event.parent_span_id AS parent_span_id,
    event.workspace_id AS workspace_id,
    event.user_id_hash AS user_id_hash,
    event.agent_runtime AS agent_runtime,
    event.agent_version AS agent_version,
    event.agent_id AS agent_id,
    event.agent_role AS agent_role,
    event.session_id AS session_id,
    event.root_session_id AS root_session_id,
    event.parent_session_id AS parent_session_id,
    event.session_key AS session_key,
    event.turn_id AS turn_id,
    event.run_id AS run_id,
    event.model_call_id AS model_call_id,
    event.source_adapter AS source_adapter,
    event.source_event_name AS source_event_name,
    event.producer.id AS producer_id,
    event.producer.epoch AS producer_epoch,
    event.producer.seq AS producer_seq,
    event.severity AS severity,
    event.labels AS labels,
    event.call_id AS call_id,
    event.tool_name AS tool_name,
    event.tool_source AS tool_source,
    if(event.mcp_server != '', event.mcp_server, event.mcp.server_name) AS mcp_server,
    event.mcp.tool_name AS mcp_tool,
    event.operation_id AS operation_id,
    event.method AS method,
    event.status AS status,
    event.outcome AS outcome,
    event.outcome_evidence AS outcome_evidence,
    event.duration_ms AS duration_ms,
    event.error.type AS error_type,
    if(event.error.message_summary != '', event.error.message_summary, event.protocol_error.message_summary)
        AS error_message,
    event.reason AS reason,
    event.facts.commands AS commands,
    event.facts.paths AS paths,
    event.facts.hosts AS hosts,
    event.facts.secret_kinds AS secret_kinds,
    event.facts.fingerprints AS fingerprints,
    value AS payload
FROM ingest
WHERE endsWith(_topic, 'agenttrace.tool.call') OR endsWith(_topic, 'agenttrace.mcp.rpc')
   OR endsWith(_topic, 'agenttrace.agent.activity') OR endsWith(_topic, 'agenttrace.policy.decision');

-- What the pipelines say about calls that did not end. Its ids are UUIDv5 and its records evolve, hence a table of its own.
CREATE TABLE IF NOT EXISTS derived_calls_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    version UInt64,
    retracted Bool,
    state LowCardinality(String),
    tenant_id LowCardinality(String),
    event_name LowCardinality(String),
    timestamp DateTime64(6, 'UTC'),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    agent_runtime LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    session_id String CODEC(ZSTD(1)),
    root_session_id String CODEC(ZSTD(1)),
    turn_id String CODEC(ZSTD(1)),
    run_id String CODEC(ZSTD(1)),
    severity LowCardinality(String),
    call_id String CODEC(ZSTD(1)),
    tool_name LowCardinality(String),
    tool_source LowCardinality(String),
    mcp_server LowCardinality(String),
    mcp_tool LowCardinality(String),
    started_at Nullable(DateTime64(6, 'UTC')),
    deadline Nullable(DateTime64(6, 'UTC')),
    ttl_ms Nullable(UInt64),
    outcome LowCardinality(String),
    maybe_blocked Bool,
    cause String,
    payload String CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_call call_id TYPE bloom_filter(0.01)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY event_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728;

CREATE MATERIALIZED VIEW IF NOT EXISTS derived_calls_mv TO derived_calls_raw AS
SELECT
    _topic, _partition, _offset, _log_time,
    event.event_id AS event_id,
    event.version AS version,
    event.retracted AS retracted,
    if(event.state = '', 'complete', event.state) AS state,
    event.tenant_id AS tenant_id,
    event.event_name AS event_name,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS timestamp,
    event.trace_id AS trace_id,
    event.span_id AS span_id,
    event.agent_runtime AS agent_runtime,
    event.agent_id AS agent_id,
    event.session_id AS session_id,
    event.root_session_id AS root_session_id,
    event.turn_id AS turn_id,
    event.run_id AS run_id,
    event.severity AS severity,
    event.call_id AS call_id,
    event.tool_name AS tool_name,
    event.tool_source AS tool_source,
    event.mcp.server_name AS mcp_server,
    event.mcp.tool_name AS mcp_tool,
    parseDateTime64BestEffortOrNull(event.started_at, 6, 'UTC') AS started_at,
    parseDateTime64BestEffortOrNull(event.deadline, 6, 'UTC') AS deadline,
    event.ttl_ms AS ttl_ms,
    event.outcome AS outcome,
    event.maybe_blocked AS maybe_blocked,
    event.cause AS cause,
    value AS payload
FROM ingest
WHERE endsWith(_topic, 'agenttrace.tool.call.derived');

-- Everything that happened or was inferred to have happened, each once.
CREATE OR REPLACE VIEW events AS
SELECT *
FROM events_raw FINAL
UNION ALL
SELECT
    _topic, _partition, _offset, _log_time, tenant_id, event_id, event_name, '1.0' AS event_version, timestamp,
    NULL AS observed_at, trace_id, span_id, '' AS parent_span_id, '' AS workspace_id, '' AS user_id_hash,
    agent_runtime, '' AS agent_version, agent_id, '' AS agent_role, session_id, root_session_id, '' AS parent_session_id,
    '' AS session_key, turn_id, run_id, '' AS model_call_id, '' AS source_adapter, '' AS source_event_name,
    '' AS producer_id, 0 AS producer_epoch, 0 AS producer_seq, severity, map() AS labels, call_id, tool_name, tool_source,
    mcp_server, mcp_tool, '' AS operation_id, '' AS method, '' AS status, outcome, 'inferred' AS outcome_evidence,
    NULL AS duration_ms, '' AS error_type, '' AS error_message, cause AS reason, [] AS commands, [] AS paths, [] AS hosts,
    [] AS secret_kinds, [] AS fingerprints, payload
FROM derived_calls_raw FINAL
WHERE NOT retracted
SETTINGS do_not_merge_across_partitions_select_final = 1;
