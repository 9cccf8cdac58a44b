"""The worker on a real Kafka: what it says is complete and, by id, not doubled, whatever happens to it."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Callable
from random import Random

import orjson
import pytest

from pipelines.runtime.port import Event
from schemas.topics import RISK_FINDING, TOOL_CALL, TOOL_CALL_DERIVED
from tests.pipelines.helpers import call_event, event
from tests.pipelines.runtime.harness import Broker, Process, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

Start = Callable[..., Process]


def traffic(count: int, partition: int, every: int = 10) -> list[Event]:
    """Calls of ten sessions, of which each `every`th never ends, and a prompt after each fifth."""
    events: list[Event] = []
    for n in range(count):
        where = {"session_id": f"p{partition}-{n % 10}"}
        events.append(call_event("tool.call.started", n, f"{partition}-{n}", **where))
        if n % every:
            events.append(call_event("tool.call.completed", n, f"{partition}-{n}", **where))
        if n % 5 == 0:
            events.append(event("user.prompt.submitted", n, f"{partition}-{n}", **where))
    return events


def numbered(events: list[Event], producer: str) -> list[Event]:
    """As a collector publishes them."""
    return [{**body, "producer": {"id": producer, "epoch": 1, "seq": seq}} for seq, body in enumerate(events, start=1)]


async def committed(broker: Broker) -> bool:
    return await broker.lag(f"{broker.prefix}workers") == 0


async def settled(broker: Broker, events: list[Event], open_calls: int) -> None:
    """Wait until all calls that never end are said to be so and every finding has all that belongs to it."""
    seen = sum(body["event_name"] in {"tool.call.started", "user.prompt.submitted"} for body in events) + open_calls

    async def complete() -> bool:
        said = await broker.said()
        findings = said.bodies(RISK_FINDING).values()
        return len(said.bodies(TOOL_CALL_DERIVED)) >= open_calls and sum(len(body["seen"]) for body in findings) >= seen

    await until(complete, "complete outputs")
    said = await broker.said()
    assert len(said.bodies(TOOL_CALL_DERIVED)) == open_calls
    assert sum(len(body["seen"]) for body in said.bodies(RISK_FINDING).values()) == seen


async def test_one_worker_from_start_to_stop(broker: Broker, start: Start) -> None:
    await broker.create()
    events = {partition: numbered(traffic(100, partition), f"c{partition}") for partition in (0, 1)}
    worker = start()
    await until(lambda: worker.get("/readyz")[0] == 200, "ready")
    for partition, published in events.items():
        await broker.publish(published, partition)
        # A publisher that lost its acknowledgement sends again.
        await broker.publish(published[-7:], partition)
    await settled(broker, events[0] + events[1], 20)
    status, text = worker.get("/healthz")
    assert (status, orjson.loads(text)) == (200, {"status": "ok", "reasons": []})
    status, text = worker.get("/readyz")
    assert (status, orjson.loads(text)) == (200, {"ready": True, "reasons": []})
    metrics = worker.get("/metrics")[1]
    assert "agenttrace_pipeline_duplicates_total 14.0" in metrics
    assert 'agenttrace_operator_count{name="timed_out",operator="pending_calls"} 20.0' in metrics
    await until(lambda: committed(broker), "all committed")
    assert worker.terminate() < 10
    assert worker.process.returncode == 0
    assert "Traceback" not in worker.log()
    assert not await broker.dlq()
    derived = await broker.read(TOOL_CALL_DERIVED)
    assert len(derived) == 20
    headers = dict(derived[0].headers)  # type: ignore[attr-defined]
    assert headers["at_schema"] == b"1.0"
    finding = (await broker.read(RISK_FINDING))[0]
    assert finding.key == orjson.loads(finding.value)["finding_id"].encode()  # type: ignore[attr-defined]
    assert dict(finding.headers)["ce_specversion"] == b"1.0"  # type: ignore[attr-defined]


async def test_kills_joins_leaves_and_a_frozen_worker_lose_and_double_nothing(broker: Broker, start: Start) -> None:
    await broker.create()
    rng = Random(7)
    events = {partition: numbered(traffic(3000, partition, every=50), f"c{partition}") for partition in (0, 1)}
    open_calls = 2 * 3000 // 50

    async def publish(partition: int) -> None:
        left = list(events[partition])
        while left:
            count = rng.randint(1, 150)
            await broker.publish(left[:count], partition)
            left = left[count:]
            await asyncio.sleep(rng.random() / 4)

    async def schedule() -> None:
        first, second = start(), start()
        await until(lambda: first.get("/readyz")[0] == second.get("/readyz")[0] == 200, "two ready")
        await until(lambda: some_outputs(broker), "outputs")
        first.kill()
        third = start()
        await until(lambda: third.get("/readyz")[0] == 200, "third ready")
        # Frozen until its session is over and another has its partitions; then it goes on as if nothing had been.
        second.send(signal.SIGSTOP)
        await until(lambda: groups(third) == 2, "all partitions with the third")
        second.send(signal.SIGCONT)
        await until(lambda: groups(second) + groups(third) == 2, "no partition twice")
        assert third.terminate() < 10

    await asyncio.gather(publish(0), publish(1), schedule())
    await settled(broker, events[0] + events[1], open_calls)
    assert not await broker.dlq()


async def test_a_restart_rebuilds_the_state_and_says_nothing_twice(broker: Broker, start: Start) -> None:
    await broker.create()
    first = start(ttl_ms=15_000)
    events = numbered(traffic(50, 0), "c0")
    await broker.publish(events)
    await until(lambda: committed(broker), "all committed")
    await until(lambda: some_outputs(broker), "outputs")
    findings = len(await broker.read(RISK_FINDING))
    first.kill()
    second = start(ttl_ms=15_000)
    await until(lambda: second.get("/readyz")[0] == 200, "ready")
    assert 'agenttrace_operator_count{name="seen",operator="pairs"} 60.0' in second.get("/metrics")[1]
    assert 'agenttrace_pipeline_rebuilds_total{source="log",state="complete"} 2.0' in second.get("/metrics")[1]
    assert len(await broker.read(RISK_FINDING)) == findings
    # The calls that the first worker saw begin time out with the second, though nothing comes any more.
    await settled(broker, events, 5)
    assert len(await broker.read(TOOL_CALL_DERIVED)) == 5


async def test_a_restart_goes_on_from_a_checkpoint_and_reads_only_the_rest(broker: Broker, start: Start) -> None:
    await broker.create()
    first = start(ttl_ms=12_000, checkpoint_s=0.5)
    events = numbered(traffic(500, 0), "c0")
    await broker.publish(events[:1000])
    await until(lambda: value(first, 'agenttrace_pipeline_checkpoints_total{result="written"}') >= 1, "a checkpoint")
    await until(lambda: committed(broker), "all committed")
    await until(lambda: value(first, "agenttrace_pipeline_checkpoint_age_seconds") == 0, "all in a checkpoint")
    # The next commit carries it.
    await broker.publish(events[1000:])
    await until(lambda: committed(broker), "all committed")
    first.kill()
    second = start(ttl_ms=12_000)
    await until(lambda: second.get("/readyz")[0] == 200, "ready")
    assert value(second, 'agenttrace_pipeline_rebuilds_total{source="checkpoint",state="complete"}') == 1
    assert value(second, "agenttrace_pipeline_rebuild_records_total") <= len(events) - 1000
    seen = sum(body["event_name"] in {"tool.call.started", "user.prompt.submitted"} for body in events)
    assert value(second, 'agenttrace_operator_count{name="seen",operator="pairs"}') < seen
    await settled(broker, events, 50)
    assert not await broker.dlq()


async def test_a_state_that_lacks_deleted_records_is_partial_and_says_so(broker: Broker, start: Start) -> None:
    await broker.create()
    first = start(ttl_ms=600_000)
    await broker.publish(numbered(traffic(50, 0), "c0"))
    await until(lambda: committed(broker), "all committed")
    first.kill()
    await broker.delete_before(TOOL_CALL, 0, 90)
    second = start(ttl_ms=600_000)
    await until(lambda: second.get("/readyz")[0] == 200, "ready")
    metrics = second.get("/metrics")[1]
    assert 'agenttrace_pipeline_rebuilds_total{source="log",state="partial"} 1.0' in metrics
    assert "agenttrace_pipeline_partial_groups 1.0" in metrics
    before = len(await broker.read(RISK_FINDING))
    await broker.publish([call_event("tool.call.started", 0, "new", session_id="p0-0")])
    await until(lambda: outputs_beyond(broker, before), "an output")
    findings = (await broker.said()).bodies(RISK_FINDING).values()
    assert [body["group"] for body in findings if body.get("state") == "partial"] == ["p0-0"]


async def test_refused_records_leave_a_receipt_and_stop_nothing(broker: Broker, start: Start) -> None:
    await broker.create()
    worker = start()
    secret = b'{"event_name": "tool.call.started", "password": "hunter2"'
    defect = event("user.prompt.submitted", 0, "bad", severity="critical", native={"password": "hunter2"})
    call = call_event("tool.call.started", 0)
    await broker.publish([(TOOL_CALL, secret), (TOOL_CALL, b"[]"), defect, call])
    await until(lambda: some_outputs(broker), "outputs")
    await until(lambda: receipts(broker, 3), "receipts")
    records = await broker.dlq()
    by = sorted(dict(record.headers)["at_by"] for record in records)  # type: ignore[attr-defined]
    assert by == [b"pipelines.decode", b"pipelines.decode", b"pipelines.pairs"]
    for record in records:
        assert b"hunter2" not in record.value + repr(record.headers).encode()  # type: ignore[attr-defined]
    first = next(record for record in records if dict(record.headers)["at_from"].endswith(b"tool.call/0/0"))  # type: ignore[attr-defined]
    assert orjson.loads(first.value) == {  # type: ignore[attr-defined]
        "size_bytes": len(secret),
        "sha256": hashlib.sha256(secret).hexdigest(),
    }
    assert {"at_why", "at_when", "at_tries"} <= dict(first.headers).keys()  # type: ignore[attr-defined]
    assert "hunter2" not in worker.log()
    await settled(broker, [call], 1)


async def some_outputs(broker: Broker) -> bool:
    return bool(await broker.read(RISK_FINDING))


async def outputs_beyond(broker: Broker, count: int) -> bool:
    return len(await broker.read(RISK_FINDING)) > count


async def receipts(broker: Broker, count: int) -> bool:
    return len(await broker.dlq()) >= count


def groups(worker: Process) -> int:
    """Partition numbers that the worker has."""
    return int(value(worker, "agenttrace_pipeline_groups"))


def value(worker: Process, metric: str) -> float:
    """Of a metric with its labels; -1 while it is not there."""
    lines = [line for line in worker.get("/metrics")[1].splitlines() if line.startswith(metric + " ")]
    return float(lines[0].split()[-1]) if lines else -1
