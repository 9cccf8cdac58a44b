"""`agenttrace collector`, `worker`, `sink`: one part in the foreground, as a sidecar or a service runs it."""

from __future__ import annotations

import click

from services.cli.main import load_config
from services.cli.running import clickhouse_dsn, kafka_kwargs


@click.command()
def collector() -> None:
    """Run the collector: hooks in on a Unix socket and loopback HTTP, journal, events out.

    \b
    Examples:
      agenttrace collector
      AGENTTRACE_COLLECTOR__SINKS=jsonl AGENTTRACE_SINKS__JSONL__PATH=events.jsonl agenttrace collector
    """
    from services.collector.loop import run
    from services.collector.service import Collector
    from services.collector.settings import from_config

    config = load_config().config
    kwargs = kafka_kwargs(config) if "kafka" in config.collector.sinks else None
    settings = from_config(config, kwargs)

    async def serve() -> None:
        await Collector(settings).run()

    run(serve())


@click.command()
def worker() -> None:
    """Run the stream processors: pending calls, rolling metrics, sequence rules.

    \b
    Example:
      AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 agenttrace worker
    """
    from pipelines.operators import build_operators
    from pipelines.runtime.settings import WorkerSettings
    from pipelines.runtime.worker import run

    config = load_config().config
    operators = tuple(build_operators(config))
    run(WorkerSettings(kafka=kafka_kwargs(config), operators=operators, http_port=config.pipelines.port))


@click.command()
def sink() -> None:
    """Run the ClickHouse sink: every topic into its table.

    \b
    Example:
      CLICKHOUSE_DSN=http://default@clickhouse:8123/agenttrace agenttrace sink
    """
    from services.clickhouse_sink.service import run
    from services.clickhouse_sink.settings import from_config

    config = load_config().config
    run(from_config(config, kafka_kwargs(config), clickhouse_dsn(config)))
