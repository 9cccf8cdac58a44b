"""What a sink needs to run, and how it follows from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.config import Config

GROUP_ID = "agenttrace-clickhouse-sink"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """`kafka` are aiokafka client settings. A batch is written when it has `batch_rows` records or `batch_bytes`, or when
    the one before it is `batch_ms` old. Sinks with one `group_id` share the partitions; one that dies is replaced after
    `session_timeout_s`. `port` 0 takes a free one; `on_ready` is told which.
    """

    kafka: dict[str, Any]
    clickhouse_dsn: str
    topic_prefix: str = ""
    group_id: str = GROUP_ID
    batch_rows: int = 10_000
    batch_bytes: int = 32 << 20
    batch_ms: int = 500
    session_timeout_s: float = 10.0
    port: int = 0
    on_ready: Callable[[int], None] | None = None

    @property
    def servers(self) -> str:
        """Kafka's addresses, for messages."""
        return str(self.kafka["bootstrap_servers"])


def from_config(config: Config, kafka: dict[str, Any], clickhouse_dsn: str) -> SinkSettings:
    """Settings for this process."""
    ours = config.sink
    return SinkSettings(
        kafka=kafka,
        clickhouse_dsn=clickhouse_dsn,
        batch_rows=ours.batch_rows,
        batch_ms=ours.batch_ms,
        port=ours.port,
    )
