"""Whatever order, repetition or damage Hermes payloads come in: nothing raises, and no call is lost."""

from __future__ import annotations

import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.adapters.calls import CallTable
from tests.services.adapters.openclaw.test_properties import SECRET, SLOW, damaged, poisoned
from tests.services.adapters.plugin_recordings import entries, names
from tests.services.adapters.recorded_hooks import Json, Player, of

pytestmark = pytest.mark.unit

SESSIONS = [name for name in names("hermes") if name.startswith("session")]
RECORDED = [entry.payload for name in names("hermes") for entry in entries("hermes", name)]


def told(payload: Json) -> set[str]:
    started = payload.get("hook") == "pre_tool_call" and payload["kwargs"]["tool_call_id"]
    return {payload["kwargs"]["tool_call_id"]} if started else set()


@pytest.mark.parametrize("name", SESSIONS)
@SLOW
@given(seed=st.integers(0, 2**32), repeat=st.integers(0, 5))
def test_any_order_and_repetition_of_a_session(name: str, seed: int, repeat: int) -> None:
    payloads = [entry.payload for entry in entries("hermes", name)]
    shuffled = random.Random(seed)
    payloads += shuffled.choices(payloads, k=repeat)
    shuffled.shuffle(payloads)
    one = Player("hermes")
    events = [event for payload in payloads for event in one.play(payload)]
    starts = of(events, "tool.call.started")
    assert {event.get("tool_call_id") for event in starts} >= set().union(*map(told, payloads))
    assert len(starts) == sum(payload["hook"] == "pre_tool_call" for payload in payloads)
    assert CallTable.load(one.calls.dump()).dump() == one.calls.dump()


@pytest.mark.parametrize("name", names("hermes"))
def test_no_secret_in_any_text_of_a_payload_reaches_an_event(name: str) -> None:
    one = Player("hermes")
    for entry in entries("hermes", name):
        for event in one.play(poisoned(entry.payload), entry.name, entry.at_ms):
            assert SECRET not in orjson.dumps(event).decode()


@settings(SLOW, max_examples=200)
@given(data=st.data())
def test_any_damage_to_a_payload(data: st.DataObject) -> None:
    payload = damaged(data, data.draw(st.sampled_from(RECORDED)))
    one = Player("hermes")
    assert one.play(payload) and one.play(payload)
