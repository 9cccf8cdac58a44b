"""`make chaos`: the storms, one after the other; says what was done, what was found, and whether all of it held.

Results: .agenttrace/chaos/results.json and results.md. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.chaos import clock_jump, disk_full, kills, outage
from tests.chaos.judge import Verdict
from tests.chaos.stand import Failure

OUT = Path(".agenttrace/chaos")
ROOT = Path(__file__).parents[2]
SCHEDULES = 10_000
CLUSTER_STORMS = 5
KILL_RUNS = 5


@dataclass(slots=True)
class Result:
    """One storm: `state` is passed, FAILED or SKIPPED."""

    name: str
    what: str
    state: str
    seconds: float
    runs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Storm:
    """How a storm is run; `runs` times, each on fresh state. `short` is for a quick look."""

    what: str
    run: Callable[[Path, int], Verdict]
    short: Callable[[Path, int], Verdict]
    runs: int = 1


def _module(*command: str) -> Callable[[Path, int], Verdict]:
    def run(_: Path, number: int) -> Verdict:
        """A storm that judges itself: its exit code counts, its last line is what it says."""
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        lines = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        failed = [f"exit code {done.returncode}", *lines[-8:]] if done.returncode else []
        return Verdict(failed, {"said": lines[-1][:300]})

    return run


STORMS: dict[str, Storm] = {
    "simulation": Storm(
        f"{SCHEDULES:,} seeded schedules of crashes, rebalances, repeats and delays, in memory",
        _module("tests.simulation.run", "--schedules", str(SCHEDULES)),
        _module("tests.simulation.run", "--schedules", "200"),
    ),
    "cluster": Storm(
        f"{CLUSTER_STORMS} storms over worker groups on three brokers: kills, joins, leaves, frozen workers, a broker killed",
        _module("tests.chaos.cluster.run", "--storms", str(CLUSTER_STORMS)),
        _module("tests.chaos.cluster.run", "--storms", "1"),
    ),
    "kills": Storm(
        "10,000 hooks from 32 connections, kill -9 of collector, worker and sink in turn, three times each",
        lambda folder, number: kills.storm(folder, seed=number),
        lambda folder, number: kills.storm(folder, hooks=1500, each=1, seed=number),
        runs=KILL_RUNS,
    ),
    "outage": Storm(
        "five rounds under load: calm, broker away for 30 s, ClickHouse away for 30 s",
        lambda folder, number: outage.storm(folder),
        lambda folder, number: outage.storm(folder, rounds=1, away_s=5),
    ),
    "disk_full": Storm(
        "the disk fills up while the broker is away; the collector is killed on the full disk",
        lambda folder, number: disk_full.storm(folder),
        lambda folder, number: disk_full.storm(folder, hooks=1600),
    ),
    "clock_jump": Storm(
        "clocks of collector and worker jump to 1 h ahead, to 1 h behind, and back",
        lambda folder, number: clock_jump.storm(folder),
        lambda folder, number: clock_jump.storm(folder, hooks=1000),
    ),
}


def run(name: str, rounds: int, short: bool) -> Result:
    """A storm by name; a run that cannot be judged has failed."""
    storm = STORMS[name]
    began = time.monotonic()
    result = Result(name, storm.what, "passed", 0)
    for number in range(1, (1 if short else rounds or storm.runs) + 1):
        folder = Path(tempfile.mkdtemp(prefix=f"agenttrace-chaos-{name}-"))
        try:
            verdict = (storm.short if short else storm.run)(folder, number)
        except disk_full.Unavailable as reason:
            result.state, result.problems = "SKIPPED", [str(reason)]
            break
        except (Failure, OSError, subprocess.SubprocessError, RuntimeError) as error:
            verdict = Verdict([f"not judged: {type(error).__name__}: {error}"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        result.runs.append(verdict.figures)
        result.problems += [f"run {number}: {problem}" for problem in verdict.problems]
        print(f"  {name} run {number}: {'; '.join(verdict.problems) or 'holds'}", file=sys.stderr, flush=True)
    if result.state == "passed" and result.problems:
        result.state = "FAILED"
    result.seconds = round(time.monotonic() - began, 1)
    return result


def table(results: list[Result], load: str, short: bool) -> str:
    """Markdown for a person who has never seen the project."""
    lines = [
        "# What the storms did, and what held",
        "",
        "After every storm: all that was answered is in the journal, in Kafka and in ClickHouse exactly once; every sequence number",
        "is there or receipted; findings, timeouts and metrics equal those of a fresh worker that reads the same log.",
        "",
        "| storm | what was done | runs | result | seconds |",
        "| --- | --- | ---: | --- | ---: |",
    ]
    lines += [f"| {r.name} | {r.what} | {len(r.runs)} | {r.state} | {r.seconds:.0f} |" for r in results]
    if short:
        lines += ["", "These were short runs: one of each, smaller than the table says."]
    lines += ["", f"Machine: {load}.", ""]
    for r in results:
        lines += [f"## {r.name}: {r.state}", ""]
        lines += [f"- {problem}" for problem in r.problems]
        for number, figures in enumerate(r.runs, start=1):
            told = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
            lines.append(f"- run {number}: {told}")
        lines.append("")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name}: {_short(item)}" for name, item in value.items()) + ")"
    if isinstance(value, list):
        return "/".join(_short(item) for item in value)
    return str(value)


def main() -> None:
    """Run the named storms, or all; exits with 1 if one failed."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*STORMS, []], help="storms to run; all without any")
    parser.add_argument("--rounds", type=int, default=0, help="runs of each storm, instead of its own number")
    parser.add_argument("--short", action="store_true", help="one small run of each")
    options = parser.parse_args()
    results = []
    for name in options.names or STORMS:
        print(f"{name}: {STORMS[name].what} …", file=sys.stderr, flush=True)
        results.append(run(name, options.rounds, options.short))
        print(f"{name}: {results[-1].state} after {results[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    load = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    OUT.mkdir(parents=True, exist_ok=True)
    found = {"machine": load, "short": options.short, "storms": [asdict(result) for result in results]}
    (OUT / "results.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    (OUT / "results.md").write_text(table(results, load, options.short), encoding="utf-8")
    print(table(results, load, options.short))
    sys.exit(any(result.state == "FAILED" for result in results))


if __name__ == "__main__":
    main()
