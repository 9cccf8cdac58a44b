"""The ways from a raw client to a raw server that bench_proxy compares: directly, through ours, through public proxies.

The public ones are `mcp-proxy` (PyPI), which only translates between transports (its `stdio` way leads to the HTTP server,
its `http` way to the stdio server), and the proxy of `fastmcp` (PyPI), with one connected client for all calls, the faster
of its set-ups. Each is installed into an environment of its own below `.agenttrace/bench`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from services.embedded.host import free_port
from tests.bench.mcp_raw import HttpCaller, StdioCaller

ROOT = Path(__file__).parents[2]
PUBLIC = {"mcp_proxy": ("mcp-proxy==0.13.0",), "fastmcp": ("fastmcp==4.2.3",)}
WAYS = ("direct", "agenttrace", *PUBLIC)
_AGENTTRACE = str(Path(sys.executable).parent / "agenttrace")
RAW, SDK = "tests.bench.mcp_raw", "tests.bench.mcp_sdk"
_FASTMCP = """
import asyncio, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
async def main():
    way, *target = sys.argv[1:]
    async with Client(StdioTransport(target[0], target[1:]) if way == "stdio" else target[1], mode="legacy") as client:
        proxy = create_proxy(client)
        if way == "stdio":
            await proxy.run_stdio_async(show_banner=False, log_level="ERROR")
        else:
            await proxy.run_http_async(show_banner=False, log_level="ERROR", port=int(target[0]), json_response=True)
asyncio.run(main())
"""


def _environment(name: str) -> Path:
    """The `bin` folder of a public proxy's environment, made when it is not there."""
    folder = ROOT / ".agenttrace" / "bench" / name
    stamp, wanted = folder / ".installed", "\n".join(PUBLIC[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PUBLIC[name]], check=True)
        stamp.write_text(wanted)
    return folder / "bin"


@dataclass(slots=True)
class Cpu:
    """Seconds of the processor since the start, by what the processes do."""

    proxy: float = 0.0
    observer: float = 0.0


@dataclass
class Way:
    """One way over one transport, started."""

    name: str
    transport: str
    callers: list[StdioCaller | HttpCaller] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    top: int = 0
    """Process id of the proxy; 0 where there is none."""

    @classmethod
    async def start(
        cls, name: str, transport: str, http_port: int, connections: int, folder: Path, *, module: str = RAW
    ) -> Self:
        """Start the processes and connect; `folder` takes events and state of ours, `module` is the server."""
        way = cls(name, transport)
        serve = [sys.executable, "-m", module]
        environment = os.environ | {"AGENTTRACE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
        sink = ["--sink", f"jsonl:{folder / f'{transport}.jsonl'}"]
        url = f"http://127.0.0.1:{http_port}/mcp"
        if transport == "stdio":
            server = [*serve, "stdio"]
            command = {
                "direct": lambda: server,
                "agenttrace": lambda: [_AGENTTRACE, "proxy", "stdio", "--server", "raw", *sink, "--", *server],
                "mcp_proxy": lambda: [
                    *(str(_environment("mcp_proxy") / "mcp-proxy"), "--log-level", "ERROR"),
                    *("--transport", "streamablehttp", url),
                ],
                "fastmcp": lambda: [str(_environment("fastmcp") / "python"), "-c", _FASTMCP, "stdio", *server],
            }[name]()
            caller = StdioCaller()
            await caller.start(command, environment)
            way.callers, way.top = [caller], 0 if name == "direct" else caller.pid
            return way
        port, path = http_port, "/mcp"
        if name != "direct":
            port, path = free_port(), "/mcp"
            command = {
                "agenttrace": lambda: [
                    *(_AGENTTRACE, "proxy", "http", "--listen", f"127.0.0.1:{port}", "--route", f"raw={url}", *sink)
                ],
                "mcp_proxy": lambda: [
                    *(str(_environment("mcp_proxy") / "mcp-proxy"), "--log-level", "ERROR", "--pass-environment"),
                    *("--port", str(port), "--", *serve, "stdio"),
                ],
                "fastmcp": lambda: [str(_environment("fastmcp") / "python"), "-c", _FASTMCP, "http", str(port), url],
            }[name]()
            path = "/mcp/raw" if name == "agenttrace" else "/mcp"
            process = _started(command, environment, port)
            way.processes, way.top = [process], process.pid
        first = HttpCaller(port, path)
        await first.start()
        await first.initialize()
        way.callers = [first, *(HttpCaller(port, path, first.session) for _ in range(connections - 1))]
        for other in way.callers[1:]:
            await other.start()
        return way

    def cpu(self) -> Cpu:
        """What the proxy's processes have used up; the server's are left out."""
        found = Cpu()
        if self.top:
            top = psutil.Process(self.top)
            for process in (top, *top.children(recursive=True)):
                try:
                    words, times = process.cmdline(), process.cpu_times()
                except psutil.Error:
                    continue
                if {RAW, SDK} & set(words) and process.pid != self.top and "proxy" not in words:
                    continue
                if "services.mcp_proxy.observe" in words:
                    found.observer += times.user + times.system
                else:
                    found.proxy += times.user + times.system
        return found

    def settle(self, within_s: float = 30) -> None:
        """Wait until the observer has nothing left to do, so that it takes nothing from the next way."""
        deadline, before = time.monotonic() + within_s, -1.0
        while self.name == "agenttrace" and time.monotonic() < deadline:
            now = self.cpu().observer
            if now - before < 0.02:
                return
            before = now
            time.sleep(0.2)

    def end(self) -> None:
        """End all of it."""
        for caller in self.callers:
            caller.close()
        for process in self.processes:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _started(command: list[str], environment: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        except urllib.error.HTTPError:
            return process
        except OSError:
            time.sleep(0.1)
            continue
        return process
    process.kill()
    raise RuntimeError(f"{command!r} does not listen on port {port}")


def await_port(port: int) -> None:
    """Return once something listens there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
