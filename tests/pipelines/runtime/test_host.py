"""The host against a real Kafka, with batches as no consumer should deliver them, and inputs that can be told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pipelines.pending_calls.operator import PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime import group
from pipelines.runtime.checkpoint import NONE, read
from pipelines.runtime.group import WAIT_BITS
from pipelines.runtime.host import CREATE_TIME_SETTLED_MS, SETTLED_MS, Host
from pipelines.runtime.settings import WorkerSettings
from schemas.topics import CHECKPOINT, INPUT_TOPICS, RISK_FINDING, TOOL_CALL, TOOL_CALL_DERIVED
from services.embedded.host import free_port
from tests.pipelines.helpers import Pairs, call_event
from tests.pipelines.runtime.harness import Broker, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TTL_MS = 300_000


class Told:
    """Inputs that say what a test tells them."""

    def __init__(self) -> None:
        self.name = "m1"
        self.silent = False
        self.mine: set[int] = {0}
        self.ends: dict[str, tuple[int, int]] = {}
        self.commits: dict[str, int] = {}
        self.notes: list[group.Told] = []
        self.rewound: list[tuple[str, int, int]] = []

    def joined(self) -> bool:
        return True

    def member(self) -> str:
        return self.name

    def fenced(self) -> bool:
        return self.silent

    def rebalancing(self) -> bool:
        return False

    def assigned(self) -> Collection[int]:
        return self.mine

    def end(self, topic: str, partition: int) -> tuple[int, int] | None:
        return self.ends.get(topic) if partition == 0 else None

    def told(self, partition: int, told: group.Told) -> None:
        self.notes.append(told)

    def committed(self, topic: str, partition: int) -> int:
        return self.commits.get(topic, 1 << 40)

    async def rewind(self, topic: str, partition: int, offset: int) -> None:
        self.rewound.append((topic, partition, offset))


def make(broker: Broker, told: Told, **kafka: Any) -> Host:
    settings = WorkerSettings(
        kafka={"bootstrap_servers": broker.bootstrap, **kafka},
        operators=(lambda _: PendingCalls(Ttls(TTL_MS)), Pairs),
        group_id=f"{broker.prefix}workers",
        topic_prefix=broker.prefix,
    )
    return Host(settings, told)


@pytest.fixture
async def records(broker: Broker) -> AsyncIterator[list[Any]]:
    """Twenty started calls in partition 0 of tool.call, as a consumer gives them."""
    await broker.create()
    await broker.publish([call_event("tool.call.started", n, n) for n in range(20)])
    yield await broker.read(TOOL_CALL)


async def seen(broker: Broker) -> int:
    bodies = (await broker.said()).bodies(RISK_FINDING).values()
    return max((len(body["seen"]) for body in bodies), default=0)


async def test_a_gap_is_read_from_the_log_and_what_was_seen_is_skipped(broker: Broker, records: list[Any]) -> None:
    host = make(broker, Told())
    try:
        assert await host.on_batch(TOOL_CALL, 0, records[5:8])
        assert await seen(broker) == 8
        assert await host.on_batch(TOOL_CALL, 0, records[0:7])
        assert await host.on_batch(TOOL_CALL, 0, records[6:10])
        assert await host.on_batch(TOOL_CALL, 0, records[19:20])
        assert await seen(broker) == 20
        assert host._owned[0].group.operators[1].counters["seen"] == 20
    finally:
        await host.stop()


async def test_a_partition_given_away_is_forgotten_and_made_anew(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records)
        told.mine = {1}
        await host.tick()
        assert set(host._owned) == {1}
        assert host.not_ready() is None
        told.mine = {0, 1}
        assert host.not_ready() == "making the state of partitions [0]"
    finally:
        await host.stop()


async def test_a_batch_that_cannot_be_sent_is_not_acknowledged_once_its_partition_is_gone(
    broker: Broker, records: list[Any]
) -> None:
    told = Told()
    host = make(broker, told)
    await host.on_batch(TOOL_CALL, 0, records[:5])
    await host._sender.stop()
    # Force the fault: from now on there is no broker.
    host._sender._settings = WorkerSettings(
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"}, operators=(), topic_prefix=broker.prefix
    )
    step = asyncio.create_task(host.on_batch(TOOL_CALL, 0, records[5:]))
    await until(host.metrics.retries._value.get, "a retry")
    told.mine = set()
    assert not await step
    assert 0 not in host._owned
    await host.stop()


async def test_time_passes_only_as_far_as_the_broker_has_answered(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records)
        start_ms = records[-1].timestamp
        due_ms = start_ms + TTL_MS + 1000
        told.ends = dict.fromkeys(INPUT_TOPICS, (0, due_ms + SETTLED_MS - 2000))
        told.ends[TOOL_CALL] = (20, due_ms + SETTLED_MS - 2000)
        await host.tick()
        assert host._owned[0].group.progress_ms == due_ms - 2000
        assert not (await broker.said()).bodies(TOOL_CALL_DERIVED)
        # One topic that is not read to its end holds all back.
        told.ends = dict.fromkeys(INPUT_TOPICS, (20, due_ms + SETTLED_MS))
        await host.tick()
        assert not (await broker.said()).bodies(TOOL_CALL_DERIVED)
        told.ends = dict.fromkeys(INPUT_TOPICS, (0, due_ms + SETTLED_MS))
        told.ends[TOOL_CALL] = (20, due_ms + SETTLED_MS)
        await host.tick()
        assert len((await broker.said()).bodies(TOOL_CALL_DERIVED)) == 20
    finally:
        await host.stop()


async def test_where_producers_set_the_log_time_more_may_come_late(broker: Broker) -> None:
    await broker.create(leave_out=[TOOL_CALL])
    await broker.create_topic(TOOL_CALL, 2, {"message.timestamp.type": "CreateTime"})
    await broker.publish([call_event("tool.call.started", 0, 0)])
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, await broker.read(TOOL_CALL))
        told.ends = dict.fromkeys(INPUT_TOPICS, (0, 1 << 41)) | {TOOL_CALL: (1, 1 << 41)}
        await host.tick()
        assert host._owned[0].group.progress_ms == (1 << 41) - CREATE_TIME_SETTLED_MS
    finally:
        await host.stop()


async def test_batches_that_were_never_delivered_are_asked_for_again(
    broker: Broker, records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.runtime.host.LOST_S", 0.0)
    monkeypatch.setattr("pipelines.runtime.host.STALLED_S", 0.0)
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records[:5])
        told.ends = {TOOL_CALL: (20, 0)}
        monkeypatch.setattr(asyncio, "wait_for", lambda doing, _timeout: doing)
        await host.tick()
        assert told.rewound == [(TOOL_CALL, 0, 5)]
        assert "lag, but nothing processed" in str(host.not_healthy())
        told.ends = {TOOL_CALL: (5, 0)}
        await host.tick()
        assert host.not_healthy() is None
    finally:
        monkeypatch.undo()
        await host.stop()


async def test_what_was_seen_but_not_committed_is_asked_for_again(
    broker: Broker, records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rebalance it comes again, and may be lost: nobody would commit it before the next record comes."""
    monkeypatch.setattr("pipelines.runtime.host.LOST_S", 0.0)
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records)
        told.ends = {TOOL_CALL: (20, 0)}
        told.commits = {TOOL_CALL: 15}
        monkeypatch.setattr(asyncio, "wait_for", lambda doing, _timeout: doing)
        await host.tick()
        assert told.rewound == [(TOOL_CALL, 0, 15)]
        assert host.not_healthy() is None
        assert await host.on_batch(TOOL_CALL, 0, records[15:])
        told.commits = {TOOL_CALL: 20}
        await host.tick()
        assert len(told.rewound) == 1
    finally:
        monkeypatch.undo()
        await host.stop()


async def test_a_batch_of_a_partition_that_is_anothers_by_now_is_neither_folded_nor_acknowledged(
    broker: Broker, records: list[Any]
) -> None:
    """It stood in the queue while the partition changed hands; what this worker would say, the owner knows better."""
    told = Told()
    host = make(broker, told)
    try:
        told.mine = {1}
        assert not await host.on_batch(TOOL_CALL, 0, records)
        assert set(host._owned) <= {1}
        assert not await broker.read(RISK_FINDING)
    finally:
        await host.stop()


async def test_who_heard_nothing_from_the_group_waits(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    try:
        told.silent = True
        step = asyncio.create_task(host.on_batch(TOOL_CALL, 0, records))
        await until(host.metrics.retries._value.get, "a retry")
        await host.tick()
        assert not await broker.read(RISK_FINDING)
        told.silent = False
        assert await step
        assert await seen(broker) == 20
    finally:
        await host.stop()


async def test_who_was_thrown_out_of_the_group_makes_its_state_anew(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records[:10])
        told.name = "m2"
        await host.tick()
        assert host._owned[0].group.next_offsets[TOOL_CALL] == 0
        assert await host.on_batch(TOOL_CALL, 0, records[10:])
        assert await seen(broker) == 20
    finally:
        await host.stop()


async def test_a_checkpoint_that_cannot_be_written_stops_nothing(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    host._settings = replace(host._settings, checkpoint_s=0.0)

    async def saved(result: str) -> bool:
        await host.tick()
        return bool(host.metrics.checkpoints.labels(result)._value.get())

    try:
        # Force the fault: checkpoints go to a broker that is not there.
        right = host._checkpoints._settings
        host._checkpoints._settings = replace(right, kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"})
        assert await host.on_batch(TOOL_CALL, 0, records)
        await until(lambda: saved("failed"), "a failure")
        assert told.notes[-1].checkpoint == NONE
        assert await seen(broker) == 20
        host._checkpoints._settings = right
        await until(lambda: saved("written"), "a checkpoint")
        await host.tick()
        pointer = told.notes[-1].checkpoint
        assert pointer != NONE
        found = await read(right, 0, pointer, lambda _: True)
        assert found is not None
        assert found[0].offsets[TOOL_CALL] == 20
        # Nothing new: nothing is written.
        count = len(await broker.read(CHECKPOINT))
        await host.tick()
        assert host._saving is not None
        await host._saving
        assert len(await broker.read(CHECKPOINT)) == count
    finally:
        await host.stop()


async def test_a_take_over_says_again_what_it_said(broker: Broker, records: list[Any]) -> None:
    told = Told()
    host = make(broker, told)
    try:
        await host.on_batch(TOOL_CALL, 0, records[:10])
        await broker.publish([call_event("tool.call.completed", n, n) for n in range(5)])
        await host.tick()
        assert len(await broker.read(RISK_FINDING)) == 1
        assert told.notes[-1].settled == dict.fromkeys(INPUT_TOPICS, 0)
        # Now it is where the log ended when it took over: no worker before can have read further.
        await host.on_batch(TOOL_CALL, 0, records[10:])
        await host.tick()
        assert told.notes[-1].settled is None
        versions = [orjson.loads(record.value)["version"] for record in await broker.read(RISK_FINDING)]
        assert [version >> WAIT_BITS for version in versions] == [10, 20]
    finally:
        await host.stop()
