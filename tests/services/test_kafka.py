"""The partition of a key is the one that Kafka's own clients give it."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from services.kafka import partition_of

pytestmark = pytest.mark.unit


@given(st.none() | st.binary(max_size=80), st.integers(1, 50))
def test_a_key_goes_where_the_default_partitioner_puts_it(key: bytes | None, count: int) -> None:
    partitions = list(range(count))
    found = partition_of(key, partitions, partitions)
    assert found in partitions
    assert key is None or found == DefaultPartitioner()(key, partitions, partitions)
