"""What the demo says at its end: figures from ClickHouse, and whether they add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from services.demo import synthetic

EXPECTED_RULES = ("secret-read-then-egress", "tool-loop")
"""What the synthetic session of each runtime must raise."""


@dataclass(slots=True)
class Report:
    """The summary, as `--json` writes it."""

    payloads: int
    doors: dict[str, int]
    deliveries: int
    accepted: int
    kafka: int
    clickhouse: int
    tool_calls: int
    seconds: dict[str, float] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    never_ended: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest: list[dict[str, Any]] = field(default_factory=list)
    mcp_sent: list[tuple[str, str]] = field(default_factory=list)
    mcp: list[dict[str, Any]] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


CALLS = """
    select agent_runtime, count() as calls, countIf(outcome = 'ok') as ok, countIf(outcome = 'error') as error,
           countIf(outcome = 'blocked') as blocked, countIf(outcome = 'cancelled') as cancelled,
           countIf(outcome = 'timeout') as timeout, countIf(outcome = 'unknown') as unknown,
           countIf(outcome = '') as open
    from tool_calls group by agent_runtime order by agent_runtime"""
NEVER_ENDED = """
    select agent_runtime, tool_name, status, cause, input_summary, session_id, dateDiff('millisecond', started_at, deadline) as ttl_ms
    from tool_calls where status in ('timed_out', 'abandoned') order by agent_runtime, started_at"""
FINDINGS = """
    select agent_runtime, rule_id, risk, title, session_id, evidence_count,
           arrayMap(e -> (e.event_name, e.topic, e.partition, e.offset), evidence) as evidence
    from risk_findings order by risk = 'critical' desc, rule_id, agent_runtime, first_seen"""
SLOWEST = """
    select tool_name, agent_runtime, sum(count) as calls, sum(zero_count) as zeros, sumMap(sketch) as merged,
           round(agenttrace_quantile(0.5, zeros, merged), 1) as p50_ms,
           round(agenttrace_quantile(0.95, zeros, merged), 1) as p95_ms
    from tool_metrics where window = '1m' group by tool_name, agent_runtime
    having p95_ms is not null order by p95_ms desc limit 8"""
MCP = """
    select mcp_server, tool_name, status, failed, count() as calls, round(median(duration_ms), 1) as ms,
           round(median(duration_server_ms), 1) as server_ms, any(error_code) as error_code
    from mcp_rpc_calls where method = 'tools/call'
    group by mcp_server, tool_name, status, failed order by mcp_server, tool_name, failed"""
OPEN = "select count() from tool_calls where status = 'started'"


def fill(report: Report, client: Any) -> None:
    """Read the figures."""
    report.calls = _rows(client, CALLS)
    report.never_ended = _rows(client, NEVER_ENDED)
    report.findings = _rows(client, FINDINGS)
    report.mcp = _rows(client, MCP)
    report.slowest = [
        {key: value for key, value in row.items() if key not in {"merged", "zeros"}} for row in _rows(client, SLOWEST)
    ]


def missing_findings(client: Any, runtimes: list[str]) -> list[str]:
    """Findings of the synthetic sessions that are not there (yet)."""
    rows = client.query("select agent_runtime, rule_id from risk_findings where startsWith(session_id, 'synthetic')")
    found = {(runtime, rule) for runtime, rule in rows.result_rows}
    return [
        f"{runtime}: no finding of {rule}"
        for runtime in runtimes
        for rule in EXPECTED_RULES
        if (runtime, rule) not in found
    ]


def judge(report: Report, runtimes: list[str]) -> None:
    """Say everything that does not add up in the figures themselves."""
    say = report.problems.append
    if report.deliveries != report.payloads:
        say(f"{report.payloads} payloads were sent, but the journal holds {report.deliveries} deliveries")
    waiting = sum(row["open"] for row in report.calls)
    if waiting:
        say(f"{waiting} calls still open although their time is over")
    if not report.slowest:
        say("no metric window has a duration")
    said = Counter(report.mcp_sent)
    seen: Counter[tuple[str, str]] = Counter()
    for row in report.mcp:
        seen[row["tool_name"], "error" if row["failed"] else "ok"] += row["calls"]
    if seen != said:
        say(f"MCP calls differ: the client saw {dict(said)}, the proxy {dict(seen)}")
    ended = {(row["agent_runtime"], row["session_id"]) for row in report.never_ended if row["status"] == "timed_out"}
    for runtime in runtimes:
        name = f"synthetic-{runtime.replace('_', '-')}"
        if (runtime, name) not in ended:
            say(f"{runtime}: the call that never ends was not found in {name}")
        loops = [row for row in report.findings if row["rule_id"] == "tool-loop" and row["session_id"] == name]
        if sum(row["evidence_count"] for row in loops) < synthetic.LOOPS:
            say(f"{runtime}: the loop of {synthetic.LOOPS} equal calls in {name} is not what the finding says")


def _rows(client: Any, sql: str) -> list[dict[str, Any]]:
    result = client.query(sql)
    return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]
