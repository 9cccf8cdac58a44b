"""What a worker does about a Kafka that is away, refuses it, or is not what it needs; one line says so each time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from pipelines.pending_calls.operator import PendingCalls
from pipelines.runtime import kafka, worker
from pipelines.runtime.host import Host
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.worker import FaustInputs, run
from schemas.errors import UserError
from schemas.topics import MCP_RPC
from services.embedded.host import free_port
from services.embedded.kafka import KafkaBroker
from tests.pipelines.helpers import call_event
from tests.pipelines.runtime.harness import Broker, Process, until
from tests.pipelines.runtime.test_worker import committed, numbered, settled, some_outputs, traffic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that may be killed, and that has a listener which wants a login."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), sasl_users={"worker": "right"}) as broker:
        yield broker


def settings(servers: str, prefix: str = "", **security: object) -> WorkerSettings:
    return WorkerSettings(
        kafka={"bootstrap_servers": servers, **security},
        operators=(lambda _partition: PendingCalls(),),
        topic_prefix=prefix,
        http_port=0,
        start_timeout_s=5,
    )


async def test_missing_topics_are_named(broker: Broker) -> None:
    await broker.create(leave_out=[MCP_RPC])
    with pytest.raises(UserError) as raised:
        await kafka.check(settings(broker.bootstrap, broker.prefix))
    assert f"has no topic {broker.prefix}{MCP_RPC}: create" in str(raised.value)
    assert raised.value.exit_code == os.EX_CONFIG


async def test_inputs_must_have_one_partition_count(broker: Broker) -> None:
    await broker.create(leave_out=[MCP_RPC])
    await broker.create_topic(MCP_RPC, 3)
    with pytest.raises(UserError, match=r"must have one partition count, but have: .*agenttrace.mcp.rpc 3"):
        await kafka.check(settings(broker.bootstrap, broker.prefix))


def test_a_broker_that_is_not_there() -> None:
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=f"Kafka at {servers} cannot be reached") as raised:
        run(settings(servers))
    assert raised.value.exit_code == os.EX_UNAVAILABLE
    assert "\n" not in str(raised.value)


async def test_a_refused_login(own_kafka: KafkaBroker) -> None:
    security = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "worker"}
    with pytest.raises(UserError, match="refused the login") as raised:
        await kafka.check(settings(own_kafka.sasl_bootstrap, **security, sasl_plain_password="wrong"))
    assert "Invalid username or password" in str(raised.value)
    assert raised.value.exit_code == os.EX_NOPERM
    assert "wrong" not in str(raised.value)
    with pytest.raises(UserError, match="has no topic"):
        await kafka.check(settings(own_kafka.sasl_bootstrap, **security, sasl_plain_password="right"))


async def test_a_taken_port(broker: Broker, start: Callable[..., Process]) -> None:
    await broker.create()
    first = start()
    await until(lambda: first.get("/readyz")[0] == 200, "ready")
    second = start(port=first.port)
    assert await asyncio.to_thread(second.process.wait, 15) == os.EX_UNAVAILABLE
    assert second.log().splitlines()[-1].startswith(f"port {first.port} on 127.0.0.1 cannot be used")
    assert "Traceback" not in second.log()


async def test_a_worker_lives_through_a_killed_broker(
    own_kafka: KafkaBroker, topic_prefix: str, tmp_path: Path, start: Callable[..., Process]
) -> None:
    broker = Broker(own_kafka.bootstrap, topic_prefix)
    await broker.create()
    worker = start(broker=broker)
    await until(lambda: worker.get("/readyz")[0] == 200, "ready")
    events = numbered(traffic(200, 0), "c0")
    # Not between the start of a call and its end: the outage is longer than its TTL.
    cut = next(n for n, body in enumerate(events[150:], 150) if body["event_name"] == "tool.call.started")
    await broker.publish(events[:cut])
    await until(lambda: some_outputs(broker), "outputs")
    await broker.close()
    pid = own_kafka.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: "aiokafka" in worker.log(), "an outage that is noticed")
    await asyncio.to_thread(own_kafka.stop)
    await asyncio.to_thread(own_kafka.start)
    broker = Broker(own_kafka.bootstrap, topic_prefix)
    await broker.publish(events[cut:])
    await broker.publish([call_event("tool.call.started", 0, "last", session_id="p0-0")])
    await settled(broker, [*events, call_event("tool.call.started", 0, "last")], 21)
    await until(lambda: committed(broker), "all committed")
    assert worker.process.poll() is None
    assert worker.terminate() < 10
    # An outage is told, but not at every try.
    assert len([line for line in worker.log().splitlines() if " ERROR " in line or " WARNING " in line]) < 40
    await broker.close()


async def test_an_outage_is_told_on_the_page_and_in_few_lines_and_a_stop_in_it_ends_in_time(
    own_kafka: KafkaBroker, topic_prefix: str, start: Callable[..., Process]
) -> None:
    broker = Broker(own_kafka.bootstrap, topic_prefix)
    await broker.create()
    worker = start(broker=broker)
    await until(lambda: worker.get("/readyz")[0] == 200, "ready")
    await broker.publish(numbered(traffic(200, 0), "c0"))
    await until(lambda: some_outputs(broker), "outputs")
    await broker.close()
    own_kafka.kill()
    try:
        await until(lambda: worker.get("/readyz")[0] == 503, "a page that says so")
        reasons = orjson.loads(worker.get("/readyz")[1])["reasons"]
        assert reasons == ["Kafka: nothing heard of the consumer group for longer than the session timeout"]
        assert worker.get("/healthz")[0] == 200
        told = [line for line in worker.log().splitlines() if " ERROR " in line or " WARNING " in line]
        # One of its Kafka clients, and perhaps one of its own.
        assert 1 <= len(told) <= 2, told
        assert worker.terminate() < 10
        assert worker.process.returncode == 0
        assert "Traceback" not in worker.log()
    finally:
        await asyncio.to_thread(own_kafka.start)


async def test_a_stop_under_load_ends_in_time_and_the_next_worker_goes_on(
    broker: Broker, start: Callable[..., Process]
) -> None:
    await broker.create()
    worker = start()
    await until(lambda: worker.get("/readyz")[0] == 200, "ready")
    events = numbered(traffic(10_000, 0, every=500), "c0")

    async def load() -> None:
        for at in range(0, len(events), 500):
            await broker.publish(events[at : at + 500])

    loading = asyncio.create_task(load())
    await until(lambda: some_outputs(broker), "outputs")
    assert await asyncio.to_thread(worker.terminate) < 10
    assert worker.process.returncode == 0
    assert not loading.done()
    await loading
    start()
    await settled(broker, events, 20)


class _Inputs(FaustInputs):
    """Of one partition, of which the log answers what a test says."""

    answer: tuple[int, int] | None = None

    def joined(self) -> bool:
        return False

    def assigned(self) -> list[int]:
        return [3]

    def end(self, topic: str, partition: int) -> tuple[int, int] | None:
        return self.answer


async def test_a_partition_whose_log_never_answers_asks_for_a_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings("127.0.0.1:1")
    inputs = _Inputs(None, wanted)
    host = Host(wanted, inputs)
    assert worker._unhealthy(inputs, host) == []
    monkeypatch.setattr(worker, "STALLED_S", -1.0)
    assert worker._unhealthy(inputs, host)[0].startswith("nothing heard of agenttrace.tool.call/3 and 3 more for ")
    inputs.answer = (0, 0)
    monkeypatch.setattr(worker, "STALLED_S", 300.0)
    assert worker._unhealthy(inputs, host) == []
    assert worker._unready(inputs, host) == ["not a member of the consumer group yet"]
    await host.stop()
