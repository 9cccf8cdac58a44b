"""pending_calls against a naive reading of the whole set of records: any order, batches, crashes, duplicates."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.pending_calls.call import rank
from pipelines.pending_calls.operator import GRACE_MS, PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime.port import LATENESS_MS, CanonicalSet, Event, Record
from schemas.clock import to_rfc3339
from schemas.config import TtlOverride
from schemas.events import EVENT
from schemas.topics import TOOL_CALL_DERIVED, TOPIC_OF_EVENT
from tests.pipelines.helpers import T0, call_event, calm, event, stormy

pytestmark = pytest.mark.unit

TTL_MS, APPROVAL_MS, SLOW_TTL_MS = 300_000, 1_000_000, 600_000
TTLS = Ttls(TTL_MS, APPROVAL_MS, [TtlOverride(runtime="codex", ttl_ms=SLOW_TTL_MS)])
UNTIL_MS = 20_000_000
"""Later than every deadline, and so late that everything is forgotten."""

SEEDS = st.integers(0, 1 << 32).map(Random)

History = list[tuple[int, Event]]


def operator(_partition: int) -> PendingCalls:
    return PendingCalls(TTLS)


def oracle(history: History) -> dict[str, dict[str, Any]]:
    """What must stand in the end, by event id: kind, time, cause."""
    session_ends = sorted(
        (at, body["session_id"], f"session.ended: {body['reason']}" if "reason" in body else "session.ended")
        for at, body in history
        if "call_id" not in body
    )
    expected = {}
    for call_id in sorted(ids(history)):
        records = [(at, body) for at, body in history if body.get("call_id") == call_id]
        starts = [(at, body) for at, body in records if body["event_name"] == "tool.call.started"]
        if not starts:
            continue
        begin, start = min(starts, key=lambda item: (item[0], rank(item[1])))
        ttl = SLOW_TTL_MS if start["agent_runtime"] == "codex" else TTL_MS
        deadline, waiting = begin + ttl, False
        asks = [(at, body) for at, body in records if "approval" in body["event_name"]]
        for at, body in sorted(asks, key=lambda item: (item[0], item[1]["event_name"] == "tool.call.approval_decided")):
            decided = body["event_name"] == "tool.call.approval_decided"
            if decided and body["approval"]["decision"] == "deny":
                continue
            if at > deadline:
                break
            waiting = not decided
            deadline = max(at, begin) + ttl if decided else max(deadline, at + APPROVAL_MS)
        ends = [
            at
            for at, body in records
            if body["event_name"] in {"tool.call.completed", "tool.call.error", "tool.call.blocked"}
            or body.get("approval", {}).get("decision") == "deny"
        ]
        if any(at <= deadline for at in ends):
            continue
        over = [
            (at, cause)
            for at, session, cause in session_ends
            if session == start["session_id"] and begin <= at <= deadline
        ]
        if over:
            at, cause = over[0]
            expected[call_id] = {"kind": "tool.call.abandoned", "at": at, "cause": cause}
        else:
            cause = "no decision on the approval" if waiting else None
            expected[call_id] = {"kind": "tool.call.timed_out", "at": deadline, "cause": cause}
    return expected


def told(said: CanonicalSet) -> dict[str, dict[str, Any]]:
    """The same of what was said; every event must be valid, and there is one per call."""
    found = {}
    for body in said.bodies(TOOL_CALL_DERIVED).values():
        EVENT.validate_json(orjson.dumps(body))
        assert body["call_id"] not in found
        found[body["call_id"]] = {"kind": body["event_name"], "at": body["timestamp"], "cause": body.get("cause")}
    return found


def expect(history: History) -> dict[str, dict[str, Any]]:
    return {call: {**what, "at": to_rfc3339(T0 + what["at"])} for call, what in oracle(history).items()}


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Records of a few calls and sessions, at times around the deadlines, in log order."""
    history: History = []
    at = 0
    interesting = [0, 1, 1000, GRACE_MS, 60_000, TTL_MS - 60_000, TTL_MS - 1, TTL_MS, TTL_MS + 1, APPROVAL_MS]
    for n in range(draw(st.integers(1, 25))):
        at += draw(st.sampled_from(interesting) | st.integers(0, 400_000))
        call, session = draw(st.integers(0, 3)), draw(st.sampled_from(["s1", "s2"]))
        runtime = draw(st.sampled_from(["claude_code", "codex"]))
        name = draw(
            st.sampled_from(
                ["started"] * 4 + ["completed", "error", "blocked", "approval_requested", "approval_decided", "ended"]
            )
        )
        where = {"session_id": session, "agent_runtime": runtime}
        if name == "ended":
            body = event("session.ended", at, n, reason=draw(st.sampled_from(["exit", None])), **where)
        elif name == "approval_decided":
            decision = draw(st.sampled_from(["allow_once", "deny"]))
            body = call_event("tool.call.approval_decided", at, call, approval={"decision": decision}, **where)
        else:
            body = call_event(f"tool.call.{name}", at, call, **where)
        history.append((at, {name: value for name, value in body.items() if value is not None}))
    return history


@settings(max_examples=100, deadline=None)
@given(histories())
def test_calm_run_equals_the_naive_reading(history: History) -> None:
    history = spaced(history)
    assert told(calm(history, [operator], UNTIL_MS)) == expect(history)


@settings(max_examples=100, deadline=None)
@given(histories(), SEEDS)
def test_any_interleaving_batches_crashes_and_zombies_say_the_same(history: History, rng: Random) -> None:
    history = spaced(history)
    with_duplicates = sorted([*history, *rng.sample(history, len(history) // 3)], key=lambda item: item[0])
    assert list(stormy(with_duplicates, [operator], UNTIL_MS, rng).lines()) == list(
        calm(history, [operator], UNTIL_MS).lines()
    )


def spaced(history: History) -> History:
    """Only records of a call that lie within what the operator promises to remember of each other."""
    first: dict[str, int] = {}
    kept = []
    for at, body in history:
        if at - first.setdefault(body.get("call_id", "-"), at) <= LATENESS_MS or "call_id" not in body:
            kept.append((at, body))
    return kept


def ids(history: History) -> set[str]:
    return {body["call_id"] for _, body in history if "call_id" in body}


class Said:
    """Collects outputs as a host does."""

    def __init__(self) -> None:
        self.canonical = CanonicalSet()
        self.version = 0

    def put(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        self.version += 1
        self.canonical.add(topic, record_id, {**body, "version": self.version})

    def retract(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        self.put(topic, record_id, {**body, "retracted": True}, key)


@settings(max_examples=200, deadline=None)
@given(histories(), SEEDS, st.booleans())
def test_any_order_within_the_lateness_bound(history: History, rng: Random, through_dump: bool) -> None:
    """Progress may run ahead of a call's records that are still to come, by up to the lateness bound."""
    history = spaced(history)
    order = list(history)
    rng.shuffle(order)
    first = {name: min(at for at, body in history if body.get("call_id") == name) for name in ids(history)}
    said, calls, progress = Said(), operator(0), 0
    for n, (at, body) in enumerate(order):
        calls.on_event(Record(TOPIC_OF_EVENT[body["event_name"]], 0, n, T0 + at, body), said)
        left = [first[body["call_id"]] if "call_id" in body else at for at, body in order[n + 1 :]]
        bound = T0 + (min(left) + LATENESS_MS if left else UNTIL_MS)
        if rng.random() < 0.4 and bound > progress:
            progress = rng.randint(progress or T0, bound)
            calls.on_progress(progress, said)
        if through_dump and rng.random() < 0.2:
            state = calls.dump()
            calls = operator(0)
            calls.load(state)
            assert calls.dump() == state
    calls.on_progress(T0 + UNTIL_MS, said)
    assert told(said.canonical) == expect(history)
    calls.on_progress(T0 + 10 * UNTIL_MS, said)
    assert not calls.counters["calls"]
    assert calls.dump() == emptied(calls)


def emptied(calls: PendingCalls) -> bytes:
    """The dump of an operator that has forgotten everything but its counters and the time."""
    state = orjson.loads(calls.dump())
    assert state["ids"] == state["ends"] == state["ended"] == []
    return calls.dump()
