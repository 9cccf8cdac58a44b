"""The chained operators as a worker hosts them: lag, crashes and take-overs change nothing of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.operators import build_operators
from pipelines.runtime.port import CanonicalSet, Event, OperatorFactory
from schemas.config import Config, PipelinesConfig, Reliability
from schemas.errors import UserError
from schemas.events import EVENT
from schemas.topics import INPUT_TOPICS, RISK_FINDING, TOOL_CALL_DERIVED, TOOL_METRIC
from tests.pipelines.helpers import T0, MemoryLog, MemoryWorker, call_event, calm, event

pytestmark = pytest.mark.unit

UNTIL_MS = 30_000_000
FACTORIES = build_operators(Config(reliability=Reliability(pending_call_ttl_ms=120_000)))

READ = {"paths": [{"path": "/srv/app/.env", "kind": "read"}], "fingerprints": ["0123456789abcdef"]}
SEND = {"hosts": [{"host": "x.example.com", "domain": "example.com"}], "fingerprints": ["0123456789abcdef"]}
RM = {"recursive_force": True, "paths": [{"path": "/srv", "kind": "delete"}], "commands": [{"argv0": "rm"}]}


def history(rng: Random, calls: int) -> list[tuple[int, Event]]:
    """Calls of two sessions over some minutes, with log times; some never end, some ends come twice or first."""
    made: list[tuple[int, Event]] = []
    for number in range(calls):
        at = rng.randrange(900_000)
        session = rng.choice(["s1", "s2"])
        fields: dict[str, Any] = {"session_id": session, "root_session_id": session}
        if rng.random() < 0.5:
            fields |= {"tool_source": "mcp", "mcp": {"server_name": "github"}, "tool_name": "github--find"}
        started = fields | {"input": {"size_bytes": 5, "hash": f"hmac-sha256:k:{rng.choice('ab')}"}}
        facts = rng.choice([{}, {}, {"facts": READ}, {"facts": SEND}, {"facts": RM}])
        made.append((at + rng.randrange(2_000), call("tool.call.started", at, number, **started, **facts)))
        if rng.random() < 0.85:
            outcome = rng.choice(["ok", "error", "error"])
            name = "tool.call.completed" if outcome == "ok" else "tool.call.error"
            took = rng.choice([50, 3_000, 119_000, 140_000])
            for again in range(rng.choice([1, 1, 1, 2])):
                end = call(name, at + took + again, number, **fields, **facts, outcome=outcome)
                made.append((at + took + again + rng.randrange(-1_000, 60_000), end))
    made.append((950_000, event("session.ended", 950_000, session_id="s1", root_session_id="s1")))
    return sorted(((max(0, at), body) for at, body in made), key=lambda one: one[0])


def call(name: str, at_ms: int, number: int, **fields: Any) -> Event:
    return {**call_event(name, at_ms, number), **fields}


def crashing(log_of: list[tuple[int, Event]], rng: Random) -> CanonicalSet:
    """The outputs of workers that lag and crash after any step, each taking over from the one before."""
    log, left = MemoryLog(), list(log_of)
    worker = MemoryWorker(log, FACTORIES, rng)
    while left or any(worker.group.next_offsets[topic] < len(log.topics[topic]) for topic in INPUT_TOPICS):
        dice = rng.random()
        if left and dice < 0.4:
            for at_ms, body in left[:3]:
                log.append(body, at_ms)
            del left[:3]
        elif dice < 0.9:
            worker.step(rng.choice(INPUT_TOPICS), rng.randint(1, 6))
        else:
            worker = MemoryWorker(log, FACTORIES, rng)
    log.wall_ms = T0 + UNTIL_MS
    worker.drain()
    return log.canonical()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_lag_and_any_crashes_give_the_same(seed: int) -> None:
    log = history(Random(seed), 60)
    expected = calm(log, FACTORIES, UNTIL_MS)
    assert list(crashing(log, Random(seed + 1)).lines()) == list(expected.lines())
    for body in expected.bodies().values():
        EVENT.validate_json(orjson.dumps(body))
    assert expected.bodies(TOOL_METRIC)
    assert expected.bodies(RISK_FINDING)


def test_a_timeout_is_a_metric_too() -> None:
    said = calm([(0, call_event("tool.call.started", 0))], FACTORIES, UNTIL_MS)
    assert len(said.bodies(TOOL_CALL_DERIVED)) == 1
    metrics = [body for body in said.bodies(TOOL_METRIC).values() if body["window"] == "1m"]
    assert [(body["count"], body["timeouts"], body["in_flight"]) for body in metrics] == [(0, 0, 1), (1, 1, 0)]


def test_the_configuration_names_rule_files(tmp_path: Any) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "rules:\n  - id: own\n    name: n\n    severity: low\n    when: {sequence: [{event: session.started}]}\n"
    )
    factories: Sequence[OperatorFactory] = build_operators(
        Config(pipelines=PipelinesConfig(rules=(str(path),), shipped_rules=False))
    )
    assert [factory(0).name for factory in factories] == ["pending_calls", "rolling_metrics", "sequence_rules"]
    assert factories[2](0).wants == {"session.started"}
    path.write_text("rules: []\n")
    with pytest.raises(UserError, match=r"own\.yaml:1: "):
        build_operators(Config(pipelines=PipelinesConfig(rules=(str(path),))))
