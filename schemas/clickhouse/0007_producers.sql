-- What every producer numbered, and what of it is here: the table of losses rests on these three.
CREATE TABLE IF NOT EXISTS producer_heartbeats_raw
(
    producer_id String,
    producer_epoch UInt64,
    published_through SimpleAggregateFunction(max, UInt64),
    ended_at_seq SimpleAggregateFunction(max, UInt64) COMMENT 'the last seq of this epoch, as the next one names it',
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    first_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))),
    last_at SimpleAggregateFunction(max, Nullable(DateTime64(6, 'UTC'))),
    uptime_ms SimpleAggregateFunction(max, UInt64),
    _log_time SimpleAggregateFunction(max, DateTime64(3, 'UTC')),
    _source SimpleAggregateFunction(max, Tuple(DateTime64(3, 'UTC'), String, Int32, Int64))
)
ENGINE = AggregatingMergeTree
ORDER BY (producer_id, producer_epoch);

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_heartbeats_mv TO producer_heartbeats_raw AS
WITH ifNull(parseDateTime64BestEffortOrNull(event.timestamp, 6, 'UTC'), i._log_time) AS at
SELECT
    event.producer.id AS producer_id,
    event.producer.epoch AS producer_epoch,
    max(event.published_through) AS published_through,
    toUInt64(0) AS ended_at_seq,
    max(event.tenant_id) AS tenant_id,
    min(toNullable(at)) AS first_at,
    max(toNullable(at)) AS last_at,
    max(event.uptime_ms) AS uptime_ms,
    max(i._log_time) AS _log_time,
    max((i._log_time, toString(_topic), _partition, _offset)) AS _source
FROM ingest AS i
WHERE endsWith(_topic, 'agenttrace.agent.activity') AND event.event_name = 'producer.heartbeat' AND event.producer.epoch > 0
GROUP BY producer_id, producer_epoch;

-- The first event of an epoch names where the one before it ended.
CREATE MATERIALIZED VIEW IF NOT EXISTS producer_epochs_mv TO producer_heartbeats_raw AS
SELECT
    event.producer.id AS producer_id,
    event.producer.previous_epoch AS producer_epoch,
    toUInt64(0) AS published_through,
    max(event.producer.previous_seq) AS ended_at_seq,
    max(event.tenant_id) AS tenant_id,
    CAST(NULL, 'Nullable(DateTime64(6, \'UTC\'))') AS first_at,
    CAST(NULL, 'Nullable(DateTime64(6, \'UTC\'))') AS last_at,
    toUInt64(0) AS uptime_ms,
    max(i._log_time) AS _log_time,
    max((i._log_time, toString(_topic), _partition, _offset)) AS _source
FROM ingest AS i
WHERE event.producer.previous_epoch > 0
  AND (endsWith(_topic, 'agenttrace.tool.call') OR endsWith(_topic, 'agenttrace.mcp.rpc')
       OR endsWith(_topic, 'agenttrace.agent.activity') OR endsWith(_topic, 'agenttrace.policy.decision'))
GROUP BY producer_id, producer_epoch;

CREATE OR REPLACE VIEW producer_heartbeats AS
SELECT
    producer_id, producer_epoch, tenant_id, greatest(published_through, ended_at_seq) AS published_through,
    first_at, last_at, uptime_ms, _log_time, _source.2 AS _topic, _source.3 AS _partition, _source.4 AS _offset
FROM producer_heartbeats_raw FINAL;

-- Runs of seqs that are accounted for: seen here, named by a drop receipt, or refused into the dead letter topic. Batches cut
-- the runs anywhere; only their union has a meaning, so repeated and overlapping runs change nothing. Kept for ever (a few
-- bytes a batch): a hole where old rows expired would look like a loss.
CREATE TABLE IF NOT EXISTS producer_seqs_raw
(
    producer_id String,
    producer_epoch UInt64,
    first_seq UInt64 CODEC(Delta(8), ZSTD(1)),
    last_seq UInt64 CODEC(Delta(8), ZSTD(1)),
    kind Enum8('seen' = 0, 'dropped' = 1, 'refused' = 2),
    reason LowCardinality(String)
)
ENGINE = ReplacingMergeTree
ORDER BY (producer_id, producer_epoch, first_seq, last_seq, kind, reason);

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_seqs_seen_mv TO producer_seqs_raw AS
SELECT producer_id, producer_epoch, run[1] AS first_seq, run[-1] AS last_seq, 'seen' AS kind, '' AS reason
FROM (
    SELECT
        event.producer.id AS producer_id,
        event.producer.epoch AS producer_epoch,
        arraySort(groupUniqArray(event.producer.seq)) AS seqs,
        arrayJoin(arraySplit((seq, step) -> step != 1, seqs, arrayDifference(seqs))) AS run
    FROM ingest
    WHERE event.producer.seq > 0
      AND (endsWith(_topic, 'agenttrace.tool.call') OR endsWith(_topic, 'agenttrace.mcp.rpc')
           OR endsWith(_topic, 'agenttrace.agent.activity') OR endsWith(_topic, 'agenttrace.policy.decision'))
    GROUP BY producer_id, producer_epoch
);

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_seqs_dropped_mv TO producer_seqs_raw AS
SELECT
    event.producer.id AS producer_id,
    range.epoch AS producer_epoch,
    range.first AS first_seq,
    range.last AS last_seq,
    'dropped' AS kind,
    event.reason AS reason
FROM ingest
ARRAY JOIN event.ranges AS range
WHERE endsWith(_topic, 'agenttrace.agent.activity') AND event.event_name = 'producer.dropped' AND range.last >= range.first;

-- The dead letter topic. A record refused twice in the same place is one row.
CREATE TABLE IF NOT EXISTS dlq_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    refused_by LowCardinality(String),
    source String COMMENT 'topic/partition/offset, or what of it is known',
    value_hash String,
    why String CODEC(ZSTD(1)),
    refused_at String,
    tries UInt32,
    event_id String CODEC(ZSTD(1)),
    event_name LowCardinality(String),
    tenant_id LowCardinality(String),
    producer_id LowCardinality(String),
    producer_epoch UInt64,
    producer_seq UInt64,
    payload String CODEC(ZSTD(1)) COMMENT 'the event where it could be read, else its size and SHA-256'
)
ENGINE = ReplacingMergeTree(_offset)
ORDER BY (refused_by, source, value_hash)
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS dlq_mv TO dlq_raw AS
SELECT
    _topic, _partition, _offset, _log_time,
    JSONExtractString(headers, 'at_by') AS refused_by,
    JSONExtractString(headers, 'at_from') AS source,
    hex(SHA256(value)) AS value_hash,
    JSONExtractString(headers, 'at_why') AS why,
    JSONExtractString(headers, 'at_when') AS refused_at,
    toUInt32OrZero(JSONExtractString(headers, 'at_tries')) AS tries,
    event.event_id AS event_id,
    event.event_name AS event_name,
    event.tenant_id AS tenant_id,
    event.producer.id AS producer_id,
    event.producer.epoch AS producer_epoch,
    event.producer.seq AS producer_seq,
    value AS payload
FROM ingest
WHERE endsWith(_topic, 'agenttrace.dlq');

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_seqs_refused_mv TO producer_seqs_raw AS
SELECT
    event.producer.id AS producer_id,
    event.producer.epoch AS producer_epoch,
    event.producer.seq AS first_seq,
    event.producer.seq AS last_seq,
    'refused' AS kind,
    JSONExtractString(headers, 'at_by') AS reason
FROM ingest
WHERE endsWith(_topic, 'agenttrace.dlq') AND event.producer.seq > 0;

CREATE OR REPLACE VIEW dlq AS
SELECT
    refused_by, source, why, parseDateTime64BestEffortOrNull(refused_at, 3, 'UTC') AS refused_at, tries,
    event_id, event_name, tenant_id, producer_id, producer_epoch, producer_seq, payload,
    _log_time, _topic, _partition, _offset
FROM dlq_raw FINAL;

-- What a producer numbered and ClickHouse does not have, as runs of seqs. `missing`: nothing accounts for it, though the
-- producer says it is in Kafka. `dropped` and `refused`: a receipt or the dead letter topic names it.
CREATE OR REPLACE VIEW producer_losses AS
WITH
    ends AS (SELECT producer_id, producer_epoch, published_through FROM producer_heartbeats),
    runs AS (
        SELECT producer_id, producer_epoch, first_seq, last_seq FROM producer_seqs_raw
        UNION ALL
        SELECT producer_id, producer_epoch, published_through + 1, published_through + 1 FROM ends
    ),
    walked AS (
        SELECT
            producer_id, producer_epoch, first_seq,
            max(last_seq) OVER (PARTITION BY producer_id, producer_epoch ORDER BY first_seq, last_seq
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered
        FROM runs
    )
SELECT w.producer_id AS producer_id, w.producer_epoch AS producer_epoch, 'missing' AS kind, '' AS reason,
       w.covered + 1 AS first_seq, least(w.first_seq - 1, e.published_through) AS last_seq, last_seq - first_seq + 1 AS lost
FROM walked AS w
INNER JOIN ends AS e ON e.producer_id = w.producer_id AND e.producer_epoch = w.producer_epoch
WHERE w.first_seq > w.covered + 1 AND w.covered < e.published_through
UNION ALL
SELECT producer_id, producer_epoch, toString(kind), reason, first_seq, last_seq, last_seq - first_seq + 1
FROM producer_seqs_raw FINAL
WHERE kind != 'seen';
