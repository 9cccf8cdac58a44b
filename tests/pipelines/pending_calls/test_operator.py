"""What pending_calls says of single calls, and what it forgets."""

from __future__ import annotations

import sys
import tracemalloc

import orjson
import pytest

from pipelines.pending_calls import operator as module
from pipelines.pending_calls.call import MAX_APPROVALS
from pipelines.pending_calls.operator import GRACE_MS, KEEP_MS, PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime.group import Group
from pipelines.runtime.port import CanonicalSet, Event, Record
from schemas.config import TtlOverride
from schemas.events import EVENT, DerivedToolCall
from schemas.identity import derived_id
from schemas.topics import TOOL_CALL_DERIVED, TOPIC_OF_EVENT
from tests.pipelines.helpers import T0, Raw, call_event, event

pytestmark = pytest.mark.unit

TTL_MS, APPROVAL_MS = 300_000, 3_600_000


class Run:
    """An operator, fed by hand; `said` is every output, `standing` what they amount to."""

    def __init__(self, ttls: Ttls | None = None) -> None:
        self.calls = PendingCalls(ttls or Ttls(TTL_MS, APPROVAL_MS))
        self.said: list[Event] = []
        self._canonical = CanonicalSet()

    def put(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        assert (topic, record_id) == (TOOL_CALL_DERIVED, body["event_id"])
        body["version"] = len(self.said)
        self.said.append(body)
        EVENT.validate_json(orjson.dumps(body))
        self._canonical.add(topic, record_id, body)

    def retract(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        self.put(topic, record_id, {**body, "retracted": True})

    def see(self, body: Event, at_ms: int) -> None:
        self.calls.on_event(Record(TOPIC_OF_EVENT[body["event_name"]], 0, len(self.said), T0 + at_ms, body), self)

    def started(self, at_ms: int, call: int = 0, **fields: object) -> None:
        self.see(call_event("tool.call.started", at_ms, call, **fields), at_ms)

    def ended(self, at_ms: int, call: int = 0, how: str = "completed") -> None:
        self.see(call_event(f"tool.call.{how}", at_ms, call), at_ms)

    def approval(self, at_ms: int, decision: str | None = None) -> None:
        if decision is None:
            self.see(call_event("tool.call.approval_requested", at_ms), at_ms)
        else:
            body = call_event("tool.call.approval_decided", at_ms, approval={"decision": decision})
            self.see(body, at_ms)

    def session_ended(self, at_ms: int, **fields: object) -> None:
        self.see(event("session.ended", at_ms, **fields), at_ms)

    def until(self, at_ms: int) -> None:
        self.calls.on_progress(T0 + at_ms, self)

    @property
    def standing(self) -> list[str]:
        return sorted(body["event_name"] for body in self._canonical.bodies().values())


def test_a_call_that_never_ends_times_out_at_its_deadline_with_the_fields_of_its_start() -> None:
    run = Run()
    run.started(
        1000,
        user_id_hash="u",
        trace_id="a" * 32,
        span_id="b" * 16,
        turn_id="t1",
        tool_call_id="toolu_1",
        mcp={"server_name": "git", "tool_name": "log"},
        labels={"incident_id": "i1"},
        agent_runtime="codex",
        native={"large": "x" * 1000},
    )
    run.until(1000 + TTL_MS - 1)
    assert not run.said
    run.until(1000 + TTL_MS + 999)
    run.until(1000 + 2 * TTL_MS)
    (body,) = run.said
    said = EVENT.validate_json(orjson.dumps(body))
    assert isinstance(said, DerivedToolCall)
    assert said.event_id == derived_id("timed_out", said.call_id)
    assert said.timestamp == said.deadline == "2026-03-01T12:05:01.000Z"
    assert said.started_at == "2026-03-01T12:00:01.000Z"
    assert (said.outcome, said.outcome_evidence, said.maybe_blocked, said.ttl_ms) == (
        "timeout",
        "inferred",
        True,
        TTL_MS,
    )
    assert (said.tenant_id, said.session_id, said.trace_id, said.span_id) == ("acme", "s1", "a" * 32, "b" * 16)
    assert (said.turn_id, said.tool_call_id, said.labels) == ("t1", "toolu_1", {"incident_id": "i1"})
    assert said.mcp is not None and said.mcp.server_name == "git"
    assert not said.native


@pytest.mark.parametrize("how", ["completed", "error", "blocked"])
def test_every_end_disarms_even_at_the_last_moment(how: str) -> None:
    run = Run()
    run.started(0)
    run.ended(TTL_MS, how=how)
    run.until(10 * TTL_MS)
    assert run.standing == []


def test_an_end_after_the_deadline_leaves_the_timeout_standing() -> None:
    run = Run()
    run.started(0)
    run.until(TTL_MS)
    run.ended(TTL_MS + 1)
    run.until(10 * TTL_MS)
    assert run.standing == ["tool.call.timed_out"]
    assert len(run.said) == 1
    assert run.calls.counters["late_ends"] == 1


def test_what_was_said_before_an_end_in_time_was_read_is_taken_back() -> None:
    run = Run()
    run.started(0)
    run.until(2 * TTL_MS)
    run.ended(TTL_MS // 2)
    assert [body.get("retracted", False) for body in run.said] == [False, True]
    assert run.standing == []


def test_an_end_close_to_the_deadline_takes_back_what_another_worker_may_have_said() -> None:
    run = Run()
    run.started(0)
    run.ended(TTL_MS - 1000)
    assert [(body["event_name"], body["retracted"]) for body in run.said] == [("tool.call.timed_out", True)]


def test_ends_before_starts_repeated_starts_and_ends_without_start() -> None:
    run = Run()
    run.ended(0, call=1)
    run.started(5, call=1)
    run.started(0, call=2)
    run.ended(10, call=2)
    run.started(20, call=2)
    run.ended(30, call=2)
    run.ended(0, call=3)
    run.until(10 * TTL_MS)
    assert run.standing == []
    assert run.calls.counters["ends_without_start"] == 1
    assert run.calls.counters["calls"] == 0


def test_the_earliest_start_counts_in_whatever_order_starts_are_read() -> None:
    run = Run()
    run.started(200_000)
    run.ended(400_000)
    run.started(0)
    run.until(10 * TTL_MS)
    assert run.standing == ["tool.call.timed_out"]
    assert run.said[-1]["timestamp"] == "2026-03-01T12:05:00.000Z"


def test_a_call_that_waits_for_a_person_has_a_longer_clock() -> None:
    run = Run()
    run.started(0)
    run.approval(1000)
    run.until(TTL_MS * 2)
    assert not run.said
    run.until(1000 + APPROVAL_MS + 1000)
    assert run.said[0]["cause"] == "no decision on the approval"
    assert run.said[0]["timestamp"] == "2026-03-01T13:00:01.000Z"


def test_after_the_decision_the_clock_starts_anew() -> None:
    run = Run()
    run.started(0)
    run.approval(1000)
    run.approval(1_000_000, "allow_once")
    run.until(1_000_000 + TTL_MS - 1)
    assert not run.said
    run.until(1_000_000 + TTL_MS + 1000)
    assert run.standing == ["tool.call.timed_out"]
    assert "cause" not in run.said[0]


@pytest.mark.parametrize("decision", ["deny", "timeout", "cancelled"])
def test_a_refused_call_is_over(decision: str) -> None:
    run = Run()
    run.started(0)
    run.approval(1000)
    run.approval(2000, decision)
    run.until(10 * APPROVAL_MS)
    assert run.standing == []


def test_a_request_that_comes_after_the_deadline_changes_nothing() -> None:
    run = Run()
    run.started(0)
    run.approval(TTL_MS + 1)
    run.until(2 * TTL_MS)
    assert run.standing == ["tool.call.timed_out"]


def test_a_request_that_was_read_late_takes_the_timeout_back_and_may_bring_a_later_one() -> None:
    run = Run()
    run.started(0)
    run.until(TTL_MS + 1000)
    run.approval(1000)
    assert run.standing == []
    run.until(2 * APPROVAL_MS)
    assert run.standing == ["tool.call.timed_out"]
    assert run.said[-1]["deadline"] == "2026-03-01T13:00:01.000Z"


def test_a_call_with_very_many_approval_records_keeps_the_earliest() -> None:
    run = Run()
    run.started(0)
    for n in range(MAX_APPROVALS + 5):
        run.approval(n)
        run.approval(0)
    assert run.calls.counters["approvals_forgotten"] == 5


def test_a_session_that_ends_abandons_its_open_calls_after_a_moment() -> None:
    run = Run()
    run.started(0, 1)
    run.started(0, 2, session_id="other")
    run.started(0, 3, tenant_id="other")
    run.started(2000, 4)
    run.started(0, 5)
    run.ended(500, 5)
    run.session_ended(1000, reason="logout")
    run.until(1000 + GRACE_MS - 1)
    assert not run.said
    run.until(1000 + GRACE_MS)
    (body,) = run.said
    assert body["call_id"] == derived_id("call", "key1", 1)
    assert body["event_id"] == derived_id("abandoned", body["call_id"])
    assert (body["outcome"], body["cause"], body["timestamp"]) == (
        "unknown",
        "session.ended: logout",
        "2026-03-01T12:00:01.000Z",
    )
    run.until(10 * TTL_MS)
    assert run.standing == ["tool.call.abandoned"] + ["tool.call.timed_out"] * 3


def test_the_end_of_a_session_counts_too_when_it_is_read_before_the_start() -> None:
    run = Run()
    run.session_ended(1000)
    run.started(0)
    run.until(TTL_MS)
    assert run.standing == ["tool.call.abandoned"]
    assert run.said[0]["cause"] == "session.ended"


def test_a_call_that_ends_in_time_after_its_session_was_not_abandoned() -> None:
    run = Run()
    run.started(0)
    run.session_ended(1000)
    run.until(10_000)
    run.ended(20_000)
    run.until(10 * TTL_MS)
    assert run.standing == []


@pytest.mark.parametrize("end_first", [False, True])
@pytest.mark.parametrize("through_dump", [False, True])
def test_what_a_worker_before_called_abandoned_is_taken_back_though_the_sessions_end_is_read_last(
    end_first: bool, through_dump: bool
) -> None:
    """It read that end first and said so; this one has read far ahead in the topic of the calls."""
    run = Run()
    steps = [lambda: run.started(0), lambda: run.ended(60_000)]
    for step in reversed(steps) if end_first else steps:
        step()
    if through_dump:
        run.calls, state = PendingCalls(Ttls(TTL_MS, APPROVAL_MS)), run.calls.dump()
        run.calls.load(state)
    run.session_ended(20_000)
    assert ("tool.call.abandoned", True) in [(body["event_name"], body["retracted"]) for body in run.said]
    assert run.standing == []


def test_of_a_call_that_ended_as_it_was_read_nothing_is_kept_to_take_back() -> None:
    run = Run()
    run.started(0)
    run.until(60_000 - GRACE_MS)
    run.ended(60_000)
    assert next(iter(run.calls._calls.values())).own is None
    run.session_ended(20_000)
    assert run.said == []


def test_a_session_that_ends_after_the_deadline_abandons_nothing() -> None:
    run = Run()
    run.started(0)
    run.session_ended(TTL_MS + 1)
    run.until(10 * TTL_MS)
    assert run.standing == ["tool.call.timed_out"]


def test_restarts_of_a_collector_abandon_nothing() -> None:
    assert not PendingCalls.wants & {"producer.heartbeat", "producer.dropped"}


def test_ttls_by_runtime_server_and_tool() -> None:
    ttls = Ttls(
        1000,
        5000,
        [
            TtlOverride(runtime="codex", tool="Bash", ttl_ms=2000),
            TtlOverride(mcp_server="odd.srv 2", ttl_ms=3000),
            TtlOverride(runtime="codex", ttl_ms=4000),
        ],
    )
    assert ttls.of({"tool_name": "Bash", "agent_runtime": "hermes"}) == 1000
    assert ttls.of({"tool_name": "Bash", "agent_runtime": "codex"}) == 2000
    assert ttls.of({"tool_name": "Read", "agent_runtime": "codex"}) == 4000
    mcp = {"server_name": "odd_srv_2", "tool_name": "get-sum"}
    assert ttls.of({"tool_name": "mcp__odd_srv_2__get_sum", "agent_runtime": "codex", "mcp": mcp}) == 3000
    assert ttls.longest_ms == 9000
    assert PendingCalls(ttls).horizon_ms == 9000 + KEEP_MS
    for n in range(30_000):
        ttls.of({"tool_name": f"t{n}"})
    assert len(ttls._known) <= 10_000


def test_dumps_are_taken_over_or_refused() -> None:
    run = Run()
    for n in range(5):
        run.started(n, n)
        run.approval(n + 1)
        run.session_ended(n * 10, session_id=f"s{n}")
    run.until(TTL_MS)
    state = run.calls.dump()
    other = Run()
    other.calls.load(state)
    assert other.calls.dump() == state
    for wrong in (b"", b"[]", b"{}", b'{"version": 99}', state.replace(b'"ids":[', b'"ids":[1,'), b'{"version":2}'):
        with pytest.raises(ValueError):
            Run().calls.load(wrong)


def test_what_is_settled_is_forgotten_by_time_and_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    for n in range(100):
        run.started(n, n, session_id=f"s{n % 7}")
        run.ended(n + 50, n)
        run.session_ended(n + 60, session_id=f"s{n % 7}")
    run.until(KEEP_MS)
    assert run.calls.counters["calls"] > 0
    run.until(KEEP_MS + TTL_MS)
    calls = run.calls
    assert (calls.counters["calls"], len(calls._open), len(calls._ends), len(calls._due)) == (0, 0, 0, 0)

    monkeypatch.setattr(module, "MAX_SETTLED", 10)
    run = Run()
    for n in range(100):
        run.started(n, n)
        run.ended(n, n)
        run.session_ended(n, session_id=f"s{n}")
        run.until(n)
    assert run.calls.counters["calls"] <= 10
    assert len(run.calls._ends) <= 11


def test_a_million_open_calls_fit_in_a_gibibyte() -> None:
    count = 20_000
    body = call_event(
        "tool.call.started",
        0,
        agent_version="2.1.0",
        agent_id="main",
        session_id="0199c0de-0000-7000-8000-000000000000",
        trace_id="a" * 32,
        span_id="b" * 16,
        turn_id="0199c0de-0000-7000-8000-000000000001",
        run_id="0199c0de-0000-7000-8000-000000000002",
        tool_call_id="toolu_01AAAAAAAAAAAAAAAAAAAAAA",
        mcp={"server_name": "github", "safe_server_name": "github", "tool_name": "search", "transport": "stdio"},
        source_adapter="claude_code/1",
    )
    group = Group(0, [lambda _: PendingCalls()])
    values = [
        orjson.dumps({**body, "call_id": derived_id("call", n), "session_id": f"0199c0de-0000-7000-8000-{n:012}"})
        for n in range(count)
    ]
    tracemalloc.start()
    try:
        group.feed(TOPIC_OF_EVENT[body["event_name"]], (Raw(n, T0 + n, None, value) for n, value in enumerate(values)))
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    print(f"{size / count:.0f} bytes an open call, in a session of its own", file=sys.stderr)
    assert size / count < 750
