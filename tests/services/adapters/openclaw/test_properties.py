"""Whatever order, repetition or damage OpenClaw payloads come in: nothing raises, and no call is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.adapters.calls import CallTable
from tests.services.adapters.plugin_recordings import entries, names
from tests.services.adapters.recorded_hooks import Json, Player, capture, of

pytestmark = pytest.mark.unit

SESSIONS = [name for name in names("openclaw") if name.startswith("session")]
RECORDED = [entry.payload for name in names("openclaw") for entry in entries("openclaw", name)]
CAPTURE = capture()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
SLOW = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


def told(payload: Json) -> set[str]:
    tool = payload["hook"] in ("before_tool_call", "after_tool_call")
    return {payload["event"]["toolCallId"]} if tool else set()


@pytest.mark.parametrize("name", SESSIONS)
@SLOW
@given(seed=st.integers(0, 2**32), repeat=st.integers(0, 5))
def test_any_order_and_repetition_of_a_session(name: str, seed: int, repeat: int) -> None:
    payloads = [entry.payload for entry in entries("openclaw", name)]
    shuffled = random.Random(seed)
    payloads += shuffled.choices(payloads, k=repeat)
    shuffled.shuffle(payloads)
    player = Player("openclaw", capture=CAPTURE)
    events = [event for payload in payloads for event in player.play(payload)]
    assert {event["tool_call_id"] for event in of(events, "tool.call.started")} >= set().union(*map(told, payloads))
    assert CallTable.load(player.calls.dump()).dump() == player.calls.dump()


@SLOW
@given(data=st.data())
def test_any_damage_to_a_payload(data: st.DataObject) -> None:
    payload = damaged(data, data.draw(st.sampled_from(RECORDED)))
    player = Player("openclaw", capture=CAPTURE)
    assert player.play(payload) and player.play(payload)


def damaged(data: st.DataObject, payload: Json) -> Json:
    """The payload with one to three of its values, at any depth, replaced by any JSON or left out."""
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths(payload)))
        payload = replaced(payload, path, data.draw(JSON), data.draw(st.booleans()))
    return payload


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path for key, item in inner for path in paths(item, (*above, key))]
    return found + ([above] if above else [])


def replaced(value: Any, path: tuple[Any, ...], by: Any, out: bool) -> Any:
    if not path:
        return by
    copy = value.copy()
    if out and len(path) == 1 and isinstance(copy, dict):
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], by, out)
    return copy
