"""Hermes sessions, turns, models and sub-agents: what is told, what is inferred, and what must not break it."""

from __future__ import annotations

import pytest

from tests.services.adapters.hermes.test_calls import SESSION, TASK, hook, play, post, pre
from tests.services.adapters.plugin_recordings import payload, played
from tests.services.adapters.recorded_hooks import Json, of

pytestmark = pytest.mark.unit

LLM = ("llm.call.started", "llm.call.ended")


def recorded(session: str) -> list[Json]:
    return [event for _, made in played("hermes", session) for event in made]


def test_the_review_after_the_session_s_end_is_a_turn_like_any_other() -> None:
    events = recorded("session")
    ended = next(n for n, event in enumerate(events) if event["event_name"] == "session.ended")
    assert [event["event_name"] for event in events[ended + 1 :]] == [
        "turn.started",
        "user.prompt.submitted",
        "llm.input.observed",
        "llm.call.started",
        "llm.call.ended",
        "agent.event.observed",
        "llm.output.observed",
        "turn.ended",
    ]
    assert events[ended + 2]["origin"] == "background_review"
    assert len(of(events, "session.started")) == len(of(events, "session.ended")) == 1


def test_a_turn_s_end_is_not_the_session_s() -> None:
    events = play(payload("hermes", "on_session_end-main"))
    assert [event["event_name"] for event in events] == ["turn.ended"] and events[0]["success"] is True


def test_the_session_s_end_closes_its_calls_but_not_those_of_a_later_review() -> None:
    review = f"{SESSION}:review:33333333"
    last = {"hook": "on_session_finalize", "kwargs": {"session_id": SESSION, "reason": "shutdown"}}
    _, closed, ended, start, end = play(
        pre(), last, pre("terminal", "call_1", turn_id=review), post("terminal", "call_1", turn_id=review)
    )
    assert (closed["outcome"], closed["cause"]) == ("unknown", "on_session_finalize")
    assert ended["reason"] == "shutdown"
    assert start["call_id"] == end["call_id"] != closed["call_id"] and end["outcome"] == "ok"


def test_a_reset_and_the_gateway_s_finalize_end_the_old_session() -> None:
    (reset,) = play(payload("hermes", "on_session_reset-cli"))
    (final,) = play(payload("hermes", "on_session_finalize-gateway"))
    assert reset["event_name"] == final["event_name"] == "session.ended"
    assert reset["session_id"] == final["session_id"] and final["native"]["new_session_id"]


def test_tries_of_one_request_are_numbered_as_they_come() -> None:
    events = of(recorded("session-edges"), *LLM)[:6]
    assert [(event["status"], event["attempt"]) for event in events] == [
        ("started", 1),
        ("error", 1),
        ("started", 2),
        ("completed", 2),
        ("started", 1),
        ("completed", 1),
    ]
    assert events[1]["error"]["type"] == "InternalServerError" and events[1]["error"]["code"] == 500
    assert events[1]["duration_ms"] == pytest.approx(618.146, abs=0.001)
    # 3.02 s from the first try on: the second alone took 0.2 s, and nothing says how long exactly.
    assert "duration_ms" not in events[3] and events[3]["native"]["api_duration"] > 3
    assert events[5]["usage"]["input_tokens"] > 0


def test_a_turn_tells_the_prompt_once_and_what_it_was_asked_in() -> None:
    events = play(payload("hermes", "pre_llm_call-main"))
    assert [event["event_name"] for event in events] == ["turn.started", "user.prompt.submitted", "llm.input.observed"]
    assert events[1]["origin"] == "user" and "user_id_hash" not in events[1]  # sender_id "" in the command line
    (sent,) = of(play(hook("pre_llm_call", user_message="hi", sender_id="U1")), "user.prompt.submitted")
    assert sent["user_id_hash"].startswith("hmac-sha256:")


def test_the_recorded_sub_agent_is_in_its_parent_s_tree() -> None:
    events = recorded("session-subagent")
    (begun,), (ended,) = of(events, "subagent.started"), of(events, "subagent.ended")
    (delegated,) = [e for e in of(events, "tool.call.started") if e["tool_name"] == "delegate_task"]
    (child,) = [e for e in of(events, "tool.call.started") if e["tool_call_id"] == "call_child000"]
    assert begun["parent_call_id"] == delegated["call_id"] and begun["agent_type"] == "leaf"
    assert begun["child_session_id"] == ended["child_session_id"] == child["session_id"]
    assert child["agent_id"] == begun["child_agent_id"] == "sa-0-4e3e2cd2"
    assert child["root_session_id"] == child["parent_session_id"] == delegated["session_id"]
    assert (ended["status"], ended["duration_ms"]) == ("completed", 840)
    sessions = [e for e in of(events, "session.started", "session.ended") if e["session_id"] == child["session_id"]]
    assert [event.get("synthetic") for event in sessions] == [None, True]


def test_a_sub_agent_that_stops_leaves_no_call_open() -> None:
    child = {"session_id": "20261130_180001_child0", "turn_id": "20261130_180001_child0:sa-1:1", "task_id": "sa-1"}
    stop = {
        "hook": "subagent_stop",
        "kwargs": {
            "parent_session_id": SESSION,
            "child_session_id": child["session_id"],
            "child_status": "interrupted",
        },
    }
    started, stopped, closed, over = play(pre("terminal", "c", **child), stop)
    assert closed["call_id"] == started["call_id"] and closed["cause"] == "subagent_stop"
    assert (stopped["status"], over["reason"]) == ("interrupted", "interrupted")


def test_kanban_and_gateway_hooks_are_observed() -> None:
    (event,) = play(payload("hermes", "kanban_task_completed"))
    assert event["reason"] == "no_event_of_its_own" and event["native"]["task_id"] == "T1"
    assert play(hook("pre_gateway_dispatch", event={}))[0]["reason"] == "no_event_of_its_own"


def test_two_delegations_at_once_name_no_parent_call() -> None:
    begun = {"hook": "subagent_start", "kwargs": {"parent_session_id": SESSION, "child_session_id": "c"}}
    events = play(pre("delegate_task", "c1"), pre("delegate_task", "c2"), begun)
    assert "parent_call_id" not in events[-1]
    assert TASK in events[0]["turn_id"]
