"""OpenClaw sessions, runs, models and sub-agents: what is told, what is inferred, and what is never read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.services.adapters.openclaw.test_calls import after, before, calls, hook, play
from tests.services.adapters.plugin_recordings import entries, payload, played
from tests.services.adapters.recorded_hooks import Json, Player, of

pytestmark = pytest.mark.unit

CHILD = "agent:main:subagent:0001"


def start(session: str = "s-1") -> Json:
    return hook("session_start", {"sessionId": session}, sessionId=session, sessionKey="agent:main:main")


def test_a_local_run_has_a_session_that_is_inferred() -> None:
    events = [event for _, made in played("openclaw", "session-edges") for event in made]
    begun, ended = of(events, "session.started"), of(events, "session.ended")
    assert [event["synthetic"] for event in begun + ended] == [True, True]
    assert events[0] is begun[0]


def test_the_next_local_run_of_the_session_starts_it_again() -> None:
    run = (hook("before_model_resolve", prompt="hi"), before(), after(), hook("agent_end", success=True))
    events = play(*run, *run)
    names = [event["event_name"] for event in events if event["event_name"].startswith("session.")]
    assert names == ["session.started", "session.ended"] * 2


def test_a_gateway_s_session_is_told_once() -> None:
    events = [event for _, made in played("openclaw", "session") for event in made]
    told = of(events, "session.started", "session.ended")
    assert [(event["event_name"], event.get("synthetic")) for event in told] == [
        ("session.started", None),
        ("session.ended", None),
    ]


def test_a_resumed_and_a_reset_session_say_so() -> None:
    resumed = play(payload("openclaw", "session_start-resumed"))[-1]
    reset = play(payload("openclaw", "session_end-reset"))[-1]
    assert resumed["reason"] == "resumed" and resumed["native"]["resumedFrom"].endswith("bb")
    assert reset["reason"] == "reset" and reset["native"]["nextSessionId"].endswith("cc")


def test_the_end_of_a_run_closes_what_no_hook_ended() -> None:
    one = Player("openclaw")
    other = before(id="call_2")
    other["event"]["runId"] = other["ctx"]["runId"] = "run-2"
    for each in (before(), other):
        one.play(each)
    closed, *_ = one.play(hook("agent_end", success=True, messages=[{}, {}]))
    assert (closed["tool_call_id"], closed["outcome"], closed["outcome_evidence"]) == ("call_1", "unknown", "inferred")
    assert closed["cause"] == "agent_end" and closed["synthetic"]
    (late,) = one.play(after())
    assert late["call_id"] == closed["call_id"] and late["outcome"] == "ok"  # the proven end stands


def test_the_end_of_a_session_and_the_next_one_s_start_close_its_calls() -> None:
    for last in (hook("session_end", sessionId="s-1", reason="shutdown"), start("s-2")):
        closed, told = play(start(), before(), last)[-2:]
        assert closed["cause"] == last["hook"] and closed["outcome"] == "unknown"
        assert told["event_name"].startswith("session.")


def test_success_is_the_runtime_s_claim() -> None:
    claimed = of(play(payload("openclaw", "agent_end-after-http-500")), "agent.run.ended")
    failed = of(play(payload("openclaw", "agent_end-run-timeout")), "agent.run.ended")
    assert [event["success"] for event in claimed + failed] == [True, False]


def test_tries_of_one_model_call_are_numbered_as_they_come() -> None:
    begin = hook("model_call_started", callId="run:model:1", provider="p", model="m")
    end = hook("model_call_ended", callId="run:model:1", outcome="error", failureKind="timeout", durationMs=9)
    events = of(play(begin, end, begin, {**end, "event": {**end["event"], "outcome": "completed"}}), *LLM)
    assert [(event["attempt"], event["status"]) for event in events] == [
        (1, "started"),
        (1, "error"),
        (2, "started"),
        (2, "completed"),
    ]
    assert events[1]["error"] == {"type": "timeout"}


LLM = ("llm.call.started", "llm.call.ended")


def test_usage_comes_with_the_output() -> None:
    (event,) = of(play(payload("openclaw", "llm_output-main")), "llm.output.observed")
    assert event["usage"]["input_tokens"] > 0 and event["usage"]["total_tokens"] > 0
    # The run's own span is the parent of what the model said in it.
    assert event["parent_span_id"] == payload("openclaw", "llm_output-main")["ctx"]["trace"]["spanId"]


# sub-agents


def test_the_recorded_sub_agent_is_in_its_parent_s_tree() -> None:
    events = [event for _, made in played("openclaw", "session-subagent-and-chat") for event in made]
    (begun,), (ended,) = of(events, "subagent.started"), of(events, "subagent.ended")
    (spawn,) = [e for e in of(events, "tool.call.started") if e["tool_name"] == "sessions_spawn"]
    (child,) = [e for e in of(events, "tool.call.started") if e["tool_call_id"] == "call_child000"]
    assert begun["child_session_id"] == ended["child_session_id"] == child["session_key"]
    assert begun["parent_call_id"] == spawn["call_id"] and begun["session_id"] == spawn["session_id"]
    assert child["parent_session_id"] == child["root_session_id"] == spawn["session_id"] != child["session_id"]
    assert child["trace_id"] == spawn["trace_id"] and ended["status"] == "ok"
    assert ended["timestamp"] == "2026-11-30T18:50:31.645Z"  # endedAt: the hook came 8 s later
    sessions = [e for e in of(events, "session.started", "session.ended") if e["session_id"] == child["session_id"]]
    assert [event["synthetic"] for event in sessions] == [True, True]


def spawned(child: str, parent: str, run: str) -> Json:
    return {
        "hook": "subagent_spawned",
        "event": {"runId": run, "childSessionKey": child, "agentId": "main"},
        "ctx": {"childSessionKey": child, "requesterSessionKey": parent},
    }


def test_a_sub_agent_s_sub_agent_has_the_same_root() -> None:
    inside: dict[str, Any] = {"sessionId": "s-2", "sessionKey": CHILD, "runId": "run-2"}
    below: dict[str, Any] = {"sessionId": "s-3", "sessionKey": f"{CHILD}:x", "runId": "run-3"}
    events = play(
        start(),
        spawned(CHILD, "agent:main:main", "run-2"),
        hook("before_model_resolve", inside, prompt="x"),
        spawned(f"{CHILD}:x", CHILD, "run-3"),
        hook("before_model_resolve", below, prompt="x"),
    )
    last = events[-1]
    assert (last["session_id"], last["parent_session_id"], last["root_session_id"]) == ("s-3", "s-2", "s-1")


def test_a_child_heard_of_before_its_spawn_keeps_its_root() -> None:
    inside: dict[str, Any] = {"sessionId": "s-2", "sessionKey": CHILD, "runId": "run-2"}
    events = play(
        start(), before(ctx=inside), spawned(CHILD, "agent:main:main", "run-2"), before(id="call_2", ctx=inside)
    )
    first, second = calls(events)
    assert (first["root_session_id"], first.get("parent_session_id")) == ("s-2", None)
    assert (second["root_session_id"], second["parent_session_id"]) == ("s-2", "s-1")


def test_the_end_of_a_sub_agent_closes_its_session_and_calls() -> None:
    inside: dict[str, Any] = {"sessionId": "s-2", "sessionKey": CHILD, "runId": "run-2"}
    over = {
        "hook": "subagent_ended",
        "event": {"targetSessionKey": CHILD, "runId": "run-2", "outcome": "error", "error": "boom"},
        "ctx": {"requesterSessionKey": "agent:main:main"},
    }
    events = play(start(), spawned(CHILD, "agent:main:main", "run-2"), before(ctx=inside), over)
    assert [event["event_name"] for event in events[-3:]] == [
        "tool.call.completed",
        "session.ended",
        "subagent.ended",
    ]
    assert events[-1]["native"]["error"] == "boom"


# what must never be told


def test_who_asked_is_told_by_a_keyed_hash() -> None:
    given = payload("openclaw", "before_tool_call-exec-approved")
    sender = given["ctx"]["requester"]["senderId"] = "somebody's own id"
    (event,) = calls(play(given))
    assert event["user_id_hash"].startswith("hmac-sha256:") and sender.encode() not in orjson.dumps(event)
    run = hook("before_agent_run", prompt="hi", senderId=sender)
    (prompt,) = of(play(run), "user.prompt.submitted")
    assert prompt["user_id_hash"] == event["user_id_hash"]


def test_the_configuration_with_its_keys_is_never_read() -> None:
    for name in ("gateway_start-main", "reply_dispatch-chat"):
        given = payload("openclaw", name)
        holder = given["ctx"].get("config") or given["ctx"]["cfg"]
        holder["models"]["providers"]["fake"]["apiKey"] = "planted words"
        given["ctx"]["planted"] = given["ctx"]["session"] = "planted words"
        (event,) = play(given)
        assert event["event_name"] == "agent.event.observed"
        assert b"planted" not in orjson.dumps(event)
        # Not even its hash depends on the ctx.
        assert event["hash"] == play(payload("openclaw", name))[0]["hash"]


def test_events_without_a_place_for_content_do_not_tell_it() -> None:
    said = "a sentence nobody else says"
    for name in ("message_received", "message_sending", "before_dispatch", "before_agent_reply", "before_prompt_build"):
        fields = dict.fromkeys(("content", "prompt", "body", "cleanedBody", "to", "from", "senderId", "messages"), said)
        events = play(hook(name, None, metadata={"text": said}, **fields))
        assert said.encode() not in orjson.dumps(events)


def test_a_hook_without_an_event_of_its_own_is_observed_with_size_and_hash() -> None:
    seen = {entry.payload["hook"] for entry in entries("openclaw", "session")}
    assert {"before_message_write", "resolve_exec_env", "gateway_stop"} <= seen
    (event,) = play(payload("openclaw", "resolve_exec_env-main"))[-1:]
    assert event["reason"] == "no_event_of_its_own" and event["size_bytes"] > 0 and event["native"]["host"] == "gateway"
