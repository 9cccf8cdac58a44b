-- A quantile of a sketch, in milliseconds: agenttrace_quantile(q, zero_count, sketch), q in 0 … 1. The sketch maps bucket i to
-- the count of durations in (base^i, base^(i+1)] ms, base 2^(1/32) (OpenTelemetry exponential histogram, scale 5); a bucket's
-- value is equally far, 1.09 % at most, from both of its ends. Rank ceil(q × n) counts from the smallest. NULL when nothing was
-- counted. Functions belong to the server, not to a database.
CREATE FUNCTION IF NOT EXISTS agenttrace_quantile AS (q, zero_count, sketch) ->
    arrayMap((buckets, counts, zeros) ->
        multiIf(zeros + arraySum(counts) = 0, NULL,
                greatest(1, ceil(q * (zeros + arraySum(counts)))) <= zeros, 0.,
                exp2(buckets[arrayFirstIndex(below -> zeros + below >= greatest(1, ceil(q * (zeros + arraySum(counts)))),
                                             arrayCumSum(counts))] / 32) * 2 * exp2(1 / 32) / (1 + exp2(1 / 32))),
        [mapKeys(mapSort(sketch))], [mapValues(mapSort(sketch))], [zero_count])[1];

-- Windows of the rolling metrics as the pipelines emit them: one row a window, key and source partition.
CREATE TABLE IF NOT EXISTS tool_metrics_raw
(
    _topic LowCardinality(String),
    _partition Int32,
    _offset Int64,
    _log_time DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    tenant_id LowCardinality(String),
    window LowCardinality(String),
    window_start DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    agent_runtime LowCardinality(String),
    tool_source LowCardinality(String),
    mcp_server LowCardinality(String),
    tool_name LowCardinality(String),
    event_id String CODEC(ZSTD(1)),
    source_partition Int32,
    version UInt64,
    retracted Bool,
    provisional Bool,
    state LowCardinality(String),
    window_ms UInt64,
    count UInt64,
    outcomes Map(LowCardinality(String), UInt64),
    timeouts UInt64,
    in_flight UInt64,
    input_bytes UInt64,
    output_bytes UInt64,
    zero_count UInt64,
    sketch Map(Int16, UInt64) CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY (window, if(toYYYYMM(window_start) BETWEEN 202001 AND 204912, toYYYYMM(window_start), 0))
ORDER BY (tenant_id, window, window_start, agent_runtime, tool_source, mcp_server, tool_name, event_id)
TTL toDateTime(_log_time) + multiIf(window = '1m', toIntervalDay(30), window = '5m', toIntervalDay(90), toIntervalDay(400))
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS tool_metrics_mv TO tool_metrics_raw AS
SELECT
    _topic, _partition, _offset, _log_time, e.tenant_id AS tenant_id, e.window AS window,
    ifNull(parseDateTime64BestEffortOrNull(e.window_start, 3, 'UTC'), toDateTime64(0, 3, 'UTC')) AS window_start,
    e.agent_runtime AS agent_runtime, e.tool_source AS tool_source, e.mcp_server AS mcp_server,
    e.tool_name AS tool_name, e.event_id AS event_id, e.source_partition AS source_partition, e.version AS version,
    e.retracted AS retracted, e.provisional AS provisional, if(e.state = '', 'complete', e.state) AS state,
    e.window_ms AS window_ms, e.count AS count, e.outcomes AS outcomes, e.timeouts AS timeouts,
    e.in_flight AS in_flight, e.input_bytes AS input_bytes, e.output_bytes AS output_bytes, e.zero_count AS zero_count,
    mapApply((bucket, n) -> (ifNull(toInt16OrNull(bucket), 0), n), e.sketch) AS sketch
FROM decoded_derived
WHERE e.event_name = 'metric.window.closed';

-- One row a window and key, the source partitions merged. Windows of one length add up: sum the counts, sumMap the sketches and
-- take agenttrace_quantile of the sums. A call through an MCP proxy is in two rows, the hook's and the wire's (tool_name
-- `rpc:…`): never add those two.
CREATE OR REPLACE VIEW tool_metrics AS
SELECT
    tenant_id, window, window_start, agent_runtime, tool_source, mcp_server, tool_name,
    any(m.window_ms) AS window_ms,
    sum(m.count) AS count,
    sumMap(m.outcomes) AS outcomes,
    if(outcomes['ok'] + outcomes['error'] + outcomes['timeout'] = 0, 0,
       (outcomes['error'] + outcomes['timeout']) / (outcomes['ok'] + outcomes['error'] + outcomes['timeout'])) AS error_rate,
    sum(m.timeouts) AS timeouts,
    sum(m.in_flight) AS in_flight,
    sum(m.input_bytes) AS input_bytes,
    sum(m.output_bytes) AS output_bytes,
    sum(m.zero_count) AS zero_count,
    sumMap(m.sketch) AS sketch,
    agenttrace_quantile(0.5, zero_count, sketch) AS p50_ms,
    agenttrace_quantile(0.95, zero_count, sketch) AS p95_ms,
    agenttrace_quantile(0.99, zero_count, sketch) AS p99_ms,
    max(m.provisional) AS provisional,
    max(m.state = 'partial') AS partial,
    max((m._log_time, m._topic, m._partition, m._offset)) AS last,
    last.1 AS _log_time, last.2 AS _topic, last.3 AS _partition, last.4 AS _offset
FROM (SELECT * FROM tool_metrics_raw FINAL WHERE NOT retracted) AS m
GROUP BY tenant_id, window, window_start, agent_runtime, tool_source, mcp_server, tool_name
SETTINGS do_not_merge_across_partitions_select_final = 1;
