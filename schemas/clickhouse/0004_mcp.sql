-- Frames of MCP operations, folded like tool calls. One operation can be several JSON-RPC ids (input asked for, tasks); of each id,
-- side and status one frame stands. What ended the operation (rank 5 to 3) comes before what says that it goes on. Frames without
-- an operation are in `events` only.
CREATE TABLE IF NOT EXISTS mcp_rpc_calls_raw
(
    operation_id String CODEC(ZSTD(1)),
    part Enum8('request' = 1, 'response' = 2),
    jsonrpc_id String CODEC(ZSTD(1)),
    status LowCardinality(String),
    ver UInt256 CODEC(ZSTD(1)),
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64 CODEC(Delta(8), ZSTD(1)),
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    tenant_id LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    at DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    mcp_server LowCardinality(String),
    method LowCardinality(String),
    tool_name LowCardinality(String),
    agent_runtime LowCardinality(String),
    agent_version LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(String),
    session_id String CODEC(ZSTD(1)),
    root_session_id String CODEC(ZSTD(1)),
    run_id String CODEC(ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    parent_call_id String CODEC(ZSTD(1)),
    connection_id String CODEC(ZSTD(1)),
    transport LowCardinality(String),
    direction LowCardinality(String),
    protocol_version LowCardinality(String),
    labels Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    bytes Nullable(UInt64) CODEC(ZSTD(1)),
    hash String CODEC(ZSTD(1)),
    summary String CODEC(ZSTD(1)),
    arguments_hash String CODEC(ZSTD(1)),
    http_status Nullable(Int32),
    is_error_result Nullable(Bool),
    error_code Nullable(Int64),
    error_message String CODEC(ZSTD(1)),
    duration_ms Nullable(Float64) CODEC(ZSTD(1)),
    duration_server_ms Nullable(Float64) CODEC(ZSTD(1)),
    duration_human_ms Nullable(Float64) CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(ver)
ORDER BY (operation_id, part, jsonrpc_id, status)
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS min_bytes_for_wide_part = 134217728, index_granularity = 1024;

CREATE MATERIALIZED VIEW IF NOT EXISTS mcp_rpc_calls_mv TO mcp_rpc_calls_raw AS
WITH
    e.event_name = 'mcp.rpc.request' AS is_request,
    multiIf(is_request, 0, e.status IN ('completed', 'error', 'late'), 5, e.status IN ('cancelled', 'stream_aborted'), 4,
            e.status = 'timeout', 3, e.status = 'task_pending', 2, 1) AS rank
SELECT
    e.operation_id AS operation_id,
    if(is_request, 'request', 'response') AS part,
    e.jsonrpc_id AS jsonrpc_id,
    e.status AS status,
    bitShiftLeft(toUInt256(rank), 128) + reinterpretAsUInt128(reverse(UUIDToNum(toUUIDOrZero(e.event_id)))) AS ver,
    _topic, _partition, _offset, _log_time, e.tenant_id AS tenant_id, e.event_id AS event_id, at,
    e.mcp_server AS mcp_server, e.method AS method, e.tool_name AS tool_name, e.agent_runtime AS agent_runtime,
    e.agent_version AS agent_version, e.agent_id AS agent_id, e.agent_role AS agent_role, e.session_id AS session_id,
    e.root_session_id AS root_session_id, e.run_id AS run_id, e.trace_id AS trace_id, e.parent_call_id AS parent_call_id,
    e.connection_id AS connection_id, e.transport AS transport, e.direction AS direction,
    e.protocol_version AS protocol_version, e.labels AS labels,
    if(is_request, e.request.size_bytes, e.response.size_bytes) AS bytes,
    if(is_request, e.request.hash, e.response.hash) AS hash,
    leftUTF8(if(is_request, e.request.summary, e.response.summary), 4096) AS summary,
    e.arguments_hash AS arguments_hash, e.http.status AS http_status, e.is_error_result AS is_error_result,
    e.protocol_error.code AS error_code, e.protocol_error.message_summary AS error_message, e.duration_ms AS duration_ms,
    e.duration_server_ms AS duration_server_ms, e.duration_human_ms AS duration_human_ms
FROM decoded_events
WHERE e.operation_id != '' AND e.event_name IN ('mcp.rpc.request', 'mcp.rpc.response', 'mcp.rpc.error');

-- `failed`: the server answered with a JSON-RPC error or an error result, or did not answer; NULL while the operation is open.
-- Who asked is told by the first request, else by what there is. What may be NULL is taken in a tuple, since argMax skips NULL.
CREATE OR REPLACE VIEW mcp_rpc_calls AS
WITH
    part = 'request' AS is_request,
    NOT is_request AS is_response,
    countIf(is_request) > 0 AS has_request,
    countIf(is_response) > 0 AS has_response,
    argMaxIf((p.http_status, p.bytes, p.is_error_result, p.error_code, p.duration_ms, p.duration_server_ms,
              p.duration_human_ms), p.ver, is_response) AS answer
SELECT
    max(p.tenant_id) AS tenant_id,
    operation_id,
    min(p.at) AS first_at,
    if(has_request, argMinIf(p.at, p.ver, is_request), NULL) AS started_at,
    if(has_response, argMaxIf(p.at, p.ver, is_response), NULL) AS ended_at,
    if(has_response, argMaxIf(p.status, p.ver, is_response), 'started') AS status,
    multiIf(status IN ('started', 'input_required', 'task_pending'), NULL,
            status IN ('completed', 'late'), toBool(ifNull(answer.3, false) OR answer.4 IS NOT NULL), true) AS failed,
    toBool(countIf(p.status = 'late') > 0 OR (countIf(p.status = 'timeout') > 0 AND status IN ('completed', 'error')))
        AS late,
    max(p.mcp_server) AS mcp_server,
    max(p.method) AS method,
    max(p.tool_name) AS tool_name,
    argMin(p.agent_runtime, p.ver) AS agent_runtime,
    argMin(p.agent_version, p.ver) AS agent_version,
    argMin(p.agent_id, p.ver) AS agent_id,
    argMin(p.agent_role, p.ver) AS agent_role,
    max(p.session_id) AS session_id,
    max(p.root_session_id) AS root_session_id,
    argMin(p.run_id, p.ver) AS run_id,
    max(p.trace_id) AS trace_id,
    max(p.parent_call_id) AS parent_call_id,
    argMin(p.connection_id, p.ver) AS connection_id,
    argMin(p.transport, p.ver) AS transport,
    argMinIf(p.direction, p.ver, is_request) AS direction,
    argMin(p.protocol_version, p.ver) AS protocol_version,
    arraySort(groupUniqArrayIf(p.jsonrpc_id, p.jsonrpc_id != '')) AS jsonrpc_ids,
    argMin(p.labels, p.ver) AS labels,
    argMinIf(tuple(p.bytes), p.ver, is_request).1 AS request_bytes,
    argMinIf(p.hash, p.ver, is_request) AS request_hash,
    argMinIf(p.summary, p.ver, is_request) AS request_summary,
    argMinIf(p.arguments_hash, p.ver, is_request) AS arguments_hash,
    answer.1 AS http_status,
    answer.2 AS response_bytes,
    argMaxIf(p.hash, p.ver, is_response) AS response_hash,
    argMaxIf(p.summary, p.ver, is_response) AS response_summary,
    answer.3 AS is_error_result,
    answer.4 AS error_code,
    argMaxIf(p.error_message, p.ver, is_response) AS error_message,
    answer.5 AS duration_ms,
    answer.6 AS duration_server_ms,
    answer.7 AS duration_human_ms,
    max(p._log_time) AS _log_time,
    argMax(p._topic, p.ver) AS _topic,
    argMax(p._partition, p.ver) AS _partition,
    argMax(p._offset, p.ver) AS _offset
FROM mcp_rpc_calls_raw AS p FINAL
GROUP BY operation_id
SETTINGS optimize_aggregation_in_order = 1;

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
