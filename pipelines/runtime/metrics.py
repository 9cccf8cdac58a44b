"""What a worker measures about itself, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from pipelines.runtime.group import Group


class WorkerMetrics:
    """Counters and gauges of one worker in a registry of their own; `groups` gives the groups it has now."""

    def __init__(self, groups: Callable[[], Iterable[Group]]) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Operators(groups))
        self.records = Counter("agenttrace_pipeline_records", "Input records consumed", ["topic"], registry=registry)
        self.duplicates = Counter(
            "agenttrace_pipeline_duplicates", "Input records dropped as seen before", registry=registry
        )
        self.outputs = Counter(
            "agenttrace_pipeline_outputs", "Derived records acknowledged by the broker", ["topic"], registry=registry
        )
        self.refused = Counter(
            "agenttrace_pipeline_refused", "Records sent to the DLQ, by who refused them", ["by"], registry=registry
        )
        self.retries = Counter(
            "agenttrace_pipeline_retries", "Steps repeated because the broker failed", registry=registry
        )
        self.rebuilds = Counter(
            "agenttrace_pipeline_rebuilds",
            "States made, complete or partial, from a checkpoint or the log alone",
            ["state", "source"],
            registry=registry,
        )
        self.rebuild_seconds = Histogram(
            "agenttrace_pipeline_rebuild_seconds",
            "Time to make one state",
            buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300),
            registry=registry,
        )
        self.rebuild_records = Counter(
            "agenttrace_pipeline_rebuild_records", "Input records read again to make states", registry=registry
        )
        self.checkpoints = Counter(
            "agenttrace_pipeline_checkpoints", "States written to the checkpoint topic", ["result"], registry=registry
        )
        self.checkpoint_seconds = Histogram(
            "agenttrace_pipeline_checkpoint_seconds",
            "Time to write one state; `dump` of it its partition waits",
            ["step"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30),
            registry=registry,
        )
        self.checkpoint_bytes = Gauge(
            "agenttrace_pipeline_checkpoint_bytes", "Size of the last state written, not compressed", registry=registry
        )
        self.checkpoint_age = Gauge(
            "agenttrace_pipeline_checkpoint_age_seconds",
            "Age of the oldest record that is in a state of this worker and in no checkpoint",
            registry=registry,
        )
        self.lag = Gauge(
            "agenttrace_pipeline_lag_records", "Records of assigned partitions not yet processed", registry=registry
        )
        self.idle = Gauge(
            "agenttrace_pipeline_stalled_seconds",
            "Age of the last processed record while there is lag, else 0",
            registry=registry,
        )


class _Operators:
    """Counters of operators and states of groups, read when asked; they begin anew when a group moves."""

    def __init__(self, groups: Callable[[], Iterable[Group]]) -> None:
        self._groups = groups

    def collect(self) -> Iterable[Metric]:
        """The metric families of now."""
        sums: dict[tuple[str, str], int] = {}
        errors: dict[str, int] = {}
        partial = count = 0
        for group in self._groups():
            count += 1
            partial += group.partial
            for by, number in group.errors.items():
                errors[by] = errors.get(by, 0) + number
            for operator in group.operators:
                for name, value in operator.counters.items():
                    place = (operator.name, name)
                    sums[place] = sums.get(place, 0) + value
        counted = GaugeMetricFamily(
            "agenttrace_operator_count",
            "What the operators counted since their state was made",
            labels=["operator", "name"],
        )
        for place, value in sorted(sums.items()):
            counted.add_metric(place, value)
        yield counted
        failed = CounterMetricFamily(
            "agenttrace_operator_errors", "Records that made an operator raise since its state was made", labels=["by"]
        )
        for by, number in sorted(errors.items()):
            failed.add_metric([by], number)
        yield failed
        yield GaugeMetricFamily("agenttrace_pipeline_groups", "Partition numbers this worker has", value=count)
        yield GaugeMetricFamily(
            "agenttrace_pipeline_partial_groups", "Of these, with a state that lacks deleted records", value=partial
        )
