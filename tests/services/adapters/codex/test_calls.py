"""The odd ways in which Codex's hooks tell of tool calls, and of those whose end they do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.adapters.recorded_hooks import Json, Player, of, payload

pytestmark = pytest.mark.unit

SESSION = "01a00000-0000-7000-8000-000000000001"
CHILD = "01a00000-0000-7000-8000-000000000002"


def hook(name: str, call: str = "call_1", **fields: Any) -> Json:
    """A payload with what all have; `command` in place of a Bash call's whole input."""
    base: Json = {"session_id": SESSION, "turn_id": "t1", "cwd": "/home/dev/project", "hook_event_name": name}
    command = fields.pop("command", "make test")
    if name in ("PreToolUse", "PostToolUse", "PermissionRequest"):
        base |= {"tool_name": "Bash", "tool_input": {"command": command}}
        if name != "PermissionRequest":
            base["tool_use_id"] = call
    if name == "PostToolUse":
        base["tool_response"] = "ok\n"
    if name in ("PreModelRequest", "PostModelRequest"):
        base |= {"kind": "sampling", "request_id": "r1", "attempt_number": 1, "thread_id": SESSION}
    return base | fields


def mcp(name: str, call: str = "call_1", **fields: Any) -> Json:
    return hook(name, call, **({"tool_name": "mcp__files__read", "tool_input": {"path": "x"}} | fields))


def names(events: list[Json]) -> list[str]:
    return [event["event_name"] for event in events]


# what proves an end


@pytest.mark.parametrize("response", ["", "ok\n", "Process exited with code 1", "Exit code: 1\n", None, {"x": 1}])
def test_a_shells_end_proves_nothing(response: Any) -> None:
    (end,) = Player("codex").play(hook("PostToolUse", tool_response=response))
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == ("tool.call.completed", "unknown", "none")
    assert "exit_code" not in end


@pytest.mark.parametrize(
    ("response", "name", "outcome", "evidence"),
    [
        ({"content": []}, "tool.call.completed", "ok", "is_error"),
        ({"content": [], "isError": False}, "tool.call.completed", "ok", "is_error"),
        ({"content": [], "isError": True}, "tool.call.error", "error", "is_error"),
        ({"content": "x", "isError": True}, "tool.call.completed", "unknown", "none"),
        ("a text", "tool.call.completed", "unknown", "none"),
        (None, "tool.call.completed", "unknown", "none"),
        ([], "tool.call.completed", "unknown", "none"),
    ],
)
def test_an_mcp_result_says_whether_it_is_an_error(response: Any, name: str, outcome: str, evidence: str) -> None:
    (end,) = Player("codex").play(mcp("PostToolUse", tool_response=response))
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == (name, outcome, evidence)
    if evidence == "is_error":
        assert end["output"]["is_error_result"] is (outcome == "error")


@pytest.mark.parametrize(
    ("text", "outcome", "code"),
    [
        ("Exit code: 0\nWall time: 0 seconds\nOutput:\nSuccess.", "ok", 0),
        ("Exit code: 1\nOutput:\nno", "error", 1),
        ("done. Exit code: 0\n", "unknown", None),
        ("Exit code: 0", "unknown", None),
    ],
)
def test_a_patch_tells_its_exit_code(text: str, outcome: str, code: int | None) -> None:
    (end,) = Player("codex").play(hook("PostToolUse", tool_name="apply_patch", tool_response=text))
    assert (end["outcome"], end.get("exit_code")) == (outcome, code)
    assert end["outcome_evidence"] == ("none" if code is None else "exit_status")


@pytest.mark.parametrize("tool", ["view_image", "get_goal", "multi_agent_v1wait_agent", "read_mcp_resource"])
def test_built_ins_post_only_when_they_succeed(tool: str) -> None:
    (end,) = Player("codex").play(hook("PostToolUse", tool_name=tool))
    assert (end["outcome"], end["outcome_evidence"]) == ("ok", "hook")


def test_a_tool_that_nobody_recorded_proves_nothing() -> None:
    (end,) = Player("codex").play(hook("PostToolUse", tool_name="brandnew"))
    assert (end["outcome"], end["outcome_evidence"]) == ("unknown", "none")


def test_a_spawned_agent_is_only_launched() -> None:
    (end,) = Player("codex").play(payload("codex", "PostToolUse-spawn-agent.json"))
    assert (end["outcome"], end["outcome_evidence"], end["background"]) == ("unknown", "none", True)
    assert end["native"]["child_agent_id"] == "01a22dcc-95f5-7bc3-8854-bf821a14bfc1"


@pytest.mark.parametrize("response", ["", "no json", "[]", '{"agent_id":7}', '{"agent_id":null}', "[" * 5_000, None])
def test_a_launch_whose_answer_cannot_be_read(response: Any) -> None:
    (end,) = Player("codex").play(hook("PostToolUse", tool_name="spawn_agent", tool_response=response))
    assert end["background"] is True


# names


def test_glued_names_are_told_apart() -> None:
    (start,) = Player("codex").play(payload("codex", "PreToolUse-multi-agent-v1wait-agent.json"))
    assert (start["tool_name"], start["tool_source"]) == ("multi_agent_v1wait_agent", "core")
    assert start["native"]["plain_name"] == "wait_agent"


def test_calls_nested_in_code_mode_are_marked() -> None:
    player = Player("codex")
    (start,) = player.play(hook("PreToolUse", "exec-7c9e6679-7425-40de-944b-e07fc1f90ae7"))
    (end,) = player.play(hook("PostToolUse", "exec-7c9e6679-7425-40de-944b-e07fc1f90ae7"))
    assert start["native"]["nested"] is end["native"]["nested"] is True
    assert start["call_id"] == end["call_id"]


def test_no_payload_names_a_server_so_the_split_is_a_guess() -> None:
    (start,) = Player("codex").play(payload("codex", "PreToolUse-mcp-odd-srv-do-it.json"))
    assert (start["mcp"]["server_name"], start["mcp"]["tool_name"]) == ("odd", "srv__do__it")
    assert start["mcp"]["name_guess"] is True


def test_a_guess_teaches_nothing() -> None:
    player = Player("codex")
    player.play(payload("codex", "PreToolUse-mcp-a-do-it.json"))
    assert player.calls.servers("codex") == []


def test_a_server_that_answered_is_known_after() -> None:
    player = Player("codex")
    read = {"tool_name": "read_mcp_resource", "tool_input": {"server": "odd.srv__x", "uri": "odd://one"}}
    (start,) = player.play(hook("PreToolUse", **read))
    assert start["mcp"] == {"server_name": "odd.srv__x", "operation": "resources_read", "name_guess": True}
    (end,) = player.play(hook("PostToolUse", tool_response="{}", **read))
    assert end["mcp"] == {"server_name": "odd.srv__x", "operation": "resources_read"}
    (later,) = player.play(hook("PreToolUse", "call_2", tool_name="mcp__odd_srv__x__get_sum"))
    assert later["mcp"] == {
        "server_name": "odd.srv__x",
        "safe_server_name": "odd_srv__x",
        "tool_name": "get_sum",
        "operation": "tool",
    }


# calls without an end of their own


def test_the_next_model_request_closes_the_previous_messages_calls() -> None:
    player = Player("codex")
    (start,) = player.play(mcp("PreToolUse"))
    end, request = player.play(hook("PreModelRequest"))
    assert (end["call_id"], end["outcome"], end["outcome_evidence"]) == (start["call_id"], "unknown", "inferred")
    assert (end["cause"], end["synthetic"]) == ("model_request", True)
    assert request["event_name"] == "llm.call.started"


def test_it_leaves_shells_open() -> None:
    player = Player("codex")
    (start,) = player.play(hook("PreToolUse"))
    assert names(player.play(hook("PreModelRequest"))) == ["llm.call.started"]
    (end,) = player.play(hook("PostToolUse"))
    assert end["call_id"] == start["call_id"]


def test_the_end_of_a_model_request_closes_nothing() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse"))
    assert names(player.play(hook("PostModelRequest", status="completed"))) == ["llm.call.ended"]


def test_a_retry_closes_nothing() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse"))
    assert names(player.play(hook("PreModelRequest", attempt_number=2))) == ["llm.call.started"]


def test_each_thread_closes_its_own_calls() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse", "mine"))
    player.play(mcp("PreToolUse", "theirs", agent_id=CHILD, agent_type="default"))
    end, _ = player.play(hook("PreModelRequest", agent_id=CHILD, thread_id=CHILD))
    assert end["tool_call_id"] == "theirs"
    end, _ = player.play(hook("PreModelRequest"))
    assert end["tool_call_id"] == "mine"


def test_a_thread_without_an_agent_id_is_the_agent() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse", "theirs", agent_id=CHILD))
    end, request = player.play(hook("PreModelRequest", thread_id=CHILD))
    assert end["tool_call_id"] == "theirs"
    assert request["agent_id"] == CHILD


def test_a_post_after_an_inferred_end_wins() -> None:
    player = Player("codex")
    (start,) = player.play(mcp("PreToolUse"))
    player.play(hook("PreModelRequest"))
    (end,) = player.play(mcp("PostToolUse", tool_response={"content": []}))
    assert (end["call_id"], end["outcome"], end["outcome_evidence"]) == (start["call_id"], "ok", "is_error")


def test_stop_closes_shells_too_but_not_those_of_sub_agents() -> None:
    player = Player("codex")
    player.play(hook("PreToolUse", "mine"))
    player.play(hook("PreToolUse", "theirs", agent_id=CHILD))
    end, turn = player.play(hook("Stop", last_assistant_message="done"))
    assert (end["tool_call_id"], end["outcome"], end["cause"]) == ("mine", "unknown", "stop")
    assert turn["content"]["size_bytes"] > 0
    end, _ = player.play(hook("SubagentStop", agent_id=CHILD))
    assert (end["tool_call_id"], end["cause"]) == ("theirs", "subagent_stop")


def test_an_interrupt_cancels_the_turns_calls() -> None:
    player = Player("codex")
    player.play(hook("PreToolUse", "before", turn_id="t0"))
    player.play(hook("PreToolUse", "cut"))
    player.play(hook("PermissionRequest"))
    decided, end, turn = player.play(hook("Interrupt"))
    assert decided["approval"] == {"decision": "cancelled", "inferred": True}
    assert (end["event_name"], end["tool_call_id"]) == ("tool.call.error", "cut")
    assert (end["outcome"], end["outcome_evidence"], end["cause"]) == ("cancelled", "inferred", "interrupt")
    assert (turn["event_name"], turn["reason"]) == ("turn.ended", "interrupt")
    assert len(player.calls) == 1


def test_session_end_closes_all_calls() -> None:
    player = Player("codex")
    player.play(hook("PreToolUse", "mine"))
    player.play(hook("PreToolUse", "theirs", agent_id=CHILD))
    first, second, ended = player.play(hook("SessionEnd", reason="other"))
    assert {first["cause"], second["cause"]} == {"session_end"}
    assert ended["event_name"] == "session.ended"
    assert len(player.calls) == 0


def test_a_patch_in_a_heredoc_ends_with_the_turn() -> None:
    player = Player("codex")
    patch = payload("codex", "PreToolUse-bash-patch-in-shell.json")
    player.play(patch)
    stop = {name: patch[name] for name in ("session_id", "turn_id")} | {"hook_event_name": "Stop"}
    end, _ = player.play(stop)
    assert (end["outcome"], end["outcome_evidence"]) == ("unknown", "inferred")


# approvals


def test_the_models_justification_is_no_part_of_the_call() -> None:
    player = Player("codex")
    (start,) = player.play(hook("PreToolUse"))
    (other,) = player.play(hook("PreToolUse", "call_2", command="make clean"))
    asked = {"command": "make test", "description": "Need it?"}
    (request,) = player.play(hook("PermissionRequest", tool_input=asked))
    assert request["call_id"] == start["call_id"] != other["call_id"]
    decided, _ = player.play(hook("PostToolUse"))
    assert decided["approval"] == {"decision": "allow_once", "inferred": True}


def test_a_description_that_is_an_argument_counts() -> None:
    player = Player("codex")
    (start,) = player.play(mcp("PreToolUse", "a", tool_input={"description": "one"}))
    player.play(mcp("PreToolUse", "b", tool_input={"description": "two"}))
    (request,) = player.play(mcp("PermissionRequest", tool_input={"description": "one"}))
    assert request["call_id"] == start["call_id"]


def test_what_a_model_request_closes_was_decided_somehow() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse"))
    player.play(mcp("PermissionRequest"))
    decided, end, _ = player.play(hook("PreModelRequest"))
    assert decided["approval"] == {"decision": "unknown", "inferred": True}
    assert (end["outcome"], end["outcome_evidence"]) == ("unknown", "inferred")


def test_a_late_post_tells_that_it_was_allowed() -> None:
    player = Player("codex")
    player.play(mcp("PreToolUse"))
    player.play(mcp("PermissionRequest"))
    player.play(hook("PreModelRequest"))
    decided, _ = player.play(mcp("PostToolUse", tool_response={"content": []}))
    assert decided["approval"]["decision"] == "allow_once"


def test_between_equal_parallel_calls_nothing_is_guessed() -> None:
    player = Player("codex")
    calls = {player.play(hook("PreToolUse", call))[0]["call_id"] for call in ("a", "b")}
    (asked,) = player.play(hook("PermissionRequest"))
    assert asked["call_id"] not in calls
    assert asked["native"]["equal_calls"] == 2


# sub-agents


def test_a_sub_agent_knows_its_launch_if_there_is_one() -> None:
    player = Player("codex")
    (launch,) = player.play(hook("PreToolUse", tool_name="spawn_agent", tool_input={"message": "x"}))
    (started,) = player.play(hook("SubagentStart", agent_id=CHILD, agent_type="default"))
    assert started["parent_call_id"] == launch["call_id"]
    assert (started["child_agent_id"], started["agent_role"]) == (CHILD, "default")


def test_the_same_id_in_a_sub_agent_is_another_call() -> None:
    player = Player("codex")
    mine = player.play(hook("PreToolUse"))
    theirs = player.play(hook("PreToolUse", agent_id=CHILD))
    assert mine[0]["call_id"] != theirs[0]["call_id"]


# shapes


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse"])
@pytest.mark.parametrize("call", [None, "", [], {}, True])
def test_a_call_without_an_id_is_told_as_observed(name: str, call: Any) -> None:
    (event,) = Player("codex").play(hook(name, tool_use_id=call))
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "unknown_shape")


@pytest.mark.parametrize("value", [None, "text", 7, True, [], [1], {}])
def test_any_type_of_input_and_response_is_told(value: Any) -> None:
    player = Player("codex")
    (start,) = player.play(hook("PreToolUse", tool_input=value))
    (end,) = player.play(hook("PostToolUse", tool_input=value, tool_response=value))
    assert (start["event_name"], end["call_id"]) == ("tool.call.started", start["call_id"])
    player.play(hook("PermissionRequest", tool_input=value))


def test_a_hook_that_is_registered_twice_is_told_once() -> None:
    player = Player("codex")
    events = [event for name in ("PreToolUse", "PostToolUse") for _ in range(2) for event in player.play(hook(name))]
    assert names(of(events, "tool.call.started", "tool.call.completed")) == [
        "tool.call.started",
        "tool.call.completed",
    ]
    assert [event["reason"] for event in of(events, "agent.event.observed")] == ["repeated", "repeated"]
