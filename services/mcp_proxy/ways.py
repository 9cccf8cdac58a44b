"""Where an outlet's batches go: the collector's socket with the spool behind it, or a file of JSON lines."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp
import orjson

from services.mcp_proxy.sockets import address
from services.mcp_proxy.spooling import Spool

log = logging.getLogger(__name__)

_ANSWER_S = aiohttp.ClientTimeout(total=5, sock_connect=1)
_SILENT_S = 5.0
"""A collector that took a connection and gave no answer is not asked again for so long."""
_SAID = 16


@dataclass(frozen=True, slots=True)
class Sent:
    """The first `taken` of a batch are done with; of these, the ones at the indices `refused` are lost."""

    taken: int
    refused: tuple[int, ...] = ()


class Way(Protocol):
    """One batch at a time; an event is one line of JSON without its newline. `slow`: better few batches than many now."""

    slow: bool

    async def send(self, lines: Sequence[bytes], *, hurry: bool = False) -> Sent:
        """Never raises; what is not taken can be sent again. `hurry`: do not wait for a collector that is busy."""
        ...

    def keep(self, lines: Sequence[bytes], *, beyond: bool = False) -> bool:
        """The last resort, at once and without the loop: whether the lines are on the disk. `beyond`: any bound."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class CollectorWay:
    """POST /api/v1/events on the collector's socket; a batch that gets no answer there is spooled.

    A batch that was taken and whose answer was lost comes twice; the collector drops the second by its event ids.
    """

    def __init__(self, socket: Path, spool: Spool) -> None:
        self.slow = False
        self._socket = socket
        self._spool = spool
        self._session: aiohttp.ClientSession | None = None
        self._silent_until = 0.0
        self._said: set[str] = set()

    async def send(self, lines: Sequence[bytes], *, hurry: bool = False) -> Sent:
        sent = None
        if time.monotonic() >= self._silent_until:
            sent = await self._post(lines)
        if sent is None or (hurry and not sent.taken):
            self.slow = True
            try:
                kept = await asyncio.to_thread(self._spool.write, lines)
            except OSError as error:
                self._say(f"the spool {self._spool.folder} cannot be written ({error.strerror})")
                kept = False
            return Sent(len(lines) if kept else 0)
        self.slow = not sent.taken
        return sent

    def keep(self, lines: Sequence[bytes], *, beyond: bool = False) -> bool:
        try:
            return self._spool.write(lines, beyond=beyond)
        except OSError as error:
            self._say(f"the spool {self._spool.folder} cannot be written ({error.strerror})")
            return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, lines: Sequence[bytes]) -> Sent | None:
        """What the collector did; None where there is no use in asking again, nothing taken where it is busy."""
        try:
            if self._session is None:
                connector = aiohttp.UnixConnector(address(self._socket), limit=1)
                self._session = aiohttp.ClientSession("http://agenttrace", connector=connector, timeout=_ANSWER_S)
            body = b"[" + b",".join(lines) + b"]"
            headers = {"Content-Type": "application/json"}
            async with self._session.post("/api/v1/events", data=body, headers=headers) as response:
                answer = await response.read()
                status = response.status
        except TimeoutError:
            self._silent_until = time.monotonic() + _SILENT_S
            return None
        except (aiohttp.ClientError, OSError):
            return None
        if status in (200, 422):
            return Sent(len(lines), self._refused(answer, len(lines)))
        if status == 503:
            return Sent(0)
        self._say(f"the collector answered {status}")
        # A batch that it will not have does not get better in the spool.
        return Sent(len(lines), tuple(range(len(lines)))) if status in (400, 413) else None

    def _refused(self, answer: bytes, count: int) -> tuple[int, ...]:
        try:
            refused = {int(entry["index"]): str(entry["error"]) for entry in orjson.loads(answer)["refused"]}
        except (ValueError, KeyError, TypeError):
            return ()
        for why in refused.values():
            self._say(f"the collector refused an event: {why[:200]}")
        return tuple(index for index in sorted(refused) if 0 <= index < count)

    def _say(self, what: str) -> None:
        if what not in self._said and len(self._said) < _SAID:
            self._said.add(what)
            log.warning("%s", what)


class JsonlWay:
    """Lines appended to a file, one write a batch, so that several proxies may share it."""

    def __init__(self, path: Path) -> None:
        self.slow = False
        self._path = path
        self._torn = False

    async def send(self, lines: Sequence[bytes], *, hurry: bool = False) -> Sent:
        sent = self._append(lines)
        self.slow = sent.taken < len(lines)
        return sent

    def keep(self, lines: Sequence[bytes], *, beyond: bool = False) -> bool:
        return self._append(lines).taken == len(lines)

    async def close(self) -> None:
        """Nothing is kept open."""

    def _append(self, lines: Sequence[bytes]) -> Sent:
        # A line that a full disk cut short is ended first, and comes again whole.
        data = (b"\n" if self._torn else b"") + b"".join([line + b"\n" for line in lines])
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            if not self.slow:
                log.warning("%s cannot be written (%s)", self._path, error.strerror)
            return Sent(0)
        if written == len(data):
            self._torn = False
            return Sent(len(lines))
        done = data[:written]
        whole = done.count(b"\n") - (1 if self._torn and written else 0)
        self._torn = not done.endswith(b"\n")
        return Sent(whole)
