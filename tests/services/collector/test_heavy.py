"""Large payloads: what was computed in the thread is not computed again on the loop, whatever the adapter builds around it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import normalise_parsed
from services.capture.content import Capture
from services.collector.heavy import Remembering, prepare

from .running import POST, capture

pytestmark = pytest.mark.unit


class Counting:
    """A Capture that notes which of its methods run on large values."""

    def __init__(self, real: Capture) -> None:
        self._real = real
        self.ran: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        if not callable(method) or name == "ident":
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.ran.append(name)
            return method(*args, **kwargs)

        return call


def test_nothing_runs_twice_also_not_for_fields_no_adapter_knows() -> None:
    large = {"lines": ["x" * 1000] * 1500}
    payload = {**POST, "tool_response": large, "unheard_of": large, "also_new": "y" * 2_000_000, "flag": True, "one": 1}
    counting = Counting(capture())
    context = Context("claude_code", "claude_code/1", new_delivery_id(), 0, 0, counting, CallTable())  # type: ignore[arg-type]
    parsed, context.capture = prepare(orjson.dumps(payload), context)
    assert "native" in counting.ran
    counting.ran.clear()
    [*_, event] = normalise_parsed(parsed, context)
    assert counting.ran == []
    assert event.native["also_new"]["size_bytes"] >= 2_000_000


def test_values_that_are_equal_but_not_the_same_are_told_apart() -> None:
    remembering = Remembering(capture())
    assert remembering.native({"a": 1}) == {"a": 1}
    assert remembering.native({"a": True})["a"] is True
    assert remembering.native({"a": 1.0}) == {"a": 1.0}
    assert isinstance(remembering.native({"a": 1.0})["a"], float)
