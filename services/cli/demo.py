"""`agenttrace demo`: the main job on recorded sessions, from nothing to a summary, on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson

from schemas.errors import UserError
from services.adapters.recordings import read
from services.adapters.registry import ADAPTERS
from services.cli.running import kafka_kwargs
from services.cli.stack import begin
from services.cli.text import cut, safe
from services.config import load
from services.demo import check, synthetic
from services.demo import report as reports
from services.demo.report import Report
from services.demo.send import DemoSession, Sender, Sent, mcp_session

TTL_MS = 3000
_PAUSE_S = 0.02
_WAIT_S = 90.0
SESSIONS = Path(__file__).parent.parent / "demo" / "sessions"


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the summary as JSON.")
@click.option("--keep", is_flag=True, help="Leave the stack running; `AGENTTRACE_HOME=… agenttrace down` ends it.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".agenttrace/demo"),
    show_default=True,
    help="State folder; made anew, and removed at the end.",
)
def demo(json_file: Path | None, keep: bool, home: Path) -> None:
    """Start real Kafka, ClickHouse, collector, worker and sink on fresh state, send every recorded session of the four runtimes
    through the real front doors and MCP calls to a real server through the proxy, and say what was found. Ends by itself;
    exit code 0 only if the numbers add up.

    \b
    Examples:
      agenttrace demo
      agenttrace demo --json summary.json
      agenttrace demo --keep
    """
    home = home.absolute()
    signal.signal(signal.SIGTERM, _on_term)
    for name in [name for name in os.environ if name.startswith("AGENTTRACE_")]:
        del os.environ[name]
    os.environ["AGENTTRACE_HOME"] = str(home)
    _fresh(home)
    began = time.monotonic()
    try:
        click.echo("Starting on fresh state:", err=True)
        begin(home, _line, _environment())
        found = asyncio.run(_show(home, began))
    finally:
        if not keep:
            _end(home)
    _print(found)
    if json_file:
        json_file.write_bytes(orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2, default=str) + b"\n")
    if keep:
        click.echo(f"\nStill running. Look: AGENTTRACE_HOME={home} agenttrace query 'select * from tool_calls'")
    if found.problems:
        raise UserError("the numbers do not add up:\n  " + "\n  ".join(found.problems), exit_code=1)


def sessions() -> list[DemoSession]:
    """Every recorded session, and for each runtime a synthetic one at its end."""
    found = []
    for runtime in sorted(ADAPTERS):
        files = sorted((SESSIONS / runtime).glob("*.jsonl"))
        if not files:
            raise UserError(f"no recorded session in {SESSIONS / runtime}; install the package again", exit_code=66)
        for file in files:
            found.append(DemoSession(runtime, file.stem, False, [(r.hook, r.body) for r in read(file)]))
        told = synthetic.session(runtime)
        payloads = [(str(p.get("hook_event_name") or p.get("hook")), p) for p in told]
        found.append(DemoSession(runtime, "synthetic", True, payloads))
    return found


async def _show(home: Path, began: float) -> Report:
    from services.embedded import run_file

    seconds = {"start": time.monotonic() - began}
    where = run_file.require(home).endpoints
    assert where.http_port and where.socket and where.clickhouse_dsn
    chosen = sessions()
    total = sum(len(session.payloads) for session in chosen)
    mark = time.monotonic()
    with _bar(f"Sending {total} hook payloads of {len(chosen)} sessions", total) as tick:
        sender = Sender(home, where.http_port, Path(where.socket), _PAUSE_S, tick)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(sender.run(chosen))
                mcp = group.create_task(mcp_session(home, Path(where.socket)))
        except* UserError as errors:
            raise _first(errors) from None
    seconds["send"] = time.monotonic() - mark
    mark = time.monotonic()
    kwargs = kafka_kwargs(load().config)
    import clickhouse_connect

    client = await asyncio.to_thread(lambda: clickhouse_connect.get_client(dsn=where.clickhouse_dsn))
    report = await _settle(home, sender.sent, mcp.result(), kwargs, client)
    seconds["settle"] = time.monotonic() - mark
    reports.fill(report, client)
    runtimes = sorted(ADAPTERS)
    report.problems += reports.missing_findings(client, runtimes)
    reports.judge(report, runtimes)
    report.restarts = {name: part.restarts for name, part in run_file.require(home).parts.items() if part.restarts}
    seconds["total"] = time.monotonic() - began
    report.seconds = {name: round(value, 1) for name, value in seconds.items()}
    client.close()
    return report


def _first(errors: ExceptionGroup[UserError]) -> UserError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


async def _settle(
    home: Path, sent: Sent, mcp_sent: list[tuple[str, str]], kwargs: dict[str, Any], client: Any
) -> Report:
    """Wait until everything accepted is in Kafka and ClickHouse and what had to be found was found, or until time is up."""
    runtimes = sorted(ADAPTERS)
    problems: list[str] = []
    deadline = time.monotonic() + _WAIT_S

    async def wait(step: str, reached: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not await asyncio.to_thread(reached):
            if time.monotonic() > deadline:
                problems.append(f"not reached in {_WAIT_S:.0f} s: {step}")
                return
            await asyncio.sleep(0.2)
        _line(step, "done", time.monotonic() - began)

    await wait("the collector has every payload", lambda: check.journalled(home).deliveries >= sent.payloads)
    await wait("the collector has every MCP call", lambda: len(check.journalled(home).mcp_calls) >= len(mcp_sent))
    # What is in the journal now is what must arrive; heartbeats go on meanwhile and are not waited for.
    wanted = check.journalled(home)
    await wait("every event is in ClickHouse", lambda: wanted.seqs <= set(check.in_clickhouse(client)))
    await wait("calls past their time are found", lambda: client.query(reports.OPEN).result_rows[0][0] == 0)
    await wait("findings are there", lambda: not reports.missing_findings(client, runtimes))
    await wait("metric windows are there", lambda: bool(client.query(reports.SLOWEST).result_rows))
    kafka = await check.in_kafka(kwargs)
    rows = await asyncio.to_thread(check.in_clickhouse, client)
    calls = await asyncio.to_thread(check.calls_in_clickhouse, client)
    ours = [place for place in rows if place in wanted.seqs]
    report = Report(
        payloads=sent.payloads,
        doors=dict(sent.by_door),
        deliveries=wanted.deliveries,
        accepted=len(wanted.seqs),
        kafka=len(kafka & wanted.seqs),
        clickhouse=len(ours),
        tool_calls=len(calls),
        mcp_sent=mcp_sent,
        problems=problems,
    )
    if not len(wanted.seqs) == report.kafka == report.clickhouse == len(set(ours)):
        problems.append(
            f"events differ: {report.accepted} accepted, {report.kafka} in Kafka, {report.clickhouse} rows of which "
            f"{len(set(ours))} distinct in ClickHouse (by producer, epoch, seq)"
        )
    if sorted(calls) != sorted(wanted.calls):
        problems.append(
            f"tool calls differ: {len(wanted.calls)} in the journal, {len(calls)} rows of which {len(set(calls))} distinct"
        )
    return report


def _on_term(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _environment() -> dict[str, str]:
    return {
        "AGENTTRACE_COLLECTOR__PORT": "0",
        "AGENTTRACE_PIPELINES__PORT": "0",
        "AGENTTRACE_SINK__PORT": "0",
        "AGENTTRACE_RELIABILITY__PENDING_CALL_TTL_MS": str(TTL_MS),
    }


def _fresh(home: Path) -> None:
    _end(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / ".agenttrace-demo").touch()


def _end(home: Path) -> None:
    from services.embedded import run_file

    if not home.exists():
        return
    if any(home.iterdir()) and not (home / ".agenttrace-demo").exists():
        raise UserError(
            f"{home} is not a demo's folder and not empty; name another with --home", exit_code=os.EX_CANTCREAT
        )
    run_file.stop(home)
    shutil.rmtree(home)


def _line(step: str, state: str, seconds: float) -> None:
    if state == "done":
        click.echo(f"  ok {step:32} {seconds:5.1f} s", err=True)


class _bar:
    """A progress bar on a terminal, a line elsewhere."""

    def __init__(self, text: str, total: int) -> None:
        self._bar = click.progressbar(length=total, label=text, file=click.get_text_stream("stderr"))

    def __enter__(self) -> Callable[[], None]:
        self._bar.__enter__()
        return lambda: self._bar.update(1)

    def __exit__(self, *args: object) -> None:
        self._bar.__exit__(*args)  # type: ignore[arg-type]


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.print("\n[bold]What the agents did[/]")
    outcomes = ("ok", "error", "blocked", "cancelled", "timeout", "unknown")
    table = Table("runtime", "calls", *outcomes, box=None, pad_edge=False)
    for row in report.calls:
        table.add_row(*(str(row[name]) for name in ("agent_runtime", "calls", *outcomes)))
    console.print(table)
    console.print("[dim]unknown: nothing proves how it ended; a hook that fired is not a success[/]")

    console.print(
        f"\n[bold]Calls that never ended[/] (no end within {TTL_MS / 1000:.0f} s, the demo's limit): {len(report.never_ended)}"
    )
    for row in report.never_ended[:8]:
        console.print(
            f"  {row['agent_runtime']:11} {row['tool_name']:24} {cut(row['input_summary'], 60)}", markup=False
        )
    if len(report.never_ended) > 8:
        console.print(f"  … and {len(report.never_ended) - 8} more")

    console.print("\n[bold]MCP calls on the wire[/] (mcp-server-time, through `agenttrace proxy stdio`)")
    wire = Table("server", "tool", "calls", "status", "ms", "of the server", box=None, pad_edge=False)
    for row in report.mcp:
        status = "ok" if not row["failed"] else f"error {row['error_code'] or 'in the result'}"
        cells = (row["tool_name"], row["calls"], status, row["ms"], row["server_ms"])
        wire.add_row(cut(row["mcp_server"], 30), *(cut(cell, 40) for cell in cells))
    console.print(wire)

    console.print(f"\n[bold]Findings[/]: {len(report.findings)}")
    for row in report.findings[:12]:
        colour = {"critical": "red", "high": "yellow"}.get(row["risk"], "white")
        first = row["evidence"][0]
        console.print(
            f"  [{colour}]{row['risk']:8}[/] {row['agent_runtime']:11} {row['title']}\n"
            f"           [dim]{row['evidence_count']} events, first {first[1]}/{first[2]}/{first[3]}, session {safe(row['session_id'])}[/]"
        )
    if len(report.findings) > 12:
        console.print(f"  … and {len(report.findings) - 12} more")

    console.print("\n[bold]Slowest tools[/] (from merged sketches)")
    slow = Table("tool", "runtime", "calls", "P50 ms", "P95 ms", box=None, pad_edge=False)
    for row in report.slowest:
        slow.add_row(
            cut(row["tool_name"], 50), row["agent_runtime"], str(row["calls"]), str(row["p50_ms"]), str(row["p95_ms"])
        )
    console.print(slow)

    doors = ", ".join(f"{count} by {door}" for door, count in sorted(report.doors.items()))
    same = "equal" if report.accepted == report.kafka == report.clickhouse else "[red]NOT EQUAL[/]"
    console.print(f"\n[bold]Do the numbers add up?[/]\n  hook payloads sent  {report.payloads} ({doors})")
    console.print(f"  events accepted     {report.accepted}")
    console.print(f"  events in Kafka     {report.kafka}")
    console.print(f"  rows in ClickHouse  {report.clickhouse}   {same}")
    console.print(f"  tool calls          {report.tool_calls}, one row each")
    if report.restarts:
        console.print(f"  parts that died and were started again: {report.restarts}")
    times = ", ".join(f"{name} {value:.1f} s" for name, value in report.seconds.items())
    console.print(f"  {times}")
    console.print(
        "\nWhere to look next: make up, then .venv/bin/agenttrace tail | query SQL (docs/queries.md) | status; docs/architecture.md"
    )
