"""How every recorded Codex call ended and what proves it, each line checked by hand against the recording."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.services.adapters.recorded_hooks import Player, apart, of, outcomes, session

pytestmark = pytest.mark.contract

SHELL = ("unknown", "none")  # PostToolUse of Bash has no exit code and comes for failed commands too
PATCH = ("ok", "exit_status")  # the text begins "Exit code: 0"
MCP = ("ok", "is_error")  # a raw result without isError
BUILT_IN = ("ok", "hook")  # built-ins that fail fire no PostToolUse
LAUNCHED = ("unknown", "none")  # the agent's work goes on
CLOSED = ("unknown", "inferred")  # no hook of its own: closed by the next model request or by the turn's Stop
OPEN = ("open", "")

# Line of session.jsonl with the call's PreToolUse: its tool and its end.
SESSION = {
    4: ("Bash", SHELL),
    8: ("Bash", SHELL),
    13: ("apply_patch", PATCH),
    17: ("apply_patch", CLOSED),  # the file is missing; next is PreModelRequest (18)
    20: ("mcp__everything__echo", MCP),
    24: ("mcp__everything__get_sum", CLOSED),  # isError; 25
    27: ("mcp__odd__srv__do__it", MCP),
    31: ("mcp__odd__srv__fail", CLOSED),  # isError; 32
    34: ("mcp__odd__srv__rpc_error", CLOSED),  # JSON-RPC error; 35
    37: ("Bash", SHELL),  # exit 1, and still PostToolUse (38), with the output alone
    41: ("Bash", SHELL),  # three parallel calls, ends at 45, 44, 46
    42: ("mcp__everything__echo", MCP),
    43: ("Bash", SHELL),
    49: ("Bash", CLOSED),  # denied by a hook; a shell, so not by 50 but by Stop (109)
    51: ("mcp__everything__echo", CLOSED),  # denied by a hook; 53, not 52, which is the end of the request that made it
    55: ("Bash", CLOSED),  # a hook's exit code 2; 109
    57: ("Bash", SHELL),  # rewritten
    62: ("Bash", CLOSED),  # approval is never asked for in exec, so refused; 109
    64: ("Bash", CLOSED),  # the same
    67: ("Bash", CLOSED),  # the same
    70: ("Bash", SHELL),  # runs on over a model request (72), PostToolUse at 74
    81: ("view_image", CLOSED),  # no such file; 82
    83: ("list_mcp_resources", BUILT_IN),
    88: ("spawn_agent", LAUNCHED),
    94: ("multi_agent_v1wait_agent", BUILT_IN),
    96: ("Bash", SHELL),  # in the sub-agent
    101: ("mcp__everything__echo", MCP),  # in the sub-agent
}

# Calls of the other recorded sessions, by the file that first names them. Of those the model requests were not kept, so
# what has no PostToolUse stays open.
APART = {
    "PreToolUse-apply-patch-needs-approval": PATCH,
    "PreToolUse-apply-patch-before-rewrite": PATCH,
    "PreToolUse-apply-patch-hook-deny": OPEN,
    "PreToolUse-bash-permission-hook-rewrite": OPEN,
    "PreToolUse-bash-hook-ask": SHELL,  # "ask" is not supported: the tool runs unchanged
    "PreToolUse-bash-hook-continue-false": SHELL,  # the same
    "PreToolUse-bash-hook-hang": SHELL,
    "PreToolUse-bash-interrupted": OPEN,
    "PreToolUse-bash-patch-in-shell": OPEN,  # a patch in a heredoc has a start only
    "PreToolUse-bash-post-block": SHELL,
    "PreToolUse-bash-post-replace": SHELL,
    "PreToolUse-create-goal": BUILT_IN,
    "PreToolUse-get-goal": BUILT_IN,
    "PreToolUse-mcp-a-b-do-it": MCP,
    "PreToolUse-mcp-a-do-it": MCP,
    "PreToolUse-mcp-everything-echo-before-rewrite": MCP,
    "PreToolUse-mcp-everything-echo-post-replace": MCP,
    "PreToolUse-mcp-odd-srv-ask": MCP,
    "PreToolUse-mcp-odd-srv-big": MCP,
    "PreToolUse-mcp-odd-srv-die": OPEN,
    "PreToolUse-mcp-odd-srv-do-it-permission-hook-allow": MCP,
    "PreToolUse-mcp-odd-srv-do-it-permission-hook-deny": MCP,  # nobody refused it in that run: "did PR_DENY"
    "PreToolUse-mcp-odd-srv-mixed": MCP,
    "PreToolUse-mcp-odd-srv-structured": MCP,
    "PreToolUse-read-mcp-resource": BUILT_IN,
    "PreToolUse-request-user-input": OPEN,
    "PostToolUse-bash-needs-approval": SHELL,
    "PostToolUse-bash-permission-hook-allow": SHELL,
    "PostToolUse-bash-permission-hook-rewrite": SHELL,
}


def test_calls_of_the_recorded_session() -> None:
    ends = outcomes(Player("codex").play_all(session("codex")))
    found = {}
    for line in SESSION:
        payload = session("codex")[line - 1].payload
        found[line] = (payload["tool_name"], ends.pop(payload["tool_use_id"]))
    assert found == SESSION
    assert ends == {}  # no other call


def test_counts_of_the_recorded_session() -> None:
    ends = outcomes(Player("codex").play_all(session("codex")))
    assert Counter(ends.values()) == {("unknown", "none"): 9, CLOSED: 11, MCP: 4, BUILT_IN: 2, PATCH: 1}


def test_causes_of_inferred_ends() -> None:
    events = Player("codex").play_all(session("codex"))
    causes = Counter(
        (event["tool_source"], event["cause"], event["synthetic"])
        for event in events
        if event.get("outcome_evidence") == "inferred"
    )
    # Five shells (49, 55, 62, 64, 67) wait for the turn's end; four MCP calls, the patch and the image do not.
    assert causes == {("shell", "stop", True): 5, ("mcp", "model_request", True): 4, ("file", "model_request", True): 2}


def test_each_call_starts_and_ends_once() -> None:
    player = Player("codex")
    events = player.play_all(session("codex"))
    starts = Counter(event["call_id"] for event in of(events, "tool.call.started"))
    ends = Counter(event["call_id"] for event in events if "outcome" in event)
    assert starts == ends
    assert set(starts.values()) == {1}
    assert len(starts) == 27
    assert len(player.calls) == 0


def test_no_shell_command_has_an_exit_code() -> None:
    events = Player("codex").play_all(session("codex"))
    assert not [event for event in events if event.get("tool_name") == "Bash" and "exit_code" in event]


def test_calls_recorded_apart() -> None:
    assert dict(apart("codex")) == APART
