"""What these tests share: events as a proxy makes them, a collector in a process of its own, and how to wait."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from schemas.clock import to_rfc3339
from schemas.events import EVENT, to_json
from schemas.identity import event_id, new_delivery_id
from services.collector.journal import Journal
from services.mcp_proxy.outlet import Outlet
from services.mcp_proxy.spooling import Spool
from services.mcp_proxy.tap import Kind, Side, Tap
from services.mcp_proxy.ways import CollectorWay

ROOT = Path(__file__).parents[4]
Json = dict[str, Any]


def event(name: str, number: int, **fields: Any) -> Json:
    """One finished event; `number` is its JSON-RPC id."""
    now_ms = time.time_ns() // 1_000_000
    known: Json = {
        "event_id": event_id(new_delivery_id(now_ms), 0),
        "event_name": name,
        "timestamp": to_rfc3339(now_ms),
        "source_adapter": "mcp_proxy/1",
        "connection_id": "c-1",
        "mcp_server": "files",
    }
    if name.startswith("mcp.rpc."):
        ends = name != "mcp.rpc.request"
        known |= {
            "transport": "stdio",
            "direction": "server_to_client" if ends else "client_to_server",
            "method": "tools/call",
            "tool_name": "read",
            "jsonrpc_id": str(number),
            "jsonrpc_id_type": "integer",
            "status": "completed" if ends else "started",
            "response" if ends else "request": {"size_bytes": 5, "summary": f"text {number}"},
        }
    # Through the model, so that a test cannot send what a proxy could not.
    return to_json(EVENT.validate_json(orjson.dumps(known | fields)))


def calls(count: int, first: int = 0, **fields: Any) -> list[Json]:
    """Two events a call."""
    return [
        made
        for number in range(first, first + count)
        for made in (event("mcp.rpc.request", number, **fields), event("mcp.rpc.response", number, **fields))
    ]


def outlet(home: Path, *, spool: Spool | None = None, **bounds: int) -> Outlet:
    """A started outlet to the collector below `home`."""
    made = Outlet(CollectorWay(home / "collector.sock", spool or Spool(home / "spool")), **bounds)
    made.start()
    return made


def spooled(home: Path) -> list[Path]:
    """The whole files that wait."""
    folder = home / "spool" / "events"
    return sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []


def journal(home: Path) -> list[Json]:
    """What a proxy sent and the collector has, in order."""
    lines = Journal(home / "collector" / "journal").lines() if (home / "collector" / "journal").exists() else ()
    return [found for line in lines for found in line.events or [] if found["source_adapter"] == "mcp_proxy/1"]


def ids(events: Iterable[Json]) -> list[str]:
    return [found["event_id"] for found in events if found["event_name"] != "producer.dropped"]


def receipts(events: Iterable[Json]) -> list[Json]:
    return [found for found in events if found["event_name"] == "producer.dropped"]


def lost(events: Iterable[Json]) -> int:
    """How many events the receipts tell of."""
    return sum(found["count"] for found in receipts(events))


def by_class(events: Iterable[Json]) -> Counter[str]:
    total: Counter[str] = Counter()
    for found in receipts(events):
        total.update(found["by_class"])
    return total


async def until(reached: Callable[[], object], what: str, within_s: float = 30) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, f"after {within_s} s still not: {what}"
        await asyncio.sleep(0.02)


class CollectorProcess:
    """`agenttrace collector` on `home`, its events into a file of JSON lines."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.log = home / "collector.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli.main", "collector"],
                cwd=ROOT,
                stdout=out,
                stderr=out,
                env={**environment(home), "AGENTTRACE_COLLECTOR__SINKS": "jsonl", "AGENTTRACE_COLLECTOR__PORT": "0"},
            )

    async def ready(self) -> CollectorProcess:
        await until(self._answers, f"collector ready: {self.log.read_text(errors='replace')}")
        return self

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.home / "collector.sock")) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def environment(home: Path) -> dict[str, str]:
    """This process's, with nothing of AgentTrace or of an agent in it but the home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTTRACE_", "CLAUDE"))}
    return {**kept, "AGENTTRACE_HOME": str(home)}


class Proxied:
    """An observer process and the tap to it, as the forwarder of a stdio server has them; the traffic is the test's."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        env: Json | None = None,
        below: tuple[str, ...] = (),
        transport: str = "stdio",
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._below = below
        self.home = home
        self.log = home / "observer.log"
        self.tap = Tap()
        self.tap.open(1, {"server": "files", "transport": transport, "command": ["files-server"], "pid": 4711})
        self._arguments = arguments
        self._env = env or {}
        self.process = self.spawn()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the process, or the next one after its death."""
        here, there = socket.socketpair()
        with there, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._below,
                    sys.executable,
                    "-m",
                    "services.mcp_proxy.observe",
                    str(there.fileno()),
                    *self._arguments,
                ],
                cwd=ROOT,
                env={**environment(self.home), **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(there.fileno(),),
            )
        self.tap.attach(here)
        return self.process

    def client(self, *messages: Json) -> None:
        """The client writes lines."""
        self.tap.data(1, Side.CLIENT, lines(*messages))

    def server(self, *messages: Json) -> None:
        self.tap.data(1, Side.SERVER, lines(*messages))

    def call(self, number: int, tool: str = "read", arguments: Json | None = None, result: Json | None = None) -> None:
        """A tool call and its answer."""
        self.client(request(number, "tools/call", {"name": tool, "arguments": arguments or {"path": f"/f{number}"}}))
        given = result or {"content": [{"type": "text", "text": f"text of {number}"}], "isError": False}
        self.server({"jsonrpc": "2.0", "id": number, "result": given})

    async def end(self, within_s: float = 30) -> None:
        """The server exits, the forwarder goes, and the observer ends by itself with 0."""
        self.tap.say(Kind.EXIT, 1, Side.SERVER, {"code": 0})
        self.tap.close(1)
        await self.cut(within_s)

    async def cut(self, within_s: float = 30) -> None:
        """The tap ends without a word, as when the forwarder is killed."""
        await self.tap.end(20)
        assert await asyncio.to_thread(self.process.wait, within_s) == 0, self.log.read_text()

    def kill(self) -> None:
        """End the process whatever its state."""
        self.process.kill()
        self.process.wait(20)


def request(number: Any, method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def lines(*messages: Json) -> bytes:
    return b"".join(orjson.dumps(message) + b"\n" for message in messages)


def ended_calls(events: Iterable[Json]) -> Counter[str]:
    """Ends of tool calls, by status."""
    ends = ("mcp.rpc.response", "mcp.rpc.error")
    return Counter(
        found["status"] for found in events if found["event_name"] in ends and found.get("method") == "tools/call"
    )
