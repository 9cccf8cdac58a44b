"""`agenttrace proxy wrap`: sends the MCP servers of a client's configuration through the proxy, and takes it back."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from schemas.errors import UserError
from services import config as configuration
from services.cli.text import cut, safe

if TYPE_CHECKING:
    from services.mcp_proxy.wrap.files import Record, Records, Snapshot
    from services.mcp_proxy.wrap.plan import Plan, Server

_CLIENTS = ("claude-code", "codex", "cursor", "vscode", "generic")
_WIDTH = 300
_PASSED = ("AGENTTRACE_HOME", "AGENTTRACE_CONFIG")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--client",
    type=click.Choice(_CLIENTS),
    help="Whose configuration it is; else the file's name and content tell. Claude Desktop's is as Claude Code's.",
)
@click.option("--http", is_flag=True, help="Wrap remote servers (HTTP, SSE) too.")
@click.option("--undo", is_flag=True, help="Restore what was there before; edits made since are kept.")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if a server does not go through the proxy.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what would change, without secrets.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def wrap(*, config: Path, client: Any, http: bool, undo: bool, check: bool, dry_run: bool, as_json: bool) -> None:
    """Send the MCP servers of a client's configuration through the proxy.

    A server started by a command runs as `agenttrace proxy stdio --server NAME -- COMMAND ARGS…`: the client starts the
    proxy with it, nothing else must run. Only command and args change; formatting and comments stay. Once is enough,
    twice changes nothing more. The client reads the file when it starts: close it before, start it after. The path of this
    agenttrace is written into the file, so do not share a wrapped one.

    Remote servers stay as they are without --http: their URL would lead to http://127.0.0.1:8790/mcp/NAME, and they
    would be out of reach whenever no `agenttrace proxy http` runs there. With --http the exact command to keep running
    is printed.

    What was there before is kept in AGENTTRACE_HOME/wrapped, readable by you only. --undo restores it byte for byte;
    if the file was edited since, each wrapped server is restored by itself and the edits stay.

    \b
    Examples:
      agenttrace proxy wrap .mcp.json --dry-run
      agenttrace proxy wrap ~/.codex/config.toml
      agenttrace proxy wrap .vscode/mcp.json --http
      agenttrace proxy wrap ~/.claude.json --check
      agenttrace proxy wrap ~/.claude.json --undo
    """
    from services.mcp_proxy.wrap import files, plan

    if undo and (check or http):
        raise click.UsageError(f"--undo and {'--check' if check else '--http'} do not go together")
    records = files.Records(configuration.home())
    writes = not check and not dry_run
    with records.locked() if writes else contextlib.nullcontext():
        snapshot = files.read(config)
        record = records.get(snapshot.path)
        others = records.routes(snapshot.path) if http or (record and record.routes) else {}
        if undo:
            made = plan.unwrap(snapshot, client, record)
        else:
            program = _program()
            made = plan.wrap(snapshot, client, record, others=others, program=program, http=http)
        if writes:
            _write(records, snapshot, made, record, undo)
    run: list[str] = []
    if not undo and not check and made.record and made.record.routes:
        routes = sorted({**others, **made.record.routes}.items())
        run = [program, "proxy", "http", *(word for route in routes for word in ("--route", "=".join(route)))]
    changed = made.data != snapshot.data
    if as_json:
        action = "undo" if undo else "check" if check else "wrap"
        said = _summary(snapshot.path, made, action, changed=changed and writes, writes=writes, run=run)
        click.echo(json.dumps(said, indent=2))
    else:
        if dry_run and not check and changed:
            _print_diff(snapshot, made)
        _print(snapshot.path, made, check=check, undo=undo, writes=writes, run=run)
    missing = check and any(server.outcome == "wrapped" for server in made.servers)
    if missing or any(server.outcome == "lost" for server in made.servers):
        click.get_current_context().exit(1)


def _write(records: Records, snapshot: Snapshot, made: Plan, before: Record | None, undo: bool) -> None:
    """A record is there before the file that needs it, and goes after it."""
    from services.mcp_proxy.wrap import files

    if made.data != snapshot.data:
        files.require_writable(snapshot)
        if not undo:
            _keep(records, snapshot.path, made.record)
        try:
            files.replace(snapshot, made.data)
        except UserError:
            _keep(records, snapshot.path, before)
            raise
    if undo:
        _keep(records, snapshot.path, made.record)


def _keep(records: Records, path: Path, record: Record | None) -> None:
    if record is None:
        records.drop(path)
    else:
        records.put(path, record)


def _program() -> str:
    """The absolute path of this command: clients start servers with a PATH of their own. Raises UserError."""
    called = Path(sys.argv[0]).absolute()
    beside = Path(sys.executable).with_name("agenttrace")
    for path in (called if called.name == "agenttrace" else beside, beside, shutil.which("agenttrace")):
        if path and os.access(path, os.X_OK) and Path(path).is_file():
            found = str(Path(path).absolute())
            if found.isprintable():
                return found
    raise UserError("no agenttrace command is installed that a client could start; install the package", exit_code=69)


def _print_diff(snapshot: Snapshot, made: Plan) -> None:
    from services.mcp_proxy.wrap import clients, diff

    before, _ = clients.parse(snapshot.text, snapshot.path, made.client)
    after, _ = clients.parse(made.data.decode(), snapshot.path, made.client)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff.unified(before, after, str(snapshot.path)):
        body = line[1:].lstrip(" \t")
        indent = line[: len(line) - len(body)]
        click.secho(indent + cut(body, _WIDTH), fg=colours.get(line[:1]))


def _print(path: Path, made: Plan, *, check: bool, undo: bool, writes: bool, run: list[str]) -> None:
    words = {"already": "already wrapped", "lost": "not restored", "to_wrap": "to wrap", "to_restore": "to restore"}
    for server in made.servers:
        place = f" (in {server.entry.where[1]})" if len(server.entry.where) > 2 else ""
        outcome = _outcome(server, writes)
        name = server.entry.name.encode(errors="replace").decode()
        why = f": {safe(server.why)}" if server.why else ""
        click.echo(f"  {words.get(outcome, outcome):15} {cut(name + place, 60)}{why}")
    new = sum(server.outcome in ("wrapped", "restored") for server in made.servers)
    through = sum(server.outcome in ("wrapped", "already") for server in made.servers)
    of = f"of {len(made.servers)} servers in {safe(path)} ({made.client})"
    if check:
        click.echo(f"{through - new} {of} go through the proxy" + (f", {new} could and do not" if new else ""))
    elif undo:
        click.echo(f"{new} {of} {'restored' if writes else 'would be restored'}")
        if made.edited_since:
            click.echo("The file was edited since it was wrapped: the servers are restored one by one, the edits stay.")
    else:
        click.echo(f"{through} {of} {'go' if writes else 'would go'} through the proxy, {new} of them new")
    if run:
        click.echo(f"Keep this running, the remote servers are reached through it:\n  {shlex.join(run)}")
    set_here = [name for name in _PASSED if os.environ.get(name)]
    if new and not undo and not check and set_here:
        click.echo(f"{' and '.join(set_here)} is set here; a client may not pass it on to its servers.")


def _outcome(server: Server, writes: bool) -> str:
    planned = {"wrapped": "to_wrap", "restored": "to_restore"}
    return server.outcome if writes else planned.get(server.outcome, server.outcome)


def _summary(path: Path, made: Plan, action: str, *, changed: bool, writes: bool, run: list[str]) -> dict[str, Any]:
    def one(server: Server) -> dict[str, Any]:
        entry = server.entry
        found = {"name": entry.name, "where": list(entry.where), "line": entry.line, "transport": server.kind}
        return {**found, "outcome": _outcome(server, writes), "why": server.why}

    return {
        "file": str(path),
        "client": made.client,
        "action": action,
        "changed": changed,
        "edited_since": made.edited_since,
        "servers": [one(server) for server in made.servers],
        "run": run or None,
    }
