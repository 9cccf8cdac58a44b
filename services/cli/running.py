"""Where Kafka and ClickHouse are for this call: the configuration, else the stack that runs from AGENTTRACE_HOME."""

from __future__ import annotations

import os
from typing import Any

from schemas.config import Config
from schemas.errors import UserError
from services import config as configuration
from services.kafka import client_kwargs


def kafka_kwargs(config: Config) -> dict[str, Any]:
    """aiokafka settings. Raises UserError where nothing says where Kafka is."""
    kafka = config.kafka
    if not kafka.bootstrap_servers and (found := _endpoint("kafka_bootstrap")):
        kafka = kafka.model_copy(update={"bootstrap_servers": found})
    return client_kwargs(kafka)


def clickhouse_dsn(config: Config) -> str:
    """DSN for clickhouse-connect. Raises UserError where nothing says where ClickHouse is."""
    dsn = config.clickhouse.dsn or config.sinks.database.dsn or os.environ.get("CLICKHOUSE_DSN")
    dsn = dsn or _endpoint("clickhouse_dsn")
    if not dsn:
        raise UserError(
            "no ClickHouse to talk to: start the embedded one with `agenttrace up`, "
            "or set clickhouse.dsn (AGENTTRACE_CLICKHOUSE__DSN)"
        )
    return dsn


def _endpoint(name: str) -> str | None:
    from services.embedded import run_file

    run = run_file.read(configuration.home())
    return getattr(run.endpoints, name) if run else None
