"""`agenttrace normalise`: the events of recorded payloads, without a collector."""

from __future__ import annotations

import hashlib
import time
import uuid
from pathlib import Path

import click
import orjson

from schemas.events import to_json
from schemas.identity import new_delivery_id
from services import config as configuration
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.recordings import Recorded, read
from services.adapters.registry import ADAPTERS
from services.adapters.registry import normalise as normalise_body
from services.capturing import from_config
from services.cli.main import load_config


@click.command()
@click.argument("runtime", type=click.Choice(sorted(ADAPTERS)))
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def normalise(runtime: str, files: tuple[Path, ...]) -> None:
    """Print the events of payload or session files as JSON lines.

    A file holds one hook payload, or a session with one {"ts", "hook", "payload"} a line. Ids follow from the content, so
    the same files give the same lines, for the same hash key.

    \b
    Examples:
      agenttrace normalise claude_code session.jsonl | jq .event_name
      agenttrace normalise codex payloads/*.json
    """
    capture = from_config(load_config().config, configuration.home())
    adapter = ADAPTERS[runtime]
    calls = CallTable()
    for file in files:
        for recorded in read(file):
            body = orjson.dumps(recorded.body)
            now = recorded.ts_ms or time.time_ns() // 1_000_000
            context = Context(
                runtime=adapter.runtime,
                adapter=adapter.contract,
                delivery_id=_delivery(recorded, body),
                happened_ms=now,
                observed_ms=now,
                capture=capture,
                calls=calls,
            )
            for event in normalise_body(body, context):
                click.echo(orjson.dumps(to_json(event)))


def _delivery(recorded: Recorded, body: bytes) -> str:
    """A delivery id that depends on the recording alone."""
    if recorded.ts_ms is None:
        return new_delivery_id()
    seed = hashlib.sha256(b"%d %d " % (recorded.ts_ms, recorded.line) + body).digest()
    value = (recorded.ts_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | 0b10 << 62
    value |= int.from_bytes(seed[:2], "big") % 4096 << 64 | int.from_bytes(seed[2:8], "big") % (1 << 46) << 16
    return str(uuid.UUID(int=value))
