"""A mergeable, subtractable histogram of durations, from which quantiles are read with a known relative error.

Buckets are those of the OpenTelemetry exponential histogram at scale 5 (opentelemetry-proto, metrics data model): base
2^(1/32), bucket i holds (base^i, base^(i+1)]. Merging two sketches adds their counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

BUCKETS_PER_DOUBLING = 32
BASE = 2.0 ** (1 / BUCKETS_PER_DOUBLING)
RELATIVE_ERROR = (BASE - 1) / (BASE + 1)
"""Largest relative error of a quantile, about 1.083 %: a bucket's value is equally far from both of its ends."""

ZERO_BELOW_MS = 1e-6
"""Durations below this are counted as zero, which keeps every index within 16 bits."""

_TO_VALUE = 2 * BASE / (1 + BASE)


def bucket(ms: float) -> int | None:
    """Index of the bucket of a duration; None for the zero bucket."""
    if ms < ZERO_BELOW_MS:
        return None
    return ceil(log2(ms) * BUCKETS_PER_DOUBLING) - 1


def value(index: int) -> float:
    """The duration, in ms, that stands for all of a bucket."""
    return float(2.0 ** (index / BUCKETS_PER_DOUBLING) * _TO_VALUE)


def quantiles(zero_count: int, counts: Mapping[int, int], wanted: tuple[float, ...]) -> list[float | None]:
    """Durations in ms at the wanted fractions, in ascending order: the value of rank ceil(q × n), rank 1 the smallest.

    None for each if nothing was counted.
    """
    total = zero_count + sum(counts.values())
    if total <= 0:
        return [None] * len(wanted)
    ranks = [max(1, ceil(q * total)) for q in wanted]
    found: list[float | None] = []
    at, seen = 0.0, zero_count
    waiting = iter(sorted(counts))
    for rank in ranks:
        while seen < rank:
            index = next(waiting)
            seen += counts[index]
            at = value(index)
        found.append(at)
    return found
