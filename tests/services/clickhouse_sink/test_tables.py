"""The tables show one truth, whatever was inserted in which order, how often and in which batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from clickhouse_connect.driver import Client

from schemas.clock import to_rfc3339
from schemas.identity import call_id, derived_id, event_id, new_delivery_id
from tests.services.clickhouse_sink.conftest import Written
from tests.services.clickhouse_sink.events import (
    T0,
    Json,
    call,
    completed,
    derived,
    event,
    failed,
    finding,
    metric,
    producer,
    records,
    rpc,
    started,
)

pytestmark = pytest.mark.integration

Rows = Callable[[str], list[Json]]


def moment(ms: int) -> datetime:
    """T0 + ms, as ClickHouse gives times."""
    return datetime.fromtimestamp((T0 + ms) / 1000, UTC).replace(tzinfo=None)


async def test_an_event_is_kept_whole_and_in_columns(write: Written, rows: Rows) -> None:
    value = started(
        tenant_id="acme",
        labels={"incident_id": "INC-1"},
        producer=producer(1, 1),
        facts={
            "commands": ({"argv0": "cat"},),
            "paths": ({"path": "/home/dev/.env", "kind": "read"},),
            "hosts": ({"host": "a.example.net", "domain": "example.net", "port": 443},),
            "secret_kinds": ("aws_access_key",),
            "fingerprints": ("00ff",),
        },
        native={"deep": {"ünï": [1, None, "x"]}},
    )
    await write([value])

    [row] = rows("SELECT * FROM events")
    assert orjson.loads(row["payload"]) == value
    assert row["payload"].encode() == orjson.dumps(value)
    assert row["timestamp"] == moment(0)
    assert (row["tenant_id"], row["tool_name"], row["call_id"]) == ("acme", "Bash", value["call_id"])
    assert (row["producer_id"], row["producer_epoch"], row["producer_seq"]) == ("collector-1", 1, 1)
    assert row["labels"] == {"incident_id": "INC-1"}
    assert row["secret_kinds"] == ["aws_access_key"]
    assert row["fingerprints"] == ["00ff"]
    assert row["paths"] == [{"path": "/home/dev/.env", "kind": "read"}]
    assert row["hosts"] == [{"host": "a.example.net", "domain": "example.net", "port": 443, "loopback": False}]
    assert row["commands"] == [{"argv0": "cat", "sub": ""}]
    assert (row["_topic"], row["_partition"], row["_offset"]) == ("agenttrace.tool.call", 0, 0)


async def test_a_call_is_one_row_with_start_and_end(write: Written, rows: Rows) -> None:
    content = {"size_bytes": 12, "hash": "hmac-sha256:k:0", "summary": "echo hello"}
    await write([started(input=content, agent_role="builder", labels={"env": "ci"})])
    await write([completed(output={"size_bytes": 5, "summary": "hello", "is_error_result": False}, exit_code=0)])

    [row] = rows("SELECT * FROM tool_calls")
    assert row["status"] == "completed"
    assert (row["outcome"], row["outcome_evidence"], row["exit_code"]) == ("ok", "exit_status", 0)
    assert (row["started_at"], row["ended_at"]) == (moment(0), moment(200))
    assert (row["duration_ms"], row["elapsed_ms"]) == (180.5, 200)
    assert (row["input_bytes"], row["input_hash"], row["input_summary"]) == (12, "hmac-sha256:k:0", "echo hello")
    assert (row["output_bytes"], row["output_summary"], row["is_error_result"]) == (5, "hello", False)
    assert (row["agent_role"], row["labels"]) == ("builder", {"env": "ci"})
    assert (row["session_id"], row["tool_source"], row["occurrence"]) == ("s-1", "shell", 1)
    assert row["late"] is False


async def test_an_end_without_a_start_is_a_call(write: Written, rows: Rows) -> None:
    await write([failed(error={"type": "ExitCode", "message_summary": "exit 2", "code": 2})])

    [row] = rows("SELECT * FROM tool_calls")
    assert (row["status"], row["outcome"], row["started_at"], row["elapsed_ms"]) == ("error", "error", None, None)
    assert (row["error_type"], row["error_code"], row["error_message"]) == ("ExitCode", "2", "exit 2")
    assert (row["tool_name"], row["session_id"]) == ("Bash", "s-1")


async def test_an_open_call_is_started(write: Written, rows: Rows) -> None:
    await write([started()])

    [row] = rows("SELECT status, outcome, ended_at, duration_ms, late FROM tool_calls")
    assert row == {"status": "started", "outcome": "", "ended_at": None, "duration_ms": None, "late": False}


async def test_fields_of_an_end_come_from_one_event_also_where_it_has_none(write: Written, rows: Rows) -> None:
    # argMax(duration_ms, …) would take 77 from the weaker end, because it skips the NULL of the stronger one.
    weak = completed(
        outcome="unknown", outcome_evidence="inferred", duration_ms=77.0, exit_code=9, cause="next turn began"
    )
    strong = failed(at=150, duration_ms=None, exit_code=None)
    strong.pop("duration_ms", None)
    strong.pop("exit_code", None)
    for batch in ([strong], [weak], [weak, strong], [weak]):
        await write(batch)

    [row] = rows("SELECT status, outcome, duration_ms, exit_code, cause FROM tool_calls")
    assert row == {"status": "error", "outcome": "error", "duration_ms": None, "exit_code": None, "cause": ""}


@pytest.mark.parametrize("backwards", [False, True])
async def test_a_proven_end_stands_before_an_inferred_one_and_any_end_before_a_guess(
    write: Written, rows: Rows, backwards: bool
) -> None:
    ladder = [
        started(),
        derived("tool.call.timed_out"),
        derived("tool.call.abandoned", cause="session ended"),
        completed(at=400, outcome="unknown", outcome_evidence="inferred"),
        failed(at=100, outcome_evidence="hook"),
    ]
    seen = []
    for step in range(1, len(ladder) + 1) if not backwards else []:
        await write([ladder[step - 1]])
        seen += [row["status"] for row in rows("SELECT status FROM tool_calls")]
    if backwards:
        for value in reversed(ladder):
            await write([value])
        seen = ["started", "timed_out", "abandoned", "completed"]
        seen += [row["status"] for row in rows("SELECT status FROM tool_calls")]
    assert seen == ["started", "timed_out", "abandoned", "completed", "error"]


async def test_an_end_after_a_timeout_is_late_unless_the_timeout_is_taken_back(write: Written, rows: Rows) -> None:
    await write([started(), derived("tool.call.timed_out", version=5, maybe_blocked=True)])
    [row] = rows("SELECT status, outcome, outcome_evidence, deadline, maybe_blocked FROM tool_calls")
    assert row == {
        "status": "timed_out",
        "outcome": "timeout",
        "outcome_evidence": "inferred",
        "deadline": moment(300_000),
        "maybe_blocked": True,
    }

    await write([completed(at=400_000)])
    assert rows("SELECT status, outcome, late FROM tool_calls") == [
        {"status": "completed", "outcome": "ok", "late": True}
    ]

    await write([derived("tool.call.timed_out", version=9, retracted=True)])
    await write([derived("tool.call.timed_out", version=5)])
    assert rows("SELECT status, late, deadline FROM tool_calls") == [
        {"status": "completed", "late": False, "deadline": None}
    ]
    names = {row["event_name"] for row in rows("SELECT event_name FROM events")}
    assert names == {"tool.call.started", "tool.call.completed"}


async def test_a_call_known_only_by_its_timeout_is_a_row(write: Written, rows: Rows) -> None:
    await write([derived("tool.call.timed_out")])

    [row] = rows("SELECT status, tool_name, session_id, started_at, start_event_id FROM tool_calls")
    assert row["status"] == "timed_out"
    assert (row["tool_name"], row["session_id"], row["started_at"]) == ("Bash", "s-1", moment(0))
    assert row["start_event_id"] == ""


async def test_approvals_and_policy_are_on_the_call(write: Written, rows: Rows) -> None:
    policy = {"policy_id": "no-prod", "decision": "deny", "reason": "production", "risk_level": "high"}
    await write(
        [
            started(),
            event("tool.call.approval_requested", 10, **call(), status="started"),
            event(
                "tool.call.approval_decided",
                20,
                **call(),
                status="started",
                approval={"decision": "deny", "decided_by": "user"},
            ),
            event("tool.call.blocked", 30, **call(), status="blocked", outcome="blocked", policy=policy),
        ]
    )

    [row] = rows("SELECT * FROM tool_calls")
    assert (row["status"], row["outcome"]) == ("blocked", "blocked")
    assert (row["approval_requested_at"], row["approval_decided_at"]) == (moment(10), moment(20))
    assert (row["approval_decision"], row["approval_decided_by"]) == ("deny", "user")
    assert (row["policy_id"], row["policy_decision"], row["risk_level"]) == ("no-prod", "deny", "high")


def every_kind() -> list[Json]:
    """Events that fill every table, some of them opinions about the same thing."""
    decision = {"decision_id": derived_id("d"), "policy_id": "p", "decision": "allow", "call_id": call_id("k", 1)}
    tools = ({"name": "create_issue", "fingerprint": "a"}, {"name": "list", "fingerprint": "b"})
    link = {
        "event_id": derived_id("link"),
        "call_id": call_id("m", 1),
        "operation_id": "op-1",
        "method": "traceparent",
        "confidence": 0.9,
    }
    alert = {"event_id": derived_id("alert"), "alert_id": derived_id("alert"), "title": "t"}
    finding_id = derived_id("finding", "f")
    return [
        started(producer=producer(1, 1)),
        completed(producer=producer(1, 2)),
        started("m", 20, mcp={"server_name": "github", "tool_name": "create_issue"}, tool_source="mcp"),
        completed("m", 60, mcp={"server_name": "github", "tool_name": "create_issue"}, tool_source="mcp"),
        started("t", 30),
        derived("tool.call.timed_out", "t", version=3),
        derived("tool.call.timed_out", "t", version=8, maybe_blocked=True),
        rpc("mcp.rpc.request", "op-1", 25, jsonrpc_id="1"),
        rpc("mcp.rpc.response", "op-1", 55, jsonrpc_id="1", duration_ms=30.0),
        rpc("mcp.rpc.request", "op-2", 70, jsonrpc_id="2"),
        event("mcp.tools.listed", 5, mcp_server="github", tools=tools, count=2),
        event("mcp.server.health_changed", 4, mcp_server="github", connection_id="c1", health="up", reason="answered"),
        event("mcp.server.health_changed", 95, mcp_server="github", connection_id="c1", health="down", reason="exited"),
        event("mcp.server.stderr", 6, mcp_server="github", content={"size_bytes": 9, "summary": "listening"}),
        event("mcp.elicitation.requested", 30, mcp_server="github", mode="form", content={"size_bytes": 5}),
        event("mcp.elicitation.completed", 40, mcp_server="github", action="accept"),
        event("policy.decision.created", 2, **decision),
        event("producer.heartbeat", 90, producer=producer(1, 5), published_through=4, uptime_ms=90),
        event(
            "producer.dropped", 80, producer=producer(1, 4), reason="full", count=1,
            ranges=({"epoch": 1, "first": 3, "last": 3},),
        ),
        event("session.ended", 100, reason="exit"),
        event("trace.link.created", 61, version=2, **link),
        finding(version=1),
        finding(version=4, evidence_count=2, score=80.0),
        event("finding.status.changed", 7000, finding_id=finding_id, version=1, status="acknowledged", by="ann"),
        event("finding.status.changed", 8000, finding_id=finding_id, version=2, status="resolved", note="rotated"),
        event("alert.raised", 6000, version=1, **alert),
        event("alert.resolved", 9000, version=2, **alert),
        metric({100: 3, 120: 1}),
        metric({100: 5}, version=2),
        metric({100: 2, -4: 1}, partition=1),
    ]  # fmt: skip


VIEWS = (
    "events",
    "tool_calls",
    "mcp_rpc_calls",
    "mcp_tool_schemas",
    "policy_decisions",
    "risk_findings",
    "finding_status",
    "finding_status_history",
    "alerts",
    "trace_links",
    "tool_metrics",
    "producer_heartbeats",
    "producer_losses",
    "mcp_audit_log",
    "mcp_daily_stats",
    "mcp_server_health",
    "mcp_servers",
    "mcp_server_stderr",
    "mcp_elicitations",
)


def dump(client: Client) -> dict[str, list[str]]:
    """All that people can see, as texts, in an order of its own."""
    return {
        view: sorted(client.raw_query(f"SELECT * FROM {view}", fmt="JSONEachRow").decode().splitlines())
        for view in VIEWS
    }


@pytest.mark.parametrize("seed", range(4))
async def test_every_view_is_the_same_after_duplicates_in_any_order_and_batches(
    write: Written, client: Client, seed: int
) -> None:
    chance = random.Random(seed)
    given = records(every_kind(), log_time_ms=T0 + 1000)
    await write.records(given)
    calm = dump(client)
    assert {view: len(lines) for view, lines in calm.items()} == {
        "events": 18 + 1,
        "tool_calls": 3,
        "mcp_rpc_calls": 2,
        "mcp_tool_schemas": 2,
        "policy_decisions": 1,
        "risk_findings": 1,
        "finding_status": 1,
        "finding_status_history": 2,
        "alerts": 1,
        "trace_links": 1,
        "tool_metrics": 1,
        "producer_heartbeats": 1,
        "producer_losses": 1,
        "mcp_audit_log": 2,
        "mcp_daily_stats": 1,
        "mcp_server_health": 2,
        "mcp_servers": 1,
        "mcp_server_stderr": 1,
        "mcp_elicitations": 2,
    }
    for table in client.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_columns[0]:
        if table.endswith("_raw"):
            client.command(f"TRUNCATE TABLE {table}")
    assert not any(dump(client).values())

    storm = [record for record in given for _ in range(chance.choice((1, 2, 3)))]
    chance.shuffle(storm)
    while storm:
        size = chance.randint(1, 9)
        await write.records(storm[:size])
        del storm[:size]
        if chance.random() < 0.2:
            client.command(
                f"OPTIMIZE TABLE {chance.choice(('tool_calls_raw', 'events_raw', 'tool_metrics_raw'))} FINAL"
            )
    assert dump(client) == calm
    for table in ("events_raw", "tool_calls_raw", "mcp_rpc_calls_raw", "tool_metrics_raw", "risk_findings_raw"):
        client.command(f"OPTIMIZE TABLE {table} FINAL")
    assert dump(client) == calm


async def test_what_people_decide_about_a_finding_outlives_new_evidence(write: Written, rows: Rows) -> None:
    finding_id = derived_id("finding", "f")
    changed = event(
        "finding.status.changed", 7000, finding_id=finding_id, version=1, status="false_positive", note="test", by="ann"
    )
    await write([changed])
    await write([finding(version=1)])
    await write([finding(version=4, score=80.0, evidence_count=2)])
    await write([finding(version=1)])

    [row] = rows("SELECT * FROM risk_findings")
    assert (row["version"], row["score"], row["evidence_count"]) == (4, 80.0, 2)
    assert (row["status"], row["status_note"], row["status_by"]) == ("false_positive", "test", "ann")
    assert row["evidence"][0]["topic"] == "agenttrace.tool.call"
    assert row["score_parts"] == {"sequence_risk": 70.0}

    await write([finding(version=6, retracted=True)])
    assert rows("SELECT finding_id FROM risk_findings") == []


async def test_a_finding_nobody_touched_is_open(write: Written, rows: Rows) -> None:
    await write([finding()])
    assert rows("SELECT status, status_at, title FROM risk_findings") == [
        {"status": "open", "status_at": None, "title": "Secret read, then sent away"}
    ]


async def test_ocsf_findings_are_kept_by_their_uid(write: Written, rows: Rows) -> None:
    from tests.services.clickhouse_sink.events import record

    topic = "agenttrace.risk.finding.ocsf"
    for offset, status in ((3, "New"), (9, "Updated"), (3, "New")):
        value = orjson.dumps(
            {"class_uid": 2004, "confidence": "High", "status": status, "finding_info": {"uid": "f-1"}}
        )
        await write.records([record(topic, value, offset=offset)])
    [row] = rows("SELECT * FROM risk_findings_ocsf")
    assert row["finding_id"] == "f-1"
    assert orjson.loads(row["payload"])["status"] == "Updated"


async def test_an_operation_of_several_ids_is_one_row(write: Written, rows: Rows) -> None:
    await write(
        [
            rpc("mcp.rpc.request", "op", 0, jsonrpc_id="7", request={"size_bytes": 10}, arguments_hash="h"),
            rpc("mcp.rpc.response", "op", 50, jsonrpc_id="7", status="input_required"),
        ]
    )
    [row] = rows("SELECT status, failed FROM mcp_rpc_calls")
    assert row == {"status": "input_required", "failed": None}

    await write([rpc("mcp.rpc.request", "op", 900, jsonrpc_id="8")])
    answer = {"is_error_result": True, "duration_ms": 990.0, "duration_server_ms": 90.0, "duration_human_ms": 900.0}
    await write([rpc("mcp.rpc.response", "op", 990, jsonrpc_id="8", **answer)])
    [row] = rows("SELECT * FROM mcp_rpc_calls")
    assert (row["status"], row["failed"], row["jsonrpc_ids"]) == ("completed", True, ["7", "8"])
    assert (row["first_at"], row["ended_at"]) == (moment(0), moment(990))
    assert (row["duration_ms"], row["duration_server_ms"], row["duration_human_ms"]) == (990.0, 90.0, 900.0)
    assert (row["mcp_server"], row["method"], row["tool_name"]) == ("github", "tools/call", "create_issue")


async def test_a_result_after_a_timeout_is_late(write: Written, rows: Rows) -> None:
    await write([rpc("mcp.rpc.request", "op"), rpc("mcp.rpc.error", "op", 100, status="timeout")])
    assert rows("SELECT status, failed, late FROM mcp_rpc_calls") == [
        {"status": "timeout", "failed": True, "late": False}
    ]
    await write([rpc("mcp.rpc.response", "op", 200, status="late")])
    assert rows("SELECT status, failed, late FROM mcp_rpc_calls") == [{"status": "late", "failed": False, "late": True}]


async def test_a_tool_that_changes_shows_both_shapes(write: Written, rows: Rows) -> None:
    for at, fingerprint in ((0, "a"), (5000, "b"), (1000, "a")):
        tools = ({"name": "search", "fingerprint": fingerprint, "schema_hash": f"s{fingerprint}"},)
        await write([event("mcp.tools.listed", at, mcp_server="github", tools=tools, count=1)])
    found = rows("SELECT fingerprint, schema_hash, first_seen, last_seen, revision, revisions FROM mcp_tool_schemas")
    assert sorted(found, key=lambda row: row["revision"]) == [
        {
            "fingerprint": "a",
            "schema_hash": "sa",
            "first_seen": moment(0),
            "last_seen": moment(1000),
            "revision": 1,
            "revisions": 2,
        },
        {
            "fingerprint": "b",
            "schema_hash": "sb",
            "first_seen": moment(5000),
            "last_seen": moment(5000),
            "revision": 2,
            "revisions": 2,
        },
    ]


async def test_the_audit_log_counts_a_call_once_whoever_saw_it(write: Written, rows: Rows) -> None:
    labels = {"incident_id": "INC-" + "9" * 80, "flywheel_node": "probe"}
    mcp = {"server_name": "github", "tool_name": "create_issue"}
    link = {"call_id": call_id("both", 1), "method": "traceparent", "confidence": 0.9, "version": 1}
    await write(
        [
            started("both", mcp=mcp, tool_source="mcp", labels=labels, agent_role="hermes"),
            completed("both", mcp=mcp, tool_source="mcp", labels=labels, agent_role="hermes", duration_ms=40.0),
            rpc("mcp.rpc.request", "linked"),
            rpc("mcp.rpc.response", "linked", 30, duration_ms=30.0),
            event("trace.link.created", 0, event_id=derived_id("l"), operation_id="linked", **link),
            rpc("mcp.rpc.request", "alone", 100, labels=labels, agent_role="hermes"),
            rpc("mcp.rpc.response", "alone", 160, duration_ms=60.0, is_error_result=True),
        ]
    )
    log = rows("SELECT seen_by, provider, tool_name, latency_ms, success, incident_id FROM mcp_audit_log ORDER BY at")
    incident = ("INC-" + "9" * 80)[:64]
    common = {"provider": "github", "tool_name": "create_issue", "incident_id": incident}
    assert log == [
        {"seen_by": "hook", "latency_ms": 40.0, "success": True, **common},
        {"seen_by": "wire", "latency_ms": 60.0, "success": False, **common},
    ]
    [row] = rows("SELECT * FROM mcp_daily_stats")
    assert (row["agent_role"], row["session_id"], row["calls"], row["succeeded"]) == ("hermes", "s-1", 2, 1)
    assert (row["success_rate"], row["avg_latency_ms"], row["max_latency_ms"]) == (0.5, 50.0, 60.0)


async def test_months_are_partitions_and_impossible_clocks_share_one(write: Written, client: Client) -> None:
    def at(when: str) -> Json:
        ms = int(datetime.fromisoformat(when).timestamp() * 1000)
        return started("c" + when, event_id=event_id(new_delivery_id(ms), 0))

    days = ("2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", "1970-01-01T00:00:00Z", "2190-05-01T00:00:00Z")
    await write([*(at(day) for day in days), started("v4", event_id="7c1f2a40-6a9e-4a51-9f3e-0c6b9a5d0001")])
    found = client.query(
        "SELECT partition, sum(rows) FROM system.parts "
        "WHERE database = currentDatabase() AND table = 'events_raw' AND active GROUP BY partition ORDER BY partition"
    ).result_rows
    assert [tuple(row) for row in found] == [("0", 3), ("202611", 1), ("202612", 1)]


async def test_a_mistyped_or_unknown_field_costs_only_itself(write: Written, rows: Rows) -> None:
    value: dict[str, Any] = completed(output={"size_bytes": 5})
    value |= {"duration_ms": "long", "exit_code": {"n": 1}, "observed_at": "yesterday", "brand_new": [1], "facts": 7}
    await write([value])

    [row] = rows("SELECT status, outcome, duration_ms, exit_code, output_bytes FROM tool_calls")
    assert row == {"status": "completed", "outcome": "ok", "duration_ms": None, "exit_code": None, "output_bytes": 5}
    [row] = rows("SELECT payload, observed_at FROM events")
    assert orjson.loads(row["payload"])["brand_new"] == [1]
    assert row["observed_at"] is None
    assert write.refused == []


async def test_an_event_without_a_readable_time_has_its_log_time(write: Written, rows: Rows) -> None:
    value = started() | {"timestamp": "soon"}
    await write([value], log_time_ms=T0 + 5)
    assert rows("SELECT timestamp FROM events") == [{"timestamp": moment(5)}]


async def test_a_record_without_a_time_is_kept(write: Written, rows: Rows) -> None:
    # Retention counts from the log time: with that of 1970 the row would be gone at the next merge.
    await write([started()], log_time_ms=-1)
    assert rows("SELECT _log_time FROM events") == [{"_log_time": moment(0)}]


async def test_long_summaries_are_whole_in_the_event_and_cut_in_the_call(write: Written, rows: Rows) -> None:
    text = "ü" * 5000
    await write([started(input={"size_bytes": 10_000, "summary": text})])
    [row] = rows("SELECT input_summary FROM tool_calls")
    assert row["input_summary"] == "ü" * 4096
    [row] = rows("SELECT JSONExtractString(payload, 'input', 'summary') AS summary FROM events")
    assert row["summary"] == text


async def test_metrics_merge_source_partitions_and_hide_what_was_taken_back(write: Written, rows: Rows) -> None:
    await write(
        [
            metric({100: 3}, version=1, provisional=True),
            metric({100: 5, 140: 1}, version=2, outcomes={"ok": 5, "error": 1}),
            metric({100: 4}, partition=1, zero_count=2),
            metric({90: 9}, start=1),
        ]
    )
    await write([metric({90: 9}, start=1, version=3) | {"retracted": True}])

    [row] = rows("SELECT * FROM tool_metrics")
    assert (row["count"], row["zero_count"], row["sketch"]) == (12, 2, {100: 9, 140: 1})
    assert row["outcomes"] == {"ok": 9, "error": 1}
    assert row["error_rate"] == 0.1
    assert row["provisional"] is False
    assert row["window_start"] == datetime.fromtimestamp(T0 // 60_000 * 60, UTC).replace(tzinfo=None)


async def test_times_of_derived_records_are_read(write: Written, rows: Rows) -> None:
    await write([finding(first_seen=to_rfc3339(T0 - 60_000))])
    assert rows("SELECT first_seen, last_seen FROM risk_findings") == [
        {"first_seen": moment(-60_000), "last_seen": moment(5000)}
    ]
