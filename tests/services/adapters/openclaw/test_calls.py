"""OpenClaw tool calls in every odd case of the contract: which events, of which call, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.adapters.plugin_recordings import payload, played
from tests.services.adapters.recorded_hooks import T0, Json, Player, of

pytestmark = pytest.mark.unit

ENDS = ("tool.call.completed", "tool.call.error", "tool.call.blocked")
TRACE = {"traceId": "a" * 32, "spanId": "b" * 16, "parentSpanId": "c" * 16, "traceFlags": "01"}


def hook(name: str, ctx: Json | None = None, /, **event: Any) -> Json:
    ids = {"runId": "run", "sessionId": "s-1", "sessionKey": "agent:main:main", "agentId": "main"}
    return {"hook": name, "event": {"runId": "run", **event}, "ctx": {**ids, **(ctx or {})}}


def before(tool: str = "exec", id: str = "call_1", ctx: Json | None = None, **event: Any) -> Json:
    return hook("before_tool_call", ctx, toolName=tool, toolCallId=id, **{"params": {"command": "true"}, **event})


def after(tool: str = "exec", id: str = "call_1", **event: Any) -> Json:
    result = {"content": [{"type": "text", "text": "done"}], "details": {"status": "completed", "exitCode": 0}}
    given = {"params": {"command": "true"}, "result": result, "durationMs": 40, **event}
    return hook("after_tool_call", None, toolName=tool, toolCallId=id, **given)


def play(*payloads: Json) -> list[Json]:
    one = Player("openclaw")
    return [event for each in payloads for event in one.play(each)]


def calls(events: list[Json]) -> list[Json]:
    return [event for event in events if event["event_name"].startswith("tool.call.")]


def test_a_before_that_comes_after_its_after_is_the_same_call() -> None:
    one = Player("openclaw")
    made, start, end = one.play(after())
    (late,) = one.play(before())
    assert made["event_name"] == "session.started"
    assert start["synthetic"] and start["cause"] == "after_without_before"
    assert {start["call_id"], end["call_id"]} == {late["call_id"]} and late["occurrence"] == 1
    assert len(one.calls) == 0


def test_a_made_up_start_lies_before_its_end_by_the_call_s_duration() -> None:
    one = Player("openclaw")
    _, start, end = one.play(after(durationMs=1500), at_ms=T0 + 5_000)
    assert (start["timestamp"], end["timestamp"]) == ("2026-11-30T18:51:32.500Z", "2026-11-30T18:51:34.000Z")


def test_an_id_used_again_in_one_run_is_another_call() -> None:
    events = calls(play(before(), after(), before(), after()))
    assert [event["occurrence"] for event in events] == [1, 1, 2, 2]
    assert len({event["call_id"] for event in events}) == 2


def test_one_id_in_two_runs_is_two_calls() -> None:
    other = before()
    other["event"]["runId"] = other["ctx"]["runId"] = "run-2"
    first, second = calls(play(before(), other))
    assert first["call_key"] != second["call_key"]


def test_calls_without_an_id_pair_by_tool() -> None:
    events = calls(play(before(id=""), before("read", id=""), after("read", id=""), after(id="")))
    assert [event["tool_name"] for event in events] == ["exec", "read", "read", "exec"]
    assert events[0]["call_id"] == events[3]["call_id"] != events[1]["call_id"] == events[2]["call_id"]


def test_the_bridge_wraps_and_what_it_calls_is_linked_to_it() -> None:
    inner_id = "tool_search_code:call:with:colons:srv__echo:1"
    outer = before("tool_call", "call:with:colons", params={"id": "srv__echo", "args": {}})
    inner = before("srv__echo", inner_id, params={})
    for order in ((outer, inner), (inner, outer)):
        events = {event["tool_name"]: event for event in calls(play(*order))}
        assert events["tool_call"]["wrapper"] and "wrapper" not in events["srv__echo"]
        assert events["srv__echo"]["parent_call_id"] == events["tool_call"]["call_id"]
        assert events["srv__echo"]["parent_span_id"] == events["tool_call"]["span_id"]


def test_a_tool_that_is_only_called_tool_call_wraps_nothing() -> None:
    (event,) = calls(play(before("tool_call", params={"number": "555"})))
    assert "wrapper" not in event


def test_the_recorded_bridge_links_both_pairs() -> None:
    events = [event for _, made in played("openclaw", "session-tool-search") for event in calls(made)]
    outer = {event["tool_call_id"]: event["call_id"] for event in events if event.get("wrapper")}
    inner = {event["tool_call_id"]: event["parent_call_id"] for event in events if "parent_call_id" in event}
    assert set(outer) == {"call_search020", "call_search030", "call_search040"}  # the last was blocked: no inner
    assert inner == {
        "tool_search_code:call_search020:everything__echo:1": outer["call_search020"],
        "tool_search_code:call_search030:files-v2__read_text_file:2": outer["call_search030"],
    }


# MCP names


def mcp_after(tool: str, server: str, name: str, id: str = "call_1") -> Json:
    return after(tool, id, result={"content": [], "details": {"mcpServer": server, "mcpTool": name}})


def test_a_server_is_guessed_until_a_result_told_its_name() -> None:
    guess, proven, known = of(
        play(
            before("files-v2__read", "c1"),
            mcp_after("files-v2__read", "files.v2", "read", "c1"),
            before("files-v2__list", "c2"),
        ),
        "tool.call.started",
        "tool.call.completed",
    )
    assert guess["tool_source"] == "mcp"
    assert guess["mcp"] == {
        "server_name": "files-v2",
        "safe_server_name": "files-v2",
        "tool_name": "read",
        "operation": "tool",
        "name_guess": True,
    }
    assert (proven["mcp"]["server_name"], proven["mcp"].get("name_guess")) == ("files.v2", None)
    assert (known["mcp"]["server_name"], known["mcp"]["tool_name"]) == ("files.v2", "list")
    assert "name_guess" not in known["mcp"]


def test_a_server_name_that_starts_with_a_digit_is_known_by_its_safe_name() -> None:
    events = play(mcp_after("mcp-9files__read", "9files", "read", "c1"), before("mcp-9files__list", "c2"))
    assert calls(events)[-1]["mcp"]["server_name"] == "9files"


def test_two_servers_with_one_safe_name_stay_a_guess() -> None:
    cut = "s" * 30
    events = play(
        mcp_after(f"{cut}__x", f"{cut}-one", "x", "c1"),
        mcp_after(f"{cut}-2__x", f"{cut}-two", "x", "c2"),
        before(f"{cut}__y", "c3"),
    )
    assert calls(events)[-1]["mcp"]["name_guess"]


def test_the_plugin_knows_servers_from_the_configuration() -> None:
    (event,) = calls(play({**before("files-v2__read"), "mcpServer": "files.v2"}))
    assert event["mcp"]["server_name"] == "files.v2" and "name_guess" not in event["mcp"]


@pytest.mark.parametrize(
    ("tool", "source"),
    [("exec", "shell"), ("write", "file"), ("web_fetch", "web"), ("browser", "browser"), ("cron", "core")],
)
def test_core_tools_are_known_by_name(tool: str, source: str) -> None:
    (event,) = calls(play(before(tool)))
    assert event["tool_source"] == source and "mcp" not in event


def test_a_plugin_s_tool_is_of_unknown_source() -> None:
    (event,) = calls(play(before("weather_report")))
    assert "tool_source" not in event


# results


def test_the_bare_words_error_and_failed_give_way_to_the_content() -> None:
    text = {"content": [{"type": "text", "text": "no such table"}], "details": {"status": "error"}}
    for word in ("error", "failed"):
        (end,) = of(play(after("db", error=word, result=text)), *ENDS)
        assert end["error"]["message_summary"] == "no such table"


def test_a_block_is_told_with_its_reason() -> None:
    (end,) = of(play(payload("openclaw", "after_tool_call-mcp-blocked")), *ENDS)
    assert end["policy"] == {"decision": "deny", "reason": "blocked by policy test-rule"}
    assert end["error"]["type"] == "plugin-before-tool-call"


def test_each_end_tells_what_ran_and_whether_it_was_rewritten() -> None:
    *_, before_, same = play(before(), after())
    *_, other = play(before(), after(params={"command": "rm -rf build"}))
    assert same["input"]["hash"] == before_["input"]["hash"] and "params_rewritten" not in same["native"]
    assert (
        other["native"]["params_rewritten"]
        and other["input"]["hash"] != same["input"]["hash"]
        and other["input"]["hash"]
        and other["facts"]["recursive_force"]
    )


@pytest.mark.parametrize(
    ("tool", "event", "end"),
    [
        ("exec", {"result": None}, ("unknown", "none")),
        ("exec", {"result": {"content": [], "details": {}}}, ("unknown", "none")),
        ("exec", {"result": {"details": {"exitCode": None, "exitSignal": "SIGKILL"}}}, ("error", "exit_status")),
        ("exec", {"result": {"details": {"exitCode": "0"}}}, ("unknown", "none")),
        ("exec", {"error": "Aborted", "result": {"details": {}}}, ("cancelled", "hook")),
        ("read", {"result": None}, ("unknown", "none")),
        ("read", {"result": {"details": {"status": "error", "error": "gone"}}}, ("error", "is_error")),
        ("process", {"result": {"details": {"status": "running", "exitCode": 1}}}, ("ok", "is_error")),
        ("exec", {"error": "x (gateway unavailable)", "result": {}}, ("blocked", "hook")),
    ],
)
def test_what_the_recordings_do_not_show(tool: str, event: Json, end: tuple[str, str]) -> None:
    (found,) = of(play(after(tool, **event)), *ENDS)
    assert (found["outcome"], found["outcome_evidence"]) == end


def test_the_words_of_a_refusal_in_a_tool_s_own_text_refuse_nothing() -> None:
    text = {"content": [{"type": "text", "text": "Denied by user"}], "details": {"mcpServer": "a", "mcpTool": "b"}}
    (end,) = of(play(after("a__b", error="error", result=text)), *ENDS)
    assert end["outcome"] == "error"


# approvals


def requested(id: str = "call_1") -> Json:
    request = {"toolName": "exec", "toolCallId": id, "runId": "run", "sessionKey": "agent:main:main", "title": "Run"}
    return {"hook": "gateway:plugin.approval.requested", "event": {"id": "plugin:1", "request": request}}


def resolved(decision: str, by: str | None = "cli") -> Json:
    event = {"id": "plugin:1", "decision": decision, "resolvedBy": by, "request": requested()["event"]["request"]}
    return {"hook": "gateway:plugin.approval.resolved", "event": event}


def resolution(decision: str) -> Json:
    return {"hook": "requireApproval.onResolution", "decision": decision, "toolCallId": "call_1"}


def test_a_request_and_its_answer_belong_to_the_call_and_its_session() -> None:
    events = calls(play(before(), requested(), resolved("allow-once"), after()))
    assert [event["event_name"].split(".")[-1] for event in events] == [
        "started",
        "approval_requested",
        "approval_decided",
        "completed",
    ]
    assert len({event["call_id"] for event in events}) == 1
    assert {event["session_id"] for event in events} == {"s-1"}
    assert events[2]["approval"] == {"decision": "allow_once", "decided_by": "cli"}


def test_the_gateway_s_denial_by_nobody_is_a_time_out() -> None:
    events = play(before(), requested(), resolved("deny", by=None))
    assert events[-1]["approval"] == {"decision": "timeout"}


def test_one_answer_told_by_gateway_and_plugin_is_decided_once() -> None:
    for answers in ((resolved("deny"), resolution("deny")), (resolution("deny"), resolved("deny"))):
        events = play(before(), requested(), *answers)
        assert len(of(events, "tool.call.approval_decided")) == 1
        assert events[-1]["reason"] == "duplicate"


def test_a_second_request_can_be_answered_too() -> None:
    events = play(before(), requested(), resolved("allow-once"), requested(), resolved("deny"))
    assert [event["approval"]["decision"] for event in of(events, "tool.call.approval_decided")] == [
        "allow_once",
        "deny",
    ]


def test_a_request_that_comes_before_its_call_belongs_to_it() -> None:
    events = calls(play(requested(), before()))
    assert {event["occurrence"] for event in events} == {1} and len({event["call_id"] for event in events}) == 1


def test_another_plugin_s_denied_request_is_inferred_from_the_refusal() -> None:
    events = calls(play(payload("openclaw", "after_tool_call-mcp-denied")))
    assert [event["event_name"] for event in events] == [
        "tool.call.started",
        "tool.call.approval_decided",
        "tool.call.blocked",
    ]
    assert events[1]["approval"] == {"decision": "deny", "inferred": True} and events[1]["synthetic"]


def test_an_answer_about_no_known_call_is_only_observed() -> None:
    (event,) = play(resolution("deny"))
    assert (event["event_name"], event["reason"]) == ("agent.event.observed", "unknown_call")


# the rest


def test_what_goes_to_the_transcript_belongs_to_the_call() -> None:
    persist = payload("openclaw", "tool_result_persist-mcp")
    start = payload("openclaw", "before_tool_call-mcp")
    persist["event"]["toolCallId"] = start["event"]["toolCallId"]
    events = play(start, persist)
    assert events[-1]["event_name"] == "tool.result.persisted" and events[-1]["call_id"] == events[-2]["call_id"]
    assert play(persist)[-1]["reason"] == "unknown_call"


def test_the_trace_of_the_runtime_holds_for_the_whole_call() -> None:
    events = calls(play(before(ctx={"trace": TRACE}), requested(), after()))
    assert {event["trace_id"] for event in events} == {"a" * 32}
    assert events[0]["parent_span_id"] == "b" * 16


@pytest.mark.parametrize("bad", [{"traceId": "A" * 32}, {"traceId": "0" * 32}, {"traceId": 7, "spanId": []}, "x", None])
def test_a_trace_that_is_none_is_derived(bad: Any) -> None:
    first, second = calls(play(before(ctx={"trace": bad}), after()))
    assert len(first["trace_id"]) == 32 and first["trace_id"] == second["trace_id"]


def test_diagnostics_never_make_a_second_call() -> None:
    made = [event for _, events in played("openclaw", "session-diagnostics") for event in events]
    assert {event["event_name"] for event in made} == {"agent.event.observed"}
    assert {event["reason"] for event in made} == {"diagnostic"}


def test_the_payload_s_own_time_is_taken_if_it_is_plausible() -> None:
    said = Player("openclaw").play({**before(), "ts": T0 / 1000 - 60}, at_ms=T0)
    absurd = Player("openclaw").play({**before(), "ts": 1e300}, at_ms=T0)
    assert said[-1]["timestamp"] == "2026-11-30T18:50:29.000Z"
    assert absurd[-1]["timestamp"] == "2026-11-30T18:51:29.000Z"


@pytest.mark.parametrize(
    "event",
    [
        {"toolName": 5, "params": [1], "toolCallId": {"a": 1}},
        {"toolName": "exec", "params": "echo", "toolCallId": 12, "result": [], "error": {}, "durationMs": "x"},
        {"toolName": "exec", "durationMs": -1, "result": {"content": {"a": 1}, "details": []}, "error": True},
        {"toolName": "exec", "result": {"content": [None, {"text": 5}], "details": {"status": []}}, "error": "error"},
    ],
)
def test_wrong_types_still_tell_a_call(event: Json) -> None:
    for name in ("before_tool_call", "after_tool_call"):
        assert calls(play(hook(name, None, **event)))


def test_a_call_without_a_name_and_an_event_that_is_none_are_observed() -> None:
    assert play({"hook": "after_tool_call", "event": {"params": {}}})[-1]["reason"] == "unknown_shape"
    assert play({"hook": "after_tool_call", "event": ["x"]})[-1]["reason"] == "unknown_shape"
    assert play({"hook": "not_a_hook", "event": {"a": 1}})[-1]["reason"] == "unknown_hook"
    assert play({"event": 3})[-1]["reason"] == "unknown_hook"
