"""How every recorded Hermes call ended and what proves it, each line checked by hand against the recording."""

from __future__ import annotations

import pytest

from tests.services.adapters.plugin_recordings import payload, played
from tests.services.adapters.recorded_hooks import Player, of

pytestmark = pytest.mark.contract

OK = ("ok", "is_error")  # status "ok" of a JSON result without the `error` in which its tools report failures
EXIT_0 = ("ok", "exit_status")  # exit_code 0 inside the result
EXIT = ("error", "exit_status")  # exit_code 3 inside the result, status "ok"
FAILED = ("error", "is_error")  # status "error", which follows from a top-level `error` in the result
BLOCKED = ("blocked", "hook")  # status "blocked", of the hook or inside the result
LAUNCHED = ("unknown", "none")  # the work goes on; how it ends is another hook's or nobody's to tell

# Session, then call by native id, or by tool where a call inside execute_code has none: tool, end, type of the error.
CALLS = {
    "session": {
        "call_main000": ("terminal", EXIT_0, None),
        "call_main010": ("write_file", OK, None),  # its `lint.status` "skipped" is nobody's outcome
        "call_main020": ("read_file", OK, None),
        "call_main030": ("mcp__everything__echo", OK, None),
        "call_main040": ("mcp__files_v2__read_text_file", OK, None),
        "call_main041": ("mcp__everything__get_sum", OK, None),
        "call_main050": ("mcp__files_v2__read_text_file", FAILED, "tool_error"),  # 35: isError on the wire
        "call_main060": ("read_file", FAILED, "tool_error"),  # 40: content "" beside the error
        "call_main070": ("terminal", EXIT, "exit_status"),  # 46: exit_code 3, status "ok"
        "call_main080": ("terminal", BLOCKED, "plugin_block"),  # 51
        "call_main090": ("mcp__everything__echo", BLOCKED, "plugin_block"),  # 55
        "call_main100": ("read_file", OK, None),  # 59: status "unchanged" inside the result
        "call_main101": ("terminal", EXIT_0, None),
        "call_main110": ("read_file", OK, None),  # 68: "unchanged" once more
        "call_main111": ("read_file", OK, None),
        "call_main120": ("todo", OK, None),
    },
    "session-edges": {
        "call_edges010": ("mcp__everything__get_sum", FAILED, "tool_error"),  # 13: bad arguments, refused by the server
        "call_edges020": ("terminal", EXIT_0, None),  # 22: arguments changed in place by a hook
        "call_edges030": ("terminal", EXIT_0, None),  # 31: arguments changed by middleware before the hooks
        "call_edges040": ("terminal", EXIT_0, None),  # 40: a hook raised, which changes nothing
        "call_edges050": ("terminal", EXIT_0, None),  # 49: a hook waited 3 s
        "call_edges060": ("terminal", BLOCKED, "plugin_block"),  # 55: a plugin asked, and nobody answered
        "call_edges070": ("terminal", BLOCKED, "approval_denied"),  # 65: status "error", "blocked" inside the result
        "call_edges080": ("terminal", ("timeout", "exit_status"), "timeout"),  # 74: exit_code 124, status "ok"
    },
    "session-parallel": {
        "call_threads000": ("read_file", OK, None),  # 12: three starts first, ends in another order from other threads
        "call_threads001": ("read_file", OK, None),
        "call_threads002": ("search_files", OK, None),
        "call_threads010": ("mcp__everything__trigger_long_running_operation", OK, None),
        "call_threads011": ("mcp__everything__trigger_long_running_operation", OK, None),
        "call_threads012": ("mcp__everything__echo", BLOCKED, "plugin_block"),
    },
    "session-subagent": {
        "call_parent000": ("delegate_task", LAUNCHED, None),  # 7: status "dispatched" inside the result
        "call_parent010": ("terminal", EXIT_0, None),
        "call_child000": ("terminal", EXIT_0, None),  # 17: in the child's session
    },
    "session-execute-code": {
        "call_code000": ("execute_code", EXIT_0, None),  # 13: exit_code 0 beside status "success"
        "terminal": ("terminal", EXIT_0, None),  # 8: from inside it, all ids empty
        "read_file": ("read_file", OK, None),  # 11: from inside it
    },
}

# Payloads of other runs and of the installed source, each without the hooks before it.
APART = {
    "post_tool_call-terminal-cancelled": (("cancelled", "hook"), "keyboard_interrupt"),
    "post_tool_call-batch-timeout": (("timeout", "hook"), "tool_timeout"),
    "post_tool_call-thread-missing": (("error", "hook"), "thread_missing_result"),  # plain text: the hook's own word
    "post_tool_call-guardrail": (BLOCKED, "guardrail_block"),
    "post_tool_call-multimodal": (LAUNCHED, None),  # status "ok" of a result that has no place for an error
    "post_tool_call-mcp-through-bridge": (OK, None),
    "shell_post_tool_call-terminal": (EXIT_0, None),
    "shell_post_tool_call-blocked": (BLOCKED, "plugin_block"),
}


def ends(session: str) -> dict[str, tuple[str, tuple[str, str], str | None]]:
    """Tool, end and error type of each call; a call that ends twice or never fails here."""
    found: dict[str, tuple[str, tuple[str, str], str | None]] = {}
    started: set[str] = set()
    for _, events in played("hermes", session):
        for event in events:
            if not event["event_name"].startswith("tool.call."):
                continue
            name = event.get("tool_call_id") or event["tool_name"]
            if event["event_name"] == "tool.call.started":
                assert name not in started
                started.add(name)
            if "outcome" in event:
                assert name not in found
                proof = (event["outcome"], event["outcome_evidence"])
                found[name] = (event["tool_name"], proof, event.get("error", {}).get("type"))
    assert started == set(found)
    return found


@pytest.mark.parametrize("session", CALLS)
def test_each_call_of_a_session(session: str) -> None:
    assert ends(session) == CALLS[session]


@pytest.mark.parametrize("file", APART)
def test_a_call_that_is_only_known_by_its_end(file: str) -> None:
    (end,) = of(
        Player("hermes").play(payload("hermes", file)), "tool.call.completed", "tool.call.error", "tool.call.blocked"
    )
    assert ((end["outcome"], end["outcome_evidence"]), end.get("error", {}).get("type")) == APART[file]
    assert end["occurrence"] == 1


@pytest.mark.parametrize("session", CALLS)
def test_the_name_of_an_end_follows_its_outcome(session: str) -> None:
    names = {"ok": "completed", "unknown": "completed", "blocked": "blocked"}
    for _, events in played("hermes", session):
        for event in events:
            if "outcome" in event:
                assert event["event_name"] == f"tool.call.{names.get(event['outcome'], 'error')}"
