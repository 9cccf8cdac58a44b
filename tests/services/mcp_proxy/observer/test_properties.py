"""Nothing that comes through the tap makes the observer fail."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.events import EVENT, to_json
from services.mcp_proxy.observer import Observer, ObserverSettings
from services.mcp_proxy.tap import Kind, Record, Side
from tests.services.mcp_proxy.observer import fuzz
from tests.services.mcp_proxy.observer.driving import CAPTURE, START_NS, Http, Stdio

pytestmark = pytest.mark.unit

slow = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)

texts = st.text(max_size=12) | st.sampled_from(
    [
        "2.0",
        "tools/call",
        "tasks/get",
        "notifications/progress",
        "input_required",
        "task",
        "stdio",
        "sse",
        "POST",
        "GET",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
asked = ["id", "method", "params", "result", "error", "_meta", "requestState", "inputResponses", "taskId", "status"]
names = st.sampled_from([*asked, "resultType", "progressToken", "requestId"])
messages = st.dictionaries(names, values | st.dictionaries(names, values, max_size=4), max_size=5).map(
    lambda fields: {"jsonrpc": "2.0", **fields}
)
lines = st.lists(messages | values, max_size=4).map(
    lambda sent: b"".join(json.dumps(one).encode() + b"\n" for one in sent)
)
said = ["server", "transport", "http", "stream", "resumed", "status", "headers", "bytes", "code", "signal", "reason"]
headers = ["method", "headers", "content-type", "mcp-session-id", "content-encoding"]
about = st.dictionaries(
    st.sampled_from([*said, "records"]),
    values | st.dictionaries(st.sampled_from(headers), values, max_size=4),
    max_size=5,
).map(lambda fields: json.dumps(fields).encode())
records = st.builds(
    Record,
    st.sampled_from(list(Kind)),
    st.integers(0, 2),
    st.sampled_from(list(Side)),
    st.integers(0, 2**64 - 1) | st.integers(START_NS, START_NS + 10**12),
    lines | about | st.binary(max_size=30),
)


@slow
@given(st.lists(records, max_size=30), st.booleans())
def test_any_records(given_: list[Record], metadata_only: bool) -> None:
    observer = Observer(CAPTURE, ObserverSettings())
    observer.metadata_only = metadata_only
    for record in given_:
        for event in observer.record(record):
            EVENT.validate_json(json.dumps(to_json(event)))
        assert observer.faults == 0
    observer.tick(2**63)


@slow
@given(
    st.lists(st.tuples(st.sampled_from(list(Side)), messages), max_size=20), st.lists(st.integers(0, 3000), max_size=6)
)
def test_any_messages_however_they_are_cut(sent: list[tuple[Side, dict[str, object]]], places: list[int]) -> None:
    one, cut = Stdio(), Stdio()
    for side, message in sent:
        raw = json.dumps(message).encode() + b"\n"
        one.put(Kind.DATA, 1, side, raw)
        ends = sorted({min(place, len(raw)) for place in places} | {0, len(raw)})
        for start, end in itertools.pairwise(ends):
            cut.put(Kind.DATA, 1, side, raw[start:end])
    for drive in (one, cut):
        drive.exit(code=0)
        for event in drive.events:
            event.pop("event_id")
    assert one.events == cut.events


@slow
@given(
    st.lists(st.tuples(st.sampled_from([b"data: ", b"", b"id: "]), lines), max_size=6),
    st.lists(st.integers(0, 2000), max_size=6),
)
def test_any_stream_however_it_is_cut(parts: list[tuple[bytes, bytes]], places: list[int]) -> None:
    raw = b"".join(field + line + b"\n" for field, line in parts)
    told = []
    for ends in ([0, len(raw)], sorted({min(place, len(raw)) for place in places} | {0, len(raw)})):
        drive = Http()
        channel = drive.stream({"jsonrpc": "2.0", "id": 1, "method": "m"})
        for start, end in itertools.pairwise(ends):
            drive.body(channel, raw[start:end])
        drive.done(channel)
        told.append([{k: v for k, v in event.items() if k != "event_id"} for event in drive.events])
    assert told[0] == told[1]


@pytest.mark.parametrize("seed", range(40))
def test_damaged_sessions(seed: int) -> None:
    fuzz.run(seed)
