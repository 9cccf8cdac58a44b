"""Whatever order, repetition or damage OpenClaw payloads come in: nothing raises, and no call is lost."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.adapters.calls import CallTable
from tests.services.adapters.plugin_recordings import entries, names
from tests.services.adapters.recorded_hooks import Json, Player, of

pytestmark = pytest.mark.unit

SESSIONS = [name for name in names("openclaw") if name.startswith("session")]
RECORDED = [entry.payload for name in names("openclaw") for entry in entries("openclaw", name)]
SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
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
    one = Player("openclaw")
    events = [event for payload in payloads for event in one.play(payload)]
    assert {event["tool_call_id"] for event in of(events, "tool.call.started")} >= set().union(*map(told, payloads))
    assert CallTable.load(one.calls.dump()).dump() == one.calls.dump()


@pytest.mark.parametrize("name", names("openclaw"))
def test_no_secret_in_any_text_of_a_payload_reaches_an_event(name: str) -> None:
    one = Player("openclaw")
    for entry in entries("openclaw", name):
        for event in one.play(poisoned(entry.payload), entry.name, entry.at_ms):
            assert SECRET not in orjson.dumps(event).decode()


@settings(SLOW, max_examples=200)
@given(data=st.data())
def test_any_damage_to_a_payload(data: st.DataObject) -> None:
    payload = damaged(data, data.draw(st.sampled_from(RECORDED)))
    one = Player("openclaw")
    assert one.play(payload) and one.play(payload)


def damaged(data: st.DataObject, payload: Json) -> Json:
    """The payload with one to three of its values, at any depth, replaced by any JSON or left out."""
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(paths(payload) or [("event",)]))
        payload = replaced(payload, path, data.draw(JSON), data.draw(st.booleans()))
    return payload


def poisoned(payload: Json) -> Json:
    """The payload with a secret in each text, but for the hook's name."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return f"{value} {SECRET}" if isinstance(value, str) else value

    return {key: value if key in ("hook", "hook_event_name") else walk(value) for key, value in payload.items()}


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path for key, item in inner for path in paths(item, (*above, key))]
    return found + ([above] if above else [])


def replaced(value: Any, path: tuple[Any, ...], by: Any, out: bool) -> Any:
    if not path:
        return by
    copy = value.copy()
    if out and len(path) == 1 and isinstance(copy, dict):
        copy.pop(path[0], None)
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], by, out) if len(path) > 1 else by
    return copy
