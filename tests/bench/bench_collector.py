"""What a collector costs: hooks a second and time to answer over the Unix socket, journal and redaction included, and
its memory.

`python tests/bench/bench_collector.py` prints the figures as JSON. The collector runs in a process of its own with a
JSON-lines sink, or with `--kafka` on an embedded broker, which then shares the cores; the callers share one more
process. `--asyncio` runs it on asyncio's own loop in place of the collector's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

HOOKS = 6000
ROUNDS = (
    ("keep_alive", 1),
    ("keep_alive", 32),
    ("keep_alive", 256),
    ("connection_a_hook", 1),
    ("connection_a_hook", 32),
)


def payloads() -> Iterator[bytes]:
    """Pairs of a call's start and end as Claude Code sends them, 2 and 3.5 KB; no two calls have the same input or
    output.
    """
    number = 0
    while True:
        lines = (f"tests/unit/test_module_{number:06d}.py::test_case_{n} PASSED [{n:3d}%]\n" for n in range(24))
        common = {
            "session_id": f"5f0c2f7e-7d0e-4a8a-9f3d-{number // 500:012d}",
            "transcript_path": "/home/dev/.claude/projects/-home-dev-shop/session.jsonl",
            "cwd": "/home/dev/shop",
            "permission_mode": "default",
            "tool_name": "Bash",
            "tool_input": {
                "command": f"cd services/orders && pytest -q tests/unit/test_module_{number:06d}.py | tail -{number}",
                "description": f"Run the unit tests of module {number}. " * 40,
            },
            "tool_use_id": f"toolu_{number:024d}",
        }
        yield json.dumps({**common, "hook_event_name": "PreToolUse"}).encode()
        response = {"stdout": "".join(lines), "stderr": "", "interrupted": False, "isImage": False}
        yield json.dumps(
            {**common, "hook_event_name": "PostToolUse", "tool_response": response, "duration_ms": 812}
        ).encode()
        number += 1


def _requests(bodies: Iterator[bytes], count: int, mode: str) -> list[bytes]:
    """Whole requests with the headers that the forwarder sends, ready before the clock starts."""
    from schemas.identity import new_delivery_id

    end = "Connection: close\r\n" if mode == "connection_a_hook" else ""
    return [
        (
            "POST /hooks/claude_code HTTP/1.1\r\nHost: agenttrace\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nX-AgentTrace-Delivery: {new_delivery_id()}\r\nX-AgentTrace-Pid: 4711\r\n"
            f"{end}\r\n"
        ).encode()
        + body
        for body, _ in zip(bodies, range(count), strict=False)
    ]


class _Callers:
    """`connections` callers in one thread that wait for their answers with epoll: the cheapest that Python can be."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path
        self._anew = mode == "connection_a_hook"
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, float]] = {}
        self.times: list[float] = []

    def run(self, requests: list[bytes], connections: int) -> float:
        """Send all; returns the seconds it took."""
        waiting = iter(requests)
        began = time.perf_counter()
        for request, _ in zip(waiting, range(connections), strict=False):
            self._send(self._connect(), request)
        while self._open:
            for fd, _ in self._poll.poll():
                connection = self._answered(fd)
                request = next(waiting, b"")
                if not request or self._anew:
                    self._poll.unregister(fd)
                    connection.close()
                if request:
                    self._send(self._connect() if self._anew else connection, request)
        return time.perf_counter() - began

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        self._poll.register(connection.fileno(), select.EPOLLIN)
        return connection

    def _send(self, connection: socket.socket, request: bytes) -> None:
        self._open[connection.fileno()] = connection, time.perf_counter()
        connection.sendall(request)

    def _answered(self, fd: int) -> socket.socket:
        connection, began = self._open.pop(fd)
        answer = b""
        while not answer.endswith(b"\r\n\r\n{}"):
            more = connection.recv(4096)
            if not more or (not answer and not more.startswith(b"HTTP/1.1 200")):
                raise RuntimeError((answer + more).decode())
            answer += more
        self.times.append((time.perf_counter() - began) * 1000)
        return connection


def _round(pid: int, path: str, bodies: Iterator[bytes], kind: tuple[str, int], hooks: int) -> dict[str, float]:
    mode, connections = kind
    requests, callers = _requests(bodies, hooks, mode), _Callers(path, mode)
    cpu, own = _cpu_ms(pid), time.process_time()
    took = callers.run(requests, connections)
    own = time.process_time() - own
    return {
        "hooks_per_s": round(hooks / took),
        "p50_ms": _ms(statistics.median(callers.times)),
        "p95_ms": _ms(statistics.quantiles(callers.times, n=20)[18]),
        "cpu_ms_a_hook": _ms((_cpu_ms(pid) - cpu) / hooks),
        "caller_cpu_ms_a_hook": _ms(own * 1000 / hooks),
    }


def _ms(value: float) -> float:
    return round(value, 3)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


def run(hooks: int = HOOKS, *arguments: str) -> dict[str, Any]:
    """Figures by kind and number of connections: hooks/s, P50 and P95 from the caller's side in ms, CPU time a hook of
    the collector and of the caller.

    Resident memory in MiB, idle and after. On a machine that does other work only the CPU time can be compared.
    """
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="agenttrace-bench-"))
        if "--kafka" in arguments:
            arguments = (*arguments, stack.enter_context(_broker(Path(home))))
        command = [sys.executable, __file__, "--serve", home, *arguments]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the collector did not start")
            figures: dict[str, Any] = {"idle_rss_mib": _rss_mib(server.pid)}
            path, bodies = f"{home}/collector.sock", payloads()
            _round(server.pid, path, bodies, ("keep_alive", 1), 400)
            for kind in ROUNDS:
                figures["{}_{}".format(*kind)] = _round(server.pid, path, bodies, kind, hooks)
            figures["rss_after_mib"] = _rss_mib(server.pid)
        finally:
            server.terminate()
            server.wait(20)
    return figures


@contextlib.contextmanager
def _broker(home: Path) -> Iterator[str]:
    from services.embedded.kafka import KafkaBroker
    from services.kafka import create_topics

    with KafkaBroker(home / "kafka") as broker:
        asyncio.run(create_topics({"bootstrap_servers": broker.bootstrap}, partitions=4))
        yield broker.bootstrap


def _serve(home: Path) -> None:
    from services.capture.content import Capture, CaptureSettings
    from services.collector.loop import run as run_loop
    from services.collector.service import Collector, CollectorSettings
    from services.collector.sinks import JsonlSink, KafkaSink, Sink

    sink: Sink = JsonlSink(home / "events.jsonl")
    if "--kafka" in sys.argv:
        sink = KafkaSink({"bootstrap_servers": sys.argv[-1]})
    given = CollectorSettings(
        folder=home / "collector",
        socket=home / "collector.sock",
        spool=home / "spool",
        capture=Capture(CaptureSettings(hash_key=b"the key of this benchmark", key_id="00000001")),
        sinks=[sink],
        on_ready=lambda _port: print("ready", flush=True),
    )

    async def serve() -> None:
        await Collector(given).run()

    if "--asyncio" in sys.argv:
        asyncio.run(serve())
    elif "--profile" in sys.argv:
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
        run_loop(serve())
        profile.disable()
        profile.dump_stats(sys.argv[sys.argv.index("--profile") + 1])
    else:
        run_loop(serve())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(Path(sys.argv[2]))
    else:
        print(json.dumps(run(HOOKS, *sys.argv[1:]), indent=2))
