"""Every recorded Claude Code payload gives exactly the committed events."""

from __future__ import annotations

import pytest

from tests.services.adapters.recorded_hooks import FIXTURES, golden

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("name", ["payloads", "payloads-from-docs", "session"])
def test_events_are_the_committed_ones(name: str, update_golden: bool) -> None:
    path = FIXTURES / "claude_code" / "golden" / f"{name}.jsonl"
    made = list(golden("claude_code", name))
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(made))
    wanted = path.read_bytes().splitlines(keepends=True)
    assert len(made) == len(wanted)
    for line, want in zip(made, wanted, strict=True):
        assert line.decode() == want.decode()
