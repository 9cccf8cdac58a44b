"""Prometheus metrics of one sink, in a registry of its own so that tests and restarts start from zero."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 10, 100, 1_000, 2_500, 5_000, 10_000, 50_000)


class Metrics:
    """All names begin with `agenttrace_sink_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows = self._counter("rows_total", "rows that ClickHouse acknowledged", "table")
        self.refused = self._counter("refused_total", "records sent to the dead letter topic", "topic")
        self.unwritten = self._counter("unwritten_total", "dead letters that ClickHouse refused; they stay in Kafka")
        self.control = self._counter("control_total", "progress records skipped")
        self.retries = self._counter("retries_total", "inserts tried again because ClickHouse was away")
        self.commits_lost = self._counter("commits_lost_total", "commits refused; their records come again")
        self.up = self._gauge("clickhouse_up", "1 while ClickHouse takes rows")
        self.partitions = self._gauge("partitions", "partitions assigned to this sink")
        self.lag = self._gauge("lag_records", "records in the assigned partitions that are not read yet")
        self.age = self._gauge("age_seconds", "broker time to acknowledged row, the oldest of the last batch")
        self.insert = Histogram(
            "agenttrace_sink_insert_seconds", "one insert", registry=self.registry, buckets=_SECONDS
        )
        self.batch = Histogram("agenttrace_sink_batch_rows", "rows a batch", registry=self.registry, buckets=_ROWS)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"agenttrace_sink_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"agenttrace_sink_{name}", text, registry=self.registry)
