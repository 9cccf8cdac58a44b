"""The whole of AgentTrace on one machine: broker, ClickHouse, tables, topics, collector, worker, sink, in that order."""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.config import Config
from schemas.topics import EMBEDDED_PARTITIONS, PARTITIONS
from services.embedded.clickhouse import ClickHouseServer
from services.embedded.host import LOOPBACK, free_port, require_free
from services.embedded.kafka import KafkaBroker
from services.embedded.part import ANALYSIS_NICE, Part
from services.embedded.run_file import Endpoints
from services.embedded.supervisor import Supervisor
from services.kafka import BROKER_DEFAULT, client_kwargs, create_topics

Report = Callable[[str, str, float], None]
"""`report(step, "start" | "done", seconds)` as the stack comes up."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of our own parts."""

    collector: int
    worker: int
    sink: int


def run(config: Config, home: Path, report: Report) -> None:
    """Start everything, say so, and keep it running until SIGTERM or SIGINT. Raises UserError for what does not start.

    A Kafka or ClickHouse that the configuration names is used instead of the embedded one.
    """
    with Supervisor(home) as stack:
        ports = _ports(config)
        bootstrap = config.kafka.bootstrap_servers
        if not bootstrap:
            with _step(report, "Kafka broker"):
                broker = KafkaBroker(home / "kafka")
                stack.start(broker.part())
                bootstrap = broker.bootstrap
        dsn = config.clickhouse.dsn or config.sinks.database.dsn or os.environ.get("CLICKHOUSE_DSN")
        if not dsn:
            with _step(report, "ClickHouse engine"):
                engine = ClickHouseServer(home / "clickhouse")
                stack.start(engine.part())
                dsn = engine.dsn
        with _step(report, "tables"):
            _migrate(dsn)
        with _step(report, "topics"):
            kafka = config.kafka.model_copy(update={"bootstrap_servers": bootstrap})
            own = not config.kafka.bootstrap_servers
            partitions, replication = (EMBEDDED_PARTITIONS, 1) if own else (PARTITIONS, BROKER_DEFAULT)
            asyncio.run(create_topics(client_kwargs(kafka), partitions=partitions, replication=replication))
        env = {
            "AGENTTRACE_HOME": str(home),
            "AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "AGENTTRACE_CLICKHOUSE__DSN": dsn,
            "AGENTTRACE_COLLECTOR__PORT": str(ports.collector),
            "AGENTTRACE_PIPELINES__PORT": str(ports.worker),
            "AGENTTRACE_SINK__PORT": str(ports.sink),
        }
        for name, port in (("collector", ports.collector), ("worker", ports.worker), ("sink", ports.sink)):
            with _step(report, name):
                stack.start(_own(name, port, env))
        socket = os.environ.get("AGENTTRACE_SOCKET") or str(home / config.collector.socket)
        stack.publish(Endpoints(bootstrap, dsn, ports.collector, socket))
        report("", "up", 0)
        stack.run()


def _own(name: str, port: int, env: dict[str, str]) -> Part:
    return Part(
        name,
        [sys.executable, "-P", "-m", "services.cli.main", name],
        env=env,
        ready=lambda: answers(port, "/readyz"),
        ready_timeout_s=60,
        nice=0 if name == "collector" else ANALYSIS_NICE,
    )


def _ports(config: Config) -> Ports:
    wanted = (
        ("collector", config.collector.port),
        ("worker", config.pipelines.port),
        ("sink", config.sink.port),
    )
    found = []
    for name, port in wanted:
        if port:
            require_free(port, name)
        found.append(port or free_port())
    return Ports(*found)


def _migrate(dsn: str) -> None:
    from services.clickhouse_sink.migrate import migrate_dsn

    migrate_dsn(dsn)


def answers(port: int, path: str, timeout_s: float = 2) -> bool:
    """True when GET `path` on this machine gives 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def _step(report: Report, name: str) -> Iterator[None]:
    began = time.monotonic()
    report(name, "start", 0)
    yield
    report(name, "done", time.monotonic() - began)
