-- What MCP servers did besides answering: their health, what they wrote to standard error, what they asked people. Few events, so
-- views over `events_raw` are enough; what has no column of its own is read from the payload.
CREATE OR REPLACE VIEW mcp_server_health AS
SELECT
    timestamp AS at, tenant_id, mcp_server, JSONExtractString(payload, 'transport') AS transport,
    JSONExtractString(payload, 'connection_id') AS connection_id, JSONExtractString(payload, 'health') AS health, reason,
    JSONExtractString(payload, 'declared_name') AS declared_name,
    JSONExtractString(payload, 'declared_version') AS declared_version,
    JSONExtractString(payload, 'protocol_version') AS protocol_version, agent_runtime, session_id, root_session_id, event_id, _log_time, _topic, _partition, _offset
FROM events_raw FINAL
WHERE event_name = 'mcp.server.health_changed'
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- One row a server: the last thing that any of its connections said. `declared_…` is what it calls itself.
CREATE OR REPLACE VIEW mcp_servers AS
WITH (h.at, h.event_id) AS moment
SELECT
    tenant_id, mcp_server,
    argMax(h.health, moment) AS health,
    argMax(h.reason, moment) AS reason,
    max(h.at) AS since,
    argMax(h.transport, moment) AS transport,
    argMax(h.connection_id, moment) AS connection_id,
    argMaxIf(h.declared_name, moment, h.declared_name != '') AS declared_name,
    argMaxIf(h.declared_version, moment, h.declared_version != '') AS declared_version,
    argMaxIf(h.protocol_version, moment, h.protocol_version != '') AS protocol_version,
    min(h.at) AS first_seen,
    uniqExactIf(h.connection_id, h.connection_id != '') AS connections,
    countIf(h.health = 'down') AS times_down,
    argMax(h._log_time, moment) AS _log_time,
    argMax(h._topic, moment) AS _topic,
    argMax(h._partition, moment) AS _partition,
    argMax(h._offset, moment) AS _offset
FROM mcp_server_health AS h
GROUP BY tenant_id, mcp_server;

CREATE OR REPLACE VIEW mcp_server_stderr AS
SELECT
    timestamp AS at, tenant_id, mcp_server, JSONExtractString(payload, 'connection_id') AS connection_id,
    JSONExtractString(payload, 'content', 'summary') AS text, JSONExtractUInt(payload, 'content', 'size_bytes') AS bytes,
    reason, session_id, root_session_id, event_id, _log_time, _topic, _partition, _offset
FROM events_raw FINAL
WHERE event_name = 'mcp.server.stderr'
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW mcp_elicitations AS
SELECT
    timestamp AS at, tenant_id, mcp_server, JSONExtractString(payload, 'connection_id') AS connection_id,
    if(event_name = 'mcp.elicitation.requested', 'requested', 'completed') AS step, operation_id,
    JSONExtractString(payload, 'mode') AS mode, JSONExtractString(payload, 'action') AS action,
    JSONExtractString(payload, 'content', 'summary') AS text, agent_runtime, session_id, root_session_id, event_id,
    _log_time, _topic, _partition, _offset
FROM events_raw FINAL
WHERE event_name IN ('mcp.elicitation.requested', 'mcp.elicitation.completed')
SETTINGS do_not_merge_across_partitions_select_final = 1;
