"""`agenttrace replay`: what the stream processors make of a range of the log, as a file that two runs can be compared by."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from schemas.clock import to_rfc3339
from schemas.errors import UserError
from services.cli.main import load_config
from services.cli.running import kafka_kwargs

if TYPE_CHECKING:
    from pipelines.replay import Bound, Place, Replayed

_AGO = re.compile(r"(\d+)([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Moment(click.ParamType):
    """A log time: RFC 3339, a span before now such as 2h, or `now`. Gives ms since the Unix epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        now_ms = time.time_ns() // 1_000_000
        if value == "now":
            return now_ms
        if match := _AGO.fullmatch(value):
            return now_ms - int(match[1]) * _UNIT_MS[match[2]]
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"'{value}' is no time; write 2026-03-01T12:00:00Z, a span before now (90s, 10m, 2h, 1d), or now")
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command()
@click.option("--since", type=_Moment(), help="First log time of the range; else all that the log has.")
@click.option(
    "--until",
    type=_Moment(),
    help="What workers have said by this log time, e.g. `now`; else all that follows from the records, also what falls "
    "due later.",
)
@click.option(
    "--range",
    "range_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The very range of an earlier replay, whose --json summary this file is.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the records here, not to stdout.")
@click.option("--prefix", default="", help="What the topics' names begin with, before `agenttrace.`.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def replay(
    *, since: int | None, until: int | None, range_file: Path | None, out: Path | None, prefix: str, as_json: bool
) -> None:
    """Run the stream processors over a range of the log, and write what they say.

    Reads the input topics without a consumer group and changes nothing in Kafka. The records are JSON lines sorted by
    topic and id, as they stand in the end and without version: the same range gives the same bytes, and so do live
    workers. The summary goes to stdout if the records go to a file, else to stderr.

    Exit code 69 if Kafka or a topic is missing, 77 if the login is refused, 73 if the file cannot be written.

    \b
    Examples:
      agenttrace replay --out derived.jsonl
      agenttrace replay --since 2h --until now | jq -r 'select(.topic == "agenttrace.risk.finding").body.title'
      agenttrace replay --out a.jsonl --json > range.json; agenttrace replay --range range.json --out b.jsonl
    """
    from aiokafka.errors import KafkaError

    from pipelines.operators import build_operators
    from pipelines.replay import replay as run
    from services.kafka import reason

    if range_file is not None and (since is not None or until is not None):
        raise click.UsageError("--range says the whole range; --since and --until do not go with it")
    start: Bound = since
    end: Bound = None
    if range_file is not None:
        start, end, until = _read_range(range_file)
    config = load_config().config
    kwargs, operators = kafka_kwargs(config), build_operators(config)

    async def replayed(report: Callable[[int, int], None]) -> Replayed:
        try:
            return await run(kwargs, operators, prefix=prefix, start=start, end=end, until_ms=until, report=report)
        except (KafkaError, OSError, TimeoutError) as error:
            raise await reason(kwargs, error) from None

    with _opened(out) as file:
        started = time.monotonic()
        with _bar() as report:
            done = asyncio.run(replayed(report))
        size = 0
        for line in done.said.lines():
            size += file.write(line + b"\n")
    summary = _summary(done, start if isinstance(start, int) else None, until, size, time.monotonic() - started)
    click.echo(orjson.dumps(summary, option=orjson.OPT_INDENT_2) if as_json else _text(summary), err=out is None)


def _summary(done: Replayed, since: int | None, until: int | None, size: int, seconds: float) -> dict[str, Any]:
    from pipelines.replay import sha256

    ranges: dict[str, dict[str, list[int]]] = {}
    for (topic, number), (first, last) in done.ranges.items():
        ranges.setdefault(topic, {})[str(number)] = [first, last]
    return {
        "records": done.records,
        "warmed": done.warmed,
        "duplicates": done.duplicates,
        "refused": dict(Counter(refused.by for refused in done.refusals)),
        "failures": done.failures,
        "outputs": done.said.counts(),
        "state": "partial" if done.partial else "complete",
        "partial": [f"{topic}/{number}" for topic, number in done.partial],
        "since": None if since is None else to_rfc3339(since),
        "until": None if until is None else to_rfc3339(until),
        "ranges": ranges,
        "bytes": size,
        "sha256": sha256(done.said),
        "seconds": round(seconds, 3),
    }


def _text(summary: dict[str, Any]) -> str:
    lines = [f"{count:>9,} records of {topic}" for topic, count in summary["records"].items()]
    if summary["warmed"]:
        lines.append(f"{summary['warmed']:>9,} records before the range, for the state at its start")
    if summary["duplicates"]:
        lines.append(f"{summary['duplicates']:>9,} of a producer that sent them twice, dropped")
    lines += [f"{count:>9,} refused by {by}" for by, count in summary["refused"].items()]
    lines += [f"failed at progress: {failure}" for failure in summary["failures"]]
    lines += [f"{count:>9,} say {topic}" for topic, count in summary["outputs"].items()]
    if summary["partial"]:
        lines.append(f"state is partial: the log lacks records before {', '.join(summary['partial'])}")
    lines.append(f"sha256 {summary['sha256']} of {summary['bytes']:,} bytes, in {summary['seconds']:.1f} s")
    return "\n".join(lines)


def _read_range(path: Path) -> tuple[Bound, dict[Place, int], int | None]:
    """Start, end and until of a summary."""
    from schemas.clock import from_rfc3339

    try:
        summary = orjson.loads(path.read_bytes())
        ranges = {
            (topic, int(number)): (int(first), int(last))
            for topic, numbers in summary["ranges"].items()
            for number, (first, last) in numbers.items()
        }
        since, until = (None if summary[name] is None else from_rfc3339(summary[name]) for name in ("since", "until"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: no summary of a replay ({type(error).__name__}); `agenttrace replay --json --out FILE` prints one",
            exit_code=os.EX_DATAERR,
        ) from None
    start: Bound = since if since is not None else {place: first for place, (first, _) in ranges.items()}
    return start, {place: last for place, (_, last) in ranges.items()}, until


@contextmanager
def _opened(out: Path | None) -> Iterator[IO[bytes]]:
    """The file to write, opened before the work; it is there only once it is whole."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(out)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}; name another file", exit_code=os.EX_CANTCREAT
        ) from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replay", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
