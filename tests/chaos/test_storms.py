"""The storms of `make chaos` in small, as part of every test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import disk_full, kills

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_collector_worker_and_sink_killed_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    verdict = kills.storm(tmp_path, hooks=1000, each=1, rate=150, ttl_ms=5000, seed=9)
    assert verdict.problems == []
    assert verdict.figures["hooks"] == 1000
    assert verdict.figures["restarts"] == {"collector": 1, "worker": 1, "sink": 1}


def test_on_a_full_disk_all_agents_are_answered_and_each_drop_is_in_a_receipt_by_class(tmp_path: Path) -> None:
    try:
        verdict = disk_full.storm(tmp_path, hooks=800)
    except disk_full.Unavailable as reason:
        pytest.skip(f"the disk cannot be filled here: {reason}")
    assert verdict.problems == []
    assert sum(verdict.figures["in_receipts"].values()) > 0
