"""Rolling metrics against a naive count over the whole set of records, in any order, cut and restarted anywhere."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.pending_calls.operator import PendingCalls
from pipelines.rolling_metrics.calls import MAX_OPEN_MS, MINUTE_MS
from pipelines.rolling_metrics.operator import RollingMetrics
from pipelines.rolling_metrics.sketch import RELATIVE_ERROR
from pipelines.runtime.group import Group
from pipelines.runtime.port import LATENESS_MS, CanonicalSet, Record
from schemas.clock import from_rfc3339, to_rfc3339
from schemas.events import EVENT, Metric
from schemas.identity import derived_id
from schemas.topics import TOOL_METRIC, TOPIC_OF_EVENT
from tests.pipelines.helpers import Raw

pytestmark = pytest.mark.unit

T0 = from_rfc3339("2026-03-01T12:00:00Z")
PARTITION = 3
SAME_CALL_MS = 300_000


class Said:
    """Collects outputs as a host does, versions included."""

    def __init__(self) -> None:
        self.canonical = CanonicalSet()
        self.puts = 0

    def put(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        self.puts += 1
        body["version"] = self.puts
        self.canonical.add(topic, record_id, body)

    def retract(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        self.put(topic, record_id, {**body, "retracted": True})


def event(name: str, at_ms: int, call: int, n: int = 0, **fields: Any) -> dict[str, Any]:
    """A tool or RPC event of call number `call`; `n` tells several of the same name apart."""
    made: dict[str, Any] = {
        "event_name": name,
        "event_id": derived_id("test", name, call, n),
        "event_version": "1.0",
        "timestamp": to_rfc3339(T0 + at_ms),
        "agent_runtime": "codex",
        "source_adapter": "test/1",
        "severity": "info",
    }
    if name.startswith("mcp.rpc"):
        made |= {"mcp_server": "search", "method": "tools/call", "operation_id": f"op-{call}", "transport": "stdio"}
        made |= {"direction": "client_to_server", "status": "started" if name.endswith("request") else "completed"}
    else:
        made |= {"call_id": derived_id("call", call), "tool_name": "Bash", "tool_source": "shell"}
    return made | fields


def record(body: dict[str, Any], delay_ms: int = 0, offset: int = 0) -> Record:
    log_time = from_rfc3339(body["timestamp"]) + delay_ms
    return Record(TOPIC_OF_EVENT[body["event_name"]], PARTITION, offset, log_time, body)


def run(
    records: list[Record],
    *,
    cuts: frozenset[int] = frozenset(),
    restarts: frozenset[int] = frozenset(),
    top_k: int = 500,
) -> tuple[Said, RollingMetrics]:
    """Feed records in this order; progress is told at the cuts, as far as the rest of the records allows."""
    said, operator = Said(), RollingMetrics(PARTITION, top_k=top_k)
    for place, one in enumerate(records):
        operator.on_event(one, said)
        if place in cuts:
            operator.on_progress(min((later.log_time_ms for later in records[place + 1 :]), default=T0) - 1, said)
        if place in restarts:
            state = operator.dump()
            operator = RollingMetrics(PARTITION, top_k=top_k)
            operator.load(state)
    end = max((one.log_time_ms for one in records), default=T0)
    for later in (0, 61 * MINUTE_MS, 200 * MINUTE_MS):
        operator.on_progress(end + later, said)
    return said, operator


def rows(said: Said) -> dict[tuple[str, str, str], dict[str, Any]]:
    bodies = said.canonical.bodies(TOOL_METRIC).values()
    return {(body["window"], body["window_start"], body["tool_name"]): body for body in bodies}


def test_a_timeout_that_a_later_end_outdoes_is_taken_back_when_that_end_is_due_whichever_was_read_first() -> None:
    """A worker before has said the window by the timeout's tick alone, before it read the end."""
    started = record(event("tool.call.started", 0, 1))
    timed_out = record(event("tool.call.timed_out", 12_000, 1, outcome="timeout"))
    ended = record(event("tool.call.completed", 61_000, 1, outcome="ok"))
    for order in ([started, timed_out, ended], [started, ended, timed_out]):
        said, operator = Said(), RollingMetrics(PARTITION)
        for one in order:
            operator.on_event(one, said)
        # What is due by now a worker before has said.
        operator.on_progress(T0 + 60_000, Said())
        operator.on_progress(T0 + 70_000, said)
        standing = {at: body["count"] for (window, at, _), body in rows(said).items() if window == "1m"}
        assert standing == {"2026-03-01T12:00:00.000Z": 0, "2026-03-01T12:01:00.000Z": 1}


@pytest.mark.parametrize("leap_ms", [240_000, 3 * 3_600_000])
def test_an_end_inferred_in_a_leap_of_progress_counts_where_a_host_that_took_small_steps_has_it(leap_ms: int) -> None:
    """A worker that catches up learns of minutes or hours at once. What it then infers was due long before, so it says the
    window in the same breath, and one that takes over may rely on it.
    """
    base = {"session_id": "s1", "root_session_id": "s1"}
    started = orjson.dumps(event("tool.call.started", 55_000, 1, **base))
    ended = orjson.dumps(event("session.ended", 56_000, 1, **base))
    said = []
    for steps in ([leap_ms], range(70_000, leap_ms + 1, 10_000)):
        group = Group(PARTITION, [lambda _: PendingCalls(), lambda number: RollingMetrics(number)])
        group.feed(TOPIC_OF_EVENT["tool.call.started"], [Raw(0, T0 + 55_000, b"k", started)])
        group.feed(TOPIC_OF_EVENT["session.ended"], [Raw(0, T0 + 56_000, b"k", ended)])
        canonical = CanonicalSet()
        # The first ends the window; the call is due a second later.
        for t_ms in (60_500, *steps):
            group.progress(T0 + t_ms)
        for output in group.take()[0]:
            canonical.add(output.topic, output.record_id, output.body)
        said.append(canonical)
    leapt, stepped = said
    counted = {body["window"]: (body["count"], body["in_flight"]) for body in leapt.bodies(TOOL_METRIC).values()}
    assert counted["1m"] == (1, 0)
    assert [body["count"] for body in stepped.bodies(TOOL_METRIC).values()] == [1] * len(counted)


# one by one


def test_one_call_gives_both_windows() -> None:
    records = [
        record(event("tool.call.started", 1_000, 1, input={"size_bytes": 40})),
        record(
            event(
                "tool.call.completed", 1_250, 1, outcome="ok", outcome_evidence="exit_status", output={"size_bytes": 7}
            )
        ),
    ]
    said, _ = run(records)
    assert sorted(rows(said)) == [
        ("1m", "2026-03-01T12:00:00.000Z", "Bash"),
        ("5m", "2026-03-01T12:00:00.000Z", "Bash"),
    ]
    for body in rows(said).values():
        metric = EVENT.validate_python({**body, "source_partition": PARTITION})
        assert isinstance(metric, Metric)
        assert (metric.count, metric.outcomes, metric.error_rate) == (1, {"ok": 1}, 0.0)
        assert (metric.input_bytes, metric.output_bytes, metric.in_flight) == (40, 7, 0)
        assert metric.p50_ms == pytest.approx(250, rel=RELATIVE_ERROR)


def test_the_events_own_duration_wins() -> None:
    said, _ = run(
        [
            record(event("tool.call.started", 0, 1)),
            record(event("tool.call.completed", 5_000, 1, outcome="ok", duration_ms=12.5)),
        ]
    )
    assert rows(said)["1m", "2026-03-01T12:00:00.000Z", "Bash"]["p99_ms"] == pytest.approx(12.5, rel=RELATIVE_ERROR)


def test_two_ends_of_a_call_are_one_call() -> None:
    said, _ = run(
        [
            record(event("tool.call.completed", 900, 1, n=2, outcome="unknown")),
            record(event("tool.call.error", 800, 1, outcome="error")),
        ]
    )
    assert rows(said)["1m", "2026-03-01T12:00:00.000Z", "Bash"]["outcomes"] == {"error": 1}


def test_a_real_end_replaces_the_inferred_timeout() -> None:
    timeout = record(event("tool.call.timed_out", 100_000, 1, outcome="timeout"))
    end = record(event("tool.call.completed", 130_000, 1, outcome="ok"))
    said, _ = run([record(event("tool.call.started", 0, 1)), timeout])
    assert rows(said)["1m", "2026-03-01T12:01:00.000Z", "Bash"]["timeouts"] == 1
    assert rows(said)["1m", "2026-03-01T12:01:00.000Z", "Bash"]["error_rate"] == 1.0
    said, _ = run([record(event("tool.call.started", 0, 1)), timeout, end])
    assert ("1m", "2026-03-01T12:01:00.000Z", "Bash") not in rows(said)
    assert rows(said)["1m", "2026-03-01T12:02:00.000Z", "Bash"]["outcomes"] == {"ok": 1}


def test_a_retracted_timeout_is_taken_back() -> None:
    timeout = event("tool.call.timed_out", 100_000, 1, outcome="timeout")
    said, _ = run([record(timeout), record({**timeout, "retracted": True})], cuts=frozenset({0}))
    assert rows(said) == {}


def test_wrappers_and_open_operations_are_not_counted() -> None:
    said, _ = run(
        [
            record(event("tool.call.started", 0, 1, wrapper=True)),
            record(event("tool.call.completed", 10, 1, outcome="ok", wrapper=True)),
            record(event("mcp.rpc.response", 20, 2, status="input_required")),
        ]
    )
    assert rows(said) == {}


def test_wire_and_hook_are_rows_of_their_own() -> None:
    said, _ = run(
        [
            record(event("mcp.rpc.request", 0, 1, tool_name="find", request={"size_bytes": 9})),
            record(event("mcp.rpc.response", 50, 1, tool_name="find", is_error_result=True)),
            record(event("tool.call.completed", 60, 1, tool_name="find", tool_source="mcp", outcome="error")),
        ]
    )
    names = {tool for _, _, tool in rows(said)}
    assert names == {"find", "rpc:tools/call:find"}
    wire = rows(said)["1m", "2026-03-01T12:00:00.000Z", "rpc:tools/call:find"]
    assert (wire["outcomes"], wire["input_bytes"], wire["mcp_server"]) == ({"error": 1}, 9, "search")


def test_open_calls_are_in_flight_until_they_end() -> None:
    records = [
        record(event("tool.call.started", 0, 1)),
        record(event("tool.call.started", 61_000, 2)),
        record(event("tool.call.completed", 62_000, 2, outcome="ok")),
        record(event("tool.call.completed", 125_000, 1, outcome="ok")),
    ]
    said, _ = run(records)
    flying = {place[1][14:16]: body["in_flight"] for place, body in rows(said).items() if place[0] == "1m"}
    assert flying == {"00": 1, "01": 1, "02": 0}


def test_what_a_record_changed_is_said_when_its_ten_seconds_are_over() -> None:
    """A host that re-reads the log takes what is due by a progress as said, and no more."""
    said, operator = Said(), RollingMetrics(PARTITION)
    operator.on_event(record(event("tool.call.completed", 0, 1, outcome="ok"), delay_ms=25_000), said)
    puts = []
    for t_ms in (10_000, 20_000, 30_000, 40_000):
        operator.on_progress(T0 + t_ms, said)
        puts.append(said.puts)
    assert puts == [0, 0, 2, 2]


def test_a_call_that_moved_to_another_window_is_taken_back_where_it_was() -> None:
    """Also where this worker never said it: one before may have, that had not seen the earlier end."""
    said, operator = Said(), RollingMetrics(PARTITION)
    operator.on_event(record(event("tool.call.error", 50_000, 1, outcome="error"), delay_ms=20_000), said)
    operator.on_event(record(event("tool.call.completed", 70_000, 1, outcome="ok")), said)
    operator.on_progress(T0 + 80_000, said)
    gone = [body["window_start"] for body in said.canonical._last.values() if body.get("retracted")]
    assert gone == ["2026-03-01T12:01:00.000Z"]


def test_a_late_start_changes_the_windows_after_it() -> None:
    said, operator = Said(), RollingMetrics(PARTITION)
    operator.on_event(record(event("tool.call.completed", 121_000, 1, outcome="ok")), said)
    operator.on_progress(T0 + 8 * MINUTE_MS, said)
    operator.on_event(record(event("tool.call.started", 5_000, 2), delay_ms=8 * MINUTE_MS), said)
    operator.on_progress(T0 + 9 * MINUTE_MS, said)
    assert rows(said)["1m", "2026-03-01T12:02:00.000Z", "Bash"]["in_flight"] == 1


def test_too_late_records_are_counted_not_folded() -> None:
    said, operator = run([record(event("tool.call.completed", 0, 1, outcome="ok"), delay_ms=LATENESS_MS + 1)])
    assert rows(said) == {}
    assert operator.counters["too_late"] == 1
    said, operator = run([record(event("tool.call.completed", 0, 1, outcome="ok"), delay_ms=-LATENESS_MS - 1)])
    assert operator.counters["too_early"] == 1


def test_provisional_first_at_most_every_ten_seconds_and_long_windows_every_minute() -> None:
    said, operator = Said(), RollingMetrics(PARTITION)
    for call in range(40):
        operator.on_event(record(event("tool.call.completed", call * 1_000, call, outcome="ok")), said)
        operator.on_progress(T0 + call * 1_000, said)
    assert said.puts == 3 + 1
    assert {body["provisional"] for body in rows(said).values()} == {True}
    operator.on_progress(T0 + 60_000, said)
    assert said.puts == 4 + 2
    assert {body["count"] for body in rows(said).values()} == {40}
    assert {place[0]: body.get("provisional", False) for place, body in rows(said).items()} == {"1m": False, "5m": True}


def test_a_late_record_gives_the_window_again() -> None:
    said, operator = Said(), RollingMetrics(PARTITION)
    operator.on_event(record(event("tool.call.completed", 0, 1, outcome="ok")), said)
    operator.on_progress(T0 + 10 * MINUTE_MS, said)
    operator.on_event(record(event("tool.call.error", 5, 2, outcome="error"), delay_ms=11 * MINUTE_MS), said)
    operator.on_progress(T0 + 11 * MINUTE_MS + 10_000, said)
    assert rows(said)["1m", "2026-03-01T12:00:00.000Z", "Bash"]["count"] == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_name": 7},
        {"mcp": "x"},
        {"input": []},
        {"duration_ms": -1, "output": {"size_bytes": -5}},
        {"duration_ms": True},
        {"outcome": "excellent"},
        {"call_id": None},
        {"tenant_id": {}},
        {"output": {"size_bytes": 1 << 62}},
        {"tool_name": "x" * 100_000},
        {"tool_source": "astral", "agent_runtime": ["codex"]},
    ],
)
def test_odd_fields_still_count_once(fields: dict[str, Any]) -> None:
    said, _ = run([record(event("tool.call.completed", 0, 1, **fields))], restarts=frozenset({0}))
    assert [body["count"] for body in rows(said).values()] == [1, 1]
    for body in said.canonical.bodies().values():
        EVENT.validate_python(body)


def test_a_malformed_record_changes_nothing() -> None:
    operator = RollingMetrics(PARTITION)
    before = operator.dump()
    for broken in ({"timestamp": "yesterday"}, {"event_id": 5}):
        with pytest.raises((ValueError, TypeError)):
            operator.on_event(Record("t", PARTITION, 0, T0, event("tool.call.completed", 0, 1) | broken), Said())
    assert operator.dump() == before


def test_another_state_is_refused() -> None:
    with pytest.raises(ValueError, match="rolling_metrics"):
        RollingMetrics(PARTITION).load(b'{"version":99}')


def test_beyond_top_k_the_rest_is_one_row() -> None:
    def calls(tool: str, count: int, first: int) -> list[Record]:
        return [
            record(event("tool.call.completed", n, first + n, tool_name=tool, outcome="ok", duration_ms=n + 1))
            for n in range(count)
        ]

    records = calls("a", 3, 0) + calls("b", 2, 100) + calls("c", 1, 200) + calls("d", 1, 300)
    said, _ = run(records, top_k=2)
    counts = {place[2]: body["count"] for place, body in rows(said).items() if place[0] == "1m"}
    assert counts == {"a": 3, "b": 2, "_other": 2}
    # The order decides who is on top at first; what fell out of the top is retracted.
    said, _ = run(records[::-1], cuts=frozenset({1}), top_k=2)
    assert {place[2]: body["count"] for place, body in rows(said).items() if place[0] == "1m"} == counts


def test_state_is_forgotten() -> None:
    records = [record(event("tool.call.started", 0, 1)), record(event("tool.call.completed", 5, 1, outcome="ok"))]
    _, operator = run(records)
    assert not operator._calls and not operator._minutes and not operator._windows and not operator._flying
    assert not operator._expiry and not operator._touched and not operator._all_keys


# against the naive count


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Calls with starts, ends, second ends and timeouts; some records late, some too late."""
    records: list[Record] = []
    delays = st.one_of(st.integers(0, 3_000), st.integers(-60_000, LATENESS_MS + 120_000))
    for call in range(draw(st.integers(1, 8))):
        tool = draw(st.sampled_from(["Bash", "Read", "Edit"]))
        start = draw(st.integers(0, 12 * MINUTE_MS))
        if draw(st.booleans()):
            body = event(
                "tool.call.started", start, call, tool_name=tool, input={"size_bytes": draw(st.integers(0, 9))}
            )
            records.append(record(body, draw(delays)))
        for n in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(["completed", "error", "blocked", "timed_out"]))
            outcome = {"completed": "ok", "error": "error", "blocked": "blocked", "timed_out": "timeout"}[name]
            took = draw(st.one_of(st.integers(-2_000, 400_000), st.sampled_from([MAX_OPEN_MS, MAX_OPEN_MS + 1])))
            fields: dict[str, Any] = {"outcome": outcome, "tool_name": draw(st.sampled_from([tool, "Bash"]))}
            if draw(st.booleans()):
                fields["duration_ms"] = draw(st.integers(0, 100_000))
            if draw(st.booleans()):
                fields["input"] = {"size_bytes": draw(st.integers(0, 9))}
            records.append(record(event(f"tool.call.{name}", max(0, start + took), call, n, **fields), draw(delays)))
    return records


def naive(records: list[Record]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What must be said about a set of records, computed the slow way."""
    kept = {}
    for one in sorted(records, key=lambda one: one.log_time_ms):
        if abs(one.log_time_ms - one.event_ms) <= LATENESS_MS:
            kept.setdefault(one.event["event_id"], one)
    calls: dict[str, list[Record]] = {}
    for one in kept.values():
        calls.setdefault(one.event["call_id"], []).append(one)
    ended: list[tuple[str, int, str, float | None, int, bool]] = []
    flights: list[tuple[str, int, int]] = []
    started: list[tuple[str, int]] = []
    for members in calls.values():
        starts = [one for one in members if one.event["event_name"] == "tool.call.started"]
        ends = [one for one in members if one not in starts]
        start = starts[0] if starts else None
        for end in ends:
            inferred = end.event["event_name"] == "tool.call.timed_out"
            weaker = False
            for other in ends:
                other_inferred = other.event["event_name"] == "tool.call.timed_out"
                stronger = (other_inferred, other.event_ms, other.event["event_id"]) < (
                    inferred,
                    end.event_ms,
                    end.event["event_id"],
                )
                weaker = weaker or (stronger and abs(other.event_ms - end.event_ms) <= SAME_CALL_MS)
            if weaker:
                continue
            duration = None if inferred else end.event.get("duration_ms")
            size = end.event.get("input", {}).get("size_bytes")
            taken = any(
                -SAME_CALL_MS <= other.event_ms - start.event_ms <= MAX_OPEN_MS
                and other.event_ms < end.event_ms - SAME_CALL_MS
                for other in ends
                if start is not None
            )
            if start is not None and not taken and -SAME_CALL_MS <= end.event_ms - start.event_ms <= MAX_OPEN_MS:
                if duration is None and end.event_ms >= start.event_ms:
                    duration = end.event_ms - start.event_ms
                if size is None:
                    size = start.event["input"]["size_bytes"]
            ended.append((end.event["tool_name"], end.event_ms, end.event["outcome"], duration, size or 0, inferred))
        if start is not None:
            closing = [
                end.event_ms
                for end in ends
                if start.event_ms - SAME_CALL_MS <= end.event_ms <= start.event_ms + MAX_OPEN_MS
            ]
            closed = max(start.event_ms, min(closing, default=start.event_ms + MAX_OPEN_MS))
            flights.append((start.event["tool_name"], start.event_ms, closed))
            started.append((start.event["tool_name"], start.event_ms))
    found = {}
    for name, length in (("1m", MINUTE_MS), ("5m", 5 * MINUTE_MS)):
        places = {(tool, ms - ms % length) for tool, ms, *_ in ended} | {
            (tool, ms - ms % length) for tool, ms in started
        }
        for tool, first in places:
            last = first + length
            inside = [one for one in ended if one[0] == tool and first <= one[1] < last]
            outcomes = Counter(one[2] for one in inside)
            known = outcomes["ok"] + outcomes["error"] + outcomes["timeout"]
            ran = sorted(one[3] for one in inside if one[3] is not None and one[2] in ("ok", "error", "unknown"))
            found[name, to_rfc3339(first), tool] = {
                "count": len(inside),
                "outcomes": dict(outcomes),
                "error_rate": (outcomes["error"] + outcomes["timeout"]) / known if known else 0.0,
                "timeouts": sum(one[5] for one in inside),
                "input_bytes": sum(one[4] for one in inside),
                "in_flight": sum(
                    flight[0] == tool and flight[1] < last and flight[2] - flight[2] % MINUTE_MS >= last
                    for flight in flights
                ),
                "ran": ran,
            }
    return found


def check(said: Said, records: list[Record]) -> None:
    expected = naive(records)
    actual = rows(said)
    assert actual.keys() == expected.keys()
    for place, body in actual.items():
        want = expected[place]
        ran = want.pop("ran")
        assert {name: body[name] for name in want} == want, place
        assert sum(body["sketch"].values()) + body["zero_count"] == len(ran)
        if ran:
            for name, q in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
                exact = ran[max(1, ceil(q * len(ran))) - 1]
                assert abs(body[name] - exact) <= exact * (RELATIVE_ERROR + 1e-9)


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_any_order_batches_duplicates_and_restarts(records: list[Record], data: st.DataObject) -> None:
    plain, _ = run(sorted(records, key=lambda one: one.log_time_ms))
    check(plain, records)
    again = (
        [
            Record(one.topic, one.partition, one.offset + 1000, one.log_time_ms + 5_000, one.event)
            for one in data.draw(st.lists(st.sampled_from(records), max_size=4))
        ]
        if records
        else []
    )
    shuffled = data.draw(st.permutations(records + again))
    places = st.frozensets(st.integers(0, len(shuffled)), max_size=5)
    mixed, _ = run(shuffled, cuts=data.draw(places), restarts=data.draw(places))
    assert list(mixed.canonical.lines()) == list(plain.canonical.lines())


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_top_k_is_a_function_of_the_set(records: list[Record], data: st.DataObject) -> None:
    plain, _ = run(sorted(records, key=lambda one: one.log_time_ms), top_k=1)
    shuffled = data.draw(st.permutations(records))
    places = st.frozensets(st.integers(0, len(shuffled)), max_size=5)
    mixed, _ = run(shuffled, cuts=data.draw(places), restarts=data.draw(places), top_k=1)
    assert list(mixed.canonical.lines()) == list(plain.canonical.lines())
