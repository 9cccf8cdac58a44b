"""A raw MCP server and raw clients, as cheap as they can be, so that a bench of proxies measures the proxies.

`python -m tests.bench.mcp_raw stdio` serves standard input and output, `… http` a port of 127.0.0.1 that it prints. There is
one tool, `blob`, whose result is a text of `size` bytes. No session, no SSE. The clients are for the event loop of the bench.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import orjson

VERSION = "2025-06-18"
_TOOL = {
    "name": "blob",
    "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]},
}
_RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    },
    "tools/list": {"tools": [_TOOL]},
    "ping": {},
}


@cache
def _blob(size: int) -> bytes:
    return orjson.dumps({"content": [{"type": "text", "text": "x" * size}]})


def answer(body: bytes) -> bytes | None:
    """The answer to one message; None to a notification."""
    message = orjson.loads(body)
    if "id" not in message:
        return None
    head, method = b'{"jsonrpc":"2.0","id":' + orjson.dumps(message["id"]), message["method"]
    if method == "tools/call":
        return head + b',"result":' + _blob(message["params"]["arguments"]["size"]) + b"}"
    if method in _RESULTS:
        return head + b',"result":' + orjson.dumps(_RESULTS[method]) + b"}"
    return head + b',"error":{"code":-32601,"message":"no such method"}}'


def call(number: int, size: int) -> bytes:
    """A request for so many bytes."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"blob","arguments":{"size":%d}}}' % (
        number,
        size,
    )


_INITIALIZE = orjson.dumps(
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
    }
)
# Connections may share a session, and a session has each id once.
_NUMBERS = itertools.count(1)
_INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


def serve_stdio() -> None:
    """Until the end of standard input."""
    for line in sys.stdin.buffer:
        said = answer(line)
        if said is not None:
            data = memoryview(said + b"\n")
            while data:
                data = data[os.write(1, data) :]


class _HttpServer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = _length(head) or 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            if not head.startswith(b"POST"):
                status = b"405 Method Not Allowed" if head.startswith(b"GET") else b"200 OK"
                self.transport.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)
            elif (said := answer(body)) is None:
                self.transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            else:
                about = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said)
                self.transport.writelines((about, said))


def _length(head: bytes) -> int | None:
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else None


async def serve_http() -> None:
    """Until the process is ended; prints the port."""
    server = await asyncio.get_running_loop().create_server(_HttpServer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class StdioCaller(asyncio.SubprocessProtocol):
    """A client of a command; any number of calls at once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._open: dict[int, asyncio.Future[int]] = {}
        self.pid = 0

    async def start(self, command: Sequence[str], env: dict[str, str]) -> None:
        """Start the command and initialize."""
        transport, _ = await asyncio.get_running_loop().subprocess_exec(lambda: self, *command, env=env)
        self.pid = transport.get_pid()
        self._transport = transport
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        self._open[0] = asyncio.get_running_loop().create_future()
        self._stdin.write(_INITIALIZE + b"\n")
        await asyncio.wait_for(self._open[0], 60)
        self._stdin.write(_INITIALIZED + b"\n")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            return
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._parts.append(line)
            message = orjson.loads(b"".join(self._parts))
            self._parts.clear()
            if future := self._open.pop(message.get("id"), None):
                future.set_result(_size(message))
        if rest:
            self._parts.append(rest)

    async def call(self, size: int) -> None:
        """One call; RuntimeError where the result is not of that size."""
        number = next(_NUMBERS)
        future = self._open[number] = asyncio.get_running_loop().create_future()
        self._stdin.write(call(number, size) + b"\n")
        if await future != size:
            raise RuntimeError("the result has another size")

    def close(self) -> None:
        """End of standard input."""
        self._stdin.close()


class HttpCaller(asyncio.Protocol):
    """A client of a URL on one kept connection; one call at a time."""

    def __init__(self, port: int, path: str, session: bytes = b"") -> None:
        self._port, self._path, self.session = port, path.encode(), session
        self._buffer = bytearray()
        self._answered: asyncio.Future[tuple[bytes, bytes]] | None = None

    async def start(self) -> None:
        """Connect."""
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)
        self._transport = transport

    async def initialize(self) -> None:
        """Initialize; `session` is then what other connections send too."""
        head, _ = await self._post(_INITIALIZE)
        at = head.lower().find(b"\r\nmcp-session-id:")
        if at >= 0:
            self.session = b"Mcp-Session-Id:" + head[at + 17 :].split(b"\r\n", 1)[0] + b"\r\n"
        await self._post(_INITIALIZED)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        length = _length(head)
        if length is None:
            if not self._buffer.endswith(b"0\r\n\r\n"):
                return
            body = _dechunked(self._buffer, end + 4)
        elif len(self._buffer) < end + 4 + length:
            return
        else:
            body = bytes(self._buffer[end + 4 :])
        self._buffer.clear()
        assert self._answered is not None
        self._answered.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("closed before the answer"))

    async def _post(self, body: bytes) -> tuple[bytes, bytes]:
        self._answered = asyncio.get_running_loop().create_future()
        head = (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: %b\r\n%bContent-Length: %d\r\n\r\n"
        )
        values = (self._path, self._port, VERSION.encode(), self.session, len(body))
        self._transport.write(head % values + body)
        return await self._answered

    async def call(self, size: int) -> None:
        """One call; RuntimeError where the result is not of that size. Connects again where the server grew tired of waiting."""
        if self._transport.is_closing():
            await self.start()
        _, body = await self._post(call(next(_NUMBERS), size))
        if not body.startswith(b"{"):  # an SSE stream with one message
            body = next(line[6:] for line in body.splitlines() if line.startswith(b'data: {"'))
        if _size(orjson.loads(body)) != size:
            raise RuntimeError("the result has another size")

    def close(self) -> None:
        """Disconnect."""
        self._transport.close()


def _size(message: dict[str, Any]) -> int:
    content = message.get("result", {}).get("content")
    return len(content[0]["text"]) if content else 0


def _dechunked(data: bytearray, at: int) -> bytes:
    parts = []
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(bytes(data[end + 2 : end + 2 + size]))
        at = end + 4 + size


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_stdio()
    else:
        import uvloop

        uvloop.run(serve_http())
