"""The in-process executor: order, duplicates, refusals, chaining, versions, muting, and take-overs."""

from __future__ import annotations

from random import Random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.pending_calls.operator import PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime import group as group_module
from pipelines.runtime.group import WAIT_BITS, Group
from pipelines.runtime.port import CanonicalSet, Event, Out, Record, record_id_of, timestamp_ms
from schemas.topics import (
    AGENT_ACTIVITY,
    INPUT_TOPICS,
    METRIC_PARTIAL,
    RISK_FINDING,
    RISK_FINDING_OCSF,
    TOOL_CALL,
    TOOL_CALL_DERIVED,
)
from tests.pipelines.helpers import T0, Pairs, Raw, call_event, calm, event, stormy

pytestmark = pytest.mark.unit

HOUR_MS = 3_600_000


def pending(_partition: int) -> PendingCalls:
    return PendingCalls(Ttls(300_000, 600_000))


def raw(offset: int, body: object, at_ms: int = 0) -> Raw:
    return Raw(offset, T0 + at_ms, b"k", body if isinstance(body, bytes) else orjson.dumps(body))


def said(group: Group) -> list[Event]:
    return [output.body for output in group.take()[0]]


class Echo:
    """Says each started call once more on a topic of choice, in three ways of keying."""

    name = "echo"
    wants = frozenset({"tool.call.started"})
    horizon_ms = 1000
    configuration = ""

    def __init__(self, topic: str, key: str | None = None) -> None:
        self.counters: dict[str, int] = {}
        self._topic = topic
        self._key = key

    def on_event(self, record: Record, out: Out) -> None:
        out.put(self._topic, "id", {"n": record.offset}, self._key)

    def on_progress(self, t_ms: int, out: Out) -> None:
        raise RuntimeError("defect")

    def dump(self) -> bytes:
        return b""

    def load(self, state: bytes) -> None:
        """No state."""


def version(offsets: int, waited_s: int = 0) -> int:
    """Of what is said when this many records were read, and so long after the last of them."""
    return (offsets << WAIT_BITS) + waited_s


def test_version_grows_with_the_next_offsets_and_the_last_of_an_id_is_sent() -> None:
    group = Group(0, [Pairs])
    group.feed(AGENT_ACTIVITY, [raw(4, event("user.prompt.submitted", 0))])
    group.feed(TOOL_CALL, [raw(10, call_event("tool.call.started", 0)), raw(11, call_event("tool.call.started", 1))])
    bodies = said(group)
    assert [body["version"] for body in bodies] == [version(5 + 12)]
    assert len(bodies[0]["seen"]) == 3
    assert said(group) == []
    assert group.next_offsets[TOOL_CALL] == 12
    assert group.log_times[TOOL_CALL] == T0


def test_a_producers_repeated_seqs_are_dropped_per_topic_and_epoch() -> None:
    group = Group(0, [Pairs])

    def body(number: int, seq: int, epoch: int = 1, producer: str = "c") -> Event:
        return call_event("tool.call.started", number, producer={"id": producer, "epoch": epoch, "seq": seq})

    group.feed(TOOL_CALL, [raw(0, body(0, 1)), raw(1, body(1, 2)), raw(2, body(2, 1)), raw(3, body(3, 2))])
    assert (group.duplicates, len(said(group)[0]["seen"])) == (2, 2)
    group.feed(TOOL_CALL, [raw(4, body(4, 1, epoch=2)), raw(5, body(5, 1, producer="d")), raw(6, body(6, 3))])
    prompt = event("user.prompt.submitted", 0, producer={"id": "c", "epoch": 1, "seq": 1})
    group.feed(AGENT_ACTIVITY, [raw(0, prompt)])
    assert (group.duplicates, len(said(group)[0]["seen"])) == (2, 6)


def test_the_table_of_producers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MAX_PRODUCERS", 10)
    group = Group(0, [])
    for n in range(1000):
        producer = {"id": f"c{n}", "epoch": 1, "seq": 1}
        group.feed(TOOL_CALL, [raw(n, call_event("tool.call.started", 0, producer=producer))])
    assert len(group._producers[TOOL_CALL]) <= 10


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b'{"event_name": "tool.call.st',
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"event_name": []}',
        b'{"event_name": "tool.call.started", "producer": 7}',
        b'{"event_name": "tool.call.started", "producer": {"id": {}, "epoch": 1, "seq": 1}}',
        b'{"event_name": "tool.call.started", "producer": {"id": "c", "epoch": 1, "seq": "x"}}',
        b"[" * 5000,
        None,
    ],
)
def test_what_cannot_be_read_is_refused_and_the_rest_goes_on(value: bytes | None) -> None:
    group = Group(0, [Pairs])
    records = [Raw(0, T0, b"k", value), raw(1, call_event("tool.call.started", 0))]
    group.feed(TOOL_CALL, records)
    outputs, refusals = group.take()
    assert [(refusal.topic, refusal.offset, refusal.by) for refusal in refusals] == [(TOOL_CALL, 0, "decode")]
    assert len(outputs) == 1
    assert group.errors == {"decode": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"call_id": None},
        {"call_id": 7},
        {"call_id": "short"},
        {"tool_name": None},
        {"tool_name": ["x"]},
        {"timestamp": "yesterday"},
        {"timestamp": None},
        {"session_id": {"a": 1}},
        {"mcp": "text"},
    ],
)
def test_malformed_fields_are_refused_or_harmless(fields: Event) -> None:
    group = Group(0, [pending])
    body = call_event("tool.call.started", 0) | fields
    group.feed(TOOL_CALL, [raw(0, body), raw(1, call_event("tool.call.started", 0, "good"))])
    group.progress(T0 + HOUR_MS)
    outputs, refusals = group.take()
    assert len(outputs) + len(refusals) == 2
    assert "good" not in {refusal.why for refusal in refusals}


def test_a_defect_of_one_operator_refuses_the_record_and_spares_the_others() -> None:
    group = Group(0, [pending, Pairs])
    bad = call_event("tool.call.started", 0, severity="critical", native={"secret": "hunter2"})
    group.feed(TOOL_CALL, [raw(0, bad)])
    group.progress(T0 + HOUR_MS)
    outputs, refusals = group.take()
    assert outputs[0].body["event_name"] == "tool.call.timed_out"
    assert [(refusal.by, refusal.offset) for refusal in refusals] == [("pairs", 0)]
    assert refusals[0].why.startswith("RuntimeError at helpers.py:")
    assert "hunter2" not in refusals[0].why


def test_a_defect_in_progress_is_counted_and_the_others_are_told() -> None:
    group = Group(0, [lambda _: Echo("x"), pending])
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0))])
    group.take()
    group.progress(T0 + HOUR_MS)
    assert len(said(group)) == 1
    assert group.errors == {"echo": 1}
    assert group.last_error is not None and group.last_error.startswith("echo: RuntimeError at test_group.py:")


def test_what_one_derives_the_later_see_at_once_with_its_own_time() -> None:
    seen: list[Record] = []

    class Spy(Pairs):
        def on_event(self, record: Record, out: Out) -> None:
            seen.append(record)

    group = Group(3, [pending, Spy, pending])
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0))])
    group.progress(T0 + 300_000)
    derived = [record for record in seen if record.topic == TOOL_CALL_DERIVED]
    assert [(record.partition, record.offset, record.log_time_ms) for record in derived] == [(3, -1, T0 + 300_000)]
    assert group.horizon_ms == pending(0).horizon_ms + Spy.horizon_ms
    assert Group(0, [pending, pending]).horizon_ms == pending(0).horizon_ms


def test_keys_versions_and_state_follow_the_topic() -> None:
    for topic, key, expected, stamped in [
        (METRIC_PARTIAL, "acme|x", b"acme|x", version(1)),
        (METRIC_PARTIAL, None, b"id", version(1)),
        (RISK_FINDING_OCSF, None, b"id", None),
    ]:
        group = Group(0, [lambda _, topic=topic, key=key: Echo(topic, key)])
        group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0))])
        (output,) = group.take()[0]
        assert (output.key, output.body.get("version"), output.body.get("state")) == (expected, stamped, None)


def test_outputs_are_partial_until_the_log_time_has_passed_what_was_cut() -> None:
    group = Group(0, [pending])
    group.partial_until_ms = T0 + 400_000
    group.feed(
        TOOL_CALL,
        [raw(0, call_event("tool.call.started", 0, 1)), raw(1, call_event("tool.call.started", 0, 2), 200_000)],
    )
    group.progress(T0 + 350_000)
    assert [body.get("state") for body in said(group)] == ["partial"]
    assert group.partial
    group.progress(T0 + HOUR_MS)
    assert [body.get("state") for body in said(group)] == [None]
    assert not group.partial


def test_a_rebuild_is_mute_up_to_what_was_told() -> None:
    group = Group(0, [pending, Pairs])
    group.begin_rebuild(dict.fromkeys(INPUT_TOPICS, 0), dict.fromkeys(INPUT_TOPICS, 9), T0 + HOUR_MS)
    group.feed(TOOL_CALL, [raw(0, b"broken"), raw(1, call_event("tool.call.started", 0))])
    group.feed(TOOL_CALL, [raw(2, call_event("tool.call.started", 0, 2), 330_000)])
    group.end_rebuild({**dict.fromkeys(INPUT_TOPICS, 0), TOOL_CALL: 7}, T0 + 299_999)
    assert group.take() == ([], [])
    assert (group.progress_ms, group.next_offsets[TOOL_CALL]) == (T0 + 299_999, 7)
    # What fell due later the worker before may not have got to.
    group.progress(T0 + 301_000)
    assert [body["event_name"] for body in said(group)] == ["tool.call.timed_out", "risk.finding.updated"]


def test_progress_is_the_least_over_the_topics_and_never_falls() -> None:
    group = Group(0, [])
    assert group.seen_until({}) == 0
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0), 5000)])
    end = dict.fromkeys(set(INPUT_TOPICS) - {TOOL_CALL}, T0 + 3000)
    assert group.seen_until(end) == T0 + 3000
    assert group.seen_until({**end, TOOL_CALL: T0 + 9000}) == T0 + 3000
    assert group.seen_until(dict.fromkeys(INPUT_TOPICS, T0 + 9000)) == T0 + 9000
    group.progress(T0 + 9000)
    group.progress(T0 + 8000)
    assert group.progress_ms == T0 + 9000


def test_what_was_said_after_a_take_over_is_said_once_more_with_a_higher_version() -> None:
    group = Group(0, [Pairs])
    group.begin_rebuild(dict.fromkeys(INPUT_TOPICS, 0), dict.fromkeys(INPUT_TOPICS, 9), T0 + HOUR_MS)
    group.end_rebuild(dict.fromkeys(INPUT_TOPICS, 0), 0)
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0))])
    first = said(group)
    group.feed(TOOL_CALL, [raw(n, call_event("tool.call.completed", n)) for n in range(1, 9)])
    group.repeat_outputs()
    again = said(group)
    assert [body["version"] for body in (*first, *again)] == [version(1), version(9)]
    assert first[0]["seen"] == again[0]["seen"]
    group.repeat_outputs()
    assert said(group) == []


def test_what_is_repeated_has_the_version_of_the_whole_state_even_if_it_was_said_just_now() -> None:
    group = Group(0, [Pairs])
    group.begin_rebuild(dict.fromkeys(INPUT_TOPICS, 0), dict.fromkeys(INPUT_TOPICS, 0), 0)
    group.end_rebuild(dict.fromkeys(INPUT_TOPICS, 0), 0)
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0)), raw(1, call_event("tool.call.completed", 0))])
    group.repeat_outputs()
    assert [body["version"] for body in said(group)] == [version(2)]


def test_of_two_workers_that_know_the_same_records_the_one_that_was_told_less_loses() -> None:
    """A worker that froze when it was about to say something once more says it long after it was taken over."""
    zombie, successor = (Group(0, [lambda _: PendingCalls(Ttls(1000)), Pairs]) for _ in range(2))
    for group in (zombie, successor):
        group.begin_rebuild(dict.fromkeys(INPUT_TOPICS, 0), dict.fromkeys(INPUT_TOPICS, 0), 0)
        group.end_rebuild(dict.fromkeys(INPUT_TOPICS, 0), 0)
        group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0))])
    successor.repeat_outputs()
    successor.progress(T0 + 2000)
    found = CanonicalSet()
    for body in said(successor):
        found.add("", record_id_of(body), body)
    expected = list(found.lines())
    assert any(len(body["seen"]) == 2 for body in found.bodies().values() if "seen" in body)
    zombie.repeat_outputs()
    for body in said(zombie):
        found.add("", record_id_of(body), body)
    assert list(found.lines()) == expected
    successor.progress(T0 + 100 * HOUR_MS)
    assert successor._version() == version(1, (1 << WAIT_BITS) - 1)


def test_what_a_worker_before_said_without_repeating_it_is_repeated_with_its_last_content() -> None:
    group = Group(0, [Pairs])
    settled = {**dict.fromkeys(INPUT_TOPICS, 0), TOOL_CALL: 1, AGENT_ACTIVITY: 1}
    group.begin_rebuild(dict.fromkeys(INPUT_TOPICS, 0), settled, 0)
    group.feed(TOOL_CALL, [raw(0, call_event("tool.call.started", 0, session_id="old"))])
    group.feed(TOOL_CALL, [raw(1, call_event("tool.call.started", 0, 1))])
    group.feed(AGENT_ACTIVITY, [raw(0, event("user.prompt.submitted", 0))])
    group.end_rebuild({**dict.fromkeys(INPUT_TOPICS, 0), TOOL_CALL: 2, AGENT_ACTIVITY: 1}, 0)
    assert said(group) == []
    group.repeat_outputs()
    assert [(body["group"], len(body["seen"]), body["version"]) for body in said(group)] == [("s1", 2, version(3))]


HISTORIES = st.lists(
    # All within the operators' horizon: what is older a rebuild does not know.
    st.tuples(st.sampled_from(["call", "prompt", "end"]), st.integers(0, 9), st.integers(0, 120_000)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(HISTORIES, st.integers(0, 1 << 32).map(Random))
def test_take_overs_and_zombies_leave_the_same_canonical_set(drawn: list[tuple[str, int, int]], rng: Random) -> None:
    at, history = 0, []
    for n, (kind, session, gap) in enumerate(drawn):
        at += gap
        where = {"session_id": f"s{session}"}
        if kind == "prompt":
            history.append((at, event("user.prompt.submitted", at, n, **where)))
        else:
            name = "tool.call.started" if kind == "call" else "tool.call.completed"
            history.append((at, call_event(name, at, n if kind == "call" else n - 1, **where)))
    operators = [pending, Pairs]
    until_ms = at + 2 * HOUR_MS
    assert list(stormy(history, operators, until_ms, rng).lines()) == list(calm(history, operators, until_ms).lines())


def test_timestamps() -> None:
    assert timestamp_ms("2026-03-01T12:00:00.000Z") == T0
    assert timestamp_ms("2026-03-01T12:00:59.123456789Z") == T0 + 59_123
    assert timestamp_ms("2026-03-01T13:00:00.5+01:00") == T0 + 500
    for wrong in ("", "yesterday", "2026-03-01", "2026-03-01T12:00:00", "2026-13-01T12:00:00.000Z"):
        with pytest.raises(ValueError):
            timestamp_ms(wrong)


def test_canonical_set_takes_the_last_of_the_highest_version_and_forgets_retracted_ones() -> None:
    out = CanonicalSet()
    out.add(RISK_FINDING, "b", {"version": 2, "n": 1})
    out.add(RISK_FINDING, "b", {"version": 2, "n": 2, "state": "partial"})
    out.add(RISK_FINDING, "b", {"version": 1, "n": 3})
    out.add_value(RISK_FINDING, b'{"event_id": "e", "finding_id": "a", "version": 1}')
    out.add("t", "c", {"version": 1})
    assert len(out) == 3
    out.add("t", "c", {"version": 1, "retracted": True})
    assert len(out) == 2
    assert set(out.bodies()) == {"a", "b"}
    assert list(out.lines()) == [
        b'{"body":{"event_id":"e","finding_id":"a"},"id":"a","topic":"agenttrace.risk.finding"}',
        b'{"body":{"n":2},"id":"b","topic":"agenttrace.risk.finding"}',
    ]
