"""The sketch's promise: any quantile within its relative error, and merging is adding."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.rolling_metrics.sketch import BASE, RELATIVE_ERROR, ZERO_BELOW_MS, bucket, quantiles, value

pytestmark = pytest.mark.unit

durations = st.one_of(
    st.just(0.0),
    st.floats(min_value=ZERO_BELOW_MS, max_value=1e12, allow_nan=False),
    st.sampled_from([1.0, 2.0, 1024.0, BASE, 250.0, 250.0]),
)


def sketched(values: list[float]) -> tuple[int, Counter[int]]:
    buckets = [bucket(ms) for ms in values]
    return buckets.count(None), Counter(index for index in buckets if index is not None)


def test_error_is_what_the_contract_says() -> None:
    assert pytest.approx(0.0108, abs=1e-4) == RELATIVE_ERROR
    assert RELATIVE_ERROR <= 0.0109


@given(st.floats(min_value=ZERO_BELOW_MS, max_value=1.7e308))
def test_value_stands_for_its_bucket(ms: float) -> None:
    index = bucket(ms)
    assert index is not None
    assert -(1 << 15) <= index < 1 << 15
    assert abs(value(index) - ms) <= ms * (RELATIVE_ERROR + 1e-9)


def test_bucket_borders_belong_to_the_lower_bucket() -> None:
    assert bucket(1.0) == -1
    assert bucket(2.0) == 31
    assert bucket(2.0000001) == 32
    assert bucket(0) is None


@given(st.lists(durations, min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_quantile_within_the_error_of_the_exact_one(values: list[float], q: float) -> None:
    exact = sorted(values)[max(1, ceil(q * len(values))) - 1]
    (said,) = quantiles(*sketched(values), (q,))
    assert said is not None
    assert abs(said - exact) <= exact * (RELATIVE_ERROR + 1e-9)


@given(st.lists(durations, max_size=50), st.lists(durations, max_size=50))
def test_merging_is_adding(left: list[float], right: list[float]) -> None:
    zero, counts = sketched(left)
    more_zero, more = sketched(right)
    assert sketched(left + right) == (zero + more_zero, counts + more)


def test_nothing_counted_has_no_quantile() -> None:
    assert quantiles(0, {}, (0.5, 0.99)) == [None, None]
