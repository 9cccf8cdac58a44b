-- The audit trail of MCP calls and its daily statistics: which role, in which session and for which incident, called which tool of
-- which provider, how long it took, whether it worked. A call that hook and wire both saw is one row, the hook's; one that only
-- the wire saw is here too. Both are views: sums kept at insert would count a replayed record twice.
CREATE OR REPLACE VIEW mcp_audit_log AS
SELECT
    tenant_id, first_at AS at, leftUTF8(labels['incident_id'], 64) AS incident_id, agent_runtime, agent_role, agent_id,
    session_id, labels['flywheel_node'] AS flywheel_node, mcp_server AS provider,
    if(mcp_tool != '', mcp_tool, tool_name) AS tool_name, 'hook' AS seen_by, call_id, '' AS operation_id, trace_id,
    input_summary, output_summary, input_hash, coalesce(duration_ms, elapsed_ms) AS latency_ms,
    multiIf(outcome = 'ok', true, outcome IN ('error', 'timeout', 'blocked', 'cancelled'), false, NULL) AS success,
    status, outcome, error_type, error_message, _log_time, _topic, _partition, _offset
FROM tool_calls
WHERE mcp_server != '' AND NOT wrapper
UNION ALL
SELECT
    tenant_id, first_at AS at, leftUTF8(labels['incident_id'], 64) AS incident_id, agent_runtime, agent_role, agent_id,
    session_id, labels['flywheel_node'] AS flywheel_node, mcp_server AS provider,
    tool_name, 'wire' AS seen_by, '' AS call_id, operation_id, trace_id,
    request_summary AS input_summary, response_summary AS output_summary, arguments_hash AS input_hash,
    duration_ms AS latency_ms, NOT failed AS success,
    status, multiIf(failed IS NULL, '', failed, 'error', 'ok') AS outcome,
    if(error_code IS NULL, '', toString(error_code)) AS error_type, error_message, _log_time, _topic, _partition, _offset
FROM mcp_rpc_calls
WHERE method = 'tools/call' AND parent_call_id = '' AND operation_id NOT IN (SELECT operation_id FROM trace_links);

CREATE OR REPLACE VIEW mcp_daily_stats AS
SELECT
    toDate(at) AS day, tenant_id, agent_runtime, agent_role, session_id, incident_id, provider, tool_name,
    count() AS calls,
    countIf(success) AS succeeded,
    countIf(NOT success) AS failed,
    countIf(success IS NULL) AS unproven,
    if(succeeded + failed = 0, NULL, succeeded / (succeeded + failed)) AS success_rate,
    avg(latency_ms) AS avg_latency_ms,
    quantileExactLow(0.5)(latency_ms) AS p50_latency_ms,
    quantileExactLow(0.95)(latency_ms) AS p95_latency_ms,
    max(latency_ms) AS max_latency_ms
FROM mcp_audit_log
GROUP BY day, tenant_id, agent_runtime, agent_role, session_id, incident_id, provider, tool_name;
