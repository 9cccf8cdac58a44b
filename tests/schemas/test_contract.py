"""The contract: every event has a topic, every model is strict, ids keep their published values, the registry is fresh."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import clock, generate, identity, topics
from schemas.events import EVENT, ToolCall, to_json

pytestmark = pytest.mark.contract

MINIMAL = {
    "event_name": "tool.call.started",
    "event_id": "01990000-0000-7abc-8000-00000abc0000",
    "timestamp": "2026-11-30T20:06:12.123Z",
    "source_adapter": "claude_code/1",
    "call_id": "01990000-0000-7abc-8000-00000abc0001",
    "call_key": "a|b",
    "occurrence": 1,
    "tool_name": "Bash",
    "status": "started",
}


def test_every_event_name_has_one_topic_and_one_model() -> None:
    named = [name for topic in topics.TOPICS for name in topic.events]
    assert len(named) == len(set(named))
    assert set(named) == set(generate.event_models())


def test_every_model_is_strict_frozen_and_closed() -> None:
    for model in set(generate.event_models().values()):
        config = model.model_config
        assert config.get("strict") and config.get("frozen") and config.get("extra") == "forbid", model


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"occurrence": "1"},
        {"occurrence": 0},
        {"event_id": "x"},
        {"timestamp": "2026-11-30 20:06:12"},
        {"event_name": "tool.call.began"},
        {"outcome": "fine"},
    ],
)
def test_what_the_contract_does_not_say_is_refused(change: dict) -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_json(orjson.dumps({**MINIMAL, **change}))


def test_json_form_reads_back_to_the_same_event() -> None:
    event = EVENT.validate_json(orjson.dumps(MINIMAL))
    assert isinstance(event, ToolCall)
    again = EVENT.validate_json(orjson.dumps(to_json(event)))
    assert again == event
    assert to_json(event)["severity"] == "info"


def test_topics_state_their_whole_configuration() -> None:
    for topic in topics.TOPICS:
        assert topic.config["message.timestamp.type"] == "LogAppendTime"
        assert int(topic.config["max.message.bytes"]) > topics.MAX_VALUE_BYTES
    assert topics.INPUT_TOPICS == (topics.TOOL_CALL, topics.MCP_RPC, topics.AGENT_ACTIVITY, topics.POLICY_DECISION)


def test_all_that_one_root_session_does_has_one_key() -> None:
    keys = {
        topics.record_key(
            {"event_name": name, "event_id": "e", "tenant_id": "t", "root_session_id": "r", "session_id": s}
        )
        for topic in topics.TOPICS
        if topic.kind == "input"
        for name in topic.events
        for s in ("r", "child")
    }
    assert keys == {b"t|r"}


def test_published_test_vectors_hold() -> None:
    vectors = orjson.loads((generate.REGISTRY / "test-vectors.json").read_bytes())
    for row in vectors["event_id"]:
        assert identity.event_id(row["delivery_id"], row["n"]) == row["event_id"]
    for row in vectors["call_id"]:
        assert identity.call_id(row["call_key"], row["occurrence"]) == row["call_id"]
    # These three are written out, so that a change of the scheme cannot regenerate itself into a pass.
    assert identity.join_key("", "claude_code", "s|1", "", "toolu_1") == "|claude_code|s%7C1||toolu_1"
    assert identity.event_id("01990000-0000-7abc-8000-00000abc0000", 4096) == "01990000-0000-7abc-8000-00000abc1000"
    assert identity.uuid7_ms("01990000-0000-7abc-8000-00000abc0000") == 0x019900000000


def test_the_registry_is_what_the_models_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schemas.generate", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\nrun: python -m schemas.generate"


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5), st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_joined_keys_never_collide(one: list[str], other: list[str]) -> None:
    assert (identity.join_key(*one) == identity.join_key(*other)) == (one == other)


@given(st.integers(0, 1 << 47))
def test_delivery_ids_carry_their_time(ms: int) -> None:
    made = identity.new_delivery_id(ms)
    assert identity.is_delivery_id(made)
    assert identity.uuid7_ms(made) == ms
    assert made.endswith("0000")


@given(st.integers(-(10**18), 10**18))
def test_times_are_fixed_width_and_read_back(ms: int) -> None:
    text = clock.to_rfc3339(ms)
    assert len(text) == 24
    assert clock.from_rfc3339(text) == min(max(ms, 0), clock.MAX_MS)
