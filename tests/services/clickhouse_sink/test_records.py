"""Which records the tables can take, and what a receipt says of those they cannot."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import orjson
import pytest

from schemas import events
from schemas.topics import DLQ, FINDING_STATUS, RISK_FINDING, RISK_FINDING_OCSF, TOOL_CALL, TOOL_CALL_DERIVED, TOPICS
from services.clickhouse_sink.batch import Batch
from services.clickhouse_sink.records import DEAD, DERIVED, EVENTS, TABLE_OF, blocks, fault, receipt
from tests.services.clickhouse_sink.events import (
    T0,
    Json,
    completed,
    derived,
    finding,
    producer,
    record,
    started,
    topic_of,
)


@pytest.mark.unit
def test_every_topic_of_events_and_dead_letters_is_copied() -> None:
    left_out = {topic.name for topic in TOPICS} - set(TABLE_OF)
    assert left_out == {"agenttrace.rules"} | {topic.name for topic in TOPICS if topic.kind == "internal"}
    assert {TABLE_OF[topic.name] for topic in TOPICS if topic.kind == "input"} == {EVENTS}
    assert (TABLE_OF[RISK_FINDING], TABLE_OF[FINDING_STATUS], TABLE_OF[DLQ]) == (DERIVED, DERIVED, DEAD)


def without(value: Json, name: str) -> Json:
    return {key: item for key, item in value.items() if key != name}


FAULTS = [
    (TOOL_CALL, None, "no value"),
    (TOOL_CALL, b"", "not JSON"),
    (TOOL_CALL, b"\xff\xfe", "not JSON"),
    (TOOL_CALL, b'{"event_id": ', "not JSON"),
    (TOOL_CALL, b'{"a": NaN}', "not JSON"),
    (TOOL_CALL, b"[1]", "not a JSON object"),
    (TOOL_CALL, b'"AKIAIOSFODNN7EXAMPLE"', "not a JSON object"),
    (TOOL_CALL, orjson.dumps(without(started(), "event_id")), "event_id is not a UUID"),
    (TOOL_CALL, orjson.dumps(started() | {"event_id": "x" * 36}), "event_id is not a UUID"),
    (TOOL_CALL, orjson.dumps(started() | {"event_id": 7}), "event_id is not a UUID"),
    (TOOL_CALL, orjson.dumps(without(started(), "event_name")), "event_name is missing"),
    (TOOL_CALL_DERIVED, orjson.dumps(started()), "event_name is none of this topic"),
    (RISK_FINDING, orjson.dumps(without(finding(), "finding_id")), "finding_id is not a UUID"),
    (RISK_FINDING_OCSF, b"{}", "finding_info.uid is missing"),
    (RISK_FINDING_OCSF, b'{"finding_info": 3}', "finding_info.uid is missing"),
]


@pytest.mark.unit
@pytest.mark.parametrize(("topic", "value", "told"), FAULTS)
def test_a_record_no_row_can_be_made_of_is_told_apart_without_quoting_it(
    topic: str, value: bytes | None, told: str
) -> None:
    why = fault(topic, value)
    assert why is not None
    assert told in why
    assert "AKIA" not in why


@pytest.mark.unit
def test_records_of_newer_producers_are_taken() -> None:
    newer = started() | {"event_name": "tool.call.teleported", "event_version": "1.7", "new": {"a": [1]}, "status": 5}
    assert fault(TOOL_CALL, orjson.dumps(newer)) is None
    for value in (started(), completed(), derived("tool.call.timed_out"), finding()):
        assert fault(topic_of(value), orjson.dumps(value)) is None
    assert fault(DLQ, b"\xff not json") is None


@pytest.mark.unit
def test_progress_records_are_passed_over_but_committed() -> None:
    from aiokafka import TopicPartition

    place = TopicPartition("p." + TOOL_CALL, 0)
    given = [
        record(TOOL_CALL, orjson.dumps(started()), offset=4),
        record(TOOL_CALL, b"\x00", offset=5, headers=(("at_kind", b"control"),)),
        record(TOOL_CALL, b"nonsense", offset=6, headers=(("at_kind", b"event"),)),
        record(TOOL_CALL, b"progress", offset=7, headers=(("at_kind", b"control"),)),
    ]
    batch = Batch("p.")
    batch.add(place, given)
    assert ([row.offset for row in batch.rows], batch.control, batch.taken) == ([4], 2, 4)
    assert [row.offset for row, _ in batch.faults] == [6]
    assert batch.offsets == {place: 8}
    batch.forget([place])
    assert batch.offsets == {}


@pytest.mark.unit
def test_a_block_halves_to_single_rows_in_order() -> None:
    [block] = blocks([record(TOOL_CALL, b"%d" % n, offset=n) for n in range(5)], "", T0)
    first, second = block.halves()
    assert [row.offset for row in first.records] == [0, 1] == first.columns[2]
    assert [row.offset for row in second.records] == [2, 3, 4] == second.columns[2]
    assert second.columns[4] == [b"2", b"3", b"4"]


@pytest.mark.unit
def test_a_receipt_names_the_record_and_holds_nothing_of_it() -> None:
    secret = "hunter2-hunter2"
    value = orjson.dumps(started(producer=producer(2, 9)) | {"native": {"password": secret}, "tenant_id": secret})
    body, headers = receipt(record(TOOL_CALL, value, offset=41), "because", 3, T0)
    assert orjson.loads(body) == {
        "size_bytes": len(value),
        "sha256": hashlib.sha256(value).hexdigest(),
        "event_id": orjson.loads(value)["event_id"],
        "event_name": "tool.call.started",
        "producer": {"id": "collector-1", "epoch": 2, "seq": 9},
    }
    told = dict(headers)
    assert told["at_from"] == b"agenttrace.tool.call/0/41"
    assert told["at_by"] == b"clickhouse_sink"
    assert (told["at_why"], told["at_tries"]) == (b"because", b"3")
    assert told["at_when"] == b"2026-11-30T18:51:29.000Z"
    assert secret.encode() not in body


@pytest.mark.unit
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b'{"event_id": "hunter2", "event_name": "hunter2", "producer": {"id": 1, "epoch": 1, "seq": 1}}',
        b'{"producer": {"id": "x", "epoch": -1, "seq": 1}}',
        b'{"producer": "hunter2"}',
        orjson.dumps({"producer": {"id": "hunter2" * 100, "epoch": 1, "seq": 1}}),
    ],
)
def test_a_receipt_leaves_out_ids_of_another_shape(value: bytes | None) -> None:
    body, _ = receipt(record(TOOL_CALL, value), "why", 1, T0)
    assert set(orjson.loads(body)) == {"size_bytes", "sha256"}


@pytest.mark.contract
def test_the_parsed_fields_are_fields_of_the_contract() -> None:
    sql = (resources.files("schemas") / "clickhouse" / "0001_ingest.sql").read_text()
    tuples = re.findall(r"JSONExtract\(payload, 'Tuple\((.*?)\)'\)", sql, re.DOTALL)
    known: set[str] = set()
    for model in vars(events).values():
        if isinstance(model, type) and issubclass(model, events.EventBase):
            known |= set(model.model_fields)
    # Stamped by the host of the pipelines on every derived record; and the OCSF finding's own.
    known |= {"retracted", "finding_info"}
    columns = re.findall(r"`e\.(\w+)`", sql)
    assert len(columns) > 100
    assert set(columns) <= known
    parsed = []
    for text in tuples:
        while "(" in text:
            text = re.sub(r"\([^()]*\)", "", text)
        parsed += [field.split()[0].strip("`") for field in text.split(",")]
    assert parsed == columns
