"""How every recorded Claude Code call ended and what proves it, each line checked by hand against the recording."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.services.adapters.recorded_hooks import Player, apart, of, outcomes, session

pytestmark = pytest.mark.contract

OK = (
    "ok",
    "hook",
)  # PostToolUse fires only for calls that did not fail, so the hook is the proof; no exit code is told
FAILED = ("error", "hook")  # PostToolUseFailure, or the client's own <tool_use_error>, without an exit code
EXIT = ("error", "exit_status")  # PostToolUseFailure of a shell, whose text begins "Exit code N"
REFUSED = ("blocked", "hook")  # a text that only the client writes says that the call did not run
LEFT_OUT = ("blocked", "inferred")  # the batch came without a post hook; its text is somebody's own words
LAUNCHED = ("unknown", "none")  # the hook tells a launch; how the work ends is told by no hook

# Line of session.jsonl that first names the call: its tool and its end.
SESSION = {
    5: ("Bash", OK),  # echo hello: 6 is PostToolUse
    8: ("Read", OK),
    11: ("Write", OK),
    14: ("Edit", OK),
    17: ("mcp__everything__echo", OK),
    20: ("mcp__everything__get-sum", FAILED),  # text "MCP error -32602: …", but that server sends it as isError
    23: ("Bash", EXIT),  # exit 1; text "Exit code 1\nout\nerr"
    27: ("Read", OK),  # three parallel calls, ends in another order than starts: 30, 31, 32
    28: ("Bash", OK),
    29: ("mcp__everything__echo", OK),
    34: ("Bash", REFUSED),  # only the batch: "PreToolUse:Bash hook error: denied by recording hook"
    36: ("Bash", REFUSED),  # only the batch: the same beginning, the hook's exit code was 2
    38: ("Bash", REFUSED),  # only the batch: "Permission to use Bash with command … has been denied."
    40: ("Bash", REFUSED),  # asked (41), nobody to answer; the batch: "touch in '…' needs approval. …"
    43: ("Bash", OK),  # asked (44), allowed by a hook
    47: ("Bash", LEFT_OUT),  # asked (48), denied by a hook, whose own words are the batch's text
    50: ("Bash", OK),  # rewritten by a hook
    53: ("mcp__odd__srv__do__it", OK),
    56: ("mcp__odd__srv__fail", FAILED),  # isError
    59: ("mcp__odd__srv__rpc_error", FAILED),  # JSON-RPC error -32000, of which only the message is told
    62: ("NoSuchTool", FAILED),  # no hook but the batch: <tool_use_error>
    63: ("Read", FAILED),  # no hook but the batch: <tool_use_error>InputValidationError
    64: ("Read", FAILED),  # missing file
    67: ("Agent", OK),  # waited for: response status completed
    69: ("Bash", OK),  # inside that sub-agent
    72: ("mcp__everything__echo", OK),
    79: ("Agent", LAUNCHED),  # response status async_launched
    82: ("Bash", OK),  # inside that sub-agent, while the main agent goes on
    87: ("mcp__everything__echo", OK),  # still open at the main agent's Stop (88), ends at 89
}

# Calls of the other recorded sessions, by the file that first names them.
APART = {
    "PreToolUse-agent-background": LAUNCHED,  # run_in_background: true
    "PreToolUse-bash-background": LAUNCHED,  # backgroundTaskId in the response
    "PreToolUse-bash-timeout": ("timeout", "exit_status"),  # "Exit code 143\nCommand timed out after 1s"
    "PreToolUse-askuserquestion": OK,
    "PreToolUse-bash-hook-ask": LEFT_OUT,  # plain -p refuses at once; the text is the hook's reason
    "PreToolUse-bash-hook-continue-false": OK,  # the tool still runs and its post hook fires
    "PreToolUse-bash-hook-hang": OK,  # the recorder's time-out fails open
    "PreToolUse-bash-permission-hook-rewrite": OK,
    "PreToolUse-bash-post-block": OK,  # a post hook cannot undo
    "PreToolUse-bash-post-replace": OK,
    "PreToolUse-mcp-a-b-do-it": REFUSED,  # "Claude requested permissions to use …, but you haven't granted it yet."
    "PreToolUse-mcp-ask-needed-echo": REFUSED,  # the same text
    "PreToolUse-webfetch": REFUSED,  # the same text
    "PreToolUse-mcp-everything-echo-before-rewrite": OK,
    "PreToolUse-mcp-everything-echo-post-replace": OK,
    "PreToolUse-mcp-odd-srv-2-do-it": OK,
    "PreToolUse-mcp-odd-srv-ask": OK,  # an elicitation in between
    "PreToolUse-mcp-odd-srv-big": OK,  # "Error: result (300,000 characters …": the call succeeded, the client cut
    "PreToolUse-mcp-odd-srv-die": FAILED,  # "Connection closed"
    "PreToolUse-mcp-odd-srv-mixed": OK,
    "PreToolUse-mcp-odd-srv-structured": OK,  # the response is a text
    "PreToolUse-skill": OK,
    "PreToolUse-toolsearch": OK,
    "PreToolUse-write-needs-approval": OK,
    "PermissionDenied-bash-classifier-unavailable-plan-mode": REFUSED,
    "PermissionDenied-mcp-ask-needed-echo-classifier-unavailable-auto-mode": REFUSED,
    "PermissionDenied-mcp-ask-needed-echo-classifier-unavailable-plan-mode": REFUSED,
    "PostToolBatch-askuserquestion": FAILED,  # <tool_use_error>: disabled for this session
    "PostToolBatch-taskcreate": FAILED,  # the same
    "PostToolBatch-taskupdate": FAILED,  # the same
    "PostToolBatch-todowrite": FAILED,  # the same
    "PostToolUse-bash-exit1": OK,  # a *hook* that exits 1 fails open; the command itself went well
    "PostToolUse-bash-hook-ask": OK,  # a host was there to allow it
    "PostToolUse-bash-needs-approval": OK,
    "PostToolUse-mcp-ask-needed-echo": OK,
    "PostToolUseFailure-read": FAILED,
    "http-request-PreToolUse": ("open", ""),  # recorded alone
}


def test_calls_of_the_recorded_session() -> None:
    events = Player("claude_code").play_all(session("claude_code"))
    ends = outcomes(events)
    found = {}
    for line, (tool, _) in SESSION.items():
        payload = session("claude_code")[line - 1].payload
        call = payload if "tool_use_id" in payload else payload["tool_calls"][0]
        assert call["tool_name"] == tool
        found[line] = (tool, ends.pop(call["tool_use_id"]))
    assert found == SESSION
    assert ends == {}  # no other call


def test_counts_of_the_recorded_session() -> None:
    ends = outcomes(Player("claude_code").play_all(session("claude_code")))
    assert Counter(ends.values()) == {OK: 16, FAILED: 6, EXIT: 1, REFUSED: 4, LEFT_OUT: 1, LAUNCHED: 1}


def test_each_call_starts_and_ends_once() -> None:
    player = Player("claude_code")
    events = player.play_all(session("claude_code"))
    starts = Counter(event["call_id"] for event in of(events, "tool.call.started"))
    ends = Counter(event["call_id"] for event in events if "outcome" in event)
    assert starts == ends
    assert set(starts.values()) == {1}
    assert len(starts) == 29
    assert len(player.calls) == 0


def test_the_event_name_follows_the_outcome() -> None:
    events = Player("claude_code").play_all(session("claude_code"))
    names = Counter((event["event_name"], event["outcome"]) for event in events if "outcome" in event)
    assert names == {
        ("tool.call.completed", "ok"): 16,
        ("tool.call.completed", "unknown"): 1,
        ("tool.call.error", "error"): 7,
        ("tool.call.blocked", "blocked"): 5,
    }


def test_calls_recorded_apart() -> None:
    assert dict(apart("claude_code")) == APART
