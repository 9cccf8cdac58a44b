"""What a collector costs: hooks a second and time to answer over the Unix socket, journal and redaction included, and
its memory.

`python tests/bench/bench_collector.py` prints the figures as JSON. The collector runs in a process of its own with a
JSON-lines sink; the callers share one more process, so on two cores nothing waits for a core of its own. `--uvloop`
runs it on uvloop.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOOKS = 3000
CONNECTIONS = (1, 32)
_OUTPUT = "".join(f"tests/unit/test_module_{n:02d}.py::test_case PASSED [{n:3d}%]\n" for n in range(24))


def payloads() -> Iterator[bytes]:
    """Pairs of a call's start and end as Claude Code sends them, about 2 KB each."""
    number = 0
    while True:
        common = {
            "session_id": f"5f0c2f7e-7d0e-4a8a-9f3d-{number // 500:012d}",
            "transcript_path": "/home/dev/.claude/projects/-home-dev-shop/session.jsonl",
            "cwd": "/home/dev/shop",
            "permission_mode": "default",
            "tool_name": "Bash",
            "tool_input": {
                "command": f"cd services/orders && pytest -q tests/unit/test_module_{number % 24:02d}.py | tail -30",
                "description": "Run the unit tests of one module. " * 40,
            },
            "tool_use_id": f"toolu_{number:024d}",
        }
        yield json.dumps({**common, "hook_event_name": "PreToolUse"}).encode()
        response = {"stdout": _OUTPUT, "stderr": "", "interrupted": False, "isImage": False}
        yield json.dumps(
            {**common, "hook_event_name": "PostToolUse", "tool_response": response, "duration_ms": 812}
        ).encode()
        number += 1


async def _caller(path: str, bodies: Iterator[bytes], count: int, times: list[float]) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    for _ in range(count):
        body = next(bodies)
        head = f"POST /hooks/claude_code HTTP/1.1\r\nHost: agenttrace\r\nContent-Length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        times.append((time.perf_counter() - began) * 1000)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
    writer.close()


async def _round(path: str, bodies: Iterator[bytes], connections: int, hooks: int) -> dict[str, float]:
    times: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_caller(path, bodies, hooks // connections, times) for _ in range(connections)))
    took = time.perf_counter() - began
    p95 = statistics.quantiles(times, n=20)[18]
    return {"hooks_per_s": round(len(times) / took), "p50_ms": _ms(statistics.median(times)), "p95_ms": _ms(p95)}


def _ms(value: float) -> float:
    return round(value, 3)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


def run(hooks: int = HOOKS, *arguments: str) -> dict[str, Any]:
    """Figures by number of connections: hooks/s, P50 and P95 from the caller's side in ms, the collector's CPU time a
    hook.

    Resident memory in MiB, idle and after. On a machine that does other work only the CPU time can be compared.
    """
    with tempfile.TemporaryDirectory(prefix="agenttrace-bench-") as home:
        command = [sys.executable, __file__, "--serve", home, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                if server.stdout.readline() != "ready\n":
                    raise RuntimeError("the collector did not start")
                figures: dict[str, Any] = {"idle_rss_mib": _rss_mib(server.pid)}
                path, bodies = f"{home}/collector.sock", payloads()
                asyncio.run(_round(path, bodies, 1, 200))
                for connections in CONNECTIONS:
                    before = _cpu_ms(server.pid)
                    figures[f"connections_{connections}"] = asyncio.run(_round(path, bodies, connections, hooks))
                    spent = (_cpu_ms(server.pid) - before) / hooks
                    figures[f"connections_{connections}"]["cpu_ms_a_hook"] = _ms(spent)
                figures["rss_after_mib"] = _rss_mib(server.pid)
            finally:
                server.terminate()
                server.wait(20)
    return figures


def _serve(home: Path) -> None:
    from services.capture.content import Capture, CaptureSettings
    from services.collector.service import Collector, CollectorSettings
    from services.collector.sinks import JsonlSink

    given = CollectorSettings(
        folder=home / "collector",
        socket=home / "collector.sock",
        spool=home / "spool",
        capture=Capture(CaptureSettings(hash_key=b"the key of this benchmark", key_id="00000001")),
        sinks=[JsonlSink(home / "events.jsonl")],
        on_ready=lambda _port: print("ready", flush=True),
    )

    async def serve() -> None:
        await Collector(given).run()

    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(serve())
    elif "--profile" in sys.argv:
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
        asyncio.run(serve())
        profile.disable()
        profile.dump_stats(sys.argv[-1])
    else:
        asyncio.run(serve())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        _serve(Path(sys.argv[2]))
    else:
        print(json.dumps(run(HOOKS, *sys.argv[1:]), indent=2))
