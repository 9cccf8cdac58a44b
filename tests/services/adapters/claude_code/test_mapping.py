"""Claude Code's MCP names, and the hooks that are no tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from services.adapters.claude_code import CONTRACT, RUNTIME, VERSIONS
from tests.services.adapters.recorded_hooks import BUNDLES, Json, Player, bundle, payload, session

pytestmark = pytest.mark.unit

KNOWN_HOOKS = [
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PostToolBatch",
    "PermissionRequest",
    "PermissionDenied",
    "UserPromptSubmit",
    "UserPromptExpansion",
    "SessionStart",
    "SessionEnd",
    "Setup",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "PreModelSwitch",
    "PostModelSwitch",
    "Notification",
    "Elicitation",
    "ElicitationResult",
    "InstructionsLoaded",
    "ConfigChange",
    "CwdChanged",
    "FileChanged",
    "DirectoryAdded",
    "WorktreeCreate",
    "WorktreeRemove",
    "TaskCreated",
    "TaskCompleted",
    "TeammateIdle",
    "MessageDisplay",
    "PreSkillShellCommand",
]


def play(file: str, **changes: Any) -> list[Json]:
    return Player("claude_code").play(payload("claude_code", file) | changes)


def test_identity() -> None:
    assert (RUNTIME, CONTRACT, VERSIONS) == ("claude_code", "claude_code/1", ("2.1.332", "2.1.197"))


@pytest.mark.parametrize("name", KNOWN_HOOKS)
def test_every_hook_that_the_client_has_is_known(name: str) -> None:
    events = Player("claude_code").play({"session_id": "s", "hook_event_name": name})
    assert "unknown_hook" not in [event.get("reason") for event in events]


# MCP names


@pytest.mark.parametrize(
    ("file", "server", "safe", "tool"),
    [
        ("PreToolUse-mcp-everything-get-sum.json", "everything", "everything", "get-sum"),
        ("PreToolUse-mcp-odd-srv-do-it.json", "odd__srv", "odd__srv", "do__it"),
        ("PreToolUse-mcp-odd-srv-2-do-it.json", "odd.srv 2", "odd_srv_2", "do__it"),
        ("PreToolUse-mcp-a-b-do-it.json", "a__b", "a__b", "do__it"),
    ],
)
def test_the_payload_names_the_server(file: str, server: str, safe: str, tool: str) -> None:
    (start,) = play(file)
    assert start["tool_source"] == "mcp"
    assert start["mcp"] == {
        "server_name": server,
        "safe_server_name": safe,
        "tool_name": tool,
        "operation": "tool",
    }


def test_without_it_the_first_underscores_split_and_that_is_a_guess() -> None:
    (start,) = play("PreToolUse-mcp-odd-srv-do-it.json", mcp_server=None)
    mcp = start["mcp"]
    assert (mcp["server_name"], mcp["tool_name"], mcp["name_guess"]) == ("odd", "srv__do__it", True)


def test_a_server_that_was_named_before_is_known_after() -> None:
    player = Player("claude_code")
    player.play(payload("claude_code", "PreToolUse-mcp-odd-srv-2-do-it.json"))
    player.play(payload("claude_code", "PreToolUse-mcp-a-b-do-it.json"))
    entry = {"tool_name": "mcp__odd_srv_2__do__it", "tool_input": {}, "tool_use_id": "x", "tool_response": "ok"}
    other = entry | {"tool_name": "mcp__a__b__do__it", "tool_use_id": "y"}
    first, second, _ = player.play({"hook_event_name": "PostToolBatch", "tool_calls": [entry, other]})
    assert (first["mcp"]["server_name"], first["mcp"]["tool_name"]) == ("odd.srv 2", "do__it")
    assert (second["mcp"]["server_name"], second["mcp"]["tool_name"]) == ("a__b", "do__it")
    assert "name_guess" not in first["mcp"]


def test_the_longest_known_server_wins() -> None:
    player = Player("claude_code")
    for n, server in enumerate(("a", "a__b", "a__b__c")):
        call = {"mcp_server": {"name": server}, "tool_name": f"mcp__{server}__x", "tool_use_id": f"{n}"}
        player.play({"hook_event_name": "PreToolUse", "session_id": "s", **call})
    (start,) = player.play(
        {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "mcp__a__b__do__it", "tool_use_id": "z"}
    )
    assert (start["mcp"]["server_name"], start["mcp"]["tool_name"]) == ("a__b", "do__it")


@pytest.mark.parametrize("server", [7, [], {"name": 3}, {"name": ["x"]}, {}, "everything"])
def test_a_server_field_of_another_shape_is_as_none(server: Any) -> None:
    (start,) = play("PreToolUse-mcp-everything-echo.json", mcp_server=server)
    assert start["mcp"]["tool_name"] == "echo"


@pytest.mark.parametrize("name", ["mcp__", "mcp__x", "mcp__x__", "mcp____", "mcp____y"])
def test_names_with_a_part_missing(name: str) -> None:
    (start,) = play("PreToolUse-bash.json", tool_name=name)
    assert (start["tool_source"], start["mcp"]["name_guess"]) == ("mcp", True)


def test_a_server_that_does_not_fit_its_tool_is_a_guess() -> None:
    (start,) = play("PreToolUse-mcp-everything-echo.json", mcp_server={"name": "another"})
    assert (start["mcp"]["server_name"], start["mcp"]["name_guess"]) == ("another", True)


@pytest.mark.parametrize(
    ("tool", "source"),
    [("Bash", "shell"), ("Edit", "file"), ("WebFetch", "web"), ("Agent", "core"), ("Brandnew", "unknown")],
)
def test_where_tools_come_from(tool: str, source: str) -> None:
    (start,) = play("PreToolUse-bash.json", tool_name=tool)
    assert (start["tool_name"], start.get("tool_source", "unknown")) == (tool, source)


# sessions and turns


def test_a_prompt_begins_a_turn() -> None:
    turn, prompt = play("UserPromptSubmit.json")
    assert (turn["event_name"], turn["turn_id"]) == ("turn.started", "690ef590-4191-40e7-a22f-b02f2f4f78ab")
    assert (prompt["event_name"], prompt["origin"]) == ("user.prompt.submitted", "user")
    assert prompt["content"]["size_bytes"] > 0
    assert "prompt" not in prompt["native"]


def test_the_clients_own_prompt_when_background_work_ends() -> None:
    _, prompt = play("UserPromptSubmit-task-notification.json")
    assert prompt["origin"] == "task_notification"
    native = prompt["native"]
    assert native["task_id"] == "a2241ef9394d292b7"
    assert native["tool_use_id"] == "toolu_99c5218609de4e2ebfeecefa"
    assert native["status"] == "completed"


def test_a_notifications_own_tags_come_before_those_in_its_result() -> None:
    text = "<task-notification>\n<status>completed</status>\n<result><status>failed</status></result>"
    _, prompt = play("UserPromptSubmit.json", prompt=text)
    assert prompt["native"]["status"] == "completed"


def test_session_starts_and_ends() -> None:
    (started,) = play("SessionStart-resume.json")
    assert (started["event_name"], started["reason"]) == ("session.started", "resume")
    assert started["native"]["context_tokens"] == 12496
    (started,) = play("SessionStart-clear.json")
    assert started["model"] == "some-model"
    (ended,) = play("SessionEnd-prompt-input-exit.json")
    assert (ended["event_name"], ended["reason"]) == ("session.ended", "prompt_input_exit")


def test_a_compaction_is_no_new_session() -> None:
    (start,) = play("SessionStart-compact.json")
    assert (start["event_name"], start["reason"]) == ("agent.event.observed", "no_event")
    assert start["native"]["source"] == "compact"
    (compacted,) = play("PostCompact-manual.json")
    assert (compacted["event_name"], compacted["reason"]) == ("session.compacted", "manual")
    assert compacted["content"]["size_bytes"] > 0


def test_a_compactions_sub_agent_has_no_type() -> None:
    (ended,) = play("SubagentStop.json", agent_type="")
    assert ended["event_name"] == "subagent.ended"
    assert "agent_type" not in ended


def test_a_turn_that_an_api_error_ended() -> None:
    call, turn = play("StopFailure-rate-limit.json")
    assert (call["event_name"], call["status"]) == ("llm.call.ended", "error")
    assert call["error"] == {"type": "rate_limit", "message_summary": "429"}
    assert (turn["event_name"], turn["success"], turn["error"]) == ("turn.ended", False, call["error"])
    call, _ = play("StopFailure-unknown.json")
    assert call["error"]["message_summary"] == "API Error: 400 scripted failure"


def test_stop_tells_the_answer_by_size_and_hash() -> None:
    (turn,) = play("Stop-background-tasks.json")
    assert (turn["event_name"], turn["reason"]) == ("turn.ended", "stop")
    assert turn["content"]["size_bytes"] > 0
    assert turn["native"]["background_tasks"][0]["id"] == "a2241ef9394d292b7"
    assert "last_assistant_message" not in turn["native"]


# the rest


def test_elicitations() -> None:
    (asked,) = play("Elicitation.json")
    assert (asked["event_name"], asked["mcp_server"], asked["mode"]) == (
        "mcp.elicitation.requested",
        "odd__srv",
        "form",
    )
    assert asked["content"]["size_bytes"] > 0
    (answered,) = play("ElicitationResult-accept.json")
    assert (answered["event_name"], answered["action"]) == ("mcp.elicitation.completed", "accept")
    assert answered["content"]["size_bytes"] > 0
    (declined,) = play("ElicitationResult-decline.json")
    assert declined["action"] == "decline"
    assert "content" not in declined


def test_what_steers_the_agent_changed() -> None:
    (changed,) = play("ConfigChange-local-settings.json")
    assert (changed["event_name"], changed["origin"]) == ("agent.config.changed", "local_settings")
    assert changed["path"] == "/home/dev/project/.claude/settings.local.json"
    (loaded,) = play("InstructionsLoaded-project.json")
    assert (loaded["event_name"], loaded["origin"], loaded["path"]) == (
        "agent.config.changed",
        "Project",
        "/home/dev/project/CLAUDE.md",
    )


@pytest.mark.parametrize(
    ("file", "kept", "content"),
    [
        ("MessageDisplay.json", "message_id", "delta"),
        ("CwdChanged.json", "new_cwd", ""),
        ("Notification-permission-prompt.json", "notification_type", "message"),
        ("UserPromptExpansion-slash-command.json", "command_name", "prompt"),
        ("TaskCreated.json", "task_id", "task_description"),
    ],
)
def test_hooks_without_an_event_are_observed(file: str, kept: str, content: str) -> None:
    (event,) = play(file)
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "no_event")
    assert event["size_bytes"] > 0
    assert event["hash"]
    assert kept in event["native"]
    assert content not in event["native"]


def test_a_hook_that_nobody_knows_is_told_by_size_and_hash_alone() -> None:
    (event,) = Player("claude_code").play({"session_id": "s", "hook_event_name": "Brandnew", "secret": "x"})
    assert (event["event_name"], event["reason"], event["source_event_name"]) == (
        "agent.event.observed",
        "unknown_hook",
        "Brandnew",
    )
    assert event["session_id"] == "s"
    assert "native" not in event


@pytest.mark.parametrize("value", [None, 7, "", [], {}, True])
def test_a_payload_that_names_no_hook(value: Any) -> None:
    (event,) = Player("claude_code").play({"hook_event_name": value})
    assert event["reason"] == "unknown_hook"


TAKEN = {
    "session_id",
    "hook_event_name",
    "prompt_id",
    "agent_id",
    "agent_type",
    "tool_name",
    "tool_input",
    "tool_use_id",
    "tool_response",
    "error",
    "duration_ms",
    "is_interrupt",
    "reason",
    "source",
    "model",
    "trigger",
    "prompt",
    "last_assistant_message",
    "compact_summary",
    "tool_calls",
    "mcp_server_name",
    "mode",
    "action",
    "message",
    "requested_schema",
    "url",
    "content",
    "file_path",
    "memory_type",
    "error_details",
    "title",
    "custom_instructions",
    "command_args",
    "delta",
    "task_subject",
    "task_description",
}


def test_no_field_is_lost() -> None:
    """Each field of a payload is in a field of the event, is content (kept by size and hash), or is in `native`."""
    entries = [*session("claude_code"), *(entry for name in BUNDLES for entry in bundle("claude_code", name))]
    for entry in entries:
        events = Player("claude_code").play(entry.payload)
        native = {key for event in events for key in event.get("native", {})}
        told = {name for name, value in entry.payload.items() if value not in (None, "", [], {})}
        assert told <= native | TAKEN, entry.name
