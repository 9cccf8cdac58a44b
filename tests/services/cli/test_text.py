"""Foreign text cannot command a person's terminal, and a line of `tail` says what happened."""

from __future__ import annotations

import pytest

from services.cli.tail import describe
from services.cli.text import cut, safe

pytestmark = pytest.mark.unit


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert safe("a\x1b]0;title\x07b\n\tc\u202ed") == "a\\x1b]0;title\\x07b c\\x202ed"


def test_a_cut_text_says_that_it_was_cut() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut(None, 4) == ""


def test_a_failed_mcp_call_names_server_tool_arguments_error_and_evidence() -> None:
    event = {
        "event_name": "tool.call.error",
        "tool_name": "mcp__odd__get",
        "mcp": {"server_name": "odd.srv", "tool_name": "get"},
        "input": {"summary": '{"id":1}'},
        "error": {"message_summary": "no such row"},
        "duration_ms": 12.4,
        "outcome_evidence": "is_error",
        "session_id": "0123456789",
    }
    assert describe(event) == 'odd.srv/get · {"id":1} · → no such row · 12 ms · evidence=is_error · [01234567]'
