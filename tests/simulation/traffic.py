"""Histories of agents' sessions with their log times, as hard on the operators as real ones, and harder."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import orjson

from pipelines.runtime.port import Event
from schemas.topics import INPUT_TOPICS, TOPIC_OF_EVENT
from tests.pipelines.helpers import call_event, event

READ = {"paths": [{"path": "/srv/app/.env", "kind": "read"}], "fingerprints": ["0123456789abcdef"]}
SEND = {"hosts": [{"host": "x.example.com", "domain": "example.com", "loopback": False}]}
RM = {"recursive_force": True, "paths": [{"path": "/srv", "kind": "delete"}], "commands": [{"argv0": "rm"}]}

POISON = (b"", b"{", b"[1]", b"7", b'{"event_name": 7}', b'{"event_name": "tool.call.started"}', b"\xff\xfe\x00")


class Append(NamedTuple):
    """A record to come: at this log time (ms after the start, negative for what lies there already)."""

    at_ms: int
    topic: str
    partition: int
    value: bytes


def traffic(rng: Random, partitions: int, live_ms: int, poison: bool, repeats: bool) -> list[Append]:
    """In the order of the log times. Half of it or less is there before the first worker starts."""
    past_ms = rng.choice([0, 20_000, 300_000, 300_000, 12 * 3_600_000])
    events: list[tuple[int, int, Event]] = []
    for number in range(rng.randint(1, 5)):
        partition = rng.randrange(partitions)
        begin = rng.randint(-past_ms, live_ms // 2)
        events += [(at, partition, body) for at, body in _session(rng, f"s{number}", begin, live_ms)]
    events.sort(key=lambda one: one[0])
    seqs: dict[tuple[int, str], int] = {}
    made: list[Append] = []
    for at, partition, body in events:
        collector = rng.choice(["", "c1", "c1", "c2"])
        if collector:
            seq = seqs[partition, collector] = seqs.get((partition, collector), 0) + 1
            body["producer"] = {"id": collector, "epoch": 1, "seq": seq}
        made.append(Append(at, TOPIC_OF_EVENT[body["event_name"]], partition, orjson.dumps(body)))
        if collector and rng.random() < 0.05 and repeats:
            made.append(made[-1]._replace(at_ms=at + rng.choice([0, 100, 20_000])))
    for _ in range(rng.choice([0, 0, 1, 4])):
        place = rng.choice(INPUT_TOPICS), rng.randrange(partitions)
        at, value = rng.randint(-past_ms, live_ms), rng.choice(POISON)
        if poison:
            made.append(Append(at, *place, value))
    return sorted(made, key=lambda one: one.at_ms)


def _session(rng: Random, name: str, begin: int, live_ms: int) -> list[tuple[int, Event]]:
    """Log times and events of one session; events happened a little before they are in the log, some long before."""
    made: list[tuple[int, Event]] = []
    runtime = rng.choice(["claude_code", "claude_code", "codex"])
    base: dict[str, Any] = {"session_id": name, "root_session_id": name, "agent_runtime": runtime}
    spread = rng.choice([5_000, 15_000, 40_000])

    def add(at: int, body: Event) -> None:
        late = rng.choice([5, 50, 300, 300, 2_000, 2_000, 20_000]) if rng.random() < 0.9 else 400_000
        made.append((at + rng.randrange(late) if late < 400_000 else at + late // 10, body))

    for number in range(rng.randint(1, 14)):
        at = begin + rng.randrange(spread)
        call = f"{name}-{number}"
        fields = dict(base)
        if rng.random() < 0.4:
            fields |= {"tool_source": "mcp", "mcp": {"server_name": "github"}, "tool_name": "github--find"}
        fields["facts"] = rng.choice([{}, {}, READ, SEND, RM])
        started = fields | {"input": {"size_bytes": 5, "hash": f"hmac-sha256:k:{rng.choice('aab')}"}}
        if rng.random() < 0.95:
            for _ in range(rng.choice([1, 1, 1, 2])):
                add(at, call_event("tool.call.started", at, call, **started))
        took = rng.choice([50, 1_000, 5_000, 11_000, 13_000, 24_000, 40_000])
        if rng.random() < 0.2:
            add(at, call_event("tool.call.approval_requested", at + 100, call, **fields))
            if rng.random() < 0.7:
                decision = rng.choice(["allow", "allow", "deny"])
                asked = at + rng.choice([500, 9_000, 24_000])
                approval = {"decision": decision}
                add(asked, call_event("tool.call.approval_decided", asked, call, **fields, approval=approval))
        if rng.random() < 0.75:
            outcome = rng.choice(["ok", "error"])
            kind = rng.choice(
                ["tool.call.completed" if outcome == "ok" else "tool.call.error"] * 4 + ["tool.call.blocked"]
            )
            for again in range(rng.choice([1, 1, 1, 2])):
                end = at + took + again
                add(end, call_event(kind, end, call, **fields, outcome=outcome))
        if rng.random() < 0.3:
            wire = {
                **base,
                "mcp_server": "github",
                "method": "tools/call",
                "operation_id": f"op-{call}",
                "transport": "stdio",
                "tool_name": "find",
            }
            add(at, event("mcp.rpc.request", at, call, **wire, direction="client_to_server", status="started"))
            if rng.random() < 0.8:
                end = at + took // 2
                name_of_end = rng.choice(["mcp.rpc.response", "mcp.rpc.error"])
                status = "completed" if name_of_end == "mcp.rpc.response" else "error"
                add(end, event(name_of_end, end, call, **wire, direction="server_to_client", status=status))
        if rng.random() < 0.5:
            add(at, event("user.prompt.submitted", at, call, **base))
    if rng.random() < 0.5:
        for _ in range(rng.choice([1, 1, 2])):
            at = begin + rng.randrange(spread)
            add(at, event("session.ended", at, **base, **rng.choice([{}, {"reason": "exit"}])))
    return [(at, body) for at, body in made if at <= live_ms]
