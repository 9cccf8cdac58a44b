-- Decisions, findings, what people decided about them, alerts, and which hook call is which operation on the wire.
CREATE TABLE IF NOT EXISTS policy_decisions_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    tenant_id LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    decision_id String CODEC(ZSTD(1)),
    decided_at DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    call_id String CODEC(ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    session_id String CODEC(ZSTD(1)),
    root_session_id String CODEC(ZSTD(1)),
    agent_runtime LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(String),
    policy_id LowCardinality(String),
    decision LowCardinality(String),
    mode LowCardinality(String),
    reason String CODEC(ZSTD(1)),
    risk_level LowCardinality(String),
    payload String CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_call call_id TYPE bloom_filter(0.01)
)
ENGINE = ReplacingMergeTree(_offset)
PARTITION BY if(toYYYYMM(UUIDv7ToDateTime(toUUIDOrZero(event_id), 'UTC')) BETWEEN 202001 AND 204912,
                toYYYYMM(UUIDv7ToDateTime(toUUIDOrZero(event_id), 'UTC')), 0)
ORDER BY (tenant_id, event_id)
TTL toDateTime(_log_time) + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS policy_decisions_mv TO policy_decisions_raw AS
SELECT
    _topic, _partition, _offset, _log_time, e.tenant_id AS tenant_id, e.event_id AS event_id, e.decision_id AS decision_id,
    at AS decided_at, e.call_id AS call_id, e.trace_id AS trace_id,
    e.session_id AS session_id, e.root_session_id AS root_session_id, e.agent_runtime AS agent_runtime,
    e.agent_id AS agent_id, e.agent_role AS agent_role, e.policy_id AS policy_id, e.decision AS decision,
    if(e.mode = '', 'shadow', e.mode) AS mode, e.reason AS reason, e.risk_level AS risk_level, payload
FROM decoded_events
WHERE e.event_name = 'policy.decision.created';

CREATE OR REPLACE VIEW policy_decisions AS
SELECT *
FROM policy_decisions_raw FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- Every decision of a person, kept; the last one of a finding stands.
CREATE TABLE IF NOT EXISTS finding_status_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    finding_id String CODEC(ZSTD(1)),
    event_id String CODEC(ZSTD(1)),
    version UInt64,
    tenant_id LowCardinality(String),
    decided_at DateTime64(6, 'UTC'),
    status LowCardinality(String),
    note String CODEC(ZSTD(1)),
    decided_by String CODEC(ZSTD(1)),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (finding_id, event_id)
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS finding_status_mv TO finding_status_raw AS
SELECT
    _topic, _partition, _offset, _log_time, e.finding_id AS finding_id, e.event_id AS event_id, e.version AS version,
    e.tenant_id AS tenant_id, at AS decided_at, e.status AS status, e.note AS note,
    `e.by` AS decided_by, payload
FROM decoded_derived
WHERE e.event_name = 'finding.status.changed';

CREATE OR REPLACE VIEW finding_status_history AS
SELECT *
FROM finding_status_raw FINAL;

CREATE OR REPLACE VIEW finding_status AS
SELECT *
FROM finding_status_raw FINAL
ORDER BY version DESC, event_id DESC
LIMIT 1 BY finding_id;

CREATE TABLE IF NOT EXISTS risk_findings_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    finding_id String CODEC(ZSTD(1)),
    version UInt64,
    retracted Bool,
    state LowCardinality(String),
    tenant_id LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    event_name LowCardinality(String),
    timestamp DateTime64(6, 'UTC'),
    agent_runtime LowCardinality(String),
    agent_id String CODEC(ZSTD(1)),
    agent_role LowCardinality(String),
    session_id String CODEC(ZSTD(1)),
    root_session_id String CODEC(ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    mcp_server LowCardinality(String),
    tool_name LowCardinality(String),
    severity LowCardinality(String),
    risk LowCardinality(String),
    title String CODEC(ZSTD(1)),
    description String CODEC(ZSTD(1)),
    rule_id LowCardinality(String),
    rule_version UInt32,
    rule_pack_hash LowCardinality(String),
    group_by LowCardinality(String),
    group_value String CODEC(ZSTD(1)),
    tags Array(LowCardinality(String)),
    actions Array(LowCardinality(String)),
    first_seen DateTime64(6, 'UTC'),
    last_seen DateTime64(6, 'UTC'),
    evidence Array(Tuple(event_id String, event_name String, topic String, partition Int32, offset Int64,
        timestamp String, call_id String)) CODEC(ZSTD(1)),
    evidence_count UInt32,
    overflow Bool,
    score Float64,
    score_parts Map(LowCardinality(String), Float64),
    policy_action LowCardinality(String),
    payload String CODEC(ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01),
    INDEX by_root_session root_session_id TYPE bloom_filter(0.01),
    INDEX by_trace trace_id TYPE bloom_filter(0.01)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY finding_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS risk_findings_mv TO risk_findings_raw AS
WITH JSONExtract(payload, 'Tuple(tags Array(String), actions Array(String), evidence Array(Tuple(event_id String,
    event_name String, topic String, partition Int32, offset Int64, timestamp String, call_id String)))') AS lists
SELECT
    _topic, _partition, _offset, _log_time, e.finding_id AS finding_id, e.version AS version, e.retracted AS retracted,
    if(e.state = '', 'complete', e.state) AS state, e.tenant_id AS tenant_id, e.event_id AS event_id,
    e.event_name AS event_name,
    at AS timestamp, e.agent_runtime AS agent_runtime, e.agent_id AS agent_id, e.agent_role AS agent_role,
    e.session_id AS session_id, e.root_session_id AS root_session_id, e.trace_id AS trace_id, e.mcp_server AS mcp_server,
    e.tool_name AS tool_name,
    e.severity AS severity, e.risk AS risk, e.title AS title, e.description AS description, e.rule.id AS rule_id,
    e.rule.version AS rule_version,
    e.rule.pack_hash AS rule_pack_hash, e.group_by AS group_by, `e.group` AS group_value, lists.tags AS tags,
    lists.actions AS actions, ifNull(parseDateTime64BestEffortOrNull(e.first_seen, 6, 'UTC'), at) AS first_seen,
    ifNull(parseDateTime64BestEffortOrNull(e.last_seen, 6, 'UTC'), at) AS last_seen, lists.evidence AS evidence,
    e.evidence_count AS evidence_count, e.overflow AS overflow, e.score AS score, e.score_parts AS score_parts,
    e.policy_action AS policy_action, payload
FROM decoded_derived
WHERE e.event_name IN ('risk.finding.created', 'risk.finding.updated');

CREATE OR REPLACE VIEW risk_findings AS
SELECT
    f.*,
    if(s.status = '', 'open', s.status) AS status,
    s.note AS status_note,
    s.decided_by AS status_by,
    if(s.status = '', NULL, s.decided_at) AS status_at
FROM (SELECT * FROM risk_findings_raw FINAL WHERE NOT retracted) AS f
LEFT ANY JOIN (SELECT finding_id, status, note, decided_by, decided_at FROM finding_status) AS s USING (finding_id);

-- The same findings as OCSF Detection Findings, as they went to the SOC.
CREATE TABLE IF NOT EXISTS risk_findings_ocsf_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    finding_id String CODEC(ZSTD(1)),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY finding_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS risk_findings_ocsf_mv TO risk_findings_ocsf_raw AS
SELECT _topic, _partition, _offset, _log_time, e.finding_info.uid AS finding_id, payload
FROM decoded_derived
WHERE e.event_name = '' AND e.finding_info.uid != '';

CREATE OR REPLACE VIEW risk_findings_ocsf AS
SELECT *
FROM risk_findings_ocsf_raw FINAL;

CREATE TABLE IF NOT EXISTS alerts_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    alert_id String CODEC(ZSTD(1)),
    version UInt64,
    retracted Bool,
    tenant_id LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    event_name LowCardinality(String),
    timestamp DateTime64(6, 'UTC'),
    finding_id String CODEC(ZSTD(1)),
    session_id String CODEC(ZSTD(1)),
    agent_runtime LowCardinality(String),
    severity LowCardinality(String),
    title String CODEC(ZSTD(1)),
    summary String CODEC(ZSTD(1)),
    payload String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
ORDER BY alert_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS alerts_mv TO alerts_raw AS
SELECT
    _topic, _partition, _offset, _log_time, e.alert_id AS alert_id, e.version AS version, e.retracted AS retracted,
    e.tenant_id AS tenant_id, e.event_id AS event_id, e.event_name AS event_name, at AS timestamp,
    e.finding_id AS finding_id, e.session_id AS session_id, e.agent_runtime AS agent_runtime, e.severity AS severity,
    e.title AS title, e.summary AS summary, payload
FROM decoded_derived
WHERE e.event_name IN ('alert.raised', 'alert.resolved');

CREATE OR REPLACE VIEW alerts AS
SELECT *, event_name = 'alert.resolved' AS resolved
FROM alerts_raw FINAL
WHERE NOT retracted;

CREATE TABLE IF NOT EXISTS trace_links_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    event_id String CODEC(ZSTD(1)),
    version UInt64,
    retracted Bool,
    tenant_id LowCardinality(String),
    timestamp DateTime64(6, 'UTC'),
    call_id String CODEC(ZSTD(1)),
    operation_id String CODEC(ZSTD(1)),
    method LowCardinality(String) COMMENT 'how the two sides were matched',
    confidence Float64,
    trace_id String CODEC(ZSTD(1)),
    session_id String CODEC(ZSTD(1)),
    agent_runtime LowCardinality(String),
    payload String CODEC(ZSTD(1)),
    INDEX by_call call_id TYPE bloom_filter(0.01),
    INDEX by_operation operation_id TYPE bloom_filter(0.01)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY event_id
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS trace_links_mv TO trace_links_raw AS
SELECT
    _topic, _partition, _offset, _log_time, e.event_id AS event_id, e.version AS version, e.retracted AS retracted,
    e.tenant_id AS tenant_id, at AS timestamp, e.call_id AS call_id, e.operation_id AS operation_id, e.method AS method,
    e.confidence AS confidence, e.trace_id AS trace_id, e.session_id AS session_id, e.agent_runtime AS agent_runtime,
    payload
FROM decoded_derived
WHERE e.event_name = 'trace.link.created';

CREATE OR REPLACE VIEW trace_links AS
SELECT *
FROM trace_links_raw FINAL
WHERE NOT retracted;
