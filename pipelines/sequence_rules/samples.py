"""Runs the samples that stand beside a rule through the operator itself, and checks what they promise.

A sample is an event or a list of them: `event` is the name, `at` the time since the sample's begin (unless given, a
second after the event before), `repeat` and `every` stand for many alike, `call` ties events to one call; all else are
fields of the event. What the contract requires and no rule asks for is filled in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from pipelines.runtime.port import CanonicalSet, Record
from pipelines.sequence_rules.compiled import compile_pack
from pipelines.sequence_rules.operator import SequenceRules
from schemas.clock import from_rfc3339, to_rfc3339
from schemas.events import EVENT, to_json
from schemas.identity import derived_id
from schemas.rules import Rule, RulePack, Sample, SampleEvent, parse_duration
from schemas.topics import TOPIC_OF_EVENT

BEGIN_MS = from_rfc3339("2026-01-01T00:00:00Z")
MAX_REPEAT = 10_000
_STATUS = {"tool.call.completed": "completed", "tool.call.error": "error", "tool.call.blocked": "blocked"}


class SampleError(ValueError):
    """A sample that is no log of events."""


class _Said:
    def __init__(self) -> None:
        self.findings = CanonicalSet()

    def put(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        self.findings.add(topic, record_id, body)

    def retract(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None:
        self.findings.add(topic, record_id, {**body, "retracted": True})


def run_samples(rule: Rule) -> list[str]:
    """What is wrong with a rule's samples, one line each: no finding on a positive one, or one on a negative."""
    problems = []
    if rule.samples is None:
        return []
    for kind, samples in (("positive", rule.samples.positive), ("negative", rule.samples.negative)):
        for number, sample in enumerate(samples, start=1):
            try:
                found = findings(rule, sample)
            except SampleError as error:
                problems.append(f"rule {rule.id}: {kind} sample {number}: {error}")
                continue
            if (kind == "positive") != bool(found):
                said = "gives no finding" if kind == "positive" else "gives a finding"
                problems.append(f"rule {rule.id}: {kind} sample {number} {said}")
    return problems


def findings(rule: Rule, sample: Sample) -> list[dict[str, Any]]:
    """The findings of one rule on one sample. Raises SampleError."""
    operator = SequenceRules(0, [(0, compile_pack(RulePack(rules=(rule,))))])
    said, last_ms = _Said(), BEGIN_MS
    for offset, event in enumerate(events(sample)):
        ms = from_rfc3339(event["timestamp"])
        if event["event_name"] in operator.wants:
            operator.on_event(Record(TOPIC_OF_EVENT[event["event_name"]], 0, offset, ms, event), said)
        last_ms = max(last_ms, ms)
    for later_ms in (60_000, operator.horizon_ms):
        operator.on_progress(last_ms + later_ms, said)
    return list(said.findings.bodies().values())


def events(sample: Sample) -> Iterator[dict[str, Any]]:
    """The events of a sample in their JSON form, each valid by the contract. Raises SampleError."""
    at_ms = 0
    for number, line in enumerate(sample, start=1):
        fields = dict(line)
        try:
            if "at" in fields:
                at_ms = parse_duration(fields.pop("at"))
            every_ms = parse_duration(fields.pop("every", "1s"))
            repeat, call = fields.pop("repeat", 1), fields.pop("call", None)
            if not (isinstance(repeat, int) and 1 <= repeat <= MAX_REPEAT):
                raise SampleError(f"event {number}: repeat is not 1 … {MAX_REPEAT}")
            for again in range(repeat):
                yield _event(fields, f"{number}.{again}", call, at_ms)
                at_ms += every_ms
        except SampleError:
            raise
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            raise SampleError(f"event {number}: {where}: {first['msg']}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise SampleError(f"event {number}: {error}") from None


def _event(fields: SampleEvent, number: str, call: Any, at_ms: int) -> dict[str, Any]:
    fields = dict(fields)
    name = fields.pop("event", None)
    if name not in TOPIC_OF_EVENT:
        raise SampleError(f"event {number.partition('.')[0]}: no event {name!r}")
    event: dict[str, Any] = {
        "event_name": name,
        "event_id": derived_id("sample", number),
        "timestamp": to_rfc3339(BEGIN_MS + at_ms),
        "source_adapter": "sample/1",
        "session_id": "sample",
        "root_session_id": "sample",
    }
    call_id = derived_id("sample call", number if call is None else str(call))
    if name in {"tool.call.timed_out", "tool.call.abandoned"}:
        outcome = "timeout" if name == "tool.call.timed_out" else "unknown"
        event |= {"call_id": call_id, "tool_name": "tool", "version": 0, "outcome": outcome}
        event["started_at"] = event["timestamp"]
    elif name.startswith("tool.call.") or name == "tool.result.persisted":
        event |= {"call_id": call_id, "call_key": number, "occurrence": 1, "tool_name": "tool"}
        event["status"] = _STATUS.get(name, "started")
    elif name.startswith("mcp.rpc."):
        event |= {"transport": "stdio", "direction": "client_to_server", "status": "completed"}
    return to_json(EVENT.validate_python(event | fields, strict=False))
