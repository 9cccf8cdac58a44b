"""What a running proxy sees, as it sees it: a Unix socket that gives every event as a line of JSON to whoever attaches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from services.mcp_proxy.sockets import address, is_ours

log = logging.getLogger(__name__)

FOLDER = "proxies"
SUFFIX = ".sock"
MAX_WAITING = 1 << 20
"""Bytes that wait for one reader; past it the reader misses lines, and the next one it gets is {"missed": count}."""
_MAX_READERS = 16


class Live:
    """The socket `<home>/proxies/<pid>.sock` of this process, for its user and root only."""

    def __init__(self, home: Path) -> None:
        self.path = home / FOLDER / f"{os.getpid()}{SUFFIX}"
        self._server: asyncio.Server | None = None
        self._readers: dict[asyncio.StreamWriter, int] = {}

    async def start(self) -> None:
        """Open the socket. Where it cannot be opened that is logged: nothing but `proxy tail` needs it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            clean(self.path.parent)
            self.path.unlink(missing_ok=True)
            umask = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._attached, address(self.path))
            finally:
                os.umask(umask)
        except OSError as error:
            log.warning("%s cannot be opened (%s): `agenttrace proxy tail` will not see this proxy", self.path, error)

    def put(self, events: list[dict[str, Any]]) -> None:
        """Give finished events to every reader. Returns at once and raises nothing."""
        if not self._readers:
            return
        lines = [orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events]
        for writer, missed in list(self._readers.items()):
            if writer.is_closing():
                del self._readers[writer]
                continue
            for line in lines:
                if writer.transport.get_write_buffer_size() > MAX_WAITING:
                    missed += 1
                    continue
                if missed:
                    writer.write(orjson.dumps({"missed": missed}, option=orjson.OPT_APPEND_NEWLINE))
                    missed = 0
                writer.write(line)
            self._readers[writer] = missed

    async def close(self) -> None:
        """End every reader's stream and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._readers:
            writer.close()
        if self._readers:
            # What a slow reader has not taken then it will not get.
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed()) for writer in self._readers], timeout=0.3)
        with contextlib.suppress(OSError):
            self.path.unlink()

    async def _attached(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        if len(self._readers) >= _MAX_READERS or not is_ours(connection):
            writer.close()
            return
        self._readers[writer] = 0
        try:
            # Readers say nothing; this returns when one goes.
            while await reader.read(1024):
                pass
        except OSError:
            pass
        finally:
            self._readers.pop(writer, None)
            writer.close()


def sockets(folder: Path) -> Iterator[tuple[int, Path]]:
    """Process id and path of every proxy's socket there, also of those that died without removing it."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path.stem.isdigit():
                yield int(path.stem), path


def clean(folder: Path) -> None:
    """Remove the sockets of processes that are gone."""
    for pid, path in sockets(folder):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            continue
