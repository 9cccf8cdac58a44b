"""`agenttrace up`, `down`, `status`: the whole stack on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import click
import orjson

from schemas.errors import UserError
from services import config as configuration
from services.cli.main import load_config
from services.embedded.host import ensure_folder

_PROGRESS_FD = "AGENTTRACE_PROGRESS_FD"


@click.command()
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C instead of going to the background.")
def up(foreground: bool) -> None:
    """Start broker, ClickHouse, tables, topics, collector, worker and sink; comes back when all are ready.

    State and logs lie in AGENTTRACE_HOME (~/.agenttrace). A Kafka or ClickHouse named in the configuration is used as it is.

    \b
    Examples:
      agenttrace up
      AGENTTRACE_HOME=/srv/agenttrace agenttrace up --foreground
    """
    loaded = load_config()
    home = configuration.home()
    if foreground:
        from services.embedded.stack import run

        run(loaded.config, home, _reporter())
        return
    begin(home, _Printer())
    click.echo("\nRunning. Next: agenttrace status | tail | query SQL | down")


@click.command()
def down() -> None:
    """Stop the stack that runs from AGENTTRACE_HOME; its data stays.

    \b
    Example:
      agenttrace down
    """
    from services.embedded import run_file

    home = configuration.home()
    click.echo("stopped" if run_file.stop(home) else f"nothing runs from {home}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Show what runs, where it is reached and how often each part was started again.

    Exit code 69 when nothing runs.

    \b
    Example:
      agenttrace status --json | jq .parts
    """
    from services.embedded import run_file

    home = configuration.home()
    run = run_file.require(home)
    if as_json:
        parts = {name: {"pid": p.pid, "restarts": p.restarts, "log": p.log} for name, p in run.parts.items()}
        click.echo(orjson.dumps({"pid": run.pid, "started_ms": run.started_ms, "parts": parts}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "pid", "restarts", "log", box=None, pad_edge=False)
    for name, part in run.parts.items():
        table.add_row(name, str(part.pid or "down"), str(part.restarts), part.log)
    console = Console()
    console.print(table)
    where = run.endpoints
    console.print(
        f"\nKafka {where.kafka_bootstrap}   hooks http://127.0.0.1:{where.http_port}/hooks/RUNTIME and {where.socket}",
        soft_wrap=True,
    )
    minutes = (time.time() - run.started_ms / 1000) / 60
    console.print(f"up for {minutes:.0f} min, supervisor pid {run.pid}, home {home}", soft_wrap=True)


def begin(home: Path, report: Any, env: dict[str, str] | None = None) -> None:
    """Start the stack in the background and wait until it is up; ended again if this is interrupted. Raises UserError."""
    ensure_folder(home / "logs")
    log_file = home / "logs" / "stack.log"
    read_end, write_end = os.pipe()
    with open(log_file, "ab") as log, os.fdopen(read_end, "rb") as progress:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.cli.main", "up", "--foreground"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            env={**os.environ, "AGENTTRACE_HOME": str(home), **(env or {}), _PROGRESS_FD: str(write_end)},
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        try:
            if _follow(progress, report):
                return
        except BaseException:
            child.terminate()
            child.wait()
            raise
        assert child.stderr is not None
        told = child.stderr.read().decode(errors="replace").strip().splitlines()
        code = child.wait()
    line = told[-1].removeprefix("agenttrace: ") if told else f"the stack ended with {code}; see {log_file}"
    raise UserError(line, exit_code=code if code > 0 else os.EX_SOFTWARE)


def _follow(progress: IO[bytes], report: Any) -> bool:
    for line in progress:
        step, state, seconds = orjson.loads(line)
        if state == "up":
            return True
        report(step, state, seconds)
    return False


def _reporter() -> Any:
    fd = os.environ.pop(_PROGRESS_FD, None)
    return _Pipe(int(fd)) if fd else _Printer()


class _Pipe:
    """Sends progress to the command that waits; afterwards nothing listens and nothing is said."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._file: IO[bytes] | None = os.fdopen(fd, "wb", buffering=0)

    def __call__(self, step: str, state: str, seconds: float) -> None:
        if self._file is None:
            return
        self._file.write(orjson.dumps([step, state, seconds]) + b"\n")
        if state == "up":
            self._file.close()
            self._file = None
            # From now on nobody reads the pipe behind standard error; the log does.
            os.dup2(1, 2)


class _Printer:
    """Progress for a person: one line a step, rewritten on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def __call__(self, step: str, state: str, seconds: float) -> None:
        if state == "start" and self._terminal:
            click.echo(f"  …  {step}\r", nl=False, err=True)
        elif state == "done":
            click.echo(f"  ok {step:20} {seconds:5.1f} s", err=True)
