"""From the evidence of one rule, group and cooldown bucket to the body of its finding: a pure function."""

from __future__ import annotations

from typing import Any

from pipelines.rolling_metrics.ends import TOOL_ENDS
from pipelines.sequence_rules.compiled import CompiledRule
from pipelines.sequence_rules.evidence import Kept, Support
from schemas.clock import to_rfc3339
from schemas.identity import finding_id, join_key

MAX_EVIDENCE = 64
"""Events listed on a finding: of each step the earliest. `evidence_count` says how many there are."""

_ABOUT_AGENT = (
    "tenant_id",
    "workspace_id",
    "user_id_hash",
    "agent_version",
    "agent_id",
    "agent_role",
    "session_id",
    "root_session_id",
    "parent_session_id",
    "session_key",
    "turn_id",
    "run_id",
    "trace_id",
)
_SEVERITY = {
    "info": "info",
    "low": "info",
    "medium": "warning",
    "warning": "warning",
    "high": "warning",
    "critical": "critical",
}
_RISKS = ("info", "low", "medium", "high", "critical")
_WEIGHT = {"info": 0.0, "low": 10.0, "medium": 25.0, "high": 45.0, "critical": 60.0}
_TOOL_BASE = {"shell": 20.0, "web": 15.0, "browser": 15.0, "mcp": 10.0, "plugin": 10.0}
_TOOL_BASE_ELSE = 5.0
_SECRET_SEEN, _SECRET_MOVED = 10.0, 20.0


def risk_of(rule: CompiledRule) -> str:
    """The risk of a rule's findings: its level, else what its severity means."""
    level = rule.rule.level or rule.rule.severity
    return {"informational": "info", "warning": "medium"}.get(level, level)


def identity(rule: CompiledRule, tenant: str, group: str, bucket: int, partition: int) -> str:
    """Id of the finding. A group that is no session may be in several partitions; each then has its own finding."""
    place = group if rule.by_session else join_key(group, f"partition {partition}")
    return finding_id(rule.rule.id, rule.rule.version, tenant, place, bucket)


def body(rule: CompiledRule, key: tuple[str, str], bucket: int, partition: int, support: Support) -> dict[str, Any]:
    """The finding's fields, without version and state. What is supported by the least is `created`, more `updated`.

    `key` is the tenant (empty without one) and the group.
    """
    tenant, group = key
    share = MAX_EVIDENCE // len(support.steps)
    listed = {event.event_id: event for events in support.steps for event in events[:share]}
    evidence = sorted(listed.values(), key=lambda event: event[:2])
    earliest = evidence[0]
    latest = max((events[-1] for events in support.steps if events), key=lambda event: event[:2])
    shown = support.steps[-1][0].about
    record_id = identity(rule, tenant, group, bucket, partition)
    risk, notes = risk_of(rule), list(support.notes)
    parts = _score(rule, risk, support)
    if support.moved:
        risk = _RISKS[min(_RISKS.index(risk) + 1, len(_RISKS) - 1)]
        notes.append(f"value_flow: {len(support.moved)} secret-like value(s) seen before are in the last step.")
    if not rule.by_session:
        notes.append("Seen from one partition: the group may have more elsewhere.")
    fields: dict[str, Any] = {
        "event_name": "risk.finding.created" if support.least else "risk.finding.updated",
        "event_id": record_id,
        "event_version": "1.0",
        "timestamp": to_rfc3339(latest.ms),
        **{name: value for name in _ABOUT_AGENT if (value := getattr(earliest.about, name)) is not None},
        "agent_runtime": earliest.about.agent_runtime or "other",
        "source_adapter": "sequence_rules/1",
        "severity": _SEVERITY[rule.rule.severity],
        "finding_id": record_id,
        "risk": risk,
        "title": rule.rule.name,
        "rule": {"id": rule.rule.id, "version": rule.rule.version, "pack_hash": earliest.about.pack_hash},
        "group_by": ",".join(rule.groups),
        "group": group,
        "tags": list(rule.rule.tags),
        "actions": list(rule.rule.action),
        "first_seen": to_rfc3339(earliest.ms),
        "last_seen": to_rfc3339(latest.ms),
        "evidence": [_reference(event, partition) for event in evidence],
        "evidence_count": support.total,
        "score": sum(parts.values()),
        "score_parts": parts,
    }
    if rule.rule.description:
        notes.insert(0, rule.rule.description.strip())
    if notes:
        fields["description"] = " ".join(notes)
    if support.cut or support.total > len(evidence):
        fields["overflow"] = True
    if shown.mcp_server:
        fields["mcp_server"] = shown.mcp_server
    if shown.tool_name:
        fields["tool_name"] = shown.tool_name
    decisions = [event.about.decision for event in evidence if event.about.decision]
    if decisions:
        fields["policy_action"] = decisions[-1]
    return fields


def _reference(event: Kept, partition: int) -> dict[str, Any]:
    reference = {
        "event_id": event.event_id,
        "event_name": event.about.event_name,
        "topic": event.topic,
        "partition": partition,
        "offset": event.offset,
        "timestamp": to_rfc3339(event.ms),
    }
    if event.call_id is not None:
        reference["call_id"] = event.call_id
    return reference


def _score(rule: CompiledRule, risk: str, support: Support) -> dict[str, float]:
    """Score parts; the rule's risk weighs on the part that the rule is about."""
    if len(support.steps) > 1:
        about = "sequence_risk"
    elif rule.rule.when.sequence is not None:
        about = "param_risk"
    else:
        about = "anomaly_risk"
    events = [event.about for events in support.steps for event in events]
    secret = any(event.secret_kinds and event.event_name in TOOL_ENDS for event in events)
    parts = {
        "tool_risk_base": max(_TOOL_BASE.get(event.tool_source or "", _TOOL_BASE_ELSE) for event in events),
        about: _WEIGHT[risk],
        "output_risk": _SECRET_MOVED if support.moved else _SECRET_SEEN if secret else 0.0,
    }
    return {name: value for name, value in parts.items() if value}
