"""RFC 3339 text from and to milliseconds since the Unix epoch, fixed width, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_MS = 253402300799999
"""Last millisecond of the year 9999."""


def to_rfc3339(ms: int) -> str:
    """`2026-11-30T20:06:12.123Z`; values outside 1970 … 9999 are clamped."""
    seconds, rest = divmod(min(max(ms, 0), MAX_MS), 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


def from_rfc3339(text: str) -> int:
    """Milliseconds of an RFC 3339 time with any offset. Raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"no UTC offset in {text!r}")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
