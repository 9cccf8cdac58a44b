"""A cluster of three real brokers: one may be killed, the others go on, and what was acknowledged is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from pipelines.runtime import kafka
from pipelines.runtime.settings import WorkerSettings
from services.embedded.kafka import KafkaCluster
from services.embedded.pidfile import start_mark
from services.kafka import create_topics
from tests.services.embedded.test_kafka import consume, produce

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


async def leader_and_in_sync(bootstrap: str, topic: str) -> tuple[int, set[int]]:
    """Of the topic's one partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        [found] = await admin.describe_topics([topic])
        [partition] = found["partitions"]
        return partition["leader"], set(partition["isr"])
    finally:
        await admin.close()


async def until_state(bootstrap: str, topic: str, wanted: Callable[[int, set[int]], bool], timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            found = await leader_and_in_sync(bootstrap, topic)
        except KafkaError as error:
            # The client may ask the broker that has just gone.
            assert asyncio.get_running_loop().time() < deadline, error
        else:
            if wanted(*found):
                return
            assert asyncio.get_running_loop().time() < deadline, f"after {timeout_s} s leader and replicas are {found}"
        await asyncio.sleep(0.1)


async def test_a_killed_leader_costs_no_acknowledged_record_and_comes_back_in_sync(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path)
    with cluster:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic("kept", 1, 3)])
        await admin.close()
        await create_topics({"bootstrap_servers": cluster.bootstrap}, partitions=2, replication=3)
        values = [f"before {n}".encode() for n in range(1000)]
        await produce(cluster.bootstrap, "kept", values)
        leader, in_sync = await leader_and_in_sync(cluster.bootstrap, "kept")
        assert in_sync == {1, 2, 3}

        pid = cluster.nodes[leader].pid
        cluster.nodes[leader].kill()
        assert pid is not None
        assert start_mark(pid) is None
        rest = ",".join(node.bootstrap for number, node in cluster.nodes.items() if number != leader)
        # A worker that starts now is told of a broker that is gone, and asks the next.
        worker = WorkerSettings(kafka={"bootstrap_servers": cluster.bootstrap}, operators=())
        for _ in range(5):
            assert await kafka.check(worker) == 2
        await until_state(rest, "kept", lambda now, _: now not in (-1, leader), 20)
        more = [f"after {n}".encode() for n in range(1000)]
        await produce(rest, "kept", more)

        await asyncio.to_thread(cluster.nodes[leader].start)
        await until_state(cluster.bootstrap, "kept", lambda _, synced: synced == {1, 2, 3}, 40)
        assert await consume(cluster.nodes[leader].bootstrap, "kept") == values + more
        for node in cluster.nodes.values():
            node.kill()
    # Another owner of the folder finds the same cluster in it.
    again = KafkaCluster(tmp_path)
    assert again.nodes[1].quorum.cluster_id == cluster.nodes[1].quorum.cluster_id
