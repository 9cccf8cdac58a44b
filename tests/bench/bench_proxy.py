"""What a proxy adds to an MCP call, against a direct connection in the same run: stdio and HTTP, 1, 32 and 256 calls at a
time, results of 1 KiB and 1 MiB, ours and two public proxies (tests.bench.proxy_ways).

`python -m tests.bench.bench_proxy` prints the figures as JSON. Client and server are raw (tests.bench.mcp_raw): they cost
little, so what is added is the proxy's; the same with a server on the public SDK says what is left of that where a server
does something. Every round goes through all cells and ways; figures are medians over rounds of what
a round says. Ours writes its events to a file. Times are milliseconds, the processor's are microseconds a call.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.proxy_ways import PUBLIC, RAW, ROOT, SDK, WAYS, Way, await_port

CELLS = tuple((calls, size) for size in (1 << 10, 1 << 20) for calls in (1, 32, 256))
_SDK_CELLS = ((1, 1 << 10), (32, 1 << 10))
_OURS = ("direct", "agenttrace")
SECONDS = 0.8
_ROUNDS = 5
_MOST_CALLS_OF_PUBLIC = 32
"""The public proxies take minutes for 256 results of 1 MiB at a time."""


async def _cell(way: Way, calls: int, size: int, seconds: float) -> dict[str, float]:
    """`calls` at a time for so long, each at least once: throughput, P50, P95, processor time a call."""
    took: list[float] = []
    before, began = way.cpu(), time.perf_counter()
    deadline = began + seconds

    async def worker(number: int) -> None:
        caller = way.callers[number % len(way.callers)]
        while True:
            start = time.perf_counter()
            await caller.call(size)
            end = time.perf_counter()
            took.append((end - start) * 1000)
            if end > deadline:
                return

    await asyncio.gather(*(worker(number) for number in range(calls)))
    elapsed = time.perf_counter() - began
    way.settle()
    after = way.cpu()
    took.sort()
    return {
        "calls_per_s": len(took) / elapsed,
        "p50": took[len(took) // 2],
        "p95": took[min(len(took) - 1, int(len(took) * 0.95))],
        "cpu_us": (after.proxy - before.proxy) / len(took) * 1e6,
        "observer_cpu_us": (after.observer - before.observer) / len(took) * 1e6,
    }


async def _transport(
    transport: str, port: int, folder: Path, rounds: int, seconds: float, *, module: str = RAW
) -> dict[str, Any]:
    names, cells = (WAYS, CELLS) if module == RAW else (_OURS, _SDK_CELLS)
    connections = max(calls for calls, _ in cells)
    ways = [await Way.start(name, transport, port, connections, folder, module=module) for name in names]
    found: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    try:
        for way in ways:
            await _cell(way, 8, 1 << 10, 0.3)  # warm
        for number in range(rounds):
            for calls, size in cells:
                for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                    if way.name not in PUBLIC or calls <= _MOST_CALLS_OF_PUBLIC:
                        found.setdefault((way.name, calls, size), []).append(await _cell(way, calls, size, seconds))
    finally:
        for way in ways:
            way.end()
    return _figures(found)


def _figures(found: dict[tuple[str, int, int], list[dict[str, float]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for (name, calls, size), rounds in found.items():
        direct = found["direct", calls, size]
        cell = f"{calls}x{'1KiB' if size == 1 << 10 else '1MiB'}"
        row = {
            "p50": statistics.median(one["p50"] for one in rounds),
            "p95": statistics.median(one["p95"] for one in rounds),
            "calls_per_s": statistics.median(one["calls_per_s"] for one in rounds),
        }
        if name != "direct":
            pairs = list(zip(rounds, direct, strict=True))
            row |= {
                "p50_added": statistics.median(one["p50"] - base["p50"] for one, base in pairs),
                "p95_added": statistics.median(one["p95"] - base["p95"] for one, base in pairs),
                "throughput_ratio": statistics.median(one["calls_per_s"] / base["calls_per_s"] for one, base in pairs),
                "cpu_us_a_call": statistics.median(one["cpu_us"] for one in rounds),
            }
        if name == "agenttrace":
            row["observer_cpu_us_a_call"] = statistics.median(one["observer_cpu_us"] for one in rounds)
        figures.setdefault(name, {})[cell] = {key: round(value, 3) for key, value in row.items()}
    if not PUBLIC.keys() <= figures.keys():
        return figures
    cell = "1x1KiB"
    figures["public_added_over_ours"] = {
        name: round(figures[name][cell]["p50_added"] / max(figures["agenttrace"][cell]["p50_added"], 0.001), 2)
        for name in PUBLIC
    }
    figures["ours_throughput_over_public"] = {
        name: round(figures["agenttrace"]["32x1KiB"]["calls_per_s"] / figures[name]["32x1KiB"]["calls_per_s"], 2)
        for name in PUBLIC
    }
    return figures


def run(rounds: int = _ROUNDS, seconds: float = SECONDS) -> dict[str, Any]:
    """The figures of both transports, with the raw server and with the SDK's."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="agenttrace-bench-") as folder:
        for module, suffix in ((RAW, ""), (SDK, "_sdk")):
            command = [sys.executable, "-m", module, "http"]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
                try:
                    assert server.stdout is not None
                    port = int(server.stdout.readline())
                    await_port(port)
                    for transport in ("stdio", "http"):
                        figures[transport + suffix] = uvloop.run(
                            _transport(transport, port, Path(folder), rounds, seconds, module=module)
                        )
                finally:
                    server.kill()
    return figures


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
