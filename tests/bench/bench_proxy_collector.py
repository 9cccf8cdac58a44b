"""MCP calls through `agenttrace proxy stdio` while the collector and Kafka are alive, and while both are dead.

`python -m tests.bench.bench_proxy_collector` prints the figures as JSON. Two proxies, one with a collector that publishes to
a real Kafka and one with neither, take turns: 5,000 calls of 1 KiB a round, of a server on the public SDK (with the raw one
a round is over in 0.2 s, and says more of the machine than of the proxy). What is asked of the proxy is that the dead ones
do not slow it down. Times are seconds a round.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from services.embedded.host import free_port
from services.embedded.kafka import KafkaBroker
from tests.bench.mcp_raw import StdioCaller

ROOT = Path(__file__).parents[2]
CALLS = 5_000
_AT_A_TIME = 8
_COLLECTOR_WITHIN_S = 60
_AGENTTRACE = str(Path(sys.executable).parent / "agenttrace")
_PROXIED = [
    _AGENTTRACE,
    "proxy",
    "stdio",
    "--server",
    "sdk",
    "--",
    sys.executable,
    "-m",
    "tests.bench.mcp_sdk",
    "stdio",
]


def _environment(home: Path, bootstrap: str) -> dict[str, str]:
    values = {
        "AGENTTRACE_HOME": str(home),
        "AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        "AGENTTRACE_COLLECTOR__PORT": "0",
        "PYTHONPATH": str(ROOT),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTTRACE_")}
    return kept | values


async def _round(caller: StdioCaller) -> tuple[float, float]:
    """Seconds of the clock, and of the processor in the forwarding process."""
    forwarder = psutil.Process(caller.pid)

    async def worker() -> None:
        for _ in range(CALLS // _AT_A_TIME):
            await caller.call(1 << 10)

    before, began = forwarder.cpu_times(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(_AT_A_TIME)))
    elapsed, after = time.perf_counter() - began, forwarder.cpu_times()
    return elapsed, after.user + after.system - before.user - before.system


def _quiet(processes: list[psutil.Process], within_s: float = 60) -> None:
    """Wait until none of these or their children works any more, so that one way takes nothing from the other."""
    deadline, before = time.monotonic() + within_s, -1.0
    while time.monotonic() < deadline:
        now = 0.0
        for top in processes:
            for process in (top, *top.children(recursive=True)):
                times = process.cpu_times()
                now += times.user + times.system
        if now - before < 0.05:
            return
        before = now
        time.sleep(0.25)


async def _rounds(
    homes: dict[str, tuple[Path, str]], collector: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    callers = {name: StdioCaller() for name in homes}
    for name, (home, bootstrap) in homes.items():
        await callers[name].start(_PROXIED, _environment(home, bootstrap))
    working = [psutil.Process(collector), *(psutil.Process(caller.pid) for caller in callers.values())]
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in homes}
    for number in range(rounds + 1):
        for name in sorted(homes, reverse=number % 2 == 1):
            found = await _round(callers[name])
            if number:  # the first warms up
                took[name].append(found)
            _quiet(working)
    for caller in callers.values():
        caller.close()
    return took


def run(rounds: int = 5) -> dict[str, Any]:
    """Seconds of 5,000 calls in each round, their medians, and dead over alive."""
    with tempfile.TemporaryDirectory(prefix="agenttrace-bench-") as name:
        folder = Path(name)
        with KafkaBroker(folder / "kafka") as broker:
            homes = {
                "alive": (folder / "alive", broker.bootstrap),
                "dead": (folder / "dead", f"127.0.0.1:{free_port()}"),
            }
            for home, _ in homes.values():
                home.mkdir(mode=0o700)
            environment = _environment(*homes["alive"])
            subprocess.run([_AGENTTRACE, "topics", "create"], env=environment, check=True, capture_output=True)
            with subprocess.Popen([_AGENTTRACE, "collector"], env=environment, stderr=subprocess.DEVNULL) as collector:
                try:
                    _answers(folder / "alive" / "collector.sock")
                    took = uvloop.run(_rounds(homes, collector.pid, rounds))
                finally:
                    collector.terminate()
        arrived = sum(file.stat().st_size for file in (folder / "alive" / "collector").rglob("*") if file.is_file())
        spooled = sum(file.stat().st_size for file in (folder / "dead" / "spool").rglob("*") if file.is_file())
    clock = {name: [round(seconds, 3) for seconds, _ in found] for name, found in took.items()}
    medians = {name: statistics.median(seconds) for name, seconds in clock.items()}
    cpu = {name: statistics.median(seconds for _, seconds in found) for name, found in took.items()}
    return {
        "seconds": clock,
        "median": medians,
        "dead_over_alive": round(medians["dead"] / medians["alive"], 3),
        "forwarder_cpu_us_a_call": {name: round(seconds / CALLS * 1e6, 1) for name, seconds in cpu.items()},
        "forwarder_cpu_dead_over_alive": round(cpu["dead"] / cpu["alive"], 3),
        "collected_bytes": arrived,
        "spooled_bytes": spooled,
    }


def _answers(path: Path) -> None:
    deadline = time.monotonic() + _COLLECTOR_WITHIN_S
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the collector did not start")


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
