"""The run file: what a running stack tells other programs about itself, and where `agenttrace status` reads it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from schemas.errors import UserError
from services.embedded.pidfile import end_process, start_mark, write_private

_NAME = "run.json"


@dataclass(frozen=True, slots=True)
class PartState:
    """One part of a running stack. `pid` is None while the part waits for its restart."""

    pid: int | None
    restarts: int
    log: str


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a stack is reached; None for what it does not run. `clickhouse_dsn` holds a password."""

    kafka_bootstrap: str | None = None
    clickhouse_dsn: str | None = None
    http_port: int | None = None
    socket: str | None = None


@dataclass(frozen=True, slots=True)
class RunFile:
    """A running stack: its supervisor (`pid`, `mark`), since when (ms since 1970, UTC), its endpoints and parts."""

    pid: int
    mark: str
    started_ms: int
    endpoints: Endpoints
    parts: dict[str, PartState] = field(default_factory=dict)


def write(state_dir: Path, run: RunFile) -> None:
    """Replace the run file in one step, mode 0600."""
    write_private(state_dir / _NAME, json.dumps(asdict(run), indent=2) + "\n")


def remove(state_dir: Path) -> None:
    (state_dir / _NAME).unlink(missing_ok=True)


def read(state_dir: Path) -> RunFile | None:
    """The stack that runs from this folder; None if none does, also if one was killed and left its file."""
    try:
        raw = json.loads((state_dir / _NAME).read_bytes())
        run = RunFile(
            pid=int(raw["pid"]),
            mark=str(raw["mark"]),
            started_ms=int(raw["started_ms"]),
            endpoints=Endpoints(**raw["endpoints"]),
            parts={name: PartState(**part) for name, part in raw["parts"].items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return run if start_mark(run.pid) == run.mark else None


def require(state_dir: Path) -> RunFile:
    """The stack that runs from this folder; UserError (69) if none does."""
    run = read(state_dir)
    if run is None:
        raise UserError(f"no stack runs from {state_dir}; start one with `agenttrace up`", exit_code=os.EX_UNAVAILABLE)
    return run


def stop(state_dir: Path, *, grace_s: float = 60) -> bool:
    """Ask the stack of this folder to end, and wait; False if none runs. After `grace_s` seconds it is killed."""
    run = read(state_dir)
    if run is None:
        return False
    end_process(run.pid, run.mark, grace_s=grace_s)
    return True
