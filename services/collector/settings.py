"""Builds a collector's settings from the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from schemas.config import Config
from schemas.errors import UserError
from services import config as configuration
from services.collector.capturing import from_config as capture_from_config
from services.collector.service import CollectorSettings
from services.collector.sinks import JsonlSink, KafkaSink, Sink
from services.forwarder.protocol import ENV_SOCKET, SPOOL_FOLDER


def from_config(config: Config, kafka: dict[str, Any] | None) -> CollectorSettings:
    """Settings for this process. `kafka` are aiokafka settings where the sink is wanted. Raises UserError."""
    home = configuration.home()
    ours = config.collector
    sinks: list[Sink] = []
    if kafka is not None:
        sinks.append(KafkaSink(kafka))
    if "jsonl" in ours.sinks or config.sinks.jsonl.enabled:
        sinks.append(JsonlSink(home / (config.sinks.jsonl.path or "events.jsonl")))
    if not sinks:
        raise UserError("collector.sinks is empty: events would go nowhere; name kafka, jsonl or both")
    return CollectorSettings(
        folder=home / "collector",
        socket=Path(os.environ.get(ENV_SOCKET) or home / ours.socket),
        spool=home / SPOOL_FOLDER,
        capture=capture_from_config(config, home),
        sinks=sinks,
        host=ours.host,
        port=ours.port,
        tenant_id=ours.tenant_id,
        workspace_id=ours.workspace_id,
        labels=ours.labels,
        fsync_before_answer=ours.fsync_before_answer,
        journal_max_bytes=ours.journal_max_bytes,
    )
