"""Prometheus metrics of one collector, in a registry of its own so that tests and restarts start from zero."""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """All names begin with `agenttrace_collector_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.hooks = self._counter("hooks_total", "hook payloads answered", "runtime", "door")
        # The two that every hook counts, without looking their labels up each time.
        self.hooks_of = cache(self.hooks.labels)
        self.events = self._counter("events_total", "events journalled", "topic")
        self.events_of = cache(self.events.labels)
        self.duplicates = self._counter("duplicates_total", "deliveries seen before and dropped")
        self.quarantined = self._counter("quarantined_total", "payloads that could not be read", "runtime", "reason")
        self.observed = self._counter("observed_total", "hooks without an event of their own", "runtime", "reason")
        self.events_refused = self._counter("events_refused_total", "events of other producers that are not valid")
        self.dropped = self._counter("dropped_total", "events that could not be kept", "reason")
        self.failures = self._counter(
            "failures_total", "faults of the collector itself or its disk, each in the log", "where"
        )
        self.scrubbed = self._counter("scrubbed_total", "secrets masked only by the last check before the journal")
        self.published = self._counter("published_total", "events acknowledged by a sink", "sink")
        self.publish_errors = self._counter("publish_errors_total", "failed attempts to publish a batch", "sink")
        self.spool_drained = self._counter("spool_drained_total", "payloads taken from the spool", "runtime")
        self.open_calls = self._gauge("open_calls", "calls that started and have not ended")
        self.forgotten_calls = self._gauge("forgotten_calls", "open calls given up because there were too many")
        self.reserved = self._gauge("reserve_bytes", "events kept on a full disk that the journal has not got yet")
        self.unpublished = self._gauge("unpublished_bytes", "journal bytes not yet published", "sink")
        self.handler = Histogram(
            "agenttrace_collector_handler_seconds",
            "accept to answer of one hook",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"agenttrace_collector_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"agenttrace_collector_{name}", text, labels, registry=self.registry)
