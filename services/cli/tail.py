"""`agenttrace tail`: events as they come, one readable line each."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, get_args

import click
import orjson

from schemas.errors import UserError
from schemas.events import Outcome, Runtime
from schemas.topics import HEADER_KIND, KIND_CONTROL, TOPICS
from services.cli.main import load_config
from services.cli.running import kafka_kwargs
from services.cli.text import cut, safe

_SHOWN = tuple(topic.name for topic in TOPICS if topic.kind != "internal" and topic.events)
_MARK = {"ok": "[green]ok[/]", "error": "[red]error[/]", "blocked": "[yellow]blocked[/]", "timeout": "[red]timeout[/]"}
_QUIET = frozenset({"producer.heartbeat", "metric.window.closed"})
_AGO = re.compile(r"(\d+)([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.option("--runtime", type=click.Choice(get_args(Runtime)), help="Only this runtime.")
@click.option("--session", help="Only sessions that begin with this.")
@click.option("--tool", help="Only tools whose name contains this.")
@click.option("--event", "name", help="Only events whose name begins with this, e.g. tool.call or risk.")
@click.option("--outcome", type=click.Choice(get_args(Outcome)), help="Only calls that ended so.")
@click.option("--since", help="Begin this long ago (90s, 10m, 2h, 1d) instead of now.")
@click.option("--until-now", is_flag=True, help="Stop at what is there now instead of waiting for more.")
@click.option("--all", "everything", is_flag=True, help="Also heartbeats and metric windows.")
@click.option("--json", "as_json", is_flag=True, help="Print whole events as JSON lines.")
def tail(since: str | None, until_now: bool, as_json: bool, everything: bool, **wanted: Any) -> None:
    """Follow the event topics; Ctrl-C ends it.

    \b
    Examples:
      agenttrace tail --event tool.call --outcome error
      agenttrace tail --since 1h --until-now --json | jq -r .tool_name
    """
    kwargs = kafka_kwargs(load_config().config)
    start_ms = None if since is None else int((time.time() - _seconds(since)) * 1000)
    asyncio.run(_follow(kwargs, start_ms, until_now, _filter(wanted, everything), _json if as_json else _line()))


def _filter(wanted: Mapping[str, Any], everything: bool) -> Callable[[Mapping[str, Any]], bool]:
    def keep(event: Mapping[str, Any]) -> bool:
        name = str(event.get("event_name"))
        return (
            (everything or name not in _QUIET or bool(wanted["name"]))
            and wanted["runtime"] in (None, event.get("agent_runtime"))
            and wanted["outcome"] in (None, event.get("outcome"))
            and name.startswith(wanted["name"] or "")
            and str(event.get("session_id") or "").startswith(wanted["session"] or "")
            and (wanted["tool"] or "") in str(event.get("tool_name") or "")
        )

    return keep


async def _follow(
    kwargs: dict[str, Any],
    start_ms: int | None,
    until_now: bool,
    keep: Callable[[Mapping[str, Any]], bool],
    show: Callable[[dict[str, Any]], None],
) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import KafkaError

    from services.kafka import partitions_of, reason

    consumer = AIOKafkaConsumer(**kwargs, enable_auto_commit=False, auto_offset_reset="earliest")
    try:
        await consumer.start()
        partitions = await partitions_of(kwargs, _SHOWN)
        if not partitions:
            raise UserError("no AgentTrace topic on this broker; `agenttrace topics create` makes them", exit_code=69)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        starts = await consumer.offsets_for_times(dict.fromkeys(partitions, start_ms)) if start_ms is not None else {}
        for partition in partitions:
            found = starts.get(partition)
            consumer.seek(partition, found.offset if found else ends[partition])
        await _print(consumer, ends if until_now else None, keep, show)
    except (KafkaError, OSError, TimeoutError) as error:
        raise await reason(kwargs, error) from None
    finally:
        await consumer.stop()


async def _print(
    consumer: Any, ends: Mapping[Any, int] | None, keep: Callable[..., bool], show: Callable[..., None]
) -> None:
    while True:
        batch = await consumer.getmany(timeout_ms=300)
        records = sorted((record for rows in batch.values() for record in rows), key=lambda record: record.timestamp)
        for record in records:
            if (HEADER_KIND, KIND_CONTROL) in record.headers:
                continue
            try:
                event = orjson.loads(record.value)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict) and keep(event):
                show(event)
        if ends is not None:
            left = [p for p, end in ends.items() if await consumer.position(p) < end]
            if not left:
                return


def _json(event: dict[str, Any]) -> None:
    click.echo(orjson.dumps(event))


def _line() -> Callable[[dict[str, Any]], None]:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)

    def show(event: dict[str, Any]) -> None:
        console.print(
            f"[dim]{clock(event)}[/] [cyan]{escape(safe(event.get('agent_runtime', ''))):11}[/] "
            f"{escape(safe(event.get('event_name')).removeprefix('tool.call.')):18} {_outcome(event)}{escape(safe(describe(event)))}"
        )

    return show


def describe(event: Mapping[str, Any]) -> str:
    """What an event says, in a few words; no colours."""
    parts: list[str] = []
    mcp = event.get("mcp") or {}
    if mcp.get("server_name"):
        parts.append(f"{mcp['server_name']}/{mcp.get('tool_name')}")
    elif event.get("tool_name"):
        parts.append(str(event["tool_name"]))
    if "title" in event:
        parts.append(f"{event['title']} ({event.get('risk', '')}, {event.get('evidence_count', 1)} events)")
    for side in ("input", "content"):
        summary = (event.get(side) or {}).get("summary")
        if summary:
            parts.append(cut(summary, 80))
    error = event.get("error") or {}
    if error.get("message_summary"):
        parts.append("→ " + cut(error["message_summary"], 60))
    if "duration_ms" in event:
        parts.append(f"{event['duration_ms']:.0f} ms")
    for name in ("reason", "cause", "model", "outcome_evidence"):
        if event.get(name):
            parts.append(f"{name.removeprefix('outcome_')}={event[name]}")
    if event.get("session_id"):
        parts.append(f"[{str(event['session_id'])[:8]}]")
    return " · ".join(parts)


def _outcome(event: Mapping[str, Any]) -> str:
    outcome = event.get("outcome")
    return f"{_MARK.get(str(outcome), str(outcome))}  " if outcome else ""


def clock(event: Mapping[str, Any]) -> str:
    """When it happened, in local time with milliseconds."""
    try:
        moment = datetime.fromisoformat(str(event.get("timestamp")))
    except ValueError:
        return "??:??:??.???"
    return f"{moment.astimezone():%H:%M:%S}.{moment.astimezone(UTC).microsecond // 1000:03d}"


def _seconds(text: str) -> int:
    match = _AGO.fullmatch(text)
    if not match:
        raise click.BadParameter(f"'{text}' is no span; write 90s, 10m, 2h or 1d", param_hint="--since")
    return int(match[1]) * _UNIT_S[match[2]]
