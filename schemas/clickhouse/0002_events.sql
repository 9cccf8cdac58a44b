-- One row an event, however often it was delivered. Key and partition are functions of the id alone, so that a repeated event
-- always meets its first copy; the partition is the month in the UUIDv7, and ids whose month is not plausible (a producer's
-- clock was wrong) share partition 0. Retention counts from the log time, which no producer sets.
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
    labels Map(LowCardinality(String), String) CODEC(ZSTD(1)),
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
    _topic, _partition, _offset, _log_time, e.tenant_id AS tenant_id, e.event_id AS event_id, e.event_name AS event_name,
    e.event_version AS event_version, at AS timestamp,
    parseDateTime64BestEffortOrNull(e.observed_at, 6, 'UTC') AS observed_at,
    e.trace_id AS trace_id, e.span_id AS span_id, e.parent_span_id AS parent_span_id, e.workspace_id AS workspace_id,
    e.user_id_hash AS user_id_hash, e.agent_runtime AS agent_runtime, e.agent_version AS agent_version,
    e.agent_id AS agent_id, e.agent_role AS agent_role,
    e.session_id AS session_id, e.root_session_id AS root_session_id, e.parent_session_id AS parent_session_id,
    e.session_key AS session_key, e.turn_id AS turn_id, e.run_id AS run_id, e.model_call_id AS model_call_id,
    e.source_adapter AS source_adapter, e.source_event_name AS source_event_name, e.producer.id AS producer_id,
    e.producer.epoch AS producer_epoch, e.producer.seq AS producer_seq,
    e.severity AS severity, e.labels AS labels, e.call_id AS call_id, e.tool_name AS tool_name,
    e.tool_source AS tool_source,
    if(e.mcp_server != '', e.mcp_server, e.mcp.server_name) AS mcp_server,
    e.mcp.tool_name AS mcp_tool,
    e.operation_id AS operation_id, e.method AS method, e.status AS status, e.outcome AS outcome,
    e.outcome_evidence AS outcome_evidence, e.duration_ms AS duration_ms,
    e.error.type AS error_type,
    if(e.error.message_summary != '', e.error.message_summary, e.protocol_error.message_summary) AS error_message,
    if(e.event_name LIKE 'tool.call.%', e.cause, e.reason) AS reason,
    e.facts.commands AS commands,
    e.facts.paths AS paths,
    e.facts.hosts AS hosts,
    e.facts.secret_kinds AS secret_kinds,
    e.facts.fingerprints AS fingerprints,
    payload
FROM decoded_events;

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
    timestamp DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    agent_runtime LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(String),
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
    cause String CODEC(ZSTD(1)),
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
    _topic, _partition, _offset, _log_time, e.event_id AS event_id, e.version AS version, e.retracted AS retracted,
    if(e.state = '', 'complete', e.state) AS state, e.tenant_id AS tenant_id, e.event_name AS event_name, at AS timestamp,
    e.trace_id AS trace_id,
    e.span_id AS span_id, e.agent_runtime AS agent_runtime, e.agent_id AS agent_id, e.agent_role AS agent_role,
    e.session_id AS session_id, e.root_session_id AS root_session_id, e.turn_id AS turn_id, e.run_id AS run_id,
    e.severity AS severity, e.call_id AS call_id,
    e.tool_name AS tool_name, e.tool_source AS tool_source, e.mcp.server_name AS mcp_server, e.mcp.tool_name AS mcp_tool,
    parseDateTime64BestEffortOrNull(e.started_at, 6, 'UTC') AS started_at,
    parseDateTime64BestEffortOrNull(e.deadline, 6, 'UTC') AS deadline, e.ttl_ms AS ttl_ms,
    e.outcome AS outcome, e.maybe_blocked AS maybe_blocked, e.cause AS cause, payload
FROM decoded_derived
WHERE e.event_name IN ('tool.call.timed_out', 'tool.call.abandoned');

-- Everything that happened, and what was inferred, each once.
CREATE OR REPLACE VIEW events AS
SELECT *
FROM events_raw FINAL
UNION ALL
SELECT
    _topic, _partition, _offset, _log_time, tenant_id, event_id, event_name, '1.0' AS event_version, timestamp,
    NULL AS observed_at, trace_id, span_id, '' AS parent_span_id, '' AS workspace_id, '' AS user_id_hash,
    agent_runtime, '' AS agent_version, agent_id, agent_role, session_id, root_session_id, '' AS parent_session_id,
    '' AS session_key, turn_id, run_id, '' AS model_call_id, '' AS source_adapter, '' AS source_event_name,
    '' AS producer_id, 0 AS producer_epoch, 0 AS producer_seq, severity, map() AS labels, call_id, tool_name, tool_source,
    mcp_server, mcp_tool, '' AS operation_id, '' AS method, '' AS status, outcome, 'inferred' AS outcome_evidence,
    NULL AS duration_ms, '' AS error_type, '' AS error_message, cause AS reason, [] AS commands, [] AS paths, [] AS hosts,
    [] AS secret_kinds, [] AS fingerprints, payload
FROM derived_calls_raw FINAL
WHERE NOT retracted
SETTINGS do_not_merge_across_partitions_select_final = 1;
