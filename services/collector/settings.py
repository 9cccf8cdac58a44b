"""Builds a collector's settings from the configuration."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from schemas.config import Config
from schemas.errors import UserError
from services import config as configuration
from services.capturing import from_config as capture_from_config
from services.collector.files import private
from services.collector.service import CollectorSettings
from services.collector.sinks import JsonlSink, KafkaSink, Sink
from services.forwarder.protocol import ENV_SOCKET, SPOOL_FOLDER


def from_config(config: Config, kafka: dict[str, Any] | None) -> CollectorSettings:
    """Settings for this process. `kafka` are aiokafka settings where the sink is wanted. Raises UserError."""
    home = configuration.home()
    ours = config.collector
    token = _token(home)
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
        token=token if ours.require_token else None,
        fsync_before_answer=ours.fsync_before_answer,
        journal_max_bytes=ours.journal_max_bytes,
    )


def _token(home: Path) -> str:
    """The token of the loopback door, made once in <home>/collector.token (0600). Raises UserError."""
    path = home / "collector.token"
    try:
        private(home)
        with (
            contextlib.suppress(FileExistsError),
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
        ):
            file.write(secrets.token_urlsafe(32) + "\n")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the token {path} cannot be made or read ({error})", exit_code=os.EX_CANTCREAT) from None
    if not token:
        raise UserError(f"the token in {path} is empty; remove the file to get a new one")
    return token
