"""Sequence rules against a naive matcher over the whole set of records, in any order, cut and restarted anywhere."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.runtime.port import LATENESS_MS, CanonicalSet, Record
from pipelines.sequence_rules.compiled import KEPT_EACH_SIDE, CompiledPack, CompiledRule, compile_pack
from pipelines.sequence_rules.conditions import predicate
from pipelines.sequence_rules.findings import MAX_EVIDENCE
from pipelines.sequence_rules.loader import load_rules
from pipelines.sequence_rules.operator import SequenceRules
from schemas.clock import from_rfc3339, to_rfc3339
from schemas.events import EVENT, Finding
from schemas.identity import derived_id, finding_id, join_key
from schemas.rules import RuleFile, RulePack
from schemas.topics import RISK_FINDING, TOPIC_OF_EVENT

pytestmark = pytest.mark.unit

T0 = from_rfc3339("2026-03-01T12:00:00Z")
PARTITION = 3


class Said:
    """Collects outputs as a host does: it stamps the body it is given."""

    def __init__(self) -> None:
        self.canonical = CanonicalSet()
        self.puts = 0

    def put(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        assert topic == RISK_FINDING
        assert record_id == body["finding_id"]
        self.puts += 1
        body["version"] = self.puts
        self.canonical.add(topic, record_id, body)

    def retract(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        self.put(topic, record_id, {**body, "retracted": True})

    def findings(self) -> list[dict[str, Any]]:
        return sorted(self.canonical.bodies().values(), key=lambda body: (body["rule"]["id"], body["first_seen"]))


def pack(*rules: dict[str, Any]) -> CompiledPack:
    texts = [{"name": rule["id"], "severity": "high", **rule} for rule in rules]
    file = RuleFile.model_validate_json(orjson.dumps({"rules": texts}))
    return compile_pack(RulePack(rules=tuple(file.rules)))


def record(name: str, at_ms: int, number: int = 0, *, delay_ms: int = 0, offset: int = 0, **fields: Any) -> Record:
    event: dict[str, Any] = {
        "event_name": name,
        "event_id": derived_id("test", name, number, at_ms),
        "event_version": "1.0",
        "timestamp": to_rfc3339(T0 + at_ms),
        "tenant_id": "acme",
        "agent_runtime": "codex",
        "session_id": "s1",
        "root_session_id": "s1",
        "source_adapter": "test/1",
        "severity": "info",
    }
    if name.startswith("tool.call"):
        event |= {"call_id": derived_id("call", number), "tool_name": "Bash", "tool_source": "shell"}
    event |= fields
    return Record(TOPIC_OF_EVENT[name], PARTITION, offset, T0 + at_ms + delay_ms, event)


def run(
    packs: CompiledPack | list[tuple[int, CompiledPack]],
    records: list[Record],
    *,
    cuts: frozenset[int] = frozenset(),
    restarts: frozenset[int] = frozenset(),
    until_ms: tuple[int, ...] = (0, 10_000, 30 * 3_600_000),
    seen: int | None = None,
    said: Said | None = None,
) -> tuple[Said, SequenceRules]:
    """Feed records in this order, the first `seen`; progress is told at the cuts, as far as the rest of them allows."""
    schedule = packs if isinstance(packs, list) else [(0, packs)]
    said, operator = said or Said(), SequenceRules(PARTITION, schedule)
    for place, one in enumerate(records[:seen]):
        operator.on_event(one, said)
        if place in cuts:
            operator.on_progress(min((later.cause_ms for later in records[place + 1 :]), default=T0) - 1, said)
        if place in restarts:
            state = operator.dump()
            operator = SequenceRules(PARTITION, schedule)
            operator.load(state)
    end = max((one.log_time_ms for one in records), default=T0)
    for later in until_ms:
        operator.on_progress(end + later, said)
    return said, operator


A_THEN_B = {
    "id": "a-then-b",
    "when": {
        "sequence": [
            {"event": "tool.call.completed", "where": {"tool_name": "A"}},
            {"event": "tool.call.started", "where": {"tool_name": "B"}, "within": "60s"},
        ]
    },
}
LOOP = {
    "id": "loop",
    "cooldown": "1h",
    "when": {"count": {"event": "tool.call.started", "same": ["tool_name"], "more_than": 2, "within": "60s"}},
}
SPIKE = {
    "id": "spike",
    "when": {
        "metric": {
            "name": "agent_tool_call_error_rate",
            "group_by": ["mcp.server_name"],
            "window": "60s",
            "condition": "> 0.5",
            "min_count": 4,
        }
    },
}

MANY = {
    "id": "many",
    "when": {
        "metric": {
            "name": "agent_tool_call_error_total",
            "group_by": ["mcp.server_name"],
            "window": "60s",
            "condition": "> 2",
        }
    },
}


def a(at_ms: int, number: int = 0, **fields: Any) -> Record:
    return record("tool.call.completed", at_ms, number, tool_name="A", **fields)


def b(at_ms: int, number: int = 0, **fields: Any) -> Record:
    return record("tool.call.started", at_ms, number, **{"tool_name": "B", **fields})


# one by one


def test_a_chain_within_its_time_is_a_finding() -> None:
    first, second = a(0, trace_id="ab" * 16, agent_id="main", offset=7), b(60_000, offset=9)
    said, _ = run(pack(A_THEN_B), [first, second])
    (body,) = said.findings()
    finding = EVENT.validate_json(orjson.dumps(body))
    assert isinstance(finding, Finding)
    assert finding.finding_id == finding_id("a-then-b", 1, "acme", "s1", T0 // 600_000)
    assert finding.event_name == "risk.finding.created"
    assert (finding.risk, finding.severity, finding.title) == ("high", "warning", "a-then-b")
    assert (finding.trace_id, finding.session_id, finding.agent_id) == ("ab" * 16, "s1", "main")
    assert [(one.topic, one.partition, one.offset) for one in finding.evidence] == [
        ("agenttrace.tool.call", PARTITION, 7),
        ("agenttrace.tool.call", PARTITION, 9),
    ]
    assert (finding.first_seen, finding.last_seen) == (first.event["timestamp"], second.event["timestamp"])
    assert finding.score == sum(finding.score_parts.model_dump().values()) > 0
    assert finding.group_by == "root_session_id"
    assert finding.tool_name == "B"


@pytest.mark.parametrize(
    "records",
    [
        [a(0), b(60_001)],
        [b(0), a(1)],
        [a(0), b(10, root_session_id="s2")],
        [a(0), b(10, tenant_id="other")],
        [a(0), record("tool.call.started", 10, tool_name="C")],
        [a(0)],
        [b(0)],
    ],
)
def test_no_chain_no_finding(records: list[Record]) -> None:
    said, _ = run(pack(A_THEN_B), records)
    assert said.findings() == []


def test_arrival_order_does_not_matter() -> None:
    records = [a(0), b(30_000)]
    forward, _ = run(pack(A_THEN_B), records)
    backward, _ = run(pack(A_THEN_B), records[::-1])
    assert list(forward.canonical.lines()) == list(backward.canonical.lines()) != []


def test_the_finding_is_said_when_its_last_piece_arrives() -> None:
    said, _ = run(pack(A_THEN_B), [b(30_000), a(0)], until_ms=())
    assert said.puts == 1


def test_an_event_does_not_follow_itself() -> None:
    twice = {
        "id": "twice",
        "when": {"sequence": [{"event": "tool.call.started"}, {"event": "tool.call.started", "within": "60s"}]},
    }
    assert run(pack(twice), [b(0), b(0)])[0].findings() == []
    assert len(run(pack(twice), [b(0), b(0, 1)])[0].findings()) == 1


def test_further_evidence_updates_the_finding_of_its_bucket() -> None:
    said, _ = run(pack(A_THEN_B), [a(0), b(1_000), a(2_000, 1), b(3_000, 1)])
    (body,) = said.findings()
    assert (body["event_name"], body["evidence_count"]) == ("risk.finding.updated", 4)
    said, _ = run(pack(A_THEN_B), [a(0), b(1_000), a(700_000, 1), b(701_000, 1)])
    assert [body["evidence_count"] for body in said.findings()] == [2, 2]


def test_a_duplicate_changes_nothing() -> None:
    said, operator = run(pack(A_THEN_B), [a(0), b(1_000)], until_ms=())
    puts = said.puts
    operator.on_event(a(0, offset=50), said)
    operator.on_event(b(1_000, offset=51), said)
    assert said.puts == puts


def test_records_too_far_from_their_time_are_ignored_and_counted() -> None:
    said, operator = run(pack(A_THEN_B), [a(0, delay_ms=LATENESS_MS + 1), b(10, delay_ms=-LATENESS_MS - 1)])
    assert said.findings() == []
    assert dict(operator.counters) == {"too_late": 1, "too_early": 1}
    assert len(run(pack(A_THEN_B), [a(0, delay_ms=LATENESS_MS), b(10, delay_ms=LATENESS_MS)])[0].findings()) == 1


def test_evidence_is_bounded_and_says_so() -> None:
    records = [a(0)] + [b(1 + n, n) for n in range(200)]
    said, _ = run(pack(A_THEN_B), records)
    (body,) = said.findings()
    assert body["overflow"] is True
    assert len(body["evidence"]) == body["evidence_count"] == 1 + 2 * KEPT_EACH_SIDE
    again, _ = run(pack(A_THEN_B), records[::-1])
    assert list(again.canonical.lines()) == list(said.canonical.lines())


def test_a_flood_does_not_hide_a_chain() -> None:
    """However many first events fill a slot, whether one is near enough to the last event is still known."""
    flood = [a(n, n) for n in range(1, 400)]
    for at in (60_399, 60_001 + 398):
        assert run(pack(A_THEN_B), [*flood, b(at)])[0].findings() != []
    assert run(pack(A_THEN_B), [*flood, b(60_400)])[0].findings() == []


def test_a_secret_that_moved_raises_the_finding() -> None:
    moved = ["0123456789abcdef"]
    plain, _ = run(pack(A_THEN_B), [a(0, facts={"fingerprints": ["ff" * 8]}), b(9, facts={"fingerprints": moved})])
    flow, _ = run(pack(A_THEN_B), [a(0, facts={"fingerprints": moved}), b(9, facts={"fingerprints": moved})])
    (before,), (after,) = plain.findings(), flow.findings()
    assert (before["risk"], after["risk"]) == ("high", "critical")
    assert after["score"] > before["score"]
    assert "value_flow" in after["description"] and "description" not in before
    assert "0123456789abcdef" not in orjson.dumps(after).decode()


def test_a_count_is_of_events_alike_in_the_same_fields() -> None:
    started = [record("tool.call.started", n * 1_000, n, tool_name="A" if n % 2 else "B") for n in range(6)]
    said, _ = run(pack(LOOP), started)
    assert [(body["group"], body["evidence_count"]) for body in said.findings()] == [("s1|B", 3), ("s1|A", 3)]
    assert run(pack(LOOP), started[:4])[0].findings() == []
    apart = [record("tool.call.started", at, n) for n, at in enumerate((0, 30_000, 60_001))]
    assert run(pack(LOOP), apart)[0].findings() == []


def ended(at_ms: int, number: int, outcome: str, server: str = "github", **fields: Any) -> Record:
    name = "tool.call.completed" if outcome == "ok" else f"tool.call.{outcome}"
    return record(name, at_ms, number, outcome=outcome, mcp={"server_name": server}, tool_source="mcp", **fields)


def test_an_error_rate_is_looked_at_when_a_sub_window_closes() -> None:
    records = [ended(n * 100, n, "ok" if n < 2 else "error") for n in range(5)]
    said, operator = run(pack(SPIKE), records, until_ms=())
    operator.on_progress(T0 + 9_999, said)
    assert said.puts == 0
    operator.on_progress(T0 + 10_000, said)
    (body,) = said.findings()
    finding = EVENT.validate_json(orjson.dumps(body))
    assert isinstance(finding, Finding)
    assert (finding.group, finding.mcp_server, finding.evidence_count) == ("github", "github", 3)
    assert finding.description is not None and "0.600 of 5 calls" in finding.description
    assert "partition" in finding.description
    place = join_key("github", f"partition {PARTITION}")
    assert finding.finding_id == finding_id("spike", 1, "acme", place, T0 // 600_000)
    # Late successes take the finding back.
    for n in range(5, 9):
        operator.on_event(ended(n * 100, n, "ok", delay_ms=60_000), said)
    operator.on_progress(T0 + 60_000, said)
    assert said.findings() == []


def test_a_rate_counts_a_call_once_and_needs_enough_of_them() -> None:
    twice = [ended(0, 0, "error"), ended(10, 0, "error"), ended(20, 1, "error"), ended(30, 2, "error")]
    assert run(pack(SPIKE), twice)[0].findings() == []
    assert len(run(pack(SPIKE), [*twice, ended(40, 3, "error")])[0].findings()) == 1
    assert run(pack(SPIKE), [ended(n, n, "error", server=f"s{n % 2}") for n in range(6)])[0].findings() == []
    assert run(pack(SPIKE), [ended(n, n, "blocked") for n in range(9)])[0].findings() == []


def test_a_late_call_changes_the_windows_after_it() -> None:
    """Its window ends in the next cooldown bucket."""
    bucket_end = 600_000
    records = [ended(bucket_end + n, n, "error") for n in range(3)]
    said, operator = run(pack(SPIKE), records, until_ms=(20_000,))
    assert said.findings() == []
    operator.on_event(ended(bucket_end - 5_000, 9, "error", delay_ms=60_000), said)
    operator.on_progress(T0 + bucket_end + 70_000, said)
    (body,) = said.findings()
    assert body["evidence_count"] == 4


def test_a_finding_can_be_taken_back_as_long_as_records_may_come() -> None:
    said, operator = run(pack(SPIKE), [ended(n, n, "error") for n in range(4)], until_ms=(0, 14 * 60_000))
    assert len(said.findings()) == 1
    for n in range(4, 9):
        operator.on_event(ended(n, n, "ok", delay_ms=LATENESS_MS), said)
    operator.on_progress(T0 + LATENESS_MS + 10_000, said)
    assert said.findings() == []


def test_what_can_still_match_is_not_forgotten() -> None:
    """Slots are dropped one by one; a late event still finds its partner."""
    said, operator = run(pack(A_THEN_B), [a(0), b(1_000), a(1_500_000, 1)], until_ms=())
    operator.on_progress(T0 + 1_500_000 + LATENESS_MS - 1, said)
    operator.on_event(b(1_510_000, 1, delay_ms=LATENESS_MS - 9_000), said)
    assert len(said.findings()) == 2


def test_a_full_finding_is_said_now_and_then() -> None:
    """Beyond MAX_EVIDENCE at a tick, and once more when progress has passed the record that changed it: a host that
    re-reads the log takes what is due by a progress as said, and no more."""
    rule = {"id": "any", "when": {"sequence": [{"event": "tool.call.started"}]}, "cooldown": "10m"}
    packed = pack(rule)
    packed.rules[0].kept = 100
    said, operator = run(packed, [b(n, n) for n in range(MAX_EVIDENCE + 1)], until_ms=(0,))
    puts = said.puts
    for n in range(5):
        operator.on_event(b(20_000 + n, 100 + n, delay_ms=15_000), said)
    assert said.puts == puts
    operator.on_progress(T0 + 30_000, said)
    assert said.puts == puts + 1
    assert said.findings()[0]["evidence_count"] == MAX_EVIDENCE + 6
    operator.on_progress(T0 + 40_000, said)
    assert said.puts == puts + 2
    operator.on_progress(T0 + 50_000, said)
    assert said.puts == puts + 2


def test_a_rate_that_a_later_record_changed_is_said_again() -> None:
    records = [ended(n, n, "error") for n in range(4)]
    said, operator = run(pack(SPIKE), records, until_ms=(10_000,))
    operator.on_event(ended(5, 5, "error", delay_ms=35_000), said)
    puts = []
    for t_ms in (20_000, 30_000, 40_000, 50_000):
        operator.on_progress(T0 + t_ms, said)
        puts.append(said.puts)
    assert puts == [2, 3, 4, 4]


def test_a_lone_event_waits_for_a_late_partner() -> None:
    said, operator = run(pack(A_THEN_B), [a(0)], until_ms=())
    operator.on_progress(T0 + 14 * 60_000, said)
    operator.on_event(b(30_000, delay_ms=14 * 60_000), said)
    assert len(said.findings()) == 1


def test_evidence_stays_as_long_as_its_finding_can_change() -> None:
    said, operator = run(pack(A_THEN_B), [a(0), b(1_000)], until_ms=())
    for t_ms in range(0, 1_400_000, 60_000):
        operator.on_progress(T0 + t_ms, said)
    late = LATENESS_MS - 10_000
    for one in (a(580_000, 1, delay_ms=late), b(590_000, 1, delay_ms=late)):
        operator.on_event(one, said)
    assert [body["evidence_count"] for body in said.findings()] == [4]


def test_a_pack_is_in_force_from_its_log_time() -> None:
    first, second = pack(A_THEN_B), pack({**A_THEN_B, "version": 2})
    schedule = [(0, first), (T0 + 100_000, second)]
    said, _ = run(schedule, [a(0), b(10), a(99_990, 1), b(100_000, 1), a(100_001, 2), b(100_002, 2)])
    assert [(body["rule"]["version"], body["evidence_count"]) for body in said.findings()] == [(1, 2), (2, 2)]
    assert [body["rule"]["pack_hash"] for body in said.findings()] == [first.hash, second.hash]
    # A rule that is in both packs unchanged goes on.
    wider = pack(A_THEN_B, LOOP)
    said, _ = run([(0, first), (T0 + 100_000, wider)], [a(99_990, 1), b(100_000, 1)])
    assert [body["rule"]["pack_hash"] for body in said.findings()] == [first.hash]
    assert run([(T0 + 100_000, first)], [a(99_990, 1), b(99_999, 1)])[0].findings() == []


def test_a_retracted_derived_event_takes_its_finding_back() -> None:
    rule = {"id": "t", "when": {"sequence": [{"event": "tool.call.timed_out"}]}}
    timeout = record("tool.call.timed_out", 0)
    said, operator = run(pack(rule), [timeout], until_ms=())
    assert len(said.findings()) == 1
    again = Record(timeout.topic, PARTITION, -1, timeout.log_time_ms, {**timeout.event, "retracted": True})
    operator.on_event(again, said)
    assert said.findings() == []


def test_what_a_worker_before_may_have_said_is_taken_back() -> None:
    """It had seen less: the event that is taken back now, or only the failures of a window."""
    rule = {"id": "t", "when": {"sequence": [{"event": "tool.call.timed_out"}]}}
    timeout = record("tool.call.timed_out", 0)
    before, _ = run(pack(rule), [timeout], until_ms=())
    gone = Record(timeout.topic, PARTITION, -1, timeout.log_time_ms, {**timeout.event, "retracted": True})
    after, _ = run(pack(rule), [gone], until_ms=())
    (said,), (back,) = before.canonical._last.values(), after.canonical._last.values()
    assert back["retracted"] and back["finding_id"] == said["finding_id"]
    EVENT.validate_json(orjson.dumps(back))

    failed, fine = [ended(n, n, "error") for n in range(4)], [ended(n, n, "ok", delay_ms=30_000) for n in range(4, 9)]
    before, _ = run(pack(SPIKE), failed)
    after, _ = run(pack(SPIKE), failed + fine)
    (said,), (back,) = before.canonical._last.values(), after.canonical._last.values()
    assert back["retracted"] and back["finding_id"] == said["finding_id"]
    assert run(pack(SPIKE), failed[:2] + fine)[0].puts == 0


def taken_back(timeout: Record, after_ms: int) -> Record:
    """The retraction of a derived end, as it follows from a record so much later."""
    event = {**timeout.event, "retracted": True}
    return Record(timeout.topic, PARTITION, -1, timeout.log_time_ms, event, cause_ms=timeout.log_time_ms + after_ms)


@pytest.mark.parametrize("rule", [SPIKE, MANY])
@pytest.mark.parametrize("way", ["gone", "gone unseen", "weaker", "weaker from the start"])
def test_a_rate_that_only_a_worker_before_saw_exceeded_is_taken_back(rule: dict[str, Any], way: str) -> None:
    """One of its failures was a timeout that counts no more: taken back, or the call has a better end."""
    calls = [ended(0, 0, "error"), ended(1, 1, "error"), ended(2, 2, "ok")]
    timeout = ended(5_000, 3, "timed_out")
    before, _ = run(pack(rule), [*calls, timeout])
    (said,) = before.findings()
    better = ended(15_000, 3, "blocked")
    more = {
        "gone": [timeout, taken_back(timeout, 5_000)],
        "gone unseen": [taken_back(timeout, 5_000)],
        "weaker": [timeout, better],
        "weaker from the start": [better, timeout],
    }
    after, _ = run(pack(rule), [*calls, *more[way]])
    (back,) = after.canonical._last.values()
    assert back["retracted"] and back["finding_id"] == said["finding_id"]
    EVENT.validate_json(orjson.dumps(back))
    assert run(pack(rule), [*calls, better])[0].puts == 0


def test_state_is_forgotten() -> None:
    records = [a(0), b(10), *[ended(n, n, "error") for n in range(9)]]
    steps = tuple(range(0, 8 * 3_600_000, 300_000))
    said, operator = run(pack(A_THEN_B, LOOP, SPIKE), records, until_ms=steps)
    assert len(said.findings()) == 2
    empty = orjson.loads(SequenceRules(PARTITION, [(0, pack(A_THEN_B, LOOP, SPIKE))]).dump())
    left = orjson.loads(operator.dump())
    assert {name: left[name] for name in ("patterns", "rates", "said", "deferred")} == {
        name: empty[name] for name in ("patterns", "rates", "said", "deferred")
    }
    assert not any(patterns._expiry or patterns._kept for patterns in operator._patterns.values())
    assert not any(rates._calls or rates._expiry or rates._open for rates in operator._rates.values())


def test_memory_is_bounded_and_what_is_dropped_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.sequence_rules.patterns.MAX_KEPT", 10)
    _, operator = run(pack(LOOP), [b(n, n, root_session_id=f"s{n}") for n in range(25)], until_ms=())
    assert operator.counters["over_memory"] == 15


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_name": ["B"]},
        {"root_session_id": 7, "session_id": None},
        {"facts": "x", "mcp": 3, "policy": []},
        {"facts": {"fingerprints": [[], 3, "ab"], "secret_kinds": "jwt"}},
        {"tenant_id": 9, "agent_id": {}, "tool_source": []},
        {"root_session_id": "x" * 100_000},
    ],
)
def test_odd_fields_do_not_break_the_finding(fields: dict[str, Any]) -> None:
    rule = {"id": "any", "when": {"sequence": [{"event": "tool.call.started"}]}}
    said, _ = run(pack(rule), [b(0, **fields)], restarts=frozenset({0}))
    (body,) = said.findings()
    EVENT.validate_json(orjson.dumps(body))
    assert len(body["group"]) <= 200


def test_a_malformed_record_changes_nothing() -> None:
    operator = SequenceRules(PARTITION, [(0, pack(A_THEN_B))])
    before = operator.dump()
    for broken in ({"timestamp": "yesterday"}, {"event_id": 5}):
        with pytest.raises((ValueError, TypeError)):
            operator.on_event(Record("t", PARTITION, 0, T0, a(0).event | broken), Said())
    assert operator.dump() == before


def test_another_state_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence_rules"):
        SequenceRules(PARTITION, [(0, pack(A_THEN_B))]).load(b'{"version":99}')


def test_the_design_example_finds_a_secret_sent_away() -> None:
    text = Path(__file__).with_name("design_example.yaml")
    packed = compile_pack(load_rules([text]))
    read = record("tool.call.completed", 0, tool_source="mcp", input={"summary": '{"path": "/srv/.env"}'})
    sent = record("tool.call.started", 1_000, 1, tool_source="web", tool_name="fetch")
    (body,) = run(packed, [read, sent])[0].findings()
    assert (body["title"], body["severity"], body["risk"]) == ("敏感文件读取后外传", "critical", "critical")


# against the naive matcher

A_B_C = {
    "id": "a-b-c",
    "cooldown": "60s",
    "when": {
        "sequence": [
            {"event": "tool.call.completed", "where": {"tool_name": "A"}},
            {"event": ["tool.call.started", "tool.call.completed"], "within": "20s"},
            {"event": "tool.call.started", "where": {"tool_name_in": ["B", "C"]}, "within": "90s"},
        ]
    },
}
LOOP_SHORT = {
    "id": "loop-short",
    "cooldown": "60s",
    "when": {"count": {"event": "tool.call.started", "same": ["tool_name"], "more_than": 2, "within": "40s"}},
}
RULES = (A_THEN_B, A_B_C, LOOP, LOOP_SHORT, SPIKE)


def keep(rule: CompiledRule, members: list[Record]) -> list[Record]:
    """The first and last events of each slot, as the bound has it."""
    slots: dict[int, list[Record]] = {}
    for one in sorted(members, key=order):
        slots.setdefault(rule.slot(one.event_ms), []).append(one)
    return [
        one
        for members in slots.values()
        for one in (members if len(members) <= 2 * rule.kept else members[: rule.kept] + members[-rule.kept :])
    ]


def order(one: Record) -> tuple[int, str]:
    return one.event_ms, one.event["event_id"]


def naive(rules: list[CompiledRule], records: list[Record]) -> dict[str, tuple[int, set[str]]]:
    """Finding id to how much evidence there is and which events are listed, over all combinations of events."""
    first: dict[str, Record] = {}
    for one in sorted(records, key=lambda one: one.offset):
        if abs(one.log_time_ms - one.event_ms) <= LATENESS_MS:
            first.setdefault(one.event["event_id"], one)
    found: dict[str, tuple[int, set[str]]] = {}
    for rule in rules:
        groups: dict[tuple[str, str], list[list[Record]]] = {}
        for one, selection in product(first.values(), rule.selections):
            if one.event["event_name"] not in selection.event_names or not meets(selection, one.event):
                continue
            group = rule.group_of(one.event)
            if group is not None:
                key = (one.event["tenant_id"], group)
                groups.setdefault(key, [[] for _ in rule.selections])[selection.step].append(one)
        for (tenant, group), steps in groups.items():
            place = group if rule.by_session else join_key(group, f"partition {PARTITION}")
            for bucket, evidence in evidence_of(rule, steps).items():
                listed = {
                    one.event["event_id"]
                    for step in evidence
                    for one in sorted(step, key=order)[: MAX_EVIDENCE // len(evidence)]
                }
                total = {one.event["event_id"] for step in evidence for one in step}
                found[finding_id(rule.rule.id, 1, tenant, place, bucket)] = (len(total), listed)
    return found


def meets(selection: Any, event: dict[str, Any]) -> bool:
    return any(predicate(conditions)(event) for conditions in selection.alternatives)


def evidence_of(rule: CompiledRule, steps: list[list[Record]]) -> dict[int, list[list[Record]]]:
    found: dict[int, list[set[Record]]] = {}
    if rule.rule.when.metric is not None:
        return rates_of(rule, steps[0])
    steps = [keep(rule, step) for step in steps]
    if rule.more_than is not None:
        members = sorted(steps[0], key=order)
        for start in range(len(members) - rule.more_than):
            window = members[start : start + rule.more_than + 1]
            if window[-1].event_ms - window[0].event_ms <= rule.span_ms:
                found.setdefault(rule.bucket(window[-1].event_ms), [set()])[0].update(window)
    else:
        for chain in product(*steps):
            gaps = [later.event_ms - earlier.event_ms for earlier, later in pairwise(chain)]
            distinct = all(one.event["event_id"] != other.event["event_id"] for one, other in pairwise(chain))
            if distinct and all(0 <= gap <= within for gap, within in zip(gaps, rule.withins, strict=True)):
                sets = found.setdefault(rule.bucket(chain[-1].event_ms), [set() for _ in steps])
                for one, members_of_step in zip(chain, sets, strict=True):
                    members_of_step.add(one)
    return {bucket: [list(step) for step in sets] for bucket, sets in found.items()}


def rates_of(rule: CompiledRule, members: list[Record]) -> dict[int, list[list[Record]]]:
    """Windows that end with each 10 s that had a call. A call counts at its first end, its failures are evidence."""
    calls: dict[str, Record] = {}
    for one in sorted(members, key=order):
        first = calls.setdefault(one.event["call_id"], one)
        if one.event_ms - first.event_ms > 300_000:
            calls[f"{one.event['call_id']} again"] = one
    found: dict[int, set[Record]] = {}
    for sub in {one.event_ms // 10_000 for one in calls.values()}:
        window = [one for one in calls.values() if sub - 6 < one.event_ms // 10_000 <= sub]
        failed = [one for one in window if one.event["outcome"] != "ok"]
        if len(window) >= 4 and len(failed) / len(window) > 0.5:
            seen = {one for one in members if sub - 6 < one.event_ms // 10_000 <= sub and one.event["outcome"] != "ok"}
            found.setdefault(rule.bucket(sub * 10_000), set()).update(seen)
    return {bucket: [list(events)] for bucket, events in found.items()}


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """A few sessions with calls that start and end; some records late, some too late."""
    delays = st.one_of(st.integers(0, 3_000), st.integers(-60_000, LATENESS_MS + 60_000))
    edges = st.sampled_from([0, 20_000, 59_999, 60_000, 60_001, 600_000, 599_990])
    begins = st.sampled_from([0, 0, 0, 1_500_000, 2_400_000])
    at = st.builds(int.__add__, st.one_of(st.integers(0, 150_000), edges), begins)
    records = []
    for number in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from(["tool.call.started", "tool.call.completed", "tool.call.error"]))
        fields: dict[str, Any] = {"tool_name": draw(st.sampled_from("AABBC"))}
        fields["root_session_id"] = draw(st.sampled_from(["s1", "s1", "s2"]))
        if name != "tool.call.started":
            fields |= {"outcome": "ok" if name.endswith("completed") else "error", "mcp": {"server_name": "github"}}
            fields["call_id"] = derived_id("call", draw(st.integers(0, 20)))
        records.append(record(name, draw(at), number, delay_ms=draw(delays), offset=number, **fields))
    return records


def check(said: Said, packed: CompiledPack, records: list[Record]) -> None:
    expected = naive(packed.rules, records)
    actual = {
        body["finding_id"]: (body["evidence_count"], {one["event_id"] for one in body["evidence"]})
        for body in said.findings()
    }
    assert actual == expected
    for body in said.findings():
        EVENT.validate_json(orjson.dumps(body))


@settings(max_examples=300, deadline=None)
@given(logs(), st.data())
def test_any_order_batches_duplicates_and_restarts(records: list[Record], data: st.DataObject) -> None:
    packed = pack(*RULES)
    plain, _ = run(packed, sorted(records, key=lambda one: one.log_time_ms))
    check(plain, packed, records)
    again = [
        Record(one.topic, one.partition, one.offset + 1000, one.log_time_ms + 5_000, one.event)
        for one in data.draw(st.lists(st.sampled_from(records), max_size=4))
        if abs(one.log_time_ms - one.event_ms) <= LATENESS_MS
    ]
    shuffled = data.draw(st.permutations(records + again))
    places = st.frozensets(st.integers(0, len(shuffled)), max_size=5)
    mixed, _ = run(packed, shuffled, cuts=data.draw(places), restarts=data.draw(places))
    assert list(mixed.canonical.lines()) == list(plain.canonical.lines())


@st.composite
def ends_of_calls(draw: st.DrawFn) -> tuple[list[Record], list[tuple[Record, Record]]]:
    """Ends of a few calls, said late or inferred; and inferred ends that were taken back, each with what did it."""
    at = st.one_of(st.integers(0, 60_000), st.sampled_from([0, 9_999, 10_000, 59_990, 60_000, 75_000]))
    stand, gone = [], []
    for number in range(draw(st.integers(4, 10))):
        outcome = draw(st.sampled_from(["ok", "error", "blocked", "timed_out", "timed_out"]))
        inferred = outcome == "timed_out"
        delay_ms = 0 if inferred else draw(st.sampled_from([0, 50, 12_000, 60_000]))
        fields = {"offset": -1 if inferred else number, "call_id": derived_id("call", draw(st.integers(0, 6)))}
        end = ended(draw(at), number, outcome, delay_ms=delay_ms, **fields)
        if inferred and draw(st.booleans()):
            gone.append((end, taken_back(end, draw(st.sampled_from([0, 15_000, 60_000])))))
        else:
            stand.append(end)
    return stand, gone


@settings(max_examples=300, deadline=None)
@given(ends_of_calls(), st.data())
def test_a_take_over_amends_whatever_a_worker_before_said_of_rates(
    records: tuple[list[Record], list[tuple[Record, Record]]], data: st.DataObject
) -> None:
    """The worker before saw some of the records and of the time, this one all of them: together they say what stands."""
    stand, gone = records
    packed = pack({**SPIKE, "cooldown": "1m"}, {**MANY, "cooldown": "1m"})
    plain, _ = run(packed, sorted(stand, key=lambda one: one.log_time_ms))

    first = sorted([*stand, *(one for pair in gone for one in pair)], key=lambda one: one.cause_ms)
    cuts = st.frozensets(st.integers(0, len(first)), max_size=6)
    seen = data.draw(st.integers(len(first) // 2, len(first)))
    said, _ = run(packed, first, cuts=data.draw(cuts), seen=seen, until_ms=())
    then = data.draw(st.permutations([*stand, *(pair[data.draw(st.integers(0, 1)) :] for pair in gone)]))
    order = [one for each in then for one in (each if isinstance(each, tuple) else [each])]
    run(packed, order, cuts=data.draw(cuts), restarts=data.draw(cuts), said=said)
    assert list(said.canonical.lines()) == list(plain.canonical.lines())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_floods_are_cut_alike_in_any_order(seed: int, data: st.DataObject) -> None:
    rng = Random(seed)
    records = [
        record(
            rng.choice(["tool.call.started", "tool.call.completed"]),
            rng.randrange(90_000),
            number,
            offset=number,
            tool_name=rng.choice("ABB"),
        )
        for number in range(150)
    ]
    packed = pack(A_THEN_B, LOOP_SHORT)
    plain, _ = run(packed, sorted(records, key=lambda one: one.log_time_ms))
    check(plain, packed, records)
    rng.shuffle(records)
    places = st.frozensets(st.integers(0, len(records)), max_size=5)
    mixed, _ = run(packed, records, cuts=data.draw(places), restarts=data.draw(places))
    assert list(mixed.canonical.lines()) == list(plain.canonical.lines())
