"""CPU that operators take per event, in process, as events, keys, rules and open calls grow.

`python -m tests.bench.bench_operators` prints the figures as JSON: µs of CPU per event, medians of interleaved rounds.
`loop` is the same records through an operator that does nothing, `unit` a fixed piece of Python on this machine at this
hour, so that runs on busy machines can be compared.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import orjson

from pipelines.operators import build_operators
from pipelines.pending_calls.operator import PendingCalls
from pipelines.rolling_metrics.operator import RollingMetrics
from pipelines.runtime.port import Operator, Record
from pipelines.runtime.worker import collect_garbage_seldom
from pipelines.sequence_rules.compiled import CompiledPack, compile_pack
from pipelines.sequence_rules.loader import load_rules
from pipelines.sequence_rules.operator import SequenceRules
from schemas.clock import from_rfc3339, to_rfc3339
from schemas.config import Config
from schemas.identity import derived_id
from schemas.rules import RulePack
from tests.bench import bench_pipelines
from tests.pipelines.helpers import T0, call_event

CALLS = 10_000
ROUNDS = 5
BATCH = 500
KEY_SCALES = (1, 10, 100, 1000)
RULE_SCALES = (1, 17, 100)
"""Gives 8, about 100 and about 600 rules."""
EVENTS = (5_000, 50_000)
OPEN_CALLS = (1_000, 10_000, 100_000, 1_000_000)
KEYS = 10
GROWING_KEYS = (1_000, 10_000)
CALLS_A_KEY = 10
"""Tools in use at scale 1."""

_T0 = from_rfc3339("2026-03-01T12:00:00Z")
_COMMANDS = ("ls", "git", "cat", "python", "rg", "npm", "make")


class _Nothing:
    """An operator that does nothing, and an Out that drops all."""

    def on_event(self, record: Record, out: Any) -> None: ...

    def on_progress(self, t_ms: int, out: Any) -> None: ...

    def put(self, topic: str, record_id: str, body: dict[str, Any], key: str | None = None) -> None: ...

    retract = put


def traffic(keys: int, calls: int = CALLS, seed: int = 1) -> list[Record]:
    """Starts and ends of ordinary calls of 50 sessions within 100 s; one in a hundred is of interest to a rule."""
    rng = Random(seed)
    records = []
    for number in range(calls):
        at_ms = _T0 + number * 100_000 // calls
        session, tool = f"session-{number % 50:032}", number % keys
        interest = rng.random() < 0.01
        path = "/srv/app/.env" if interest else f"/srv/app/src/module_{rng.randrange(200)}.py"
        common: dict[str, Any] = {
            "event_version": "1.0",
            "agent_runtime": "claude_code",
            "session_id": session,
            "root_session_id": session,
            "agent_id": "main",
            "trace_id": f"{number % 50:032x}",
            "source_adapter": "bench/1",
            "severity": "info",
            "call_id": derived_id("bench call", number),
            "tool_name": f"tool_{tool}",
            "tool_source": "mcp" if tool % 2 else "shell",
            "input": {"size_bytes": 420, "hash": f"hmac-sha256:k1:{number:064x}", "summary": "x" * 200},
            "facts": {
                "commands": [{"argv0": rng.choice(_COMMANDS), "flags": ["-a"]}],
                "paths": [{"path": path, "kind": "read"}],
            },
        }
        if tool % 2:
            common["mcp"] = {"server_name": f"server_{tool % 7}"}
        took = rng.randrange(5, 900)
        outcome = "ok" if rng.random() < 0.95 else "error"
        for name, ms, more in (
            ("tool.call.started", at_ms, {}),
            ("tool.call.completed" if outcome == "ok" else "tool.call.error", at_ms + took, {"outcome": outcome}),
        ):
            event = {
                **common,
                **more,
                "event_name": name,
                "event_id": derived_id("bench", name, number),
                "timestamp": to_rfc3339(ms),
            }
            records.append((ms, orjson.loads(orjson.dumps(event))))
    records.sort(key=lambda one: one[0])
    return [Record("agenttrace.tool.call", 0, n, ms, event) for n, (ms, event) in enumerate(records)]


def rules(scale: int) -> CompiledPack:
    """The shipped pack, and its rules that look for something as often as asked, each copy for other values.

    A rule that counts every call costs what it costs each time; a pack has few of them.
    """
    shipped = load_rules().rules
    copies = []
    for again in range(scale):
        for rule in shipped if again == 0 else [rule for rule in shipped if rule.when.sequence is not None]:
            text = orjson.dumps(rule.model_dump(exclude={"samples"})).decode()
            if again:
                for word in (".env", "id_rsa", "credentials", "passwd", "fetch", "curl", "git", "terraform", "mkfs"):
                    text = text.replace(word, f"{word}{again}")
            copy = type(rule).model_validate_json(text)
            copies.append(copy.model_copy(update={"id": f"{rule.id}-{again}"}))
    return compile_pack(RulePack(rules=tuple(copies)))


def cost(make: Callable[[], Operator | _Nothing], records: list[Record]) -> float:
    """µs of CPU per event."""
    operator, out = make(), _Nothing()
    gc.collect()
    started = time.process_time_ns()
    for begin in range(0, len(records), BATCH):
        batch = records[begin : begin + BATCH]
        for record in batch:
            operator.on_event(record, out)
        operator.on_progress(batch[-1].log_time_ms, out)
    return (time.process_time_ns() - started) / 1000 / len(records)


def unit() -> float:
    """µs of CPU for a fixed piece of Python."""
    started = time.process_time_ns()
    for _ in range(200):
        sum(range(1000))
    return (time.process_time_ns() - started) / 1000 / 200


def _rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def open_calls(count: int) -> dict[str, float]:
    """What so many calls that never ended cost, each in a session of its own: time, memory and checkpoint.

    `start_us`, `end_us`: the last tenth of the starts, and as many ends. `bytes_per_call`: growth of this process.
    """
    collect_garbage_seldom()
    common = {
        "agent_version": "2.1.0",
        "agent_id": "main",
        "trace_id": "a" * 32,
        "turn_id": "0199c0de-0000-7000-8000-000000000001",
        "run_id": "0199c0de-0000-7000-8000-000000000002",
        "mcp": {"server_name": "github", "safe_server_name": "github", "tool_name": "search", "transport": "stdio"},
    }

    def records(name: str, first: int, last: int) -> list[Record]:
        made = []
        for number in range(first, last):
            session = f"0199c0de-0000-7000-8000-{number:012}"
            own = {"session_id": session, "root_session_id": session, "span_id": f"{number:016x}"}
            own |= {"call_id": derived_id("bench open", number), "tool_call_id": f"toolu_{number:024}"}
            value = orjson.dumps({**call_event(name, 0, number, **common), **own})
            made.append(Record("agenttrace.tool.call", 0, number, T0, orjson.loads(value)))
        return made

    def fold(batch: list[Record]) -> float:
        started = time.process_time()
        for record in batch:
            calls.on_event(record, out)
        return (time.process_time() - started) / len(batch) * 1e6

    def spent(what: Callable[[], Any]) -> tuple[float, Any]:
        started = time.process_time()
        result = what()
        return round(time.process_time() - started, 3), result

    calls, out, step = PendingCalls(), _Nothing(), min(BATCH, count // 10)
    fold(records("tool.call.started", count, count + 300))
    before, starts = _rss_bytes(), []
    for first in range(0, count, step):
        starts.append(fold(records("tool.call.started", first, first + step)))
    grown = _rss_bytes()
    dump_s, state = spent(calls.dump)
    load_s, _ = spent(lambda: PendingCalls().load(state))
    ends = fold(records("tool.call.completed", 0, step))
    return {
        "start_us": round(statistics.median(starts[-max(1, len(starts) // 10) :]), 2),
        "end_us": round(ends, 2),
        "bytes_per_call": round((grown - before) / count),
        "rss_mib": round(grown / (1 << 20)),
        "dump_s": dump_s,
        "load_s": load_s,
        "dump_bytes_per_call": round(len(state) / count),
    }


def events(count: int) -> Callable[[], float]:
    """Measures µs of CPU per event of all operators, decode included."""
    fed = bench_pipelines.batches(bench_pipelines.traffic(count))
    return lambda: bench_pipelines.in_process(build_operators(Config()), fed)[0]


def run() -> dict[str, Any]:
    """The figures; see the module."""
    # Each number of open calls in a process of its own, so that memory is what it looks like.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        opened = {str(count): pool.apply(open_calls, (count,)) for count in OPEN_CALLS}
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    logs = {scale: traffic(KEYS * scale) for scale in KEY_SCALES}
    packs = {scale: rules(scale) for scale in RULE_SCALES}
    for records in logs.values():
        for record in records:
            record.event_ms  # noqa: B018  (the worker's first operator pays for it)
    sides: dict[str, Callable[[], float]] = {"unit": unit, "loop": lambda: cost(_Nothing, logs[1])}
    for scale in KEY_SCALES:
        sides[f"rolling_metrics, {KEYS * scale} keys"] = lambda s=scale: cost(lambda: RollingMetrics(0), logs[s])
    for scale in RULE_SCALES:
        sides[f"sequence_rules, {len(packs[scale].rules)} rules"] = lambda s=scale: cost(
            lambda: SequenceRules(0, [(0, packs[s])]), logs[1]
        )
    for count in EVENTS:
        sides[f"all operators, {count} events"] = events(count)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, measure in sides.items():
            taken[name].append(measure())
    figures = {name: round(statistics.median(values), 2) for name, values in taken.items()}
    growth = {
        "events": _tenfold(figures[f"all operators, {count} events"] for count in EVENTS),
        "keys": _tenfold(cost(lambda: RollingMetrics(0), traffic(keys, CALLS_A_KEY * keys)) for keys in GROWING_KEYS),
        "open_calls": _tenfold(found["start_us"] + found["end_us"] for found in opened.values()),
    }
    return {"us_per_event": figures, "open_calls": opened, "growth": growth, "events": 2 * CALLS, "rounds": ROUNDS}


def _tenfold(costs: Iterable[float]) -> float:
    """What ten times as much costs at its worst step: ten times the events, each at the cost of the larger size."""
    return round(max(10 * more / less for less, more in pairwise(costs)), 1)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
