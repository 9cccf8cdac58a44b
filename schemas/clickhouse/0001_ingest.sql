-- Every record enters by one of three tables: what producers say, what is derived from it, and dead letters. The Null engine stores
-- nothing; the materialised views of the other files take their rows from here. `payload` is the record's value, byte for byte.
-- It is parsed once, into the tuple `e` with the names and nesting of schemas/events.py; a missing or mistyped field gives
-- the type's default, so no record is refused for it, and what no field of `e` names is still in `payload`. One tuple, not columns
-- `e.<field>`: lists among columns whose names share the part before a dot would have to be of one length.
CREATE TABLE IF NOT EXISTS ingest_events
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    payload String
)
ENGINE = Null;

CREATE TABLE IF NOT EXISTS decoded_events
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    payload String,
    at DateTime64(6, 'UTC') COMMENT 'when it happened; the log time where the record does not say',
    e Tuple(
        event_id String, event_name String, event_version String, timestamp String, observed_at String,
        trace_id String, span_id String, parent_span_id String, tenant_id String, workspace_id String,
        user_id_hash String, agent_runtime String, agent_version String, agent_id String, agent_role String,
        session_id String, root_session_id String, parent_session_id String, session_key String, turn_id String,
        run_id String, model_call_id String, source_adapter String, source_event_name String,
        producer Tuple(id String, epoch UInt64, seq UInt64, previous_epoch UInt64, previous_seq UInt64),
        severity String, labels Map(String, String),
        call_id String, occurrence UInt32, parent_call_id String, tool_call_id String, tool_name String,
        tool_source String, tool_kind String,
        mcp Tuple(server_name String, tool_name String, operation String, name_guess Bool),
        input Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        output Tuple(size_bytes Nullable(UInt64), hash String, summary String, is_error_result Nullable(Bool)),
        facts Tuple(commands Array(Tuple(argv0 String, sub String)), paths Array(Tuple(path String, kind String)),
            hosts Array(Tuple(host String, domain String, port Nullable(UInt16), loopback Bool)),
            secret_kinds Array(String), fingerprints Array(String)),
        status String, outcome String, outcome_evidence String, exit_code Nullable(Int64), duration_ms Nullable(Float64),
        error Tuple(type String, message_summary String, code String),
        policy Tuple(policy_id String, decision String, reason String, risk_level String),
        approval Tuple(decision String, decided_by String, inferred Bool),
        cause String, background Bool, wrapper Bool, synthetic Bool,
        connection_id String, mcp_server String, transport String, direction String, method String, jsonrpc_id String,
        operation_id String, protocol_version String, http Tuple(status Nullable(Int32)),
        request Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        response Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        is_error_result Nullable(Bool), protocol_error Tuple(code Nullable(Int64), message_summary String),
        duration_server_ms Nullable(Float64), duration_human_ms Nullable(Float64), arguments_hash String,
        tools Array(Tuple(name String, fingerprint String, description_hash String, schema_hash String)),
        reason String, ranges Array(Tuple(epoch UInt64, first UInt64, last UInt64)),
        published_through UInt64, uptime_ms UInt64,
        decision_id String, policy_id String, decision String, mode String, risk_level String
    )
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS decode_events TO decoded_events AS
SELECT
    _topic, _partition, _offset, _log_time, payload,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS at,
    event AS e
FROM (
    SELECT *, JSONExtract(payload, 'Tuple(
        event_id String, event_name String, event_version String, timestamp String, observed_at String,
        trace_id String, span_id String, parent_span_id String, tenant_id String, workspace_id String,
        user_id_hash String, agent_runtime String, agent_version String, agent_id String, agent_role String,
        session_id String, root_session_id String, parent_session_id String, session_key String, turn_id String,
        run_id String, model_call_id String, source_adapter String, source_event_name String,
        producer Tuple(id String, epoch UInt64, seq UInt64, previous_epoch UInt64, previous_seq UInt64),
        severity String, labels Map(String, String),
        call_id String, occurrence UInt32, parent_call_id String, tool_call_id String, tool_name String,
        tool_source String, tool_kind String,
        mcp Tuple(server_name String, tool_name String, operation String, name_guess Bool),
        input Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        output Tuple(size_bytes Nullable(UInt64), hash String, summary String, is_error_result Nullable(Bool)),
        facts Tuple(commands Array(Tuple(argv0 String, sub String)), paths Array(Tuple(path String, kind String)),
            hosts Array(Tuple(host String, domain String, port Nullable(UInt16), loopback Bool)),
            secret_kinds Array(String), fingerprints Array(String)),
        status String, outcome String, outcome_evidence String, exit_code Nullable(Int64), duration_ms Nullable(Float64),
        error Tuple(type String, message_summary String, code String),
        policy Tuple(policy_id String, decision String, reason String, risk_level String),
        approval Tuple(decision String, decided_by String, inferred Bool),
        cause String, background Bool, wrapper Bool, synthetic Bool,
        connection_id String, mcp_server String, transport String, direction String, method String, jsonrpc_id String,
        operation_id String, protocol_version String, http Tuple(status Nullable(Int32)),
        request Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        response Tuple(size_bytes Nullable(UInt64), hash String, summary String),
        is_error_result Nullable(Bool), protocol_error Tuple(code Nullable(Int64), message_summary String),
        duration_server_ms Nullable(Float64), duration_human_ms Nullable(Float64), arguments_hash String,
        tools Array(Tuple(name String, fingerprint String, description_hash String, schema_hash String)),
        reason String, ranges Array(Tuple(epoch UInt64, first UInt64, last UInt64)),
        published_through UInt64, uptime_ms UInt64,
        decision_id String, policy_id String, decision String, mode String, risk_level String)') AS event
    FROM ingest_events
);

CREATE TABLE IF NOT EXISTS ingest_derived
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    payload String
)
ENGINE = Null;

CREATE TABLE IF NOT EXISTS decoded_derived
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    payload String,
    at DateTime64(6, 'UTC') COMMENT 'when it happened; the log time where the record does not say',
    e Tuple(
        event_id String, event_name String, version UInt64, state String, retracted Bool, timestamp String,
        trace_id String, span_id String, tenant_id String, agent_runtime String, agent_id String, agent_role String,
        session_id String, root_session_id String, turn_id String, run_id String, severity String,
        call_id String, tool_call_id String, tool_name String, tool_source String,
        mcp Tuple(server_name String, tool_name String), mcp_server String,
        started_at String, deadline String, ttl_ms Nullable(UInt64), outcome String, maybe_blocked Bool, cause String,
        operation_id String, method String, confidence Float64,
        finding_id String, risk String, title String, description String,
        rule Tuple(id String, version UInt32, pack_hash String), group_by String, `group` String,
        tags Array(String), actions Array(String), first_seen String, last_seen String,
        evidence Array(Tuple(event_id String, event_name String, topic String, partition Int32, offset Int64,
            timestamp String, call_id String)),
        evidence_count UInt32, overflow Bool, score Float64, score_parts Map(String, Float64), policy_action String,
        status String, note String, by String,
        provisional Bool, window String, window_start String, window_ms UInt64, source_partition Int32, count UInt64,
        outcomes Map(String, UInt64), timeouts UInt64, in_flight UInt64, input_bytes UInt64, output_bytes UInt64,
        zero_count UInt64, sketch Map(String, UInt64),
        alert_id String, summary String, finding_info Tuple(uid String)
    )
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS decode_derived TO decoded_derived AS
SELECT
    _topic, _partition, _offset, _log_time, payload,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS at,
    event AS e
FROM (
    SELECT *, JSONExtract(payload, 'Tuple(
        event_id String, event_name String, version UInt64, state String, retracted Bool, timestamp String,
        trace_id String, span_id String, tenant_id String, agent_runtime String, agent_id String, agent_role String,
        session_id String, root_session_id String, turn_id String, run_id String, severity String,
        call_id String, tool_call_id String, tool_name String, tool_source String,
        mcp Tuple(server_name String, tool_name String), mcp_server String,
        started_at String, deadline String, ttl_ms Nullable(UInt64), outcome String, maybe_blocked Bool, cause String,
        operation_id String, method String, confidence Float64,
        finding_id String, risk String, title String, description String,
        rule Tuple(id String, version UInt32, pack_hash String), group_by String, `group` String,
        tags Array(String), actions Array(String), first_seen String, last_seen String,
        evidence Array(Tuple(event_id String, event_name String, topic String, partition Int32, offset Int64,
            timestamp String, call_id String)),
        evidence_count UInt32, overflow Bool, score Float64, score_parts Map(String, Float64), policy_action String,
        status String, note String, by String,
        provisional Bool, window String, window_start String, window_ms UInt64, source_partition Int32, count UInt64,
        outcomes Map(String, UInt64), timeouts UInt64, in_flight UInt64, input_bytes UInt64, output_bytes UInt64,
        zero_count UInt64, sketch Map(String, UInt64),
        alert_id String, summary String, finding_info Tuple(uid String))') AS event
    FROM ingest_derived
);

CREATE TABLE IF NOT EXISTS ingest_dlq
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    headers String COMMENT 'the record headers, a JSON object of texts',
    payload String
)
ENGINE = Null;
