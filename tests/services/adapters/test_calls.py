"""The open-call table: bounded, and a table from a snapshot goes on exactly like the one it was taken of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.identity import call_id
from services.adapters import calls
from services.adapters.calls import CallTable

pytestmark = pytest.mark.unit

NAMES = [
    "tool.call.started",
    "tool.call.approval_requested",
    "tool.call.approval_decided",
    "tool.call.completed",
    "tool.call.error",
    "session.started",
    "session.ended",
    "llm.call.started",
    "subagent.started",
]


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """An event in its JSON form, of few sessions and ids, so that most of them meet."""
    name = draw(st.sampled_from(NAMES))
    session = draw(st.sampled_from(["s1", "s2", "s3", None]))
    event: dict[str, Any] = {"event_name": name, "agent_runtime": "codex", "source_event_name": "shell:x"}
    if session:
        event |= {"session_id": session, "root_session_id": draw(st.sampled_from(["s1", session]))}
    if draw(st.booleans()):
        event["session_key"] = draw(st.sampled_from(["k1", "k2"]))
    if name.startswith("tool.call"):
        key = f"|codex|{draw(st.sampled_from('abcdefgh'))}"
        occurrence = draw(st.integers(1, 3))
        event |= {
            "call_key": key,
            "occurrence": occurrence,
            "call_id": call_id(key, occurrence),
            "tool_name": draw(st.sampled_from(["Bash", "Read"])),
            "timestamp": "2026-11-30T20:06:12.123Z",
        }
        native = draw(st.sampled_from(["n1", "n2", "n3", None]))
        if native:
            event["tool_call_id"] = native
        if draw(st.booleans()):
            event["mcp"] = {"server_name": draw(st.sampled_from(["Files", "odd.srv 2"]))}
        if draw(st.booleans()):
            event["synthetic"] = True
    if name == "llm.call.started":
        event["model_call_id"] = draw(st.sampled_from(["m1", "m2"]))
    if name == "subagent.started":
        event["child_session_id"] = draw(st.sampled_from(["s2", "s3"]))
    return event


def inside(table: CallTable) -> tuple[Any, ...]:
    """Everything a table knows, in its order."""
    return (
        table.dump(),
        list(table._open),
        list(table._closed),
        {session: list(keys) for session, keys in table._by_session.items()},
        {native: list(keys) for native, keys in table._by_native.items()},
    )


def answers(table: CallTable) -> list[Any]:
    """What adapters are told."""
    sessions = ["s1", "s2", "s3", ""]
    natives = ["n1", "n2", "n3"]
    return [
        *(table.open_calls(session) for session in sessions),
        *(table.find_native("codex", native) for native in natives),
        *(table.find_native("codex", native, "k1") for native in natives),
        table.open_by_tool("Bash"),
    ]


@settings(max_examples=300, deadline=None)
@given(before=st.lists(events(), max_size=40), after=st.lists(events(), max_size=20))
def test_a_table_from_a_snapshot_equals_the_live_one_and_stays_equal(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "MAX_OPEN", 4)
        patch.setattr(calls, "MAX_CLOSED", 3)
        live = CallTable()
        for event in before:
            live.apply_json(event)
        loaded = CallTable.load(live.dump())
        assert inside(loaded) == inside(live)
        for event in after:
            live.apply_json(event)
            loaded.apply_json(event)
            assert answers(loaded) == answers(live)
        assert inside(loaded) == inside(live)


def start(number: int) -> dict[str, Any]:
    key = f"|codex|{number}"
    return {
        "event_name": "tool.call.started",
        "agent_runtime": "codex",
        "session_id": "s",
        "call_key": key,
        "occurrence": 1,
        "call_id": call_id(key, 1),
        "tool_name": "Bash",
        "tool_call_id": f"n{number}",
    }


def test_calls_that_never_end_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_OPEN", 100)
    table = CallTable()
    for number in range(130):
        table.apply_json(start(number))
    assert (len(table), table.forgotten) == (100, 30)
    assert table.find_native("codex", "n29") is None
    assert [call.tool_call_id for call in table.open_calls("s")] == [f"n{number}" for number in range(30, 130)]
    assert CallTable.load(table.dump()).forgotten == 30


def test_a_call_whose_session_is_told_late_is_open_in_that_session_only() -> None:
    table = CallTable()
    table.apply_json(start(1) | {"session_id": "inferred", "synthetic": True})
    table.apply_json(start(1) | {"session_id": "real"})
    assert table.open_calls("inferred") == []
    assert len(table.open_calls("real")) == 1
    table.apply_json(start(1) | {"session_id": "real", "event_name": "tool.call.completed"})
    assert table.open_calls("inferred") == table.open_calls("real") == []
