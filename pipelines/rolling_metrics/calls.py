"""One call as its records tell it: how a start and several ends make durations, sizes and time in flight.

Every choice here is a function of the call's records, whichever of them came first, and holds also when the call was
forgotten between two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from pipelines.rolling_metrics.cells import Counted, Key
from pipelines.rolling_metrics.ends import SAME_CALL_MS, End, counting
from pipelines.rolling_metrics.sketch import bucket
from pipelines.runtime.port import LATENESS_MS

MINUTE_MS = 60_000
MAX_OPEN_MS = 60 * MINUTE_MS
"""A call counts as in flight, and its start gives a duration, for at most this long."""
MAX_BYTES = 1 << 40
"""A larger size is not believed, so that sums stay within 64 bits."""

_RAN = frozenset({"ok", "error", "unknown"})

Start = tuple[int, str, Key, int]
"""Time in ms, event id, key and input size in bytes of a start."""
Said = tuple[Key, str, float | None, int | None, int]
"""Payload of an End: key, outcome, duration in ms, sizes of input and output in bytes."""


class Flight(NamedTuple):
    """From which minute to which a call is open."""

    key: Key
    opened: int
    closed: int


Call = tuple[Start | None, tuple[End, ...]]
"""What is known of one call: its start and its ends, in order of strength."""


def counted(call: Call) -> list[Counted]:
    """What the call adds to cells: once for each end that counts."""
    return [_counts(call, end) for end in counting(call[1])]


def _counts(call: Call, end: End) -> Counted:
    """What this end adds."""
    key, outcome, duration, input_bytes, output_bytes = end.payload
    start, ends = call
    if start is not None and _joins(start[0], end, ends):
        if input_bytes is None:
            input_bytes = start[3]
        if duration is None and end.ms >= start[0]:
            duration = end.ms - start[0]
    index, zero = sketched(outcome, duration)
    adds = (outcome, end.inferred, zero, index, input_bytes or 0, output_bytes)
    return Counted(key, end.ms // MINUTE_MS, adds)


def _joins(start_ms: int, end: End, ends: tuple[End, ...]) -> bool:
    """The start's time and size belong to this end: no end long before it took them."""
    if not near(start_ms, end.ms):
        return False
    return len(ends) == 1 or not any(near(start_ms, other.ms) and other.ms < end.ms - SAME_CALL_MS for other in ends)


def flight(call: Call) -> Flight | None:
    """When the call is open; None while its start is not known."""
    start, ends = call
    if start is None:
        return None
    start_ms, _, key, _ = start
    closed_ms = start_ms + MAX_OPEN_MS
    for end in ends:
        if end.ms < closed_ms and near(start_ms, end.ms):
            closed_ms = end.ms
    opened = start_ms // MINUTE_MS
    return Flight(key, opened, max(opened, closed_ms // MINUTE_MS))


def expires_ms(call: Call) -> int:
    """From this progress on no record within the lateness bound can change what the call adds."""
    start, ends = call
    latest = 0
    for end in ends:
        latest = max(latest, end.ms + SAME_CALL_MS + LATENESS_MS)
    if start is not None and not any(near(start[0], end.ms) for end in ends):
        latest = max(latest, start[0] + MAX_OPEN_MS + LATENESS_MS)
    return latest


def near(start_ms: int, end_ms: int) -> bool:
    """The end is near enough to the start to be its end; a little before it, since clocks differ."""
    return start_ms - SAME_CALL_MS <= end_ms <= start_ms + MAX_OPEN_MS


def sketched(outcome: str, duration: float | None) -> tuple[int | None, bool]:
    """Index of the bucket that a duration (ms) counts in, and whether it counts as zero; only calls that ran count."""
    if duration is None or outcome not in _RAN:
        return None, False
    index = bucket(duration)
    return index, index is None


def size_bytes(part: Any) -> int | None:
    """`size_bytes` of a content part, or None if there is none that can be believed."""
    size = part.get("size_bytes") if type(part) is dict else None
    return min(size, MAX_BYTES) if type(size) is int and size >= 0 else None


def duration_ms(event: Mapping[str, Any]) -> float | None:
    """The duration that an end itself gives."""
    duration = event.get("duration_ms")
    if type(duration) is float or type(duration) is int:
        return float(duration) if duration >= 0 and isfinite(duration) else None
    return None
