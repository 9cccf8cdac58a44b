"""A real broker: it serves, keeps what it acknowledged, and says in one line why it cannot start."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from schemas.errors import UserError
from services.embedded.kafka import KafkaBroker
from services.embedded.pidfile import start_mark

pytestmark = pytest.mark.integration

WaitUntil = Callable[..., None]


async def create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type="zstd",
        request_timeout_ms=5000,
    )
    await producer.start()
    try:
        for acknowledged in [await producer.send(topic, value) for value in values]:
            await acknowledged
    finally:
        await producer.stop()


async def consume(bootstrap: str, topic: str) -> list[bytes]:
    """Everything that the topic's one partition holds."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[bytes] = []
        while await consumer.position(partition) < end:
            batches = await consumer.getmany(partition, timeout_ms=1000)
            values += [record.value for batch in batches.values() for record in batch]
        return values
    finally:
        await consumer.stop()


async def test_acknowledged_records_survive_a_stop_and_a_kill(tmp_path: Path, wait_until: WaitUntil) -> None:
    first = [f"before the stop {n}".encode() for n in range(2000)]
    second = [f"before the kill {n}".encode() for n in range(2000)]
    broker = KafkaBroker(tmp_path)
    with broker:
        bootstrap = broker.bootstrap
        await create_topic(bootstrap, "kept")
        with pytest.raises(KafkaError):
            await produce(bootstrap, "nobody-made-this", [b"topics are not made by use"])
        await produce(bootstrap, "kept", first)
    assert broker.pid is None

    with broker:
        assert broker.bootstrap == bootstrap
        await produce(bootstrap, "kept", second)
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: broker.pid is None, "the broker has ended")
        broker.start()
        assert await consume(bootstrap, "kept") == first + second


async def test_sasl_listener_takes_the_right_password_only(tmp_path: Path) -> None:
    async def login(bootstrap: str, password: str) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password=password,
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with KafkaBroker(tmp_path, sasl_users={"alice": "open sesame"}) as broker:
        await create_topic(broker.bootstrap, "plain-listener-still-open")
        await login(broker.sasl_bootstrap, "open sesame")
        with pytest.raises(KafkaError):
            await login(broker.sasl_bootstrap, "wrong")
    assert stat.S_IMODE((tmp_path / "server.properties").stat().st_mode) == 0o600
    assert "open sesame" not in (tmp_path / "logs" / "kafka.log").read_text()


def test_a_second_broker_on_the_folder_is_told_who_has_it(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        with pytest.raises(UserError, match=rf"held by a running stack \(pid {os.getpid()}\)"):
            KafkaBroker(tmp_path).start()
        assert broker.pid is not None
        assert start_mark(broker.pid) is not None


def test_java_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Too small maximum heap") as caught:
        KafkaBroker(tmp_path, heap_mb=1).start()
    assert "\n" not in str(caught.value)


def test_broker_that_dies_while_it_starts_is_quoted(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path):
        pass
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    with pytest.raises(UserError, match=r"kafka did not start: its log ends with .*node.id.*kafka\.log") as caught:
        KafkaBroker(tmp_path).start()
    assert "\n" not in str(caught.value)


def test_a_port_in_use_is_named_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} for kafka is in use by .*\(pid {os.getpid()}\)"):
            KafkaBroker(tmp_path, port=port).start()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the state folder .*/file/kafka: Not a directory"):
        KafkaBroker(tmp_path / "file" / "kafka").start()
