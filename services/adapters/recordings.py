"""Recorded payload and session files as the payloads a runtime's plugin or hook would send, for tests, the demo and `normalise`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded hook call: `body` is what reaches the collector; `ts_ms` when it was recorded, if known."""

    hook: str
    body: dict[str, Any]
    ts_ms: int | None
    line: int


def read(path: Path) -> Iterator[Recorded]:
    """Hook calls of a file: one JSON payload, or a session of one `{ts, hook, payload[, thread]}` a line.

    Raises UserError naming file and line for what is no JSON object.
    """
    data = path.read_bytes()
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError:
        whole = None
    if isinstance(whole, dict):
        yield _recorded(whole, 1)
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(
                f"{path}:{number}: not JSON ({error}); each line must be one hook call", exit_code=65
            ) from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: not a JSON object; each line must be one hook call", exit_code=65)
        yield _recorded(row, number)


def _recorded(row: Mapping[str, Any], line: int) -> Recorded:
    if "payload" in row and "ts" in row and isinstance(row["payload"], dict):
        ts = row["ts"]
        ms = int(ts * 1000) if isinstance(ts, int | float) else None
        return Recorded(str(row.get("hook")), _wire(row), ms, line)
    if isinstance(row.get("stdin"), dict):
        row = row["stdin"]
    hook = row.get("hook_event_name") or row.get("hook") or "unknown"
    return Recorded(str(hook), dict(row), None, line)


def _wire(row: Mapping[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    if "thread" in row:
        return {"hook": row["hook"], "kwargs": payload, "thread": row["thread"]}
    return dict(payload) if "hook_event_name" in payload else {"hook": row["hook"], **payload}
