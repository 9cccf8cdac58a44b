"""Hermes tool calls in every odd case of the contract: which events, of which call, and what they say."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from tests.services.adapters.plugin_recordings import payload, played
from tests.services.adapters.recorded_hooks import Json, Player, of

pytestmark = pytest.mark.unit

SESSION = "20261130_180000_abcdef"
TASK = "0d1e2f3a-0000-4000-8000-000000000001"
TURN = f"{SESSION}:{TASK}:11111111"
ENDS = ("tool.call.completed", "tool.call.error", "tool.call.blocked")


def hook(name: str, thread: str = "main", /, **kwargs: Any) -> Json:
    ids = {"session_id": SESSION, "turn_id": TURN, "task_id": TASK, "api_request_id": f"{TURN}:api:1"}
    return {"hook": name, "kwargs": {**ids, **kwargs}, "thread": thread}


def pre(tool: str = "terminal", id: str = "call_1", thread: str = "main", /, **kwargs: Any) -> Json:
    given = {"tool_name": tool, "tool_call_id": id, "args": {"command": "true"}}
    return hook("pre_tool_call", thread, **{**given, **kwargs})


def post(tool: str = "terminal", id: str = "call_1", thread: str = "main", /, **kwargs: Any) -> Json:
    given = {"tool_name": tool, "tool_call_id": id, "args": {"command": "true"}, "duration_ms": 5, "status": "ok"}
    return hook("post_tool_call", thread, **{**given, "result": '{"output": "", "exit_code": 0}', **kwargs})


def inner(made: Json, thread: str = "Thread-5") -> Json:
    """The same call as execute_code makes it: with a task and nothing else."""
    empty = dict.fromkeys(("session_id", "turn_id", "tool_call_id", "api_request_id"), "")
    return {**made, "kwargs": {**made["kwargs"], **empty}, "thread": thread}


def shell(made: Json) -> Json:
    """The same hook call as a shell hook gets it on its standard input."""
    kwargs = dict(made["kwargs"])
    stdin = {"hook_event_name": made["hook"], "session_id": kwargs.pop("session_id"), "cwd": "/home/dev/project"}
    stdin |= {"tool_name": kwargs.pop("tool_name", None), "tool_input": kwargs.pop("args", None), "extra": kwargs}
    return stdin


def play(*payloads: Json) -> list[Json]:
    one = Player("hermes")
    return [event for each in payloads for event in one.play(each)]


def calls(events: list[Json]) -> list[Json]:
    return [event for event in events if event["event_name"].startswith("tool.call.")]


def test_an_id_is_only_good_within_its_turn() -> None:
    other = f"{SESSION}:{TASK}:22222222"
    first, _, again, second = calls(play(pre(), post(), pre(), pre(turn_id=other)))
    assert first["call_key"] == again["call_key"] != second["call_key"]
    assert (first["occurrence"], again["occurrence"], second["occurrence"]) == (1, 2, 1)


def test_an_end_before_its_start_is_the_same_call() -> None:
    end, start = calls(play(post(), pre()))
    assert end["call_id"] == start["call_id"]


# from inside execute_code


def test_the_recorded_calls_of_execute_code_pair_and_have_it_as_their_parent() -> None:
    events = [event for _, made in played("hermes", "session-execute-code") for event in calls(made)]
    outer = {event["call_id"] for event in events if event["tool_name"] == "execute_code"}
    within = [event for event in events if event["tool_name"] != "execute_code"]
    assert [event["tool_name"] for event in within] == ["terminal", "terminal", "read_file", "read_file"]
    assert {event["parent_call_id"] for event in within} == outer
    assert within[0]["call_id"] == within[1]["call_id"] != within[2]["call_id"] == within[3]["call_id"]
    assert {event["session_id"] for event in within} == {"20261130_184507_63a8bf"}
    assert all(event["turn_id"].startswith("20261130_184507_63a8bf:") for event in within)


def test_calls_without_ids_are_told_apart_by_order_and_by_thread() -> None:
    code = pre("execute_code", "call_code", args={"code": "…"})
    one, two = (inner(pre(), thread) for thread in ("Thread-5", "Thread-6"))
    done_one, done_two = (inner(post(), thread) for thread in ("Thread-5", "Thread-6"))
    _, a1, b1, b1_end, a1_end, a2, a2_end = calls(play(code, one, two, done_two, done_one, one, done_one))
    assert a1["call_id"] == a1_end["call_id"] != b1["call_id"] == b1_end["call_id"]
    assert a2["call_id"] == a2_end["call_id"] != a1["call_id"] and a2["occurrence"] == 2


def test_a_call_without_ids_and_without_a_known_task_is_told_all_the_same() -> None:
    start, end = calls(play(inner(pre()), inner(post())))
    assert start["call_id"] == end["call_id"] and "parent_call_id" not in start and "session_id" not in start


def test_a_call_of_another_task_is_no_parent() -> None:
    other = inner(pre())
    other["kwargs"]["task_id"] = "another"
    _, within = calls(play(pre("execute_code", "call_code"), other))
    assert "parent_call_id" not in within


# ends that no hook tells


def test_the_end_of_a_turn_closes_the_reads_of_the_bridge() -> None:
    other = pre("terminal", "call_9", turn_id=f"{SESSION}:{TASK}:22222222")
    events = play(pre("tool_search", "call_s"), pre("tool_describe", "call_d"), other, hook("on_session_end"))
    closed = of(events, *ENDS)
    assert [(event["tool_call_id"], event["cause"]) for event in closed] == [
        ("call_s", "turn_end"),
        ("call_d", "turn_end"),
    ]
    assert {(event["outcome"], event["outcome_evidence"]) for event in closed} == {("unknown", "inferred")}
    assert all(event["synthetic"] and event["tool_kind"] == "bridge" for event in closed)


def test_an_interrupted_turn_cancels_what_is_open() -> None:
    closed, turn = play(pre(), hook("on_session_end", interrupted=True, completed=False))[-2:]
    assert (closed["outcome"], closed["event_name"]) == ("cancelled", "tool.call.error")
    assert (turn["reason"], turn["success"]) == ("interrupted", False)


def test_a_late_end_stands_against_an_inferred_one() -> None:
    closed, _, late = play(pre(), hook("on_session_end"), post())[-3:]
    assert closed["call_id"] == late["call_id"] and late["outcome_evidence"] == "exit_status"


def test_the_exit_of_the_command_line_closes_every_turn() -> None:
    leaving = {"hook": "on_session_end", "kwargs": {"session_id": SESSION, "interrupted": True, "reason": "shutdown"}}
    events = play(pre(), pre("terminal", "call_2", turn_id=f"{SESSION}:{TASK}:22222222"), leaving)
    assert len(of(events, *ENDS)) == 2


# results


@pytest.mark.parametrize(
    ("tool", "kwargs", "end"),
    [
        ("terminal", {"result": '{"output": "x", "exit_code": 3, "error": null}'}, ("error", "exit_status")),
        ("terminal", {"result": '{"output": "", "exit_code": 124}'}, ("timeout", "exit_status")),
        ("terminal", {"result": '{"output": ""}'}, ("unknown", "none")),
        ("terminal", {"result": "cut off {"}, ("unknown", "none")),
        ("terminal", {"result": '{"exit_code": "0"}'}, ("unknown", "none")),
        ("terminal", {"args": {"background": True}}, ("unknown", "none")),
        ("terminal", {"result": '{"exit_code": -1, "status": "blocked"}', "status": "error"}, ("blocked", "hook")),
        ("terminal", {"result": '{"status": "cancelled"}', "status": "error"}, ("cancelled", "hook")),
        ("delegate_task", {"result": '{"results": []}'}, ("ok", "is_error")),
        ("memory", {"result": '{"success": false, "message": "full"}'}, ("error", "is_error")),
        ("memory", {"result": '{"status": "failed"}'}, ("error", "is_error")),
        ("memory", {"result": '{"error": "no"}', "status": None}, ("error", "is_error")),
        ("memory", {"result": "plain text"}, ("unknown", "none")),
        ("memory", {"result": "[1]"}, ("unknown", "none")),
        ("memory", {"result": "{}"}, ("unknown", "none")),
        ("memory", {"result": '{"a": 1}', "status": "odd"}, ("unknown", "none")),
        ("memory", {"result": '{"a": 1}', "status": 7}, ("unknown", "none")),
        ("memory", {"result": None, "status": "error", "error_message": "no"}, ("error", "is_error")),
    ],
)
def test_what_the_recordings_do_not_show(tool: str, kwargs: Json, end: tuple[str, str]) -> None:
    (found,) = of(play(post(tool, **kwargs)), *ENDS)
    assert (found["outcome"], found["outcome_evidence"]) == end


def test_a_launch_in_the_background_says_so() -> None:
    (launched,) = of(play(post(args={"command": "sleep 9", "background": True})), *ENDS)
    (delegated,) = of(play(post("delegate_task", result='{"status": "dispatched"}')), *ENDS)
    assert launched["background"] and delegated["background"]


def test_each_end_tells_what_ran_and_whether_it_was_rewritten() -> None:
    (start, same), (_, other) = (calls(play(pre(), end)) for end in (post(), post(args={"command": "rm -rf build"})))
    assert same["input"]["hash"] == start["input"]["hash"] and "arguments_rewritten" not in same.get("native", {})
    assert other["native"]["arguments_rewritten"] and other["facts"]["recursive_force"]


# MCP names


def test_the_toolset_of_the_process_proves_the_server() -> None:
    guess, proven, known = calls(
        play(
            pre("mcp__files_v2__read_text_file", "c1"),
            {**pre("mcp__files_v2__read_text_file", "c2"), "toolset": "mcp-files.v2"},
            pre("mcp__files_v2__list", "c3"),
        )
    )
    assert (guess["mcp"]["server_name"], guess["mcp"]["name_guess"]) == ("files_v2", True)
    assert (proven["mcp"]["server_name"], proven["mcp"]["tool_name"]) == ("files.v2", "read_text_file")
    assert (known["mcp"]["server_name"], known["mcp"]["tool_name"]) == ("files.v2", "list")
    assert "name_guess" not in proven["mcp"] and "name_guess" not in known["mcp"]


def test_a_server_with_two_underscores_is_cut_where_it_ends() -> None:
    (event,) = calls(play({**pre("mcp__my__srv__do"), "toolset": "mcp-my__srv"}))
    assert (event["mcp"]["server_name"], event["mcp"]["tool_name"]) == ("my__srv", "do")


# approvals


def asked(surface: str, name: str = "pre_approval_request", **more: Any) -> Json:
    kwargs = {"command": "rm -rf x", "description": "recursive delete", "surface": surface, "session_key": "default"}
    made = hook(name, tool_call_id="call_1", **kwargs, **more)
    return {**made, "kwargs": {key: value for key, value in made["kwargs"].items() if key != "session_id"}}


def test_a_human_is_asked_and_answers() -> None:
    answer = asked("cli", "post_approval_response", choice="session")
    events = calls(play(pre(), asked("smart"), asked("cli"), answer, post()))
    assert [event["event_name"].split(".")[-1] for event in events] == [
        "started",
        "approval_requested",
        "approval_decided",
        "completed",
    ]
    assert len({event["call_id"] for event in events}) == 1 and {event["session_id"] for event in events} == {SESSION}
    assert events[1]["policy"] == {"decision": "ask", "reason": "recursive delete"}
    assert events[2]["approval"] == {"decision": "allow_session"}


def test_what_a_model_decides_is_decided_without_a_human_asked() -> None:
    answer = asked("smart", "post_approval_response", choice="smart_deny", decided_by="aux_llm")
    _, smart, decided = play(pre(), asked("smart"), answer)
    assert smart["reason"] == "smart_approval"
    assert decided["approval"] == {"decision": "deny", "decided_by": "aux_llm"}


def test_the_session_of_a_request_is_in_its_turn_id() -> None:
    request = payload("hermes", "pre_approval_request-gateway")
    (event,) = play(request)
    assert event["session_id"] == request["kwargs"]["turn_id"].split(":")[0]
    assert event["tool_name"] == "terminal"
    (by_rule,) = play(payload("hermes", "pre_approval_request-plugin-rule-gateway"))
    assert by_rule["tool_name"] == "write_file"


def test_a_plugin_s_own_request_is_inferred_from_the_refusal() -> None:
    events = calls(play(payload("hermes", "post_tool_call-terminal-plugin-approval-denied")))
    assert [event["event_name"] for event in events] == ["tool.call.approval_decided", "tool.call.blocked"]
    assert events[0]["approval"] == {"decision": "deny", "inferred": True}
    # A gateway tells the answer itself: it is not inferred once more.
    told = asked("gateway", "post_approval_response", choice="deny")
    refused = post(result="{}", status="blocked", error_type="plugin_block", error_message="BLOCKED: User denied")
    assert len(of(play(pre(), told, refused), "tool.call.approval_decided")) == 1


# both forms at once


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("sspp"))))
def test_a_call_told_by_plugin_and_shell_hook_is_one_call(order: tuple[str, ...]) -> None:
    sides = {"p": iter((pre(), post())), "s": iter((shell(pre()), shell(post())))}
    one = Player("hermes")
    events = [event for side in order for event in one.play(next(sides[side]))]
    assert len(of(events, "tool.call.started")) == 1 and len(of(events, *ENDS)) == 1
    assert len({event["call_id"] for event in calls(events)}) == 1
    assert [event["reason"] for event in of(events, "agent.event.observed")] == ["duplicate"] * 2
    assert len(one.calls) == 0


def test_an_id_used_again_is_two_calls_in_both_forms() -> None:
    one = (pre(), shell(pre()), post(), shell(post()))
    events = calls(play(*one, *one))
    assert [event["occurrence"] for event in events] == [1, 1, 2, 2]


def test_what_the_plugin_tells_of_a_session_is_not_told_again_by_shell_hooks() -> None:
    begun = {"hook": "on_session_start", "kwargs": {"session_id": SESSION, "model": "m"}}
    for order in ((begun, shell(begun)), (shell(begun), begun)):
        first, second = play(*order)
        assert first["event_name"] == "session.started" and second["reason"] == "duplicate"
    request = hook("pre_api_request")
    assert len(of(play(request, shell(request)), "llm.call.started")) == 1


def test_shell_hooks_alone_tell_everything() -> None:
    names = ("on_session_start", "pre_llm_call", "pre_tool_call", "post_tool_call", "on_session_end")
    made = [pre() if name == "pre_tool_call" else post() if name == "post_tool_call" else hook(name) for name in names]
    events = play(*map(shell, made))
    assert [event["event_name"] for event in events] == [
        "session.started",
        "turn.started",
        "tool.call.started",
        "tool.call.completed",
        "turn.ended",
    ]
    assert events[2]["source_event_name"] == "shell:pre_tool_call"


# odd input


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tool_name": 5, "args": [1], "tool_call_id": {"a": 1}, "turn_id": []},
        {"args": "x", "result": {"a": 1}, "status": [], "duration_ms": "5", "error_type": 7},
        {"result": 12.5, "duration_ms": -1, "session_id": None, "task_id": 4},
    ],
)
def test_wrong_types_still_tell_a_call(kwargs: Json) -> None:
    for made in (pre(**kwargs), post(**kwargs), shell(pre(**kwargs)), shell(post(**kwargs))):
        assert calls(play(made))


def test_what_is_no_call_and_no_hook_is_observed() -> None:
    assert play(hook("pre_tool_call"))[0]["reason"] == "unknown_shape"
    assert play({"hook": "pre_tool_call", "kwargs": 3})[0]["reason"] == "unknown_shape"
    assert play({"hook": "no_such_hook", "kwargs": {"a": 1}})[0]["reason"] == "unknown_hook"
    assert play({"a": 1})[0]["reason"] == "unknown_hook"
    assert play({"hook_event_name": "no_such_hook", "extra": 5})[0]["reason"] == "unknown_hook"


def test_hooks_that_only_repeat_or_change_are_observed_without_their_content() -> None:
    said = "a sentence nobody else says"
    fields = dict.fromkeys(("result", "output", "response_text", "command", "final_response", "error_message"), said)
    for name in ("transform_tool_result", "transform_terminal_output", "transform_llm_output", "pre_verify"):
        (event,) = play(hook(name, tool_name="terminal", args={"command": said}, **fields))
        assert event["reason"] == "no_event_of_its_own" and said.encode() not in orjson.dumps(event)
    done = payload("hermes", "middleware_tool_execution.done-terminal")
    start = payload("hermes", "pre_tool_call-terminal-rewritten-by-middleware")
    assert play(start, done)[-1]["session_id"] == start["kwargs"]["session_id"]
