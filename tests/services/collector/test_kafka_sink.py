"""The Kafka sink against a real broker: refused records, outages, logins; nothing twice, nothing lost, no stop that
hangs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.clock import to_rfc3339
from schemas.identity import new_delivery_id
from schemas.topics import AGENT_ACTIVITY, BY_NAME, DLQ, MCP_RPC, TOOL_CALL
from services.collector import service, sinks
from services.collector.sinks import KafkaSink, SinkError
from services.embedded.kafka import KafkaBroker
from services.kafka import create_topics, partitions_of

from .running import PRE, post, running, settings, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be stopped, with a listener that wants a login."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), sasl_users={"collector": "right"}) as broker:
        asyncio.run(create_topics({"bootstrap_servers": broker.bootstrap}, partitions=2))
        yield broker


@pytest.fixture
async def topics(kafka_bootstrap: str) -> str:
    await create_topics({"bootstrap_servers": kafka_bootstrap}, partitions=4)
    return kafka_bootstrap


def event(seq: int, size: int = 10, name: str = "mcp.rpc.notification", producer: str = "p") -> dict[str, Any]:
    return {
        "event_name": name,
        "event_id": new_delivery_id(),
        "session_id": "one",
        "reason": os.urandom(size // 2).hex(),
        "producer": {"id": producer, "epoch": 1, "seq": seq},
    }


async def records(servers: str, *names: str) -> list[ConsumerRecord]:
    """All records of these topics."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20)
    await consumer.start()
    try:
        partitions = await partitions_of({"bootstrap_servers": servers}, names)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=300)).values():
                found += batch
        return found
    finally:
        await consumer.stop()


async def seqs(servers: str, *names: str, producer: str) -> list[int]:
    stamps = [orjson.loads(record.value)["producer"] for record in await records(servers, *names)]
    return [stamp["seq"] for stamp in stamps if stamp["id"] == producer]


@pytest.fixture
async def small(topics: str) -> AsyncIterator[str]:
    """The broker takes at most 20,000 bytes a record on mcp.rpc meanwhile."""

    async def limit(value: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=topics)
        await admin.start()
        config = {**BY_NAME[MCP_RPC].config, "max.message.bytes": value}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, MCP_RPC, configs=config)])
        asked = ConfigResource(ConfigResourceType.TOPIC, MCP_RPC, configs={"max.message.bytes": None})
        deadline = time.monotonic() + 30
        while (await admin.describe_configs([asked]))[0].resources[0][4][0][1] != value:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await admin.close()

    await limit("20000")
    yield topics
    await limit(BY_NAME[MCP_RPC].config["max.message.bytes"])


async def test_a_record_the_broker_refuses_becomes_a_receipt_and_its_neighbours_go_on_once(small: str) -> None:
    producer = new_delivery_id()
    batch = [event(seq, 60_000 if seq in (4, 9) else 3_000, producer=producer) for seq in range(1, 41)]
    sink = KafkaSink({"bootstrap_servers": small})
    await sink.start()
    await sink.send(batch, 1_796_000_000_000)
    more = [event(seq, producer=producer) for seq in range(41, 45)]
    await sink.send(more, 1_796_000_000_000)
    await sink.stop()
    assert await seqs(small, MCP_RPC, producer=producer) == [seq for seq in range(1, 45) if seq not in (4, 9)]
    receipts = [r for r in await records(small, DLQ) if orjson.loads(r.value)["producer"]["id"] == producer]
    assert [orjson.loads(receipt.value)["producer"]["seq"] for receipt in receipts] == [4, 9]
    assert orjson.loads(receipts[0].value)["event_id"] == batch[3]["event_id"]
    told = dict(receipts[0].headers)
    assert told["at_why"].startswith(b"MessageSizeTooLargeError")
    assert (told["at_from"], told["at_by"]) == (MCP_RPC.encode(), b"collector")
    assert told["at_when"] == to_rfc3339(1_796_000_000_000).encode()
    assert int(told["at_tries"]) >= 1


async def test_a_record_over_the_clients_own_limit_becomes_a_receipt(topics: str) -> None:
    producer = new_delivery_id()
    sink = KafkaSink({"bootstrap_servers": topics})
    await sink.start()
    await sink.send([event(1, 5 << 20, producer=producer), event(2, producer=producer)], 0)
    await sink.stop()
    assert await seqs(topics, MCP_RPC, producer=producer) == [2]
    assert await seqs(topics, DLQ, producer=producer) == [1]


async def test_an_oversized_field_reaches_kafka_within_the_limit(topics: str, tmp_path: Path) -> None:
    """From the hook to the broker: a marker whose hash is no hash used to block the publisher for ever."""
    sink = KafkaSink({"bootstrap_servers": topics})
    async with running(settings(tmp_path, [sink])) as collector:
        marker = {"agenttrace_oversized": {"size_bytes": 1, "sha256": "x" * 3_000_000}}
        await post(collector, orjson.dumps(marker))
        await post(collector, orjson.dumps({**PRE, "tool_use_id": "after"}))
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        producer = collector.intake.identity.id
    assert set(await seqs(topics, AGENT_ACTIVITY, TOOL_CALL, producer=producer)) >= {1, 2, 3}
    assert await seqs(topics, DLQ, producer=producer) == []


async def test_an_outage_is_told_and_costs_no_duplicate(
    own_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "SEND_S", 1.0)
    monkeypatch.setattr(service, "TICK_S", 0.1)
    sink = KafkaSink({"bootstrap_servers": own_kafka.bootstrap})
    pid = own_kafka.pid
    assert pid is not None
    async with running(settings(tmp_path, [sink])) as collector:
        [publisher] = collector.publishers
        producer = collector.intake.identity.id
        await post(collector, orjson.dumps(PRE))
        await until(lambda: publisher.position == collector.journal.end)
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(200):
                await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
            await until(lambda: publisher.failed)
            assert collector.not_ready() == ["sink kafka does not take events"]
            errors = collector.metrics.registry.get_sample_value
            name = "agenttrace_collector_publish_errors_total"
            await until(lambda: (errors(name, {"sink": "kafka"}) or 0) >= 3)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not publisher.failed, 60)
        await until(lambda: publisher.position == collector.journal.end, 60)
    found = await seqs(own_kafka.bootstrap, TOOL_CALL, AGENT_ACTIVITY, producer=producer)
    assert sorted(found) == list(range(1, max(found) + 1))


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_stop_during_an_outage_takes_less_than_8_s_and_loses_nothing(
    own_kafka: KafkaBroker, tmp_path: Path, how: signal.Signals
) -> None:
    pid = own_kafka.pid
    assert pid is not None
    given = settings(tmp_path, [KafkaSink({"bootstrap_servers": own_kafka.bootstrap})])
    try:
        async with running(given) as collector:
            producer = collector.intake.identity.id
            await until(lambda: collector.publishers[0].position == collector.journal.end)
            os.kill(pid, how)
            for number in range(20):
                await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
            await asyncio.sleep(0.3)
            began = time.monotonic()
        assert time.monotonic() - began < 8
        assert [task for task in asyncio.all_tasks() if "sender_routine" in repr(task)] == []
    finally:
        if how is signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        else:
            own_kafka.stop()
            own_kafka.start()
    async with running(settings(tmp_path, [KafkaSink({"bootstrap_servers": own_kafka.bootstrap})])) as collector:
        await until(lambda: collector.publishers[0].position == collector.journal.end, 60)
    stamps = [orjson.loads(r.value)["producer"] for r in await records(own_kafka.bootstrap, TOOL_CALL, AGENT_ACTIVITY)]
    # What was under way at the stop may come twice; seq says so to whoever reads.
    found = {stamp["seq"] for stamp in stamps if stamp["id"] == producer and stamp["epoch"] == 1}
    assert found == set(range(1, max(found) + 1))
    assert len(found) >= 21


async def test_a_login_refused_later_is_waited_for(own_kafka: KafkaBroker, tmp_path: Path) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "collector"}
    kwargs: dict[str, Any] = {"bootstrap_servers": own_kafka.sasl_bootstrap, **login, "sasl_plain_password": "right"}
    sink = KafkaSink(kwargs)
    async with running(settings(tmp_path, [sink])) as collector:
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        await sink.stop()
        kwargs["sasl_plain_password"] = "wrong"
        await post(collector, orjson.dumps(PRE))
        await until(lambda: collector.publishers[0].failed)
        assert (await post(collector, orjson.dumps({**PRE, "tool_use_id": "t2"})))[0] == 200
        kwargs["sasl_plain_password"] = "right"
        await until(lambda: collector.publishers[0].position == collector.journal.end, 30)
        assert collector.not_ready() == []


async def test_a_broker_that_was_never_there_is_told_at_once() -> None:
    sink = KafkaSink({"bootstrap_servers": "127.0.0.1:1"})
    await sink.start()
    with pytest.raises(SinkError, match="cannot be reached"):
        await sink.send([event(1)], 0)
    await sink.stop()
