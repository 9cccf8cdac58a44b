"""Codex's hooks that are no tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from services.adapters.codex import CONTRACT, RUNTIME, VERSIONS
from tests.services.adapters.recorded_hooks import BUNDLES, Json, Player, bundle, payload, session

pytestmark = pytest.mark.unit

KNOWN_HOOKS = [
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PreCompact",
    "PostCompact",
    "SessionStart",
    "SessionEnd",
    "UserPromptSubmit",
    "SubagentStart",
    "SubagentStop",
    "Stop",
    "Interrupt",
    "PreModelRequest",
    "PostModelRequest",
]


def play(file: str, **changes: Any) -> list[Json]:
    return Player("codex").play(payload("codex", file) | changes)


def test_identity() -> None:
    assert (RUNTIME, CONTRACT, VERSIONS) == ("codex", "codex/1", ("0.171.0",))


@pytest.mark.parametrize("name", KNOWN_HOOKS)
def test_every_hook_that_the_client_has_is_known(name: str) -> None:
    events = Player("codex").play({"session_id": "s", "hook_event_name": name})
    assert "unknown_hook" not in [event.get("reason") for event in events]


def test_a_model_call_with_its_usage() -> None:
    (started,) = play("PreModelRequest-sampling.json")
    assert (started["event_name"], started["status"], started["attempt"]) == ("llm.call.started", "started", 1)
    assert started["model"] == "gpt-5.5"
    (ended,) = play("PostModelRequest-completed-sampling.json")
    assert (ended["event_name"], ended["status"]) == ("llm.call.ended", "completed")
    assert ended["usage"] == {
        "input_tokens": 10013,
        "output_tokens": 10,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "total_tokens": 10023,
    }
    assert ended["native"]["response_id"].startswith("resp_")
    assert "token_usage" not in ended["native"]


def test_start_and_end_of_a_model_call_share_its_id() -> None:
    player = Player("codex")
    calls: dict[str, list[str]] = {}
    for event in player.play_all(session("codex")):
        if event["event_name"].startswith("llm.call."):
            calls.setdefault(event["model_call_id"], []).append(event["event_name"])
    assert len(calls) == 30
    assert set(map(tuple, calls.values())) == {("llm.call.started", "llm.call.ended")}


@pytest.mark.parametrize(
    ("file", "status", "error"),
    [
        ("PostModelRequest-failed-sampling.json", "error", "Connection failed: error sending request"),
        ("PostModelRequest-cancelled-sampling.json", "cancelled", None),
    ],
)
def test_model_calls_that_gave_nothing(file: str, status: str, error: str | None) -> None:
    (ended,) = play(file)
    assert ended["status"] == status
    assert (ended.get("error") or {}).get("message_summary") == error
    assert "usage" not in ended


@pytest.mark.parametrize("status", [None, "brandnew", 7, []])
def test_a_status_that_nobody_knows(status: Any) -> None:
    (ended,) = play("PostModelRequest-completed-sampling.json", status=status)
    assert ended["status"] == "unknown"


@pytest.mark.parametrize(
    "usage", [None, "x", [], {}, {"input_tokens": "1"}, {"input_tokens": -1}, {"input_tokens": True}]
)
def test_usage_of_another_shape(usage: Any) -> None:
    (ended,) = play("PostModelRequest-completed-sampling.json", token_usage=usage)
    assert "usage" not in ended


def test_a_compaction_is_no_new_session() -> None:
    (start,) = play("SessionStart-compact.json")
    assert (start["event_name"], start["reason"]) == ("agent.event.observed", "no_event")
    (compacted,) = play("PostCompact-auto.json")
    assert (compacted["event_name"], compacted["reason"]) == ("session.compacted", "auto")
    (before,) = play("PreCompact-manual.json")
    assert before["event_name"] == "agent.event.observed"


@pytest.mark.parametrize("source", ["startup", "resume"])
def test_sessions_start(source: str) -> None:
    (started,) = play(f"SessionStart-{source}.json")
    assert (started["event_name"], started["reason"], started["model"]) == ("session.started", source, "gpt-5.5")


def test_a_sub_agents_prompt_is_not_the_users() -> None:
    turn, prompt = play("UserPromptSubmit.json")
    assert (turn["event_name"], prompt["origin"]) == ("turn.started", "user")
    turn, prompt = play("UserPromptSubmit-subagent.json")
    assert (prompt["origin"], prompt["agent_role"]) == ("agent", "default")
    assert "prompt" not in prompt["native"]


def test_a_stop_that_a_hook_refused() -> None:
    (turn,) = play("Stop-again.json")
    assert (turn["event_name"], turn["native"]["stop_hook_active"]) == ("turn.ended", True)


def test_sub_agents_start_and_end() -> None:
    (started,) = play("SubagentStart.json")
    (ended,) = play("SubagentStop.json")
    assert started["child_agent_id"] == ended["child_agent_id"]
    assert (started["agent_type"], started["event_name"], ended["event_name"]) == (
        "default",
        "subagent.started",
        "subagent.ended",
    )
    assert ended["content"]["size_bytes"] > 0


def test_a_hook_that_nobody_knows_is_told_by_size_and_hash_alone() -> None:
    (event,) = Player("codex").play({"session_id": "s", "hook_event_name": "Brandnew", "secret": "x"})
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "unknown_hook")
    assert "native" not in event


TAKEN = {
    "session_id",
    "hook_event_name",
    "turn_id",
    "agent_id",
    "agent_type",
    "tool_name",
    "tool_input",
    "tool_use_id",
    "tool_response",
    "reason",
    "source",
    "trigger",
    "prompt",
    "last_assistant_message",
    "model",
    "request_id",
    "attempt_number",
    "thread_id",
    "status",
    "error",
    "token_usage",
}


def test_no_field_is_lost() -> None:
    """Each field of a payload is in a field of the event, is content (kept by size and hash), or is in `native`."""
    entries = [*session("codex"), *(entry for name in BUNDLES for entry in bundle("codex", name))]
    for entry in entries:
        events = Player("codex").play(entry.payload)
        native = {key for event in events for key in event.get("native", {})}
        told = {name for name, value in entry.payload.items() if value not in (None, "", [], {})}
        assert told <= native | TAKEN, entry.name
