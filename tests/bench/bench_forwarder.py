"""What the hook command adds to a tool call: start to exit against `/bin/true`, in interleaved rounds.

`python tests/bench/bench_forwarder.py` prints the figures as JSON. All times are milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FORWARDER = Path(__file__).parents[2] / "services" / "forwarder"
PAYLOAD = json.dumps({"hook_event_name": "PreToolUse", "tool_input": {"command": "x" * 2000}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


async def _serve(path: str) -> None:
    server = await asyncio.start_unix_server(_answer, path, backlog=512)
    print("ready", flush=True)
    await server.serve_forever()


def _once(argv: list[str], env: dict[str, str]) -> float:
    read_end, write_end = os.pipe()
    os.write(write_end, PAYLOAD)
    os.close(write_end)
    actions = [(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    started = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter_ns() - started) / 1e6
    os.close(read_end)
    if status != 0:
        raise RuntimeError(f"{argv[0]} ended with status {status}")
    return took


def _fill(home: Path, files: int) -> None:
    folder = home / "spool" / "bench"
    folder.mkdir(parents=True, mode=0o700)
    for number in range(files):
        (folder / f"{number:036d}").write_bytes(PAYLOAD)
    (folder / ".files").write_bytes(b" " * files)
    (folder / ".blocks").write_bytes(b" " * files)


def _quantiles(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), statistics.quantiles(times, n=20)[18]


def run(rounds: int = 5, starts: int = 60) -> dict[str, dict[str, float]]:
    """Time `rounds` x `starts` starts of each form; P50 and P95 of each, alone and minus those of `/bin/true`."""
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        hook = str(scratch / "agenttrace-hook")
        source = str(FORWARDER / "agenttrace_hook.c")
        subprocess.run([os.environ.get("CC") or "cc", "-std=c11", "-O2", "-o", hook, source], check=True)
        shell = ["/bin/sh", str(FORWARDER / "agenttrace-hook.sh"), "bench"]
        socket = scratch / "collector.sock"
        forms = {
            "true": ([shutil.which("true") or "/bin/true"], 0),
            "c_socket": ([hook, "bench"], 0),
            "c_spool": ([hook, "bench"], 0),
            "c_spool_8000_there": ([hook, "bench"], 8_000),
            "c_spool_full": ([hook, "bench"], 10_000),
            "sh_spool": (shell, 0),
            "sh_spool_8000_there": (shell, 8_000),
        }
        envs: dict[str, dict[str, str]] = {}
        for form, (_, files) in forms.items():
            home = scratch / form
            _fill(home, files)
            envs[form] = {"AGENTTRACE_HOME": str(home), "PATH": os.environ.get("PATH", "/usr/bin:/bin")}
        envs["c_socket"]["AGENTTRACE_SOCKET"] = str(socket)
        times: dict[str, list[float]] = {form: [] for form in forms}
        command = [sys.executable, __file__, "--serve", str(socket)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                for _ in range(rounds):
                    for _ in range(starts):
                        for form, (argv, _) in forms.items():
                            times[form].append(_once(argv, envs[form]))
            finally:
                server.kill()
    base_p50, base_p95 = _quantiles(times["true"])
    figures = {}
    for form, taken in times.items():
        p50, p95 = _quantiles(taken)
        figures[form] = {"p50": p50, "p95": p95, "p50_added": p50 - base_p50, "p95_added": p95 - base_p95}
    return {form: {name: round(value, 3) for name, value in row.items()} for form, row in figures.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(_serve(sys.argv[2]))
    else:
        print(json.dumps(run(), indent=2))
