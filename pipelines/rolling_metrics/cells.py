"""What one key did in one minute, kept so that it can be added, taken back and merged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pipelines.rolling_metrics.ends import FAILED, KNOWN
from pipelines.rolling_metrics.sketch import quantiles


class Names(NamedTuple):
    """What calls are counted by; an empty text stands for a field the events do not have."""

    tenant: str
    runtime: str
    source: str
    server: str
    tool: str


class Key:
    """One object of an operator for all that is counted by the same names, so that it is compared by identity.

    `deltas` are the calls that opened less those that closed, by minute; `carry` sums the minutes that are forgotten.
    `tick` is the latest tick of log time of the records of it.
    """

    __slots__ = ("__weakref__", "carry", "deltas", "names", "tick")

    def __init__(self, names: Names) -> None:
        self.names = names
        self.tick = 0
        self.carry = 0
        self.deltas: dict[int, int] = {}

    def in_flight(self, end_minute: int) -> int:
        """Calls that are open when this minute begins."""
        return self.carry + sum(by for minute, by in self.deltas.items() if minute < end_minute)


Adds = tuple[str, bool, bool, int | None, int, int]
"""What one end of a call adds: outcome, whether it was inferred, whether its duration is zero, the sketch's bucket (None if
its duration is zero or says nothing), input and output bytes."""


class Counted(NamedTuple):
    """What one end of a call adds, and where."""

    key: Key
    minute: int
    adds: Adds


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

    def add(self, adds: Adds) -> None:
        """Count a call."""
        outcome, inferred, zero, index, input_bytes, output_bytes = adds
        outcomes = self.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if index is not None:
            self.sketch[index] = self.sketch.get(index, 0) + 1
        elif zero:
            self.zero += 1
        if inferred and outcome == "timeout":
            self.timeouts += 1
        self.input_bytes += input_bytes
        self.output_bytes += output_bytes

    def take_back(self, adds: Adds) -> None:
        """Undo `add`."""
        outcome, inferred, zero, index, input_bytes, output_bytes = adds
        _decrement(self.outcomes, outcome)
        if index is not None:
            _decrement(self.sketch, index)
        elif zero:
            self.zero -= 1
        if inferred and outcome == "timeout":
            self.timeouts -= 1
        self.input_bytes -= input_bytes
        self.output_bytes -= output_bytes

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
        known = failed = 0
        for outcome, count in self.outcomes.items():
            if outcome in KNOWN:
                known += count
                if outcome in FAILED:
                    failed += count
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
