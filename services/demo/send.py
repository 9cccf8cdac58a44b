"""Sends sessions through the doors that the real runtimes use: http hooks, the plugins' socket, and the command `agenttrace-hook`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from schemas.errors import UserError
from schemas.identity import new_delivery_id
from services.forwarder import protocol

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class DemoSession:
    """One session of one runtime: hook name and payload, in order."""

    runtime: str
    name: str
    synthetic: bool
    payloads: list[tuple[str, dict[str, Any]]]


@dataclass(slots=True)
class Sent:
    """What went through which door. `spooled` were not answered and wait in the spool for the collector."""

    payloads: int = 0
    by_door: dict[str, int] = field(default_factory=dict)
    spooled: int = 0

    def count(self, door: str) -> None:
        """One more through this door."""
        self.payloads += 1
        self.by_door[door] = self.by_door.get(door, 0) + 1


class Sender:
    """Sends to one collector. Claude Code's hooks are http but for SessionStart, which it never sends so; Codex has only commands."""

    def __init__(self, home: Path, port: int, socket: Path, pause_s: float, tick: Callable[[], None]) -> None:
        self._home = home
        self._url = f"http://127.0.0.1:{port}"
        self._socket = socket
        self._pause_s = pause_s
        self._tick = tick
        self._command = _forwarder()
        self.sent = Sent()

    async def run(self, sessions: list[DemoSession]) -> None:
        """All sessions: the runtimes side by side, the sessions of one runtime one after the other."""
        runtimes = dict.fromkeys(session.runtime for session in sessions)
        connector = aiohttp.UnixConnector(_short(self._socket))
        async with (
            aiohttp.ClientSession() as http,
            aiohttp.ClientSession(connector=connector) as socket,
            asyncio.TaskGroup() as group,
        ):
            for runtime in runtimes:
                own = [session for session in sessions if session.runtime == runtime]
                group.create_task(self._runtime(own, http, socket))

    async def _runtime(
        self, sessions: list[DemoSession], http: aiohttp.ClientSession, socket: aiohttp.ClientSession
    ) -> None:
        for session in sessions:
            for hook, payload in session.payloads:
                body = orjson.dumps(payload)
                if session.runtime == "codex" or hook == "SessionStart":
                    await self._by_command(session.runtime, body)
                elif session.runtime == "claude_code":
                    await self._by_http(http, self._url, "http", session.runtime, body)
                else:
                    await self._by_http(socket, "http://agenttrace", "socket", session.runtime, body)
                self._tick()
                await asyncio.sleep(self._pause_s)

    async def _by_http(self, client: aiohttp.ClientSession, base: str, door: str, runtime: str, body: bytes) -> None:
        delivery = new_delivery_id()
        headers = {protocol.HEADER_DELIVERY: delivery, "Content-Type": "application/json"}
        try:
            async with client.post(
                base + protocol.HOOK_PATH.format(runtime=runtime),
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            ) as response:
                await response.read()
                response.raise_for_status()
            self.sent.count(door)
        except (aiohttp.ClientError, OSError, TimeoutError):
            # As the plugins do: the same delivery id, so that a collector which had it already drops this one.
            _spool(self._home, runtime, delivery, body)
            self.sent.count("spool")
            self.sent.spooled += 1

    async def _by_command(self, runtime: str, body: bytes) -> None:
        process = await asyncio.create_subprocess_exec(
            self._command,
            runtime,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, protocol.ENV_HOME: str(self._home), protocol.ENV_SOCKET: str(self._socket)},
        )
        answer, _ = await process.communicate(body)
        if process.returncode != 0 or answer:
            raise UserError(
                f"{protocol.COMMAND} {runtime} answered {process.returncode} {answer[:80]!r}, not 0 and nothing"
            )
        self.sent.count(protocol.COMMAND)


async def mcp_session(home: Path, socket: Path) -> list[tuple[str, str]]:
    """A real MCP client and a real server, with a proxy between them; each call's tool and how it ended for the client."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.demo.mcp_session"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, protocol.ENV_HOME: str(home), protocol.ENV_SOCKET: str(socket)},
    )
    answer, complaint = await process.communicate()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"the MCP client of the demo ended with {process.returncode}: {last}")
    return [(tool, ended) for tool, ended in orjson.loads(answer)]


def _short(path: Path) -> str:
    """The path, or the same from here where it is too long for a socket's name (108 bytes)."""
    return min(str(path), os.path.relpath(path), key=len)


def _spool(home: Path, runtime: str, delivery: str, body: bytes) -> None:
    folder = home / protocol.SPOOL_FOLDER / runtime
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f"{protocol.SPOOL_TEMPORARY_PREFIX}{delivery}"
    temporary.write_bytes(f"{protocol.SPOOL_MAGIC} pid={os.getpid()}\n".encode() + body)
    temporary.chmod(0o600)
    temporary.replace(folder / delivery)


def _forwarder() -> str:
    beside = Path(sys.executable).parent / protocol.COMMAND
    found = str(beside) if beside.exists() else shutil.which(protocol.COMMAND)
    if not found:
        raise UserError(f"{protocol.COMMAND} is not installed beside {sys.executable}; install the package again")
    return found
