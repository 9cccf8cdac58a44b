-- One row an MCP operation, folded like a tool call. One operation can be several JSON-RPC ids (input asked for, tasks); what
-- ended it stands before what only says that it goes on. Frames without an operation stay in `events`.
CREATE TABLE IF NOT EXISTS mcp_rpc_calls_raw
(
    operation_id String CODEC(ZSTD(1)),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    mcp_server SimpleAggregateFunction(max, LowCardinality(String)),
    method SimpleAggregateFunction(max, LowCardinality(String)),
    tool_name SimpleAggregateFunction(max, LowCardinality(String)),
    session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    trace_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    parent_call_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    first_at SimpleAggregateFunction(min, DateTime64(6, 'UTC')),
    jsonrpc_ids SimpleAggregateFunction(groupUniqArrayArray, Array(String)),
    was_late SimpleAggregateFunction(max, Bool),
    was_timeout SimpleAggregateFunction(max, Bool),
    request AggregateFunction(argMinIf, Tuple(
        event_id String, at DateTime64(6, 'UTC'), agent_runtime String, agent_version String, agent_id String,
        agent_role String, root_session_id String, run_id String, connection_id String, transport String, direction String,
        protocol_version String, bytes Nullable(UInt64), hash String, summary String, arguments_hash String,
        labels Map(String, String), topic String, partition Int32, offset Int64), String, UInt8) CODEC(ZSTD(1)),
    response AggregateFunction(argMaxIf, Tuple(
        event_id String, at DateTime64(6, 'UTC'), agent_runtime String, status String, http_status Nullable(UInt16),
        bytes Nullable(UInt64), hash String, summary String, is_error_result Nullable(Bool), error_code Nullable(Int64),
        error_message String, duration_ms Nullable(Float64), duration_server_ms Nullable(Float64),
        duration_human_ms Nullable(Float64), topic String, partition Int32, offset Int64), Tuple(UInt8, String), UInt8)
        CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01),
    INDEX by_call parent_call_id TYPE bloom_filter(0.01)
)
ENGINE = AggregatingMergeTree
ORDER BY operation_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS mcp_rpc_calls_mv TO mcp_rpc_calls_raw AS
WITH
    event.event_name = 'mcp.rpc.request' AS is_request,
    event.event_name IN ('mcp.rpc.response', 'mcp.rpc.error') AS is_response,
    multiIf(event.status IN ('completed', 'error', 'late'), 5, event.status IN ('cancelled', 'stream_aborted'), 4,
            event.status = 'timeout', 3, event.status = 'task_pending', 2, 1) AS response_rank,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), i._log_time) AS at
SELECT
    event.operation_id AS operation_id,
    max(i._log_time) AS _log_time,
    max(event.tenant_id) AS tenant_id,
    max(event.mcp_server) AS mcp_server,
    max(event.method) AS method,
    max(event.tool_name) AS tool_name,
    max(event.session_id) AS session_id,
    max(event.trace_id) AS trace_id,
    max(event.parent_call_id) AS parent_call_id,
    min(at) AS first_at,
    groupUniqArrayArray(if(event.jsonrpc_id = '', [], [event.jsonrpc_id])) AS jsonrpc_ids,
    max(event.status = 'late') AS was_late,
    max(event.status = 'timeout') AS was_timeout,
    argMinIfState((
        event.event_id, at, event.agent_runtime, event.agent_version, event.agent_id,
        event.agent_role, event.root_session_id, event.run_id, event.connection_id, event.transport, event.direction,
        event.protocol_version, event.request.size_bytes, event.request.hash, leftUTF8(event.request.summary, 4096),
        event.arguments_hash, event.labels, toString(_topic), _partition, _offset), event.event_id, is_request) AS request,
    argMaxIfState((
        event.event_id, at, event.agent_runtime, event.status, event.http.status,
        event.response.size_bytes, event.response.hash, leftUTF8(event.response.summary, 4096), event.is_error_result,
        event.protocol_error.code, event.protocol_error.message_summary, event.duration_ms, event.duration_server_ms,
        event.duration_human_ms, toString(_topic), _partition, _offset),
        (toUInt8(response_rank), event.event_id), is_response) AS response
FROM ingest AS i
WHERE endsWith(_topic, 'agenttrace.mcp.rpc') AND event.operation_id != '' AND (is_request OR is_response)
GROUP BY event.operation_id;

-- `failed` where the server answered with a JSON-RPC error or an error result, or gave no answer; NULL while it is open.
CREATE OR REPLACE VIEW mcp_rpc_calls AS
WITH
    finalizeAggregation(request) AS q,
    finalizeAggregation(response) AS r,
    q.event_id != '' AS has_request,
    r.event_id != '' AS has_response
SELECT
    tenant_id,
    operation_id,
    first_at,
    if(has_request, q.at, NULL) AS started_at,
    if(has_response, r.at, NULL) AS ended_at,
    if(has_response, r.status, 'started') AS status,
    multiIf(status IN ('started', 'input_required', 'task_pending'), NULL,
            status IN ('completed', 'late'), ifNull(r.is_error_result, false) OR r.error_code IS NOT NULL, true) AS failed,
    was_late OR (was_timeout AND status IN ('completed', 'error')) AS late,
    mcp_server,
    method,
    tool_name,
    if(has_request, q.agent_runtime, r.agent_runtime) AS agent_runtime,
    q.agent_version AS agent_version,
    q.agent_id AS agent_id,
    q.agent_role AS agent_role,
    session_id,
    q.root_session_id AS root_session_id,
    q.run_id AS run_id,
    trace_id,
    parent_call_id,
    q.connection_id AS connection_id,
    q.transport AS transport,
    q.direction AS direction,
    q.protocol_version AS protocol_version,
    arraySort(jsonrpc_ids) AS jsonrpc_ids,
    q.labels AS labels,
    q.bytes AS request_bytes,
    q.hash AS request_hash,
    q.summary AS request_summary,
    q.arguments_hash AS arguments_hash,
    r.http_status AS http_status,
    r.bytes AS response_bytes,
    r.hash AS response_hash,
    r.summary AS response_summary,
    r.is_error_result AS is_error_result,
    r.error_code AS error_code,
    r.error_message AS error_message,
    r.duration_ms AS duration_ms,
    r.duration_server_ms AS duration_server_ms,
    r.duration_human_ms AS duration_human_ms,
    _log_time,
    if(has_response, r.topic, q.topic) AS _topic,
    if(has_response, r.partition, q.partition) AS _partition,
    if(has_response, r.offset, q.offset) AS _offset
FROM mcp_rpc_calls_raw FINAL;

-- Every shape in which a server ever declared a tool. A second fingerprint for a tool is a change of its schema or words.
CREATE TABLE IF NOT EXISTS mcp_tool_schemas_raw
(
    tenant_id LowCardinality(String),
    mcp_server LowCardinality(String),
    tool_name String,
    fingerprint String,
    description_hash SimpleAggregateFunction(max, String),
    schema_hash SimpleAggregateFunction(max, String),
    first_seen SimpleAggregateFunction(min, DateTime64(6, 'UTC')),
    last_seen SimpleAggregateFunction(max, DateTime64(6, 'UTC')),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    _source SimpleAggregateFunction(max, Tuple(DateTime64(3, 'UTC'), String, Int32, Int64))
)
ENGINE = AggregatingMergeTree
ORDER BY (tenant_id, mcp_server, tool_name, fingerprint)
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS mcp_tool_schemas_mv TO mcp_tool_schemas_raw AS
WITH ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), i._log_time) AS at
SELECT
    event.tenant_id AS tenant_id,
    event.mcp_server AS mcp_server,
    tool.name AS tool_name,
    tool.fingerprint AS fingerprint,
    max(tool.description_hash) AS description_hash,
    max(tool.schema_hash) AS schema_hash,
    min(at) AS first_seen,
    max(at) AS last_seen,
    max(i._log_time) AS _log_time,
    max((i._log_time, toString(_topic), _partition, _offset)) AS _source
FROM ingest AS i
ARRAY JOIN event.tools AS tool
WHERE endsWith(_topic, 'agenttrace.mcp.rpc') AND event.event_name = 'mcp.tools.listed'
GROUP BY tenant_id, mcp_server, tool_name, fingerprint;

CREATE OR REPLACE VIEW mcp_tool_schemas AS
SELECT
    tenant_id, mcp_server, tool_name, fingerprint, description_hash, schema_hash, first_seen, last_seen,
    row_number() OVER (PARTITION BY tenant_id, mcp_server, tool_name ORDER BY first_seen, fingerprint) AS revision,
    count() OVER (PARTITION BY tenant_id, mcp_server, tool_name) AS revisions,
    _log_time, _source.2 AS _topic, _source.3 AS _partition, _source.4 AS _offset
FROM mcp_tool_schemas_raw FINAL;
