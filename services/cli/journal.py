"""`agenttrace journal`: what the collector has on disk. Reads only, whether a collector runs or not."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import orjson

from schemas.errors import UserError
from services import config as configuration
from services.cli.tail import describe
from services.cli.text import safe
from services.collector.journal import Journal, Line, Position, intact, parse_lines
from services.collector.publisher import gaps_between, read_pointer
from services.collector.reserve import read_page, reserve_lines

_SEQS = re.compile(r"(?:(\d+):)?(\d+)(?:\.\.(\d+))?")
_POINTER = "published-"


@click.group()
def journal() -> None:
    """Look into the collector's journal, also while it runs.

    \b
    Examples:
      agenttrace journal ls
      agenttrace journal show -n 20 --event tool.call
      agenttrace journal verify
    """


@dataclass(slots=True)
class _Segment:
    name: str
    size: int
    age_s: float
    lines: int = 0
    damaged: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    published: dict[str, str] = field(default_factory=dict)


@journal.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(as_json: bool) -> None:
    """List the segments, oldest first: what is in them, and which sink has them.

    A running collector saves each second how far its sinks are.

    \b
    Examples:
      agenttrace journal ls
      agenttrace journal ls --json | jq '.segments[] | select(.damaged > 0) | .name'
    """
    folder = _folder()
    sinks = {
        path.stem.removeprefix(_POINTER): read_pointer(path)[0]
        for path in sorted(folder.parent.glob(f"{_POINTER}*.json"))
    }
    segments = [_segment(name, data, age, sinks) for name, data, age in _contents(folder)]
    waiting, owed = reserve_lines(_read(folder.parent / "reserve")), read_page(_read(folder.parent / "counters"))[1]
    counted = sum(item.count for item in owed.values())
    if as_json:
        found = {"segments": segments, "reserve_lines": len(waiting), "losses_without_receipt": counted}
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("segment", "from", "to", "lines", "size", "age", "damaged", *sinks, box=None, pad_edge=False)
    for one in segments:
        damaged = f"[red]{one.damaged}[/]" if one.damaged else "0"
        stamps = (_said(one.first), _said(one.last))
        counts = (str(one.lines), _size(one.size), _age(one.age_s), damaged)
        table.add_row(one.name.removesuffix(".jsonl"), *stamps, *counts, *(one.published[sink] for sink in sinks))
    Console().print(table)
    click.echo(f"{len(segments)} segments, {_size(sum(one.size for one in segments))}; from and to are epoch:seq")
    if waiting or counted:
        click.echo(f"full disk: {len(waiting)} lines wait in the reserve, {counted} losses wait for their receipt")


@journal.command()
@click.option("--seq", "seqs", help="Only these: 41, 41..60, or with the epoch 3:41..60.")
@click.option("--event", "name", default="", help="Only events whose name begins with this, e.g. tool.call.")
@click.option("--session", default="", help="Only sessions that begin with this.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Only the newest N of them.")
@click.option("--json", "as_json", is_flag=True, help="Print whole events as JSON lines.")
def show(seqs: str | None, name: str, session: str, count: int | None, as_json: bool) -> None:
    """Print journalled events, oldest first, each with epoch:seq.

    \b
    Examples:
      agenttrace journal show -n 20
      agenttrace journal show --seq 3:41..60 --json | jq .event_name
      agenttrace journal show --event producer.dropped
    """
    wanted = _seqs(seqs)
    folder = _folder()

    def found() -> Iterator[dict[str, Any]]:
        for segment, data, _ in _contents(folder):
            for _, line in parse_lines(segment, data):
                for event in line.events or ():
                    named = event["event_name"].startswith(name)
                    if named and str(event.get("session_id") or "").startswith(session) and wanted(event["producer"]):
                        yield event

    for event in found() if count is None else deque(found(), count):
        click.echo(orjson.dumps(event) if as_json else _readable(event))


@journal.command()
@click.pass_context
def verify(ctx: click.Context) -> None:
    """Check every checksum and that no seq is missing; exit code 65 where something is damaged.

    What was dropped for want of room and told by a receipt is no damage.

    \b
    Example:
      agenttrace journal verify || echo "see above"
    """
    folder = _folder()
    lines = problems = 0
    last = (0, 0)
    for segment, data, _ in _contents(folder):
        end = 0
        # A collector removes segments from the oldest on: what went before one that is gone is not missing.
        last = last if data else (0, 0)
        for _, line in parse_lines(segment, data):
            lines, end = lines + 1, line.next.offset
            for problem in _problems(line, last):
                problems += 1
                click.echo(f"{folder / segment}:{line.position.offset}: {problem}")
            last = _last(line) or last
        if end < len(data):
            click.echo(f"{folder / segment}:{end}: {len(data) - end} bytes of a line that never got whole; not damage")
    for line in reserve_lines(_read(folder.parent / "reserve")):
        lines += 1
        if line.events is None:
            problems += 1
            click.echo(f"{folder.parent / 'reserve'}:{line.position.offset}: the line does not fit its checksum")
    click.echo(f"{lines} lines, {problems} problems")
    if problems:
        ctx.exit(os.EX_DATAERR)


def _problems(line: Line, last: tuple[int, int]) -> Iterator[str]:
    if line.events is None:
        yield "the line does not fit its checksum"
        return
    stamps = [event["producer"] for event in line.events]
    if line.dropped:
        stamps = [{"epoch": line.dropped[0], "seq": line.dropped[1]}]
    for producer in stamps:
        stamp = (producer["epoch"], producer["seq"])
        if stamp <= last:
            yield f"seq {_said(stamp)} comes after {_said(last)}"
        for gap in gaps_between(last, producer):
            yield f"seqs {gap.epoch}:{gap.first}..{gap.last} are missing before this line"
        last = stamp


def _last(line: Line) -> tuple[int, int] | None:
    if line.dropped:
        return line.dropped[0], line.dropped[2]
    return (line.events[-1]["producer"]["epoch"], line.events[-1]["producer"]["seq"]) if line.events else None


def _first(line: Line) -> tuple[int, int] | None:
    if line.dropped:
        return line.dropped[0], line.dropped[1]
    return (line.events[0]["producer"]["epoch"], line.events[0]["producer"]["seq"]) if line.events else None


def _segment(name: str, data: bytes, age_s: float, sinks: dict[str, Position]) -> _Segment:
    """Only the ends of a segment are parsed; all of it is checked."""
    whole = data.split(b"\n")[:-1]
    found = _Segment(name, len(data), age_s, len(whole))
    good = [raw for raw in whole if intact(raw + b"\n")]
    found.damaged = len(whole) - len(good)
    if good:
        [(_, first)], [(_, last)] = (list(parse_lines(name, raw + b"\n")) for raw in (good[0], good[-1]))
        found.first, found.last = _first(first), _last(last)
    for sink, position in sinks.items():
        if position.segment == name and position.offset < len(data):
            found.published[sink] = f"{100 * position.offset // len(data)} %"
        else:
            found.published[sink] = "yes" if position.segment >= name else "no"
    return found


def _folder() -> Path:
    folder = configuration.home() / "collector" / "journal"
    if not folder.is_dir():
        raise UserError(
            f"no journal in {folder}; a collector makes it at its first start, AGENTTRACE_HOME says where",
            exit_code=os.EX_NOINPUT,
        )
    return folder


def _contents(folder: Path) -> Iterator[tuple[str, bytes, float]]:
    """(name, content, seconds since it was written to) of each segment, read at once: a running collector may put
    another in its place or remove it.
    """
    for name in Journal(folder).segments():
        try:
            with open(folder / name, "rb") as file:
                yield name, file.read(), time.time() - os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            yield name, b"", 0.0
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read ({error.strerror})", exit_code=os.EX_NOINPUT) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _seqs(text: str | None) -> Any:
    if text is None:
        return lambda producer: True
    match = _SEQS.fullmatch(text)
    if not match:
        raise click.BadParameter(f"'{text}' is no range; write 41, 41..60 or 3:41..60", param_hint="--seq")
    epoch, first, last = match[1], int(match[2]), int(match[3] or match[2])
    return lambda producer: first <= producer["seq"] <= last and epoch in (None, str(producer["epoch"]))


def _readable(event: dict[str, Any]) -> str:
    producer = event["producer"]
    said = f"{producer['epoch']}:{producer['seq']:<6} {event.get('timestamp', '')} {event.get('agent_runtime', ''):11} "
    return said + safe(f"{event['event_name']} {event.get('outcome') or ''} {_dropped(event)} {describe(event)}")


def _dropped(event: dict[str, Any]) -> str:
    if event["event_name"] != "producer.dropped":
        return ""
    ranges = event.get("ranges", ())
    named = ", ".join(f"{gap['epoch']}:{gap['first']}..{gap['last']}" for gap in ranges[:5])
    return f"{event['count']} events {named}{' …' if len(ranges) > 5 else ''}"


def _said(stamp: tuple[int, int] | None) -> str:
    return f"{stamp[0]}:{stamp[1]}" if stamp else "-"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
