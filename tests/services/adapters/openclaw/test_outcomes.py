"""How every recorded OpenClaw call ended and what proves it, each line checked by hand against the recording."""

from __future__ import annotations

import pytest

from tests.services.adapters.plugin_recordings import entries, played
from tests.services.adapters.recorded_hooks import Player, of

pytestmark = pytest.mark.contract

OK = ("ok", "is_error")  # no `error`: OpenClaw sets it whenever a tool threw or its result is marked as an error
EXIT_0 = ("ok", "exit_status")  # details.exitCode 0
EXIT = ("error", "exit_status")  # details.exitCode 3, and no `error` beside it
FAILED = ("error", "is_error")  # `error` is set
BLOCKED = ("blocked", "hook")  # details.status "blocked", or one of the refusals that only OpenClaw words
LAUNCHED = ("unknown", "none")  # the work goes on; no hook tells how it ends

# Session, then native id of the call: tool, end, type of the error.
CALLS = {
    "session": {
        "call_main000": ("exec", EXIT_0, None),  # 15: echo
        "call_main010": ("write", OK, None),
        "call_main020": ("read", OK, None),
        "call_main030": ("everything__echo", OK, None),
        "call_main040": ("files-v2__read_text_file", OK, None),
        "call_main041": ("everything__get-sum", OK, None),
        "call_main050": ("files-v2__read_text_file", FAILED, "mcp_error"),  # 54: the word "error", text in content
        "call_main060": ("read", FAILED, "tool_error"),  # 61: "File not found: …"
        "call_main070": ("exec", EXIT, "exit_status"),  # 69: status "completed", exitCode 3
        "call_main080": ("exec", BLOCKED, "plugin-before-tool-call"),  # 77
        "call_main090": ("everything__echo", BLOCKED, "plugin-before-tool-call"),  # 84
        "call_main100": ("exec", EXIT_0, None),  # 92: ran with rewritten parameters
        "call_main110": ("read", OK, None),  # 99 … 108: three calls of one message
        "call_main111": ("exec", EXIT_0, None),
        "call_main112": ("everything__trigger-long-running-operation", OK, None),
    },
    "session-approvals": {
        "call_approve000": ("exec", EXIT_0, None),  # allow-once
        "call_approve010": ("everything__echo", BLOCKED, "approval_denied"),  # 32: "Denied by user. …", status "error"
        "call_approve020": ("exec", BLOCKED, "approval_timeout"),  # 43: "Approval timed out", status "error"
    },
    "session-edges": {
        "call_edges000": ("no_such_tool", FAILED, "tool_not_found"),  # 10, no before
        "call_edges010": ("exec", FAILED, "invalid_arguments"),  # 16, no before
        "call_edges020": ("everything__get-sum", FAILED, "invalid_arguments"),  # 22, no before
        "call_edges030": ("exec", EXIT_0, None),  # changed in place by a hook, which changes nothing
        "call_edges040": ("exec", BLOCKED, "hook_failed"),  # 38: a hook threw; it fails closed
        "call_edges050": ("exec", EXIT_0, None),  # the after hook threw
        "call_edges060": ("exec", EXIT_0, None),  # the after hook waited 3 s
        "call_edges070": ("exec", EXIT_0, None),  # the before hook waited 3 s
        "call_edges080": ("exec", BLOCKED, "hook_failed"),  # 70: a hook hung for 15 s
        "call_edges090": ("exec", BLOCKED, "approval_unavailable"),  # 79: nobody there to ask in --local
        "call_edges100": ("exec", ("timeout", "hook"), "overall-timeout"),  # 87: the word "failed", details.timedOut
    },
    "session-tool-search": {
        "call_search000": ("tool_search", OK, None),
        "call_search010": ("tool_describe", OK, None),
        "call_search020": ("tool_call", OK, None),  # wrapper of the next
        "tool_search_code:call_search020:everything__echo:1": ("everything__echo", OK, None),
        "call_search030": ("tool_call", FAILED, "tool_error"),  # 39: wrapper of the next, the word "failed"
        "tool_search_code:call_search030:files-v2__read_text_file:2": (
            "files-v2__read_text_file",
            FAILED,  # 37: the word "error"
            "mcp_error",
        ),
        "call_search040": ("tool_call", BLOCKED, "plugin-before-tool-call"),  # a wrapper that wrapped nothing
        "call_search050": ("everything__echo", FAILED, "tool_not_found"),  # 52, no before: not offered directly
    },
    "session-subagent-and-chat": {
        "call_parent000": ("sessions_spawn", LAUNCHED, None),  # 21: status "accepted"
        "call_parent010": ("exec", LAUNCHED, None),  # 50: status "running" after 10 s
        "call_child000": ("exec", EXIT_0, None),  # 40: inside the sub-agent's session
    },
    "session-diagnostics": {},  # tells the calls of `session` once more
}

# Payloads of other runs, each without the hooks before it.
APART = {
    "after_tool_call-exec-run-timeout": (("cancelled", "hook"), "aborted"),  # "Aborted" when the run's time was over
    "after_tool_call-exec-approval-unavailable": (BLOCKED, "approval_unavailable"),
    "after_tool_call-exec-hook-hung": (BLOCKED, "hook_failed"),
    "after_tool_call-exec-moved-to-background": (LAUNCHED, None),
    "after_tool_call-mcp-structured": (OK, None),
    "after_tool_call-bridge-tool_call-blocked": (BLOCKED, "plugin-before-tool-call"),
}


def ends(session: str) -> dict[str, tuple[str, tuple[str, str], str | None]]:
    """Tool, end and error type of each call; a call that ends twice or never fails here."""
    found: dict[str, tuple[str, tuple[str, str], str | None]] = {}
    started: set[str] = set()
    for _, events in played("openclaw", session):
        for event in events:
            if event["event_name"] == "tool.call.started":
                assert event["tool_call_id"] not in started
                started.add(event["tool_call_id"])
            if "outcome" in event:
                assert event["tool_call_id"] not in found
                proof = (event["outcome"], event["outcome_evidence"])
                found[event["tool_call_id"]] = (event["tool_name"], proof, event.get("error", {}).get("type"))
    assert started == set(found)
    return found


@pytest.mark.parametrize("session", CALLS)
def test_each_call_of_a_session(session: str) -> None:
    assert ends(session) == CALLS[session]


@pytest.mark.parametrize("file", APART)
def test_a_call_that_is_only_known_by_its_end(file: str) -> None:
    entry = next(entry for entry in entries("openclaw", "payloads") if entry.name == f"{file}.json")
    events = Player("openclaw").play(entry.payload)
    (end,) = [event for event in events if "outcome" in event]
    assert ((end["outcome"], end["outcome_evidence"]), end.get("error", {}).get("type")) == APART[file]
    (start,) = of(events, "tool.call.started")
    assert start["synthetic"] and start["call_id"] == end["call_id"]


@pytest.mark.parametrize("session", CALLS)
def test_the_name_of_an_end_follows_its_outcome(session: str) -> None:
    names = {"ok": "completed", "unknown": "completed", "blocked": "blocked"}
    for _, events in played("openclaw", session):
        for event in events:
            if "outcome" in event:
                assert event["event_name"] == f"tool.call.{names.get(event['outcome'], 'error')}"
