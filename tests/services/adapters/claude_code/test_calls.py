"""The odd ways in which Claude Code's hooks tell of tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.adapters.recorded_hooks import T0, Json, Player, capture, payload

pytestmark = pytest.mark.unit

SESSION = "11111111-2222-4333-8444-555555555555"


def hook(name: str, call: str | None = "toolu_1", **fields: Any) -> Json:
    """A payload with what all have; `command` in place of a Bash call's whole input."""
    base: Json = {"session_id": SESSION, "cwd": "/home/dev/project", "prompt_id": "p1", "hook_event_name": name}
    command = fields.pop("command", "make test")
    if name not in ("PostToolBatch", "Stop", "SessionEnd", "SubagentStart", "SubagentStop"):
        base |= {"tool_name": "Bash", "tool_input": {"command": command}}
        if call is not None and name != "PermissionRequest":
            base["tool_use_id"] = call
    if name == "PostToolUse":
        base["tool_response"] = {"stdout": "", "stderr": "", "interrupted": False}
    return base | fields


def batch(*calls: tuple[str, Any], **fields: Any) -> Json:
    entries = [
        {"tool_name": "Bash", "tool_input": {"command": "make test"}, "tool_use_id": call, "tool_response": said}
        for call, said in calls
    ]
    return hook("PostToolBatch", tool_calls=entries, **fields)


def names(events: list[Json]) -> list[str]:
    return [event["event_name"] for event in events]


# how calls are named


def test_the_same_id_in_a_sub_agent_is_another_call() -> None:
    player = Player("claude_code")
    mine = player.play(hook("PreToolUse"))
    theirs = player.play(hook("PreToolUse", agent_id="a1", agent_type="reviewer"))
    assert mine[0]["call_id"] != theirs[0]["call_id"]
    assert theirs[0]["agent_role"] == "reviewer"
    assert "agent_role" not in mine[0]


def test_an_id_that_is_used_again_is_another_call() -> None:
    player = Player("claude_code")
    first = player.play(hook("PreToolUse")) + player.play(hook("PostToolUse"))
    second = player.play(hook("PreToolUse")) + player.play(hook("PostToolUse"))
    assert [event["occurrence"] for event in first + second] == [1, 1, 2, 2]


def test_an_end_can_come_before_its_start() -> None:
    player = Player("claude_code")
    (end,) = player.play(hook("PostToolUse"))
    (start,) = player.play(hook("PreToolUse"))
    assert start["call_id"] == end["call_id"]
    assert len(player.calls) == 0


def test_a_hook_that_is_registered_twice_is_told_once() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    (again,) = player.play(hook("PreToolUse"))
    assert (again["event_name"], again["reason"]) == ("agent.event.observed", "repeated")
    player.play(hook("PostToolUse"))
    (again,) = player.play(hook("PostToolUse"))
    assert (again["event_name"], again["reason"]) == ("agent.event.observed", "repeated")


def test_a_late_equal_start_is_a_call_of_its_own() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"), at_ms=T0)
    (later,) = player.play(hook("PreToolUse"), at_ms=T0 + 2_001)
    assert later["occurrence"] == 2


# what proves an end


def test_a_success_has_no_exit_code() -> None:
    (end,) = Player("claude_code").play(hook("PostToolUse", duration_ms=12))
    assert (end["outcome"], end["outcome_evidence"], end["duration_ms"]) == ("ok", "hook", 12)
    assert "exit_code" not in end


@pytest.mark.parametrize(
    ("text", "outcome", "evidence", "code"),
    [
        ("Exit code 1\nout", "error", "exit_status", 1),
        ("Exit code 127", "error", "exit_status", 127),
        ("Exit code 143\nCommand timed out after 2m 0s", "timeout", "exit_status", 143),
        ("Exit code 1\nit said: Command timed out after 1s", "error", "exit_status", 1),
        ("the output says Exit code 3", "error", "hook", None),
        ("Exit code 99999999999999999999", "error", "hook", None),
    ],
)
def test_failed_shell(text: str, outcome: str, evidence: str, code: int | None) -> None:
    (end,) = Player("claude_code").play(hook("PostToolUseFailure", error=text, is_interrupt=False))
    assert end["event_name"] == "tool.call.error"
    assert (end["outcome"], end["outcome_evidence"], end.get("exit_code")) == (outcome, evidence, code)
    assert end["output"]["is_error_result"] is True


def test_an_exit_code_is_only_read_from_a_shell() -> None:
    (end,) = Player("claude_code").play(hook("PostToolUseFailure", tool_name="Read", error="Exit code 1\nno"))
    assert (end["outcome_evidence"], end.get("exit_code")) == ("hook", None)


def test_an_interrupt_is_no_failure() -> None:
    (end,) = Player("claude_code").play(payload("claude_code", "PostToolUseFailure-interrupt.json"))
    assert (end["outcome"], end["outcome_evidence"], end["error"]["type"]) == ("cancelled", "hook", "interrupt")
    assert end["duration_ms"] == 1200


def test_an_mcp_error_code_is_told_but_proves_no_protocol_error() -> None:
    (end,) = Player("claude_code").play(payload("claude_code", "PostToolUseFailure-mcp-everything-get-sum.json"))
    assert (end["outcome"], end["outcome_evidence"], end["error"]["code"]) == ("error", "hook", -32602)


def test_a_result_too_large_for_the_model_is_a_success() -> None:
    (end,) = Player("claude_code").play(payload("claude_code", "PostToolUse-mcp-odd-srv-big.json"))
    assert (end["event_name"], end["outcome"]) == ("tool.call.completed", "ok")
    assert end["native"]["result_characters"] == 300_000
    assert "error" not in end


def test_a_background_shell_is_only_launched() -> None:
    player = Player("claude_code")
    (end,) = player.play(payload("claude_code", "PostToolUse-bash-background.json"))
    assert (end["outcome"], end["outcome_evidence"], end["background"]) == ("unknown", "none", True)
    assert end["native"]["background_task_id"] == "b83nqg9u2"
    # The batch comes at once and must not pass for the news that the call was refused.
    assert names(player.play(payload("claude_code", "PostToolBatch-bash-background.json"))) == ["tool.batch.completed"]


def test_a_launched_agent_names_its_child() -> None:
    (end,) = Player("claude_code").play(payload("claude_code", "PostToolUse-agent-background.json"))
    assert (end["outcome"], end["outcome_evidence"], end["background"]) == ("unknown", "none", True)
    assert end["native"]["child_agent_id"] == "a99966cce2303515d"


def test_a_shell_cut_off_did_not_succeed() -> None:
    cut = {"stdout": "half", "stderr": "", "interrupted": True}
    (end,) = Player("claude_code").play(hook("PostToolUse", tool_response=cut))
    assert (end["outcome"], end["outcome_evidence"]) == ("cancelled", "hook")


def test_the_file_before_an_edit_is_no_output() -> None:
    edit = payload("claude_code", "PostToolUse-edit.json")
    edit["tool_response"] = edit["tool_response"] | {"originalFile": "x" * 100_000}
    (end,) = Player("claude_code").play(edit)
    assert end["output"]["size_bytes"] < 1_000
    assert end["native"]["original_file_characters"] == 100_000


def test_the_end_tells_the_input_as_executed() -> None:
    player = Player("claude_code")
    (start,) = player.play(payload("claude_code", "PreToolUse-bash-before-rewrite.json"))
    (end,) = player.play(payload("claude_code", "PostToolUse-bash-rewritten.json"))
    assert start["call_id"] == end["call_id"]
    assert start["input"]["hash"] != end["input"]["hash"]


# batches


def test_a_batch_names_its_calls_in_the_models_order() -> None:
    player = Player("claude_code")
    ids = [player.play(hook("PreToolUse", call, command=call))[0]["call_id"] for call in ("a", "b")]
    for call in ("b", "a"):
        player.play(hook("PostToolUse", call, command=call))
    (event,) = player.play(batch(("a", "1"), ("b", "2")))
    assert (event["call_ids"], event["count"]) == (ids, 2)


def test_a_started_call_without_a_post_was_blocked() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    end, _ = player.play(batch(("toolu_1", "PreToolUse:Bash hook error: not here")))
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == ("tool.call.blocked", "blocked", "hook")
    assert (end["cause"], end["synthetic"]) == ("batch", True)
    assert end["error"]["type"] == "hook_denied"
    assert len(player.calls) == 0


def test_words_that_anybody_can_choose_prove_no_refusal() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    end, _ = player.play(batch(("toolu_1", "not now, please")))
    assert (end["outcome"], end["outcome_evidence"]) == ("blocked", "inferred")


def test_a_refusal_is_never_told_as_blocks() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    end, _ = player.play(batch(("toolu_1", [{"type": "text", "text": "result"}])))
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == (
        "tool.call.completed",
        "unknown",
        "inferred",
    )


def test_an_invalid_call_gets_a_start_that_no_hook_told() -> None:
    player = Player("claude_code")
    start, end, _ = player.play(payload("claude_code", "PostToolBatch-nosuchtool.json"))
    assert (start["event_name"], start["synthetic"]) == ("tool.call.started", True)
    assert start["input"]["size_bytes"] > 2
    assert (end["event_name"], end["outcome_evidence"]) == ("tool.call.error", "hook")
    assert end["error"]["type"] == "tool_not_found"
    assert start["call_id"] == end["call_id"]


def test_a_repeated_batch_adds_no_call() -> None:
    player = Player("claude_code")
    player.play(payload("claude_code", "PostToolBatch-nosuchtool.json"))
    again = player.play(payload("claude_code", "PostToolBatch-nosuchtool.json"))
    assert names(again) == ["tool.batch.completed"]


def test_an_invalid_call_under_an_id_in_use_again() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    player.play(hook("PostToolUse"))
    start, end, event = player.play(batch(("toolu_1", "<tool_use_error>Error: no</tool_use_error>")))
    assert start["occurrence"] == end["occurrence"] == 2
    assert event["call_ids"] == [end["call_id"]]


def test_a_batch_of_unseen_calls_proves_nothing() -> None:
    player = Player("claude_code")
    end, _ = player.play(batch(("toolu_1", "ok")))
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == (
        "tool.call.completed",
        "unknown",
        "inferred",
    )
    # With async hooks the call's own can come later; it is the same call.
    (start,) = player.play(hook("PreToolUse"))
    (own,) = player.play(hook("PostToolUse"))
    assert start["call_id"] == own["call_id"] == end["call_id"]
    assert own["outcome"] == "ok"


def test_a_post_that_comes_after_its_batch_wins() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    early, _ = player.play(batch(("toolu_1", "ok")))
    (own,) = player.play(hook("PostToolUse"))
    assert (early["outcome"], early["outcome_evidence"]) == ("blocked", "inferred")
    assert (own["outcome"], own["outcome_evidence"], own["call_id"]) == ("ok", "hook", early["call_id"])


@pytest.mark.parametrize("calls", [None, "x", {}, 7])
def test_a_batch_without_a_list_is_told_as_observed(calls: Any) -> None:
    (event,) = Player("claude_code").play(hook("PostToolBatch", tool_calls=calls))
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "unknown_shape")


def test_entries_that_cannot_be_read_are_counted() -> None:
    entries = [None, "x", {}, {"tool_use_id": None}, {"tool_use_id": "a", "tool_response": "x"}]
    *_, event = Player("claude_code").play(hook("PostToolBatch", tool_calls=entries))
    assert (event["count"], len(event["call_ids"]), event["native"]["unreadable_entries"]) == (5, 1, 4)


# approvals


def test_a_post_means_that_the_call_was_allowed() -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse"))
    (asked,) = player.play(hook("PermissionRequest", permission_suggestions=[{"type": "setMode"}]))
    assert asked["call_id"] == start["call_id"]
    assert asked["input"]["hash"] == start["input"]["hash"]
    assert asked["native"]["permission_suggestions"] == [{"type": "setMode"}]
    decided, end = player.play(hook("PostToolUse"))
    assert decided["event_name"] == "tool.call.approval_decided"
    assert decided["approval"] == {"decision": "allow_once", "inferred": True}
    assert (decided["synthetic"], decided["cause"]) == (True, "PostToolUse")
    assert end["outcome"] == "ok"


def test_a_failure_too_means_that_the_call_was_allowed() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    player.play(hook("PermissionRequest"))
    decided, _ = player.play(hook("PostToolUseFailure", error="Exit code 1"))
    assert decided["approval"]["decision"] == "allow_once"


def test_a_batch_alone_means_that_the_call_was_denied() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    player.play(hook("PermissionRequest"))
    decided, end, _ = player.play(batch(("toolu_1", "denied by a person")))
    assert decided["approval"]["decision"] == "deny"
    assert (end["outcome"], end["outcome_evidence"]) == ("blocked", "inferred")


def test_a_denial_that_was_only_inferred_is_revised() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    player.play(hook("PermissionRequest"))
    player.play(batch(("toolu_1", "ok")))
    decided, end = player.play(hook("PostToolUse"))
    assert decided["approval"]["decision"] == "allow_once"
    assert end["outcome"] == "ok"


def test_no_request_no_decision() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse"))
    assert names(player.play(hook("PostToolUse"))) == ["tool.call.completed"]


def test_between_equal_parallel_calls_nothing_is_guessed() -> None:
    player = Player("claude_code")
    calls = {player.play(hook("PreToolUse", call))[0]["call_id"] for call in ("a", "b")}
    (asked,) = player.play(hook("PermissionRequest"))
    assert asked["call_id"] not in calls
    assert asked["native"]["equal_calls"] == 2
    for call in ("a", "b"):
        assert names(player.play(hook("PostToolUse", call))) == ["tool.call.completed"]
    # A request that stands alone is no open call, so it cannot pile up.
    assert len(player.calls) == 0


def test_a_request_is_matched_by_input_among_calls_of_one_tool() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse", "a", command="one"))
    (start,) = player.play(hook("PreToolUse", "b", command="two"))
    (asked,) = player.play(hook("PermissionRequest", command="two"))
    assert asked["call_id"] == start["call_id"]


def test_a_rewritten_call_is_found_if_it_is_the_only_one_open() -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse", command="before"))
    (asked,) = player.play(hook("PermissionRequest", command="after"))
    assert asked["call_id"] == start["call_id"]
    assert asked["input"]["hash"] != start["input"]["hash"]


def test_a_request_of_another_agent_or_tool_does_not_match() -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse"))
    (other,) = player.play(hook("PermissionRequest", agent_id="a1"))
    (tool,) = player.play(hook("PermissionRequest", tool_name="PowerShell"))
    assert start["call_id"] not in (other["call_id"], tool["call_id"])
    assert other["call_id"] != tool["call_id"]


@pytest.mark.parametrize(
    ("end", "decision"),
    [
        (hook("PostToolUse"), "allow_once"),
        (hook("PostToolUseFailure", error="Exit code 2"), "allow_once"),
        (batch(("toolu_1", "denied")), "deny"),
        (hook("Stop"), "unknown"),
    ],
)
def test_a_request_that_arrives_after_the_end(end: Json, decision: str) -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse"))
    player.play(end)
    asked, decided = player.play(hook("PermissionRequest"))
    assert asked["call_id"] == decided["call_id"] == start["call_id"]
    assert decided["approval"] == {"decision": decision, "inferred": True}
    assert len(player.calls) == 0


def test_an_earlier_turns_call_is_not_taken_for_the_one_asked_about() -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse", prompt_id="p0"))
    player.play(hook("PostToolUse", prompt_id="p0"))
    (asked,) = player.play(hook("PermissionRequest"))
    assert asked["call_id"] != start["call_id"]


def test_the_classifiers_denial() -> None:
    player = Player("claude_code")
    denied = payload("claude_code", "PermissionDenied-auto-mode.json")
    (end,) = player.play(denied)
    assert (end["event_name"], end["outcome"], end["outcome_evidence"]) == ("tool.call.blocked", "blocked", "hook")
    assert end["error"] == {"type": "classifier_denied", "message_summary": "not asked for by the user"}


def test_without_hashes_of_inputs_calls_are_not_told_apart() -> None:
    player = Player("claude_code", capture=capture(hash_input=False))
    calls = {player.play(hook("PreToolUse", call, command=call))[0]["call_id"] for call in ("a", "b")}
    (asked,) = player.play(hook("PermissionRequest", command="a"))
    assert asked["call_id"] not in calls
    assert names(player.play(hook("PreToolUse", "a", command="a"))) == ["tool.call.started"]


# ends of turns and sessions


def test_stop_leaves_the_calls_of_background_agents_open() -> None:
    player = Player("claude_code")
    (mine,) = player.play(hook("PreToolUse", "a"))
    player.play(hook("PreToolUse", "b", agent_id="a1"))
    end, turn = player.play(hook("Stop"))
    assert (end["call_id"], end["outcome"], end["outcome_evidence"]) == (mine["call_id"], "unknown", "inferred")
    assert (end["cause"], turn["event_name"]) == ("stop", "turn.ended")
    assert len(player.calls) == 1
    end, _ = player.play(hook("SubagentStop", agent_id="a1"))
    assert (end["tool_call_id"], end["cause"]) == ("b", "subagent_stop")


def test_a_post_after_stop_still_counts() -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse"))
    player.play(hook("Stop"))
    (end,) = player.play(hook("PostToolUse"))
    assert (end["call_id"], end["outcome"]) == (start["call_id"], "ok")


def test_session_end_closes_all_calls() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse", "a"))
    player.play(hook("PermissionRequest"))
    player.play(hook("PreToolUse", "b", agent_id="a1"))
    decided, first, second, ended = player.play(hook("SessionEnd", reason="other"))
    assert decided["approval"]["decision"] == "unknown"
    for end in (first, second):
        assert (end["outcome"], end["outcome_evidence"], end["cause"]) == ("unknown", "inferred", "session_end")
    assert (ended["event_name"], ended["reason"]) == ("session.ended", "other")
    assert len(player.calls) == 0


def test_calls_of_other_sessions_stay_open() -> None:
    player = Player("claude_code")
    player.play(hook("PreToolUse", session_id="other"))
    assert names(player.play(hook("SessionEnd"))) == ["session.ended"]
    assert len(player.calls) == 1


def test_a_sub_agent_knows_its_launch_if_there_is_one() -> None:
    player = Player("claude_code")
    (launch,) = player.play(hook("PreToolUse", "a", tool_name="Agent", tool_input={"prompt": "x"}))
    (started,) = player.play(hook("SubagentStart", agent_id="a1", agent_type="reviewer"))
    assert started["parent_call_id"] == launch["call_id"]
    assert (started["child_agent_id"], started["agent_type"]) == ("a1", "reviewer")
    player.play(hook("PreToolUse", "b", tool_name="Agent", tool_input={"prompt": "y"}))
    (started,) = player.play(hook("SubagentStart", agent_id="a2", agent_type="reviewer"))
    assert "parent_call_id" not in started


# shapes


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionDenied"])
@pytest.mark.parametrize("call", [None, "", [], {}, True, 1.5])
def test_a_call_without_an_id_is_told_as_observed(name: str, call: Any) -> None:
    (event,) = Player("claude_code").play(hook(name, tool_use_id=call))
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "unknown_shape")


@pytest.mark.parametrize("value", [None, "text", 7, True, [], [1], {}])
def test_any_type_of_input_and_response_is_told(value: Any) -> None:
    player = Player("claude_code")
    (start,) = player.play(hook("PreToolUse", tool_input=value))
    (end,) = player.play(hook("PostToolUse", tool_input=value, tool_response=value))
    assert start["event_name"] == "tool.call.started"
    assert (end["call_id"], end["outcome"]) == (start["call_id"], "ok")
    assert start["input"]["hash"] == end["input"]["hash"]


def test_absent_input_counts_as_an_empty_object() -> None:
    absent, empty = hook("PreToolUse", "a"), hook("PreToolUse", "b", tool_input={})
    del absent["tool_input"]
    player = Player("claude_code")
    assert player.play(absent)[0]["input"]["hash"] == player.play(empty)[0]["input"]["hash"]


@pytest.mark.parametrize("duration", ["12", -1, None, [], True])
def test_a_duration_that_is_none_is_left_out(duration: Any) -> None:
    (end,) = Player("claude_code").play(hook("PostToolUse", duration_ms=duration))
    assert "duration_ms" not in end
    if duration not in (None, []):
        assert end["native"]["duration_ms"] == duration
