-- What every producer numbered and what of it is accounted for; the view of losses rests on it.
CREATE TABLE IF NOT EXISTS producer_heartbeats_raw
(
    producer_id String,
    producer_epoch UInt64,
    published_through SimpleAggregateFunction(max, UInt64),
    ended_at_seq SimpleAggregateFunction(max, UInt64) COMMENT 'the last seq of this epoch, as the next one names it',
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)),
    first_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))),
    seen SimpleAggregateFunction(max, Tuple(
        at DateTime64(6, 'UTC'), uptime_ms UInt64, log_time DateTime64(3, 'UTC'), topic String, partition Int32, offset Int64))
)
ENGINE = AggregatingMergeTree
ORDER BY (producer_id, producer_epoch);

-- The first event of an epoch names where the one before it ended, hence the second kind of row.
CREATE MATERIALIZED VIEW IF NOT EXISTS producer_heartbeats_mv TO producer_heartbeats_raw AS
SELECT
    e.producer.id AS producer_id,
    told.1 AS producer_epoch,
    max(told.2) AS published_through,
    max(told.3) AS ended_at_seq,
    max(e.tenant_id) AS tenant_id,
    min(if(told.3 = 0, at, NULL)) AS first_at,
    maxIf((at, e.uptime_ms, _log_time, toString(_topic), _partition, _offset), told.3 = 0) AS seen
FROM decoded_events
ARRAY JOIN arrayFilter(row -> row.1 > 0, [
    (if(e.event_name = 'producer.heartbeat', e.producer.epoch, 0), e.published_through, toUInt64(0)),
    (e.producer.previous_epoch, toUInt64(0), e.producer.previous_seq)]) AS told
WHERE e.event_name = 'producer.heartbeat' OR e.producer.previous_epoch > 0
GROUP BY producer_id, producer_epoch;

CREATE OR REPLACE VIEW producer_heartbeats AS
WITH seen AS s
SELECT
    producer_id, producer_epoch, tenant_id, greatest(h.published_through, ended_at_seq) AS published_through,
    ended_at_seq > 0 AS ended, first_at, if(s.topic = '', NULL, s.at) AS last_at, s.uptime_ms AS uptime_ms,
    s.log_time AS _log_time, s.topic AS _topic, s.partition AS _partition, s.offset AS _offset
FROM producer_heartbeats_raw AS h FINAL
SETTINGS optimize_functions_to_subcolumns = 0;

-- Runs of seqs that are accounted for: seen here, named by a drop receipt, or refused into the dead letter topic. Batches cut the
-- runs anywhere; only their union has a meaning, so repeated and overlapping runs change nothing. Kept for ever (a few bytes
-- a batch): a hole where old rows had expired would look like a loss.
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
        e.producer.id AS producer_id,
        e.producer.epoch AS producer_epoch,
        arraySort(groupUniqArray(e.producer.seq)) AS seqs,
        arrayJoin(arraySplit((seq, step) -> step != 1, seqs, arrayDifference(seqs))) AS run
    FROM decoded_events
    WHERE e.producer.seq > 0
    GROUP BY producer_id, producer_epoch
);

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_seqs_dropped_mv TO producer_seqs_raw AS
SELECT
    e.producer.id AS producer_id,
    range.epoch AS producer_epoch,
    range.first AS first_seq,
    range.last AS last_seq,
    'dropped' AS kind,
    e.reason AS reason
FROM decoded_events
ARRAY JOIN JSONExtract(payload, 'ranges', 'Array(Tuple(epoch UInt64, first UInt64, last UInt64))') AS range
WHERE e.event_name = 'producer.dropped' AND range.last >= range.first;

-- The dead letter topic. A record refused twice in the same place is one row.
CREATE TABLE IF NOT EXISTS dlq_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC'),
    refused_by LowCardinality(String),
    source String COMMENT 'topic/partition/offset, or what of it is known',
    payload_hash String,
    why String CODEC(ZSTD(1)),
    refused_at Nullable(DateTime64(3, 'UTC')),
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
ORDER BY (refused_by, source, payload_hash)
TTL toDateTime(_log_time) + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS dlq_mv TO dlq_raw AS
SELECT
    _topic, _partition, _offset, _log_time,
    JSONExtractString(headers, 'at_by') AS refused_by,
    JSONExtractString(headers, 'at_from') AS source,
    lower(hex(SHA256(payload))) AS payload_hash,
    JSONExtractString(headers, 'at_why') AS why,
    parseDateTime64BestEffortOrNull(JSONExtractString(headers, 'at_when'), 3, 'UTC') AS refused_at,
    toUInt32OrZero(JSONExtractString(headers, 'at_tries')) AS tries,
    event.event_id AS event_id,
    event.event_name AS event_name,
    event.tenant_id AS tenant_id,
    event.producer.id AS producer_id,
    event.producer.epoch AS producer_epoch,
    event.producer.seq AS producer_seq,
    payload
FROM (
    SELECT *, JSONExtract(payload, 'Tuple(event_id String, event_name String, tenant_id String,
        producer Tuple(id String, epoch UInt64, seq UInt64))') AS event
    FROM ingest_dlq
);

CREATE MATERIALIZED VIEW IF NOT EXISTS producer_seqs_refused_mv TO producer_seqs_raw AS
SELECT
    producer.id AS producer_id,
    producer.epoch AS producer_epoch,
    producer.seq AS first_seq,
    producer.seq AS last_seq,
    'refused' AS kind,
    JSONExtractString(headers, 'at_by') AS reason
FROM (
    SELECT headers, JSONExtract(payload, 'producer', 'Tuple(id String, epoch UInt64, seq UInt64)') AS producer
    FROM ingest_dlq
)
WHERE producer.seq > 0;

CREATE OR REPLACE VIEW dlq AS
SELECT *
FROM dlq_raw FINAL;

-- What a producer numbered and ClickHouse does not have, as runs of seqs. `missing`: nothing accounts for it, though its producer
-- says that it is in Kafka. `dropped`, `refused`: a receipt or the dead letter topic names it.
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
SELECT
    w.producer_id AS producer_id, w.producer_epoch AS producer_epoch, 'missing' AS kind, '' AS reason,
    w.covered + 1 AS first_seq, least(w.first_seq - 1, e.published_through) AS last_seq, last_seq - first_seq + 1 AS lost
FROM walked AS w
INNER JOIN ends AS e ON e.producer_id = w.producer_id AND e.producer_epoch = w.producer_epoch
WHERE w.first_seq > w.covered + 1 AND w.covered < e.published_through
UNION ALL
SELECT producer_id, producer_epoch, toString(kind), reason, first_seq, last_seq, last_seq - first_seq + 1
FROM producer_seqs_raw FINAL
WHERE kind != 'seen';
