"""The services that tests run against: a real Kafka and a real ClickHouse, started once a run unless they are given.

In this order: KAFKA_BOOTSTRAP or CLICKHOUSE_DSN if set; containers if `--containers` asks for them and Docker
answers; else the embedded ones. No test is skipped for want of a service.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipelines.runtime.logs import Damper

KAFKA_IMAGE = "apache/kafka:4.3.1"
CLICKHOUSE_IMAGE = "clickhouse/clickhouse-server:25.8"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agenttrace")
    group.addoption("--containers", action="store_true", help="run Kafka and ClickHouse in containers")
    group.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing")


@pytest.fixture(autouse=True)
def _undamped() -> Iterator[None]:
    """A part that runs inside a test damps the handlers of this whole run; later tests would miss lines they wait for."""
    yield
    for handler in logging.getLogger().handlers:
        for damper in [known for known in handler.filters if isinstance(known, Damper)]:
            handler.removeFilter(damper)


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(pytestconfig.getoption("update_golden"))


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config) -> Iterator[str]:
    """`HOST:PORT` of a Kafka that lives as long as the run. Topics are not made by use; see `topic_prefix`."""
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield given
        return
    if _containers(pytestconfig):
        with _kafka_container() as bootstrap:
            yield bootstrap
        return
    from services.embedded.kafka import KafkaBroker

    with _folder("kafka") as folder, KafkaBroker(folder) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def clickhouse_dsn(pytestconfig: pytest.Config) -> Iterator[str]:
    """DSN, as clickhouse-connect takes it, of a ClickHouse that lives as long as the run; see `clickhouse_db`."""
    if given := os.environ.get("CLICKHOUSE_DSN"):
        yield given
        return
    if _containers(pytestconfig):
        with _clickhouse_container() as dsn:
            yield dsn
        return
    from services.embedded.clickhouse import ClickHouseServer

    with _folder("clickhouse") as folder, ClickHouseServer(folder) as server:
        yield server.dsn


@pytest.fixture
def topic_prefix() -> str:
    """Begins the topic and group names of one test, so that no other test meets them."""
    return f"t{uuid.uuid4().hex[:12]}."


@pytest.fixture
def clickhouse_db(clickhouse_dsn: str) -> Iterator[str]:
    """DSN of a database that is this test's alone and is dropped after it."""
    import clickhouse_connect

    name = f"t{uuid.uuid4().hex[:12]}"
    with clickhouse_connect.get_client(dsn=clickhouse_dsn) as client:
        client.command(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(clickhouse_dsn)._replace(path=f"/{name}").geturl()
        finally:
            client.command(f"DROP DATABASE {name} SYNC")


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """`wait_until(condition, what, timeout_s=10)`: returns once the condition holds, fails when time is up."""

    def wait(condition: Callable[[], object], what: str, timeout_s: float = 10) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
            time.sleep(0.02)

    return wait


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    # Not pytest's own temporary folder: that keeps the last three runs, and these would be large.
    folder = Path(tempfile.mkdtemp(prefix=f"agenttrace-test-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _containers(config: pytest.Config) -> bool:
    if not config.getoption("containers"):
        return False
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@contextmanager
def _kafka_container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    from services.embedded.host import free_port

    # Kafka tells its clients its own address, so the port outside must be the one inside.
    port = free_port()
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(port, port)
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"CLIENT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@localhost:9093",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    for key, value in settings.items():
        container.with_env(f"KAFKA_{key.replace('.', '_').upper()}", value)
    with container.waiting_for(LogMessageWaitStrategy("Kafka Server started")):
        yield f"127.0.0.1:{port}"


@contextmanager
def _clickhouse_container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    container = DockerContainer(CLICKHOUSE_IMAGE).with_exposed_ports(8123)
    container.with_env("CLICKHOUSE_USER", "test").with_env("CLICKHOUSE_PASSWORD", "test")
    container.with_env("CLICKHOUSE_DEFAULT_ACCESS_MANAGEMENT", "1")
    with container.waiting_for(HttpWaitStrategy(8123, "/ping").for_status_code(200)):
        host, port = container.get_container_host_ip(), container.get_exposed_port(8123)
        yield f"http://test:test@{host}:{port}/default"
