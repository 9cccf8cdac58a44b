"""What agents do while a storm goes on: interleaved sessions with risky sequences, calls that never end, and poison."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from pipelines.runtime.port import Event
from schemas.topics import INPUT_TOPICS, TOOL_CALL, TOPIC_OF_EVENT
from tests.pipelines.helpers import T0, call_event, event

PARTITIONS = 12
LIVE_SESSIONS = 60
OLDEST_S = 360
"""Some sessions are told late: their timestamps are so far behind the log."""
BATCH_S = 0.05
MAX_BATCH = 500
POISON = (b"poison", b'{"poison": ', b'["poison"]', b'{"event_name": "tool.call.started", "producer": "poison"}')
"""Records that cannot be read. Each has the word in it, by which they are counted in the log afterwards."""

_ENV = {"tool_source": "file", "tool_name": "Read", "facts": {"paths": [{"path": "/srv/app/.env", "kind": "read"}]}}
_CURL: Event = {"facts": {"commands": [{"argv0": "curl"}], "hosts": [{"host": "x.example", "loopback": False}]}}
_RM: Event = {
    "facts": {
        "recursive_force": True,
        "commands": [{"argv0": "rm", "flags": ["-rf"]}],
        "paths": [{"path": "/srv/data", "kind": "delete"}],
    }
}
_TEST: Event = {"facts": {"commands": [{"argv0": "pytest"}]}, "input": {"size_bytes": 40}}


class Agents:
    """Sessions that live at the same time; `next_event` is what the next of them does. All by the seed but the time."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._name = f"{seed:x}"
        self._sessions = 0
        self._calls = 0
        self._live: list[tuple[int, dict[str, Any], Iterator[tuple[str, Event, str | None]]]] = []
        self.never_ended: set[str] = set()
        """Call ids of calls that have no end."""
        self.published = 0

    def next_event(self, now_ms: int) -> tuple[int, Event]:
        """Partition and event, its timestamp behind `now_ms` by the lateness of its session."""
        while len(self._live) < LIVE_SESSIONS:
            self._sessions += 1
            name = f"{self._name}-{self._sessions}"
            where = {
                "session_id": name,
                "root_session_id": name,
                "late_ms": self._rng.choice([0, 0, 0, OLDEST_S * 1000]),
            }
            self._live.append((self._sessions % PARTITIONS, where, self._session()))
        index = self._rng.randrange(len(self._live))
        partition, where, story = self._live[index]
        step = next(story, None)
        if step is None:
            del self._live[index]
            return self.next_event(now_ms)
        name, fields, call = step
        self.published += 1
        at_ms = now_ms - T0 - where["late_ms"]
        fields = {
            **fields,
            "session_id": where["session_id"],
            "root_session_id": where["root_session_id"],
            "producer": {"id": f"storm-{self._name}", "epoch": 1, "seq": self.published},
        }
        if call is None:
            return partition, event(name, at_ms, self.published, **fields)
        made = call_event(name, at_ms, call, **fields)
        if fields.get("never"):
            del made["never"]
            self.never_ended.add(made["call_id"])
        return partition, made

    def _session(self) -> Iterator[tuple[str, Event, str | None]]:
        rng = self._rng
        yield "session.started", {}, None
        yield "user.prompt.submitted", {}, None
        for _ in range(rng.randint(3, 25)):
            dice = rng.random()
            if dice < 0.06:
                yield from self._call(_ENV)
                yield from self._call(_CURL)
            elif dice < 0.08:
                yield from self._call(_RM)
            elif dice < 0.11:
                for _ in range(12):
                    yield from self._call(_TEST, failed=True)
            elif dice < 0.14:
                yield "tool.call.started", {"never": True, **_TEST}, self._new_call()
            elif dice < 0.2:
                operation = {
                    "operation_id": f"{self._name}-{self._calls}",
                    "mcp_server": "github",
                    "method": "tools/call",
                }
                self._calls += 1
                yield "mcp.rpc.request", {**operation, "tool_name": "create_issue"}, None
                yield "mcp.rpc.response", {**operation, "tool_name": "create_issue", "status": "completed"}, None
            elif dice < 0.22:
                yield "policy.decision.created", {"decision": "allow"}, None
            else:
                yield from self._call(_TEST, asked=dice > 0.97)
        if rng.random() < 0.5:
            yield "session.ended", {"reason": "exit"}, None

    def _call(
        self, fields: Event, failed: bool = False, asked: bool = False
    ) -> Iterator[tuple[str, Event, str | None]]:
        call = self._new_call()
        yield "tool.call.started", fields, call
        if asked:
            yield "tool.call.approval_requested", {}, call
            yield "tool.call.approval_decided", {"approval": {"decision": "allow"}}, call
        outcome = "error" if failed or self._rng.random() < 0.05 else "ok"
        ended = {**fields, "outcome": outcome, "duration_ms": self._rng.randint(1, 900)}
        yield "tool.call.error" if outcome == "error" else "tool.call.completed", ended, call

    def _new_call(self) -> str:
        self._calls += 1
        return f"{self._name}-{self._calls}"


async def publish(bootstrap: str, prefix: str, agents: Agents, rng: Random, *, seconds: float, per_second: int) -> None:
    """Publish what the agents do for so long, as a collector does: in order, again after a failure, each with its seq."""
    producer: AIOKafkaProducer | None = None
    began = time.monotonic()
    try:
        while (passed := time.monotonic() - began) < seconds:
            now_ms = time.time_ns() // 1_000_000
            batch: list[tuple[str, int, bytes]] = []
            # What waited while a leader was away comes at once afterwards.
            while agents.published < passed * per_second and len(batch) < MAX_BATCH:
                partition, body = agents.next_event(now_ms)
                batch.append((TOPIC_OF_EVENT[body["event_name"]], partition, orjson.dumps(body)))
            if rng.random() < BATCH_S:
                batch.append((rng.choice(INPUT_TOPICS), rng.randrange(PARTITIONS), rng.choice(POISON)))
            producer = await _deliver(bootstrap, producer, prefix, batch)
            await asyncio.sleep(max(0.0, passed + BATCH_S - (time.monotonic() - began)))
        # Poison of another kind: an operator refuses it. One is enough, and it is the last, so that it is surely read.
        body = call_event("tool.call.started", time.time_ns() // 1_000_000 - T0, "poison", call_id="poison")
        producer = await _deliver(bootstrap, producer, prefix, [(TOOL_CALL, 0, orjson.dumps(body))])
    finally:
        if producer is not None:
            await producer.stop()


async def _deliver(
    bootstrap: str, producer: AIOKafkaProducer | None, prefix: str, batch: list[tuple[str, int, bytes]]
) -> AIOKafkaProducer:
    while True:
        try:
            if producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=2
                )
                await producer.start()
            waiting = [
                await producer.send(prefix + topic, value, key=b"k", partition=partition)
                for topic, partition, value in batch
            ]
            await asyncio.gather(*waiting)
            return producer
        except (KafkaError, OSError, TimeoutError):
            if producer is not None:
                await producer.stop()
            producer = None
            await asyncio.sleep(0.5)
