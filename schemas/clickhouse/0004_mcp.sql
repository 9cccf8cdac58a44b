-- One row an MCP operation, folded like a tool call. One operation can be several JSON-RPC ids (input asked for, tasks); what ends
-- it (rank 5 to 3) stands before what says that it goes on. Frames without an operation stay in `events`.
CREATE TABLE IF NOT EXISTS mcp_rpc_calls_raw
(
    operation_id String CODEC(ZSTD(1)),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(Delta(8), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    mcp_server SimpleAggregateFunction(max, LowCardinality(String)),
    method SimpleAggregateFunction(max, LowCardinality(String)),
    tool_name SimpleAggregateFunction(max, LowCardinality(String)),
    session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    root_session_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    trace_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    parent_call_id SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    first_at SimpleAggregateFunction(min, DateTime64(6, 'UTC')) CODEC(Delta(8), ZSTD(1)),
    jsonrpc_ids SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1)),
    was_late SimpleAggregateFunction(max, Bool),
    was_timeout SimpleAggregateFunction(max, Bool),
    request SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, at DateTime64(6, 'UTC'), agent_runtime String, agent_version String, agent_id String,
        agent_role String, run_id String, connection_id String, transport String, direction String,
        protocol_version String, labels Array(Tuple(String, String)), bytes Nullable(UInt64), hash String, summary String,
        arguments_hash String, topic String, partition Int32, offset Int64)) CODEC(ZSTD(1)),
    response SimpleAggregateFunction(max, Tuple(
        rank UInt8, event_id String, at DateTime64(6, 'UTC'), status String, http_status Nullable(Int32),
        bytes Nullable(UInt64), hash String, summary String, is_error_result Nullable(Bool), error_code Nullable(Int64),
        error_message String, duration_ms Nullable(Float64), duration_server_ms Nullable(Float64),
        duration_human_ms Nullable(Float64), topic String, partition Int32, offset Int64)) CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01),
    INDEX by_call parent_call_id TYPE bloom_filter(0.01),
    INDEX by_time first_at TYPE minmax
)
ENGINE = AggregatingMergeTree
ORDER BY operation_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS mcp_rpc_calls_mv TO mcp_rpc_calls_raw AS
SELECT
    e.operation_id AS operation_id,
    max(d._log_time) AS _log_time,
    max(e.tenant_id) AS tenant_id,
    max(e.mcp_server) AS mcp_server,
    max(e.method) AS method,
    max(e.tool_name) AS tool_name,
    max(e.session_id) AS session_id,
    max(e.root_session_id) AS root_session_id,
    max(e.trace_id) AS trace_id,
    max(e.parent_call_id) AS parent_call_id,
    min(at) AS first_at,
    groupUniqArrayArray(if(e.jsonrpc_id = '', [], [e.jsonrpc_id])) AS jsonrpc_ids,
    max(e.status = 'late') AS was_late,
    max(e.status = 'timeout') AS was_timeout,
    max((
        toUInt8(e.event_name = 'mcp.rpc.request'), e.event_id, at, e.agent_runtime, e.agent_version,
        e.agent_id, e.agent_role, e.run_id, e.connection_id, e.transport, e.direction,
        e.protocol_version, arrayZip(mapKeys(e.labels), mapValues(e.labels)), e.request.size_bytes, e.request.hash,
        leftUTF8(e.request.summary, 4096), e.arguments_hash, toString(_topic), _partition, _offset)) AS request,
    maxIf((
        toUInt8(multiIf(e.status IN ('completed', 'error', 'late'), 5, e.status IN ('cancelled', 'stream_aborted'), 4,
                        e.status = 'timeout', 3, e.status = 'task_pending', 2, 1)), e.event_id, at,
        e.status, e.http.status, e.response.size_bytes, e.response.hash, leftUTF8(e.response.summary, 4096),
        e.is_error_result, e.protocol_error.code, e.protocol_error.message_summary, e.duration_ms, e.duration_server_ms,
        e.duration_human_ms, toString(_topic), _partition, _offset),
        e.event_name IN ('mcp.rpc.response', 'mcp.rpc.error')) AS response
FROM decoded_events AS d
WHERE e.operation_id != '' AND e.event_name IN ('mcp.rpc.request', 'mcp.rpc.response', 'mcp.rpc.error')
GROUP BY operation_id;

-- `failed`: the server answered with a JSON-RPC error or an error result, or did not answer; NULL while the operation is open.
CREATE OR REPLACE VIEW mcp_rpc_calls AS
WITH
    request AS q,
    response AS r,
    q.rank = 1 AS has_request,
    r.rank > 0 AS has_response
SELECT
    tenant_id,
    operation_id,
    first_at,
    if(has_request, q.at, NULL) AS started_at,
    if(has_response, r.at, NULL) AS ended_at,
    if(has_response, r.status, 'started') AS status,
    multiIf(status IN ('started', 'input_required', 'task_pending'), NULL,
            status IN ('completed', 'late'), ifNull(r.is_error_result, false) OR r.error_code IS NOT NULL,
            true) AS failed,
    was_late OR (was_timeout AND status IN ('completed', 'error')) AS late,
    mcp_server,
    method,
    tool_name,
    q.agent_runtime AS agent_runtime,
    q.agent_version AS agent_version,
    q.agent_id AS agent_id,
    q.agent_role AS agent_role,
    session_id,
    root_session_id,
    q.run_id AS run_id,
    trace_id,
    parent_call_id,
    q.connection_id AS connection_id,
    q.transport AS transport,
    q.direction AS direction,
    q.protocol_version AS protocol_version,
    arraySort(jsonrpc_ids) AS jsonrpc_ids,
    CAST(q.labels, 'Map(String, String)') AS labels,
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
FROM mcp_rpc_calls_raw FINAL
SETTINGS optimize_functions_to_subcolumns = 0;

-- Every shape in which a server ever declared a tool. A second fingerprint of a tool is a change of its schema or its words.
CREATE TABLE IF NOT EXISTS mcp_tool_schemas_raw
(
    tenant_id LowCardinality(String),
    mcp_server LowCardinality(String),
    tool_name String,
    fingerprint String,
    description_hash SimpleAggregateFunction(max, String),
    schema_hash SimpleAggregateFunction(max, String),
    first_seen SimpleAggregateFunction(min, DateTime64(6, 'UTC')),
    seen SimpleAggregateFunction(max, Tuple(
        at DateTime64(6, 'UTC'), log_time DateTime64(3, 'UTC'), topic String, partition Int32, offset Int64)),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC'))
)
ENGINE = AggregatingMergeTree
ORDER BY (tenant_id, mcp_server, tool_name, fingerprint)
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS mcp_tool_schemas_mv TO mcp_tool_schemas_raw AS
SELECT
    e.tenant_id AS tenant_id,
    e.mcp_server AS mcp_server,
    tool.name AS tool_name,
    tool.fingerprint AS fingerprint,
    max(tool.description_hash) AS description_hash,
    max(tool.schema_hash) AS schema_hash,
    min(at) AS first_seen,
    max((at, d._log_time, toString(_topic), _partition, _offset)) AS seen,
    max(d._log_time) AS _log_time
FROM decoded_events AS d
ARRAY JOIN JSONExtract(payload, 'tools',
    'Array(Tuple(name String, fingerprint String, description_hash String, schema_hash String))') AS tool
WHERE e.event_name = 'mcp.tools.listed'
GROUP BY tenant_id, mcp_server, tool_name, fingerprint;

CREATE OR REPLACE VIEW mcp_tool_schemas AS
WITH seen AS s
SELECT
    tenant_id, mcp_server, tool_name, fingerprint, description_hash, schema_hash, first_seen, s.at AS last_seen,
    row_number() OVER (PARTITION BY tenant_id, mcp_server, tool_name ORDER BY first_seen, fingerprint) AS revision,
    count() OVER (PARTITION BY tenant_id, mcp_server, tool_name) AS revisions,
    s.log_time AS _log_time, s.topic AS _topic, s.partition AS _partition, s.offset AS _offset
FROM mcp_tool_schemas_raw FINAL
SETTINGS optimize_functions_to_subcolumns = 0;
