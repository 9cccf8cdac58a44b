"""Starts what a run needs, a server and a proxy before it, and ends them. Both are real processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from services.embedded.host import free_port

ROOT = Path(__file__).resolve().parents[2]
AGENTTRACE = str(Path(sys.executable).parent / "agenttrace")
_START_WITHIN_S = 60
_END_WITHIN_S = 10


@contextmanager
def http_server() -> Iterator[str]:
    """The URL of tests.mcp_servers.everything over streamable HTTP."""
    port = free_port()
    command = [sys.executable, "-m", "tests.mcp_servers.everything", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        with _ended(process):
            _answers(process, f"http://127.0.0.1:{port}/mcp")
            yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def http_proxy(upstream: str, home: Path, sink: Path, name: str = "upstream") -> Iterator[str]:
    """The URL of a route to `upstream` through an `agenttrace proxy http` whose events go to `sink`."""
    command = [AGENTTRACE, "proxy", "http", "--listen", "127.0.0.1:0", "--route", f"{name}={upstream}"]
    command += ["--sink", f"jsonl:{sink}"]
    environment = os.environ | {"AGENTTRACE_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process, _ended(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(http://\S+) -> ", line)
        if found is None:
            raise RuntimeError(f"agenttrace proxy http did not start: {line!r}")
        yield found[1]


@contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _answers(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server at {url} ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
            continue
        return
    raise RuntimeError(f"the server at {url} did not start within {_START_WITHIN_S} s")


def counted(sink: Path, within_s: float = 15) -> int:
    """How many events a sink holds once the observer that writes it, which outlives its proxy a little, has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and any(
        f"jsonl:{sink}" in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ):
        time.sleep(0.1)
    with contextlib.suppress(FileNotFoundError), open(sink, "rb") as file:
        return sum(1 for _ in file)
    return 0
