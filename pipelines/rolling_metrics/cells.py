"""What one key did in one minute, kept so that it can be added, taken back and merged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pipelines.rolling_metrics.ends import FAILED, KNOWN
from pipelines.rolling_metrics.sketch import quantiles


class Key(NamedTuple):
    """What calls are counted by; an empty text stands for a field the events do not have."""

    tenant: str
    runtime: str
    source: str
    server: str
    tool: str


class Counted(NamedTuple):
    """What one ended call adds to its minute. `bucket` is None where the call's duration says nothing or is zero."""

    key: Key
    minute: int
    outcome: str
    timed_out: bool
    zero: bool
    bucket: int | None
    input_bytes: int
    output_bytes: int


class Cell:
    """Sums over the calls of one key that ended in one minute, and how many started in it."""

    __slots__ = ("input_bytes", "outcomes", "output_bytes", "sketch", "starts", "timeouts", "zero")

    def __init__(self) -> None:
        self.starts = 0
        self.timeouts = 0
        self.zero = 0
        self.input_bytes = 0
        self.output_bytes = 0
        self.outcomes: dict[str, int] = {}
        self.sketch: dict[int, int] = {}

    def add(self, counted: Counted) -> None:
        """Count a call."""
        outcomes = self.outcomes
        outcomes[counted.outcome] = outcomes.get(counted.outcome, 0) + 1
        if counted.bucket is not None:
            self.sketch[counted.bucket] = self.sketch.get(counted.bucket, 0) + 1
        elif counted.zero:
            self.zero += 1
        self.timeouts += counted.timed_out
        self.input_bytes += counted.input_bytes
        self.output_bytes += counted.output_bytes

    def take_back(self, counted: Counted) -> None:
        """Undo `add`."""
        _decrement(self.outcomes, counted.outcome)
        if counted.bucket is not None:
            _decrement(self.sketch, counted.bucket)
        elif counted.zero:
            self.zero -= 1
        self.timeouts -= counted.timed_out
        self.input_bytes -= counted.input_bytes
        self.output_bytes -= counted.output_bytes

    @property
    def empty(self) -> bool:
        """Nothing started and nothing ended."""
        return not self.starts and not self.outcomes

    @classmethod
    def merged(cls, cells: Iterable[Cell]) -> Cell:
        """A new cell with the sums of all."""
        total = cls()
        for cell in cells:
            total.starts += cell.starts
            total.timeouts += cell.timeouts
            total.zero += cell.zero
            total.input_bytes += cell.input_bytes
            total.output_bytes += cell.output_bytes
            for outcome, count in cell.outcomes.items():
                total.outcomes[outcome] = total.outcomes.get(outcome, 0) + count
            for index, count in cell.sketch.items():
                total.sketch[index] = total.sketch.get(index, 0) + count
        return total

    @property
    def count(self) -> int:
        """Calls that ended."""
        return sum(self.outcomes.values())

    def fields(self) -> dict[str, Any]:
        """The fields of schemas.events.Metric that follow from the sums."""
        known = sum(self.outcomes.get(outcome, 0) for outcome in KNOWN)
        failed = sum(self.outcomes.get(outcome, 0) for outcome in FAILED)
        fields: dict[str, Any] = {
            "count": self.count,
            "outcomes": dict(self.outcomes),
            "error_rate": failed / known if known else 0.0,
            "timeouts": self.timeouts,
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "zero_count": self.zero,
            "sketch": {str(index): count for index, count in self.sketch.items()},
        }
        p50, p95, p99 = quantiles(self.zero, self.sketch, (0.5, 0.95, 0.99))
        if p50 is not None:
            fields.update(p50_ms=p50, p95_ms=p95, p99_ms=p99)
        return fields

    def dump(self) -> list[Any]:
        """The cell as JSON data."""
        return [
            self.starts,
            self.timeouts,
            self.zero,
            self.input_bytes,
            self.output_bytes,
            list(self.outcomes.items()),
            list(self.sketch.items()),
        ]

    @classmethod
    def load(cls, data: list[Any]) -> Cell:
        """A cell from `dump`."""
        cell = cls()
        cell.starts, cell.timeouts, cell.zero, cell.input_bytes, cell.output_bytes, outcomes, sketch = data
        cell.outcomes = dict(outcomes)
        cell.sketch = dict(sketch)
        return cell


def _decrement(counts: dict[Any, int], name: Any) -> None:
    left = counts.get(name, 0) - 1
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)
