"""How outputs and receipts look as Kafka records."""

from __future__ import annotations

import hashlib

import orjson
import pytest

from pipelines.runtime.group import Refusal
from pipelines.runtime.port import Output
from pipelines.runtime.sender import encode, refuse
from schemas.topics import DLQ, MAX_VALUE_BYTES, RISK_FINDING, TOOL_CALL, TOOL_CALL_DERIVED
from tests.pipelines.helpers import T0

pytestmark = pytest.mark.unit


def test_a_derived_event_has_its_key_and_headers() -> None:
    body = {"event_id": "e", "trace_id": "a" * 32, "span_id": "b" * 16}
    message = encode(Output(TOOL_CALL_DERIVED, "e", b"e", body))
    assert (message.topic, message.key, orjson.loads(message.value)) == (TOOL_CALL_DERIVED, b"e", body)
    headers = dict(message.headers)
    assert headers["traceparent"] == f"00-{'a' * 32}-{'b' * 16}-01".encode()
    assert (headers["at_schema"], headers["at_kind"]) == (b"1.0", b"event")


def test_a_finding_is_a_cloud_event_too() -> None:
    body = {"finding_id": "f", "version": 7, "event_name": "risk.finding.created", "timestamp": "t"}
    headers = dict(encode(Output(RISK_FINDING, "f", b"f", body)).headers)
    assert headers["ce_id"] == b"f:7"
    assert headers["ce_type"] == b"agenttrace.risk.finding.created"
    assert {"ce_specversion", "ce_source", "ce_time"} <= headers.keys()


@pytest.mark.parametrize("body", [{"x": "y" * 2 * MAX_VALUE_BYTES}, {"x": object()}])
def test_what_no_topic_would_take_becomes_a_receipt(body: dict[str, object]) -> None:
    message = encode(Output(RISK_FINDING, "f", b"f", body))
    assert (message.topic, message.key) == (DLQ, b"f")
    assert dict(message.headers)["at_from"] == f"{RISK_FINDING}//".encode()
    assert len(message.value) < 200


def test_a_receipt_says_all_but_the_content() -> None:
    message = refuse(Refusal(TOOL_CALL, 7, b"k", b"hunter2", "decode", "ValueError"), 3, T0)
    assert orjson.loads(message.value) == {"size_bytes": 7, "sha256": hashlib.sha256(b"hunter2").hexdigest()}
    assert dict(message.headers) == {
        "at_why": b"ValueError",
        "at_from": b"agenttrace.tool.call/3/7",
        "at_by": b"pipelines.decode",
        "at_tries": b"1",
        "at_when": b"2026-03-01T12:00:00.000Z",
    }
    assert orjson.loads(refuse(Refusal(TOOL_CALL, 7, None, None, "decode", "x"), 3, T0).value)["size_bytes"] == 0
