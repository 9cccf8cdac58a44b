"""A soak of both forwarders and their observers: calls, reconnects and broken-off connections at a steady pace.

`python -m tests.services.mcp_proxy.soak --minutes 20` prints the resident memory of each process (MiB) once a minute, and
exits with 1 if the last third grew by more than 4 MiB over the third before it. Outside `make test`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from services.embedded.host import free_port
from tests.bench.mcp_raw import HttpCaller, StdioCaller
from tests.bench.proxy_ways import await_port

ROOT = Path(__file__).parents[3]
_AGENTTRACE = str(Path(sys.executable).parent / "agenttrace")
_RAW = [sys.executable, "-m", "tests.bench.mcp_raw"]
_PAUSE_S = 0.02
_ALLOWED_MIB = 4.0


async def _http(port: int, until: float) -> int:
    """Ten calls a connection, of which every third is broken off in the middle of a call; returns the calls."""
    calls = 0
    while time.monotonic() < until:
        caller = HttpCaller(port, "/mcp/raw")
        await caller.start()
        await caller.initialize()
        for size in (100, 1000, 50_000, 100, 100, 2_000_000, 100, 1000, 100, 100):
            await caller.call(size)
            calls += 1
            await asyncio.sleep(_PAUSE_S)
        if calls % 30 == 0:
            broken = asyncio.ensure_future(caller.call(2_000_000))
            await asyncio.sleep(0)
            caller.close()
            broken.cancel()
        caller.close()
    return calls


async def _stdio(caller: StdioCaller, until: float) -> int:
    calls = 0
    while time.monotonic() < until:
        await caller.call((100, 1000, 50_000, 100)[calls % 4])
        calls += 1
        await asyncio.sleep(_PAUSE_S)
    return calls


def _resident(tops: dict[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pid in tops.items():
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            words = process.cmdline()
            if "tests.bench.mcp_raw" in words and process.pid != pid and "proxy" not in words:
                continue
            part = "observer" if "services.mcp_proxy.observe" in words else "forwarder"
            key = f"{name} {part}"
            found[key] = round(found.get(key, 0.0) + process.memory_info().rss / 2**20, 1)
    return found


async def _watch(tops: dict[str, int], until: float, every_s: float) -> list[dict[str, float]]:
    seen: list[dict[str, float]] = []
    while time.monotonic() < until:
        await asyncio.sleep(every_s)
        seen.append(_resident(tops))
        print(f"{len(seen):3d}", seen[-1], flush=True)
    return seen


async def _soak(minutes: float) -> int:
    every_s = min(60.0, minutes * 60 / 9)
    with tempfile.TemporaryDirectory(prefix="agenttrace-soak-") as folder:
        env = os.environ | {"AGENTTRACE_HOME": folder, "PYTHONPATH": str(ROOT)}
        sink = ["--sink", "jsonl:/dev/null"]
        server = subprocess.Popen([*_RAW, "http"], cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert server.stdout is not None
        url, port = f"http://127.0.0.1:{int(server.stdout.readline())}/mcp", free_port()
        listen = ["--listen", f"127.0.0.1:{port}", "--route", f"raw={url}"]
        proxy = subprocess.Popen([_AGENTTRACE, "proxy", "http", *listen, *sink], env=env, cwd=ROOT)  # noqa: ASYNC220
        stdio = StdioCaller()
        try:
            await_port(port)
            await stdio.start([_AGENTTRACE, "proxy", "stdio", "--server", "raw", *sink, "--", *_RAW, "stdio"], env)
            until = time.monotonic() + minutes * 60
            tops = {"http": proxy.pid, "stdio": stdio.pid}
            *calls, seen = await asyncio.gather(
                _http(port, until), _http(port, until), _stdio(stdio, until), _watch(tops, until, every_s)
            )
        finally:
            stdio.close()
            proxy.terminate()
            proxy.wait(10)
            server.kill()
            server.wait()
    print(f"{sum(calls)} calls")
    third = len(seen) // 3
    grown = {
        name: statistics.median(row[name] for row in seen[-third:])
        - statistics.median(row[name] for row in seen[-2 * third : -third])
        for name in seen[-1]
    }
    print("grown in the last third, MiB:", {name: round(value, 1) for name, value in grown.items()})
    return int(any(value > _ALLOWED_MIB for value in grown.values()))


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    return asyncio.run(_soak(parser.parse_args().minutes))


if __name__ == "__main__":
    sys.exit(main())
