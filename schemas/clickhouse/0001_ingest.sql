-- Every record enters by one of three tables: what producers say, what is derived from it, and dead letters. The Null engine stores
-- nothing; the materialised views of the other files take their rows from here. `payload` is the record's value, byte for byte.
-- It is parsed once, into columns `e.<field>` with the names and nesting of schemas/events.py; a missing or mistyped field gives
-- the type's default, so no record is refused for it, and what no column names is still in `payload`. Lists are not among the
-- columns: arrays under a common prefix would be taken for one Nested structure, whose arrays must be of one length.
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
    `e.event_id` String, `e.event_name` String, `e.event_version` String, `e.timestamp` String, `e.observed_at` String,
    `e.trace_id` String, `e.span_id` String, `e.parent_span_id` String, `e.tenant_id` String, `e.workspace_id` String,
    `e.user_id_hash` String, `e.agent_runtime` String, `e.agent_version` String, `e.agent_id` String, `e.agent_role` String,
    `e.session_id` String, `e.root_session_id` String, `e.parent_session_id` String, `e.session_key` String, `e.turn_id` String,
    `e.run_id` String, `e.model_call_id` String, `e.source_adapter` String, `e.source_event_name` String,
    `e.producer` Tuple(id String, epoch UInt64, seq UInt64, previous_epoch UInt64, previous_seq UInt64),
    `e.severity` String, `e.labels` Map(String, String),
    `e.call_id` String, `e.occurrence` UInt32, `e.parent_call_id` String, `e.tool_call_id` String, `e.tool_name` String,
    `e.tool_source` String, `e.tool_kind` String,
    `e.mcp` Tuple(server_name String, tool_name String, operation String, name_guess Bool),
    `e.input` Tuple(size_bytes Nullable(UInt64), hash String, summary String),
    `e.output` Tuple(size_bytes Nullable(UInt64), hash String, summary String, is_error_result Nullable(Bool)),
    `e.facts` Tuple(commands Array(Tuple(argv0 String, sub String)), paths Array(Tuple(path String, kind String)),
        hosts Array(Tuple(host String, domain String, port Nullable(UInt16), loopback Bool)),
        secret_kinds Array(String), fingerprints Array(String)),
    `e.status` String, `e.outcome` String, `e.outcome_evidence` String, `e.exit_code` Nullable(Int64),
    `e.duration_ms` Nullable(Float64),
    `e.error` Tuple(type String, message_summary String, code String),
    `e.policy` Tuple(policy_id String, decision String, reason String, risk_level String),
    `e.approval` Tuple(decision String, decided_by String, inferred Bool),
    `e.cause` String, `e.background` Bool, `e.wrapper` Bool, `e.synthetic` Bool,
    `e.connection_id` String, `e.mcp_server` String, `e.transport` String, `e.direction` String, `e.method` String,
    `e.jsonrpc_id` String,
    `e.operation_id` String, `e.protocol_version` String, `e.http` Tuple(status Nullable(Int32)),
    `e.request` Tuple(size_bytes Nullable(UInt64), hash String, summary String),
    `e.response` Tuple(size_bytes Nullable(UInt64), hash String, summary String),
    `e.is_error_result` Nullable(Bool), `e.protocol_error` Tuple(code Nullable(Int64), message_summary String),
    `e.duration_server_ms` Nullable(Float64), `e.duration_human_ms` Nullable(Float64), `e.arguments_hash` String,
    `e.reason` String, `e.published_through` UInt64, `e.uptime_ms` UInt64,
    `e.decision_id` String, `e.policy_id` String, `e.decision` String, `e.mode` String, `e.risk_level` String
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS decode_events TO decoded_events AS
SELECT
    _topic, _partition, _offset, _log_time, payload,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS at,
    untuple(event) AS e
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
        reason String, published_through UInt64, uptime_ms UInt64,
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
    `e.event_id` String, `e.event_name` String, `e.version` UInt64, `e.state` String, `e.retracted` Bool, `e.timestamp` String,
    `e.trace_id` String, `e.span_id` String, `e.tenant_id` String, `e.agent_runtime` String, `e.agent_id` String,
    `e.agent_role` String,
    `e.session_id` String, `e.root_session_id` String, `e.turn_id` String, `e.run_id` String, `e.severity` String,
    `e.call_id` String, `e.tool_call_id` String, `e.tool_name` String, `e.tool_source` String,
    `e.mcp` Tuple(server_name String, tool_name String), `e.mcp_server` String,
    `e.started_at` String, `e.deadline` String, `e.ttl_ms` Nullable(UInt64), `e.outcome` String, `e.maybe_blocked` Bool,
    `e.cause` String,
    `e.operation_id` String, `e.method` String, `e.confidence` Float64,
    `e.finding_id` String, `e.risk` String, `e.title` String, `e.description` String,
    `e.rule` Tuple(id String, version UInt32, pack_hash String), `e.group_by` String, `e.group` String,
    `e.first_seen` String, `e.last_seen` String, `e.evidence_count` UInt32, `e.overflow` Bool, `e.score` Float64,
    `e.score_parts` Map(String, Float64), `e.policy_action` String,
    `e.status` String, `e.note` String, `e.by` String,
    `e.provisional` Bool, `e.window` String, `e.window_start` String, `e.window_ms` UInt64, `e.source_partition` Int32,
    `e.count` UInt64,
    `e.outcomes` Map(String, UInt64), `e.timeouts` UInt64, `e.in_flight` UInt64, `e.input_bytes` UInt64,
    `e.output_bytes` UInt64,
    `e.zero_count` UInt64, `e.sketch` Map(String, UInt64),
    `e.alert_id` String, `e.summary` String, `e.finding_info` Tuple(uid String)
)
ENGINE = Null;

CREATE MATERIALIZED VIEW IF NOT EXISTS decode_derived TO decoded_derived AS
SELECT
    _topic, _partition, _offset, _log_time, payload,
    ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), _log_time) AS at,
    untuple(event) AS e
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
        first_seen String, last_seen String, evidence_count UInt32, overflow Bool, score Float64,
        score_parts Map(String, Float64), policy_action String,
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
