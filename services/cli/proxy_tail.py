"""`agenttrace proxy tail`: MCP operations as they come, one readable line each."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from schemas.errors import UserError
from services import config as configuration
from services.cli.tail import clock
from services.cli.text import cut, safe
from services.mcp_proxy import live
from services.mcp_proxy.sockets import address

_POLL_S = 0.3
_MAX_LINE = 8 << 20
_MAX_OPEN = 10_000
_START = "agenttrace proxy stdio --server NAME -- COMMAND ARGS…"
_WORDS = {
    "completed": "ok",
    "error": "error",
    "timeout": "timeout",
    "cancelled": "cancelled",
    "stream_aborted": "aborted",
    "late": "late",
    "input_required": "asks",
    "task_pending": "task",
}
_STYLES = {"ok": "green", "late": "yellow", "asks": "cyan", "task": "cyan", "cancelled": "yellow"}
_HEALTH = {"up": "green", "down": "red", "degraded": "yellow", "backoff": "yellow"}
_TEXT = re.compile(r'"text":"((?:[^"\\]|\\.)+)')
_HEADER = f"{'time':12}  {'server':14} {'operation':36} {'status':9} {'took':>9}  {'sent → got':19} request"

Segments = list[tuple[str, str]]
"""Text and its rich style ('' for none)."""


@click.command()
@click.option("--server", help="Only servers whose name contains this.")
@click.option("--tool", help="Only calls of tools whose name contains this.")
@click.option(
    "--method", help="Only methods that contain this, e.g. tools/call; notifications are shown only when asked for so."
)
@click.option("--status", type=click.Choice(sorted(_WORDS.values())), help="Only operations that ended so.")
@click.option("--json", "as_json", is_flag=True, help="Print whole events as JSON lines.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read a file that `--sink jsonl:FILE` writes instead of the running proxies.",
)
@click.option("--no-follow", is_flag=True, help="With --file: stop at its end.")
def tail(as_json: bool, file: Path | None, no_follow: bool, **wanted: Any) -> None:
    """Show the MCP operations of all running proxies, and of those that start meanwhile; Ctrl-C ends it.

    \b
    Where a person was asked, the time of an operation is split into the server's and the person's.
    Examples:
      agenttrace proxy tail --status error
      agenttrace proxy tail --server github --tool issue
      agenttrace proxy tail --file calls.jsonl --no-follow --json | jq -r .tool_name
    """
    if no_follow and file is None:
        raise click.UsageError("a running proxy keeps nothing of the past: --no-follow needs --file FILE")
    events = _of_file(file, follow=not no_follow) if file else _of_proxies(configuration.home() / live.FOLDER)
    asyncio.run(_show(events, View(wanted, requests=as_json), _json if as_json else _printer()))


async def _show(
    events: AsyncIterator[dict[str, Any]], view: View, show: Callable[[dict[str, Any], Segments], None]
) -> None:
    async for event in events:
        line = view.line(event)
        if line is not None:
            show(event, line)


# where events come from


async def _of_file(path: Path, *, follow: bool) -> AsyncIterator[dict[str, Any]]:
    while not path.exists():
        if not follow:
            raise UserError(f"{path} does not exist; a proxy writes it with --sink jsonl:{path}", exit_code=66)
        await asyncio.sleep(_POLL_S)
    with path.open("rb") as file:
        rest = b""
        while True:
            if path.stat().st_size < file.tell():
                file.seek(0)
                rest = b""
            chunk = file.read(1 << 20)
            if not chunk:
                if not follow:
                    return
                await asyncio.sleep(_POLL_S)
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                for event in _parsed(line):
                    yield event


async def _of_proxies(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Attaches to every socket in the folder, also to those that appear later."""
    found: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1000)
    attached: dict[Path, asyncio.Task[None]] = {}
    alone = False
    while True:
        live.clean(folder)
        for pid, path in live.sockets(folder):
            if path not in attached:
                attached[path] = asyncio.create_task(_attach(pid, path, found))
        attached = {path: task for path, task in attached.items() if not task.done()}
        if not attached and not alone:
            click.echo(f"no proxy is running; one starts with: {_START}   (waiting, Ctrl-C ends this)", err=True)
        alone = not attached
        # Looked for again at once when something came, so that a busy proxy hides no new one for long.
        try:
            yield await asyncio.wait_for(found.get(), _POLL_S)
            while not found.empty():
                yield found.get_nowait()
        except TimeoutError:
            continue


async def _attach(pid: int, path: Path, found: asyncio.Queue[dict[str, Any]]) -> None:
    try:
        reader, writer = await asyncio.open_unix_connection(address(path), limit=_MAX_LINE)
    except OSError:
        return
    click.echo(f"proxy {pid}: attached", err=True)
    try:
        while line := await reader.readline():
            for event in _parsed(line):
                await found.put(event)
    except (OSError, ValueError):
        pass
    finally:
        writer.close()
    click.echo(f"proxy {pid}: ended", err=True)


def _parsed(line: bytes) -> list[dict[str, Any]]:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    if isinstance(event, dict) and "missed" in event and "event_name" not in event:
        click.echo(f"{event['missed']} events were not shown: they came faster than this reader takes them", err=True)
        return []
    return [event] if isinstance(event, dict) else []


# what is shown


class View:
    """Which events make a line, and what it says; requests make one only if asked for.

    Keeps the open requests, since an answer names little of its own.
    """

    def __init__(self, wanted: Mapping[str, str | None], *, requests: bool = False) -> None:
        self._requests = requests
        self._wanted = {name: value for name, value in wanted.items() if value}
        self._open: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    def line(self, event: Mapping[str, Any]) -> Segments | None:
        """The line of an event; None where it has none or is not wanted."""
        name = str(event.get("event_name"))
        if name == "mcp.rpc.request":
            self._open[_operation(event)] = event
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
            tool = str(event.get("tool_name") or "")
            return [] if self._requests and self._wants(event, method=str(event.get("method")), tool=tool) else None
        if name in ("mcp.rpc.response", "mcp.rpc.error"):
            return self._operation(event)
        if name == "mcp.rpc.notification" and "method" not in self._wanted:
            return None
        kind, style, said = _other(name, event)
        if not kind or not self._wants(event, method=str(event.get("method") or "")):
            return None
        return _row(event, kind, [(said, style)])

    def _operation(self, event: Mapping[str, Any]) -> Segments | None:
        key, status = _operation(event), str(event.get("status"))
        goes_on = status in ("input_required", "task_pending")
        asked = self._open.get(key, {}) if goes_on else self._open.pop(key, {})
        method = str(event.get("method") or asked.get("method") or "?")
        tool = str(event.get("tool_name") or asked.get("tool_name") or "")
        word = "error" if event.get("is_error_result") and status == "completed" else _WORDS.get(status, status)
        if not self._wants(event, method=method, tool=tool, status=word):
            return None
        if goes_on and not self._requests and "status" not in self._wanted:
            # One line an operation, when it is over.
            return None
        sent = event.get("request") or asked.get("request") or {}
        got = event.get("response") or {}
        sizes = f"{_size(sent.get('size_bytes'))} → {_size(got.get('size_bytes'))}"
        rest: Segments = [
            (f"{word:9} ", _STYLES.get(word, "red")),
            (f"{_ms(event.get('duration_ms')):>9}  ", ""),
            (f"{sizes:19} ", "dim"),
            (f"{_id(event)} {key[:8]}", "dim"),
        ]
        if event.get("duration_human_ms"):
            split = f"  {_ms(event.get('duration_server_ms'))} server, {_ms(event['duration_human_ms'])} person"
            rest.append((split, "cyan"))
        error = event.get("protocol_error") or {}
        if error:
            rest.append((f"  {safe(error.get('code'))} {cut(error.get('message_summary') or '', 100)}", "red"))
        elif word == "error":
            rest.append((f"  {cut(_words(got) or 'the result says that it is an error', 100)}", "red"))
        back = "← " if event.get("direction") == "client_to_server" else ""
        return _row(event, f"{back}{method} {tool}".rstrip(), rest)

    def _wants(self, event: Mapping[str, Any], **found: str) -> bool:
        wanted = self._wanted
        if "status" in wanted and found.get("status") != wanted["status"]:
            return False
        found["server"] = str(event.get("mcp_server") or "")
        return all(wanted[name] in found.get(name, "") for name in ("server", "tool", "method") if name in wanted)


def _other(name: str, event: Mapping[str, Any]) -> tuple[str, str, str]:
    """What happened, style and words of an event that ends no operation; nothing for what is no event of a proxy."""
    content = event.get("content") or {}
    reason = cut(event.get("reason") or "", 100)
    if name == "mcp.server.health_changed":
        health = str(event.get("health"))
        return f"server {safe(health)}", _HEALTH.get(health, "dim"), reason
    if name == "mcp.server.stderr":
        return "stderr", "dim", cut(content.get("summary") or _size(content.get("size_bytes")), 160)
    if name == "mcp.rpc.invalid_frame":
        side = "request" if event.get("direction") == "client_to_server" else "response"
        frame = event.get(side) or event.get("request") or event.get("response") or {}
        return "not JSON-RPC", "yellow", f"{_size(frame.get('size_bytes'))}  {cut(frame.get('summary') or reason, 120)}"
    if name == "mcp.rpc.notification":
        return safe(event.get("method") or "?"), "dim", _size((event.get("request") or {}).get("size_bytes"))
    if name == "mcp.tools.listed":
        return "tools listed", "dim", f"{event.get('count')} tools"
    if name == "mcp.elicitation.requested":
        return "asks a person", "cyan", cut(content.get("summary") or event.get("mode") or "", 120)
    if name == "mcp.elicitation.completed":
        return "person answered", "cyan", safe(event.get("action") or "")
    if name == "producer.dropped":
        return "events lost", "red", f"{event.get('count')} ({reason})"
    return "", "", ""


def _row(event: Mapping[str, Any], what: str, rest: Segments) -> Segments:
    return [
        (f"{clock(event)}  ", "dim"),
        (f"{cut(event.get('mcp_server') or '-', 14):14} ", "cyan"),
        (f"{cut(what, 36):36} ", ""),
        *rest,
    ]


def _operation(event: Mapping[str, Any]) -> str:
    return str(event.get("operation_id") or f"{event.get('connection_id')}|{event.get('jsonrpc_id')}")


def _words(side: Mapping[str, Any]) -> str:
    """The first text of a tool's result, else the summary as it is (it may be cut, so it is not read as JSON)."""
    summary = str(side.get("summary") or "")
    found = _TEXT.search(summary)
    return found[1].replace('\\"', '"').replace("\\n", " ") if found else summary


def _id(event: Mapping[str, Any]) -> str:
    number = event.get("jsonrpc_id")
    return f"id {cut(number, 12)}" if number is not None else "no id"


def _ms(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _size(value: Any) -> str:
    if not isinstance(value, int):
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if value < 1000 or unit == "MiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value = value / 1024
    return ""


def _json(event: dict[str, Any], line: Segments) -> None:
    click.echo(orjson.dumps(event))


def _printer() -> Callable[[dict[str, Any], Segments], None]:
    if not sys.stdout.isatty():
        return lambda event, line: click.echo("".join(text for text, _ in line).rstrip())
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(_HEADER, style="dim")
    return lambda event, line: console.print(Text.assemble(*line), soft_wrap=True)
