"""Claude Code's payloads in any order, any number of times, and damaged in any way."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.adapters import registry
from services.adapters.stdin_hooks import OWN_END
from tests.services.adapters.damage import damaged
from tests.services.adapters.recorded_hooks import Json, Player, checked, of, poisoned, recorded, session

pytestmark = pytest.mark.unit

RUNTIME = "claude_code"
SESSION = session(RUNTIME)
RECORDED = tuple(entry.payload for entry in recorded(RUNTIME))
SLOW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def started_ids() -> set[str]:
    return {entry.payload["tool_use_id"] for entry in SESSION if entry.hook == "PreToolUse"}


def own_ends(events: list[Json]) -> set[tuple[str, str, str]]:
    return {
        (event["call_id"], event["outcome"], event["outcome_evidence"])
        for event in events
        if event.get("outcome") and event["source_event_name"] in OWN_END
    }


@SLOW
@given(st.permutations(range(len(SESSION))))
def test_no_order_of_arrival_changes_what_hooks_prove(order: list[int]) -> None:
    player = Player(RUNTIME)
    events = player.play_all(SESSION[n] for n in order)
    assert {event["tool_call_id"] for event in of(events, "tool.call.started")} >= started_ids()
    assert own_ends(events) == own_ends(Player(RUNTIME).play_all(SESSION))
    assert {event["occurrence"] for event in events if "occurrence" in event} == {1}
    player.play(SESSION[-1].payload)
    assert len(player.calls) == 0


@SLOW
@given(st.lists(st.integers(0, len(SESSION) - 1), max_size=150))
def test_any_choice_of_payloads_is_told(order: list[int]) -> None:
    events = Player(RUNTIME).play_all(SESSION[n] for n in order)
    sent = {SESSION[n].payload.get("tool_use_id") for n in order} - {None}
    assert sent <= {event.get("tool_call_id") for event in events}


@settings(max_examples=200, deadline=None)
@given(st.lists(damaged(RECORDED), min_size=1, max_size=4))
def test_no_damage_raises(payloads: list[Any]) -> None:
    player = Player(RUNTIME)
    for n, payload in enumerate(payloads):
        context = player.context(f"damaged {n}", 1_796_064_689_000 + n)
        events = [checked(event) for event in registry.normalise(orjson.dumps(payload), context)]
        assert events
        assert "unreadable_shape" not in [event.get("reason") for event in events]


def test_no_text_of_a_payload_is_told_as_it_came() -> None:
    secret = "AKIA" + "Q3EGZ7YB2JXW5TNM"
    player = Player(RUNTIME)
    for payload in RECORDED:
        assert secret not in orjson.dumps(player.play(poisoned(payload, secret))).decode()
