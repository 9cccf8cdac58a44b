"""What the observer makes of a session is what the session was."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.mcp_proxy.observer.model import Session, Transport

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("transport", ["stdio", "session", "stateless"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_operations_equal_the_truth(transport: Transport, seed: int) -> None:
    session = Session(seed, transport)
    observed = session.observed()
    assert observed.keys() == session.truth.keys()
    for tool, truth in session.truth.items():
        found = observed[tool]
        assert (found.ids, found.statuses, found.is_error, found.progress) == (
            truth.ids,
            truth.statuses,
            truth.is_error,
            truth.progress,
        )
        assert (found.duration_ms, found.human_ms) == pytest.approx((truth.duration_ms, truth.human_ms), abs=0.01)
