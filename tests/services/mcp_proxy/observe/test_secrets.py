"""Secrets planted in everything that a server and a client can say reach no socket, spool, file, tail or log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from services.cli.proxy_tail import View
from services.mcp_proxy.tap import Kind, Side
from tests.e2e.test_leaks import MARK, secret

from .parts import Json, Proxied, lines, request, spooled, until

pytestmark = pytest.mark.integration


def say_everything(proxy: Proxied) -> int:
    """One secret in each place; how many calls that makes. Each kind of secret comes at each place."""
    place = iter(range(10_000))
    calls = 0
    for _ in range(4):
        one = lambda: secret(next(place))  # noqa: E731
        next(place)
        proxy.client(request(calls, "initialize", {"clientInfo": {"name": one(), "version": one()}}))
        info = {
            "protocolVersion": "2025-11-25",
            "serverInfo": {"name": one()},
            "instructions": one(),
            "capabilities": {},
        }
        proxy.server({"jsonrpc": "2.0", "id": calls, "result": info})
        calls += 1
        for arguments in ({"token": one()}, {one(): "value"}, {"deep": [{"url": f"https://a.example/?key={one()}"}]}):
            proxy.call(calls, one(), arguments, {"content": [{"type": "text", "text": f"got {one()}"}]})
            calls += 1
        proxy.client(request(calls, f"custom/{one()}", {"uri": f"file:///home/{one()}"}))
        proxy.server({"jsonrpc": "2.0", "id": calls, "error": {"code": -1, "message": one(), "data": {"at": one()}}})
        calls += 1
        proxy.client(request(one(), "resources/read", {"uri": f"https://user:{one()}@example.com/"}))
        proxy.client(request(calls, "tools/list"))
        tool = {"name": one(), "description": one(), "inputSchema": {"type": "object", "title": one()}}
        proxy.server({"jsonrpc": "2.0", "id": calls, "result": {"tools": [tool]}})
        calls += 1
        asks = request(
            f"s-{calls}", "elicitation/create", {"mode": "url", "message": one(), "url": f"https://x/?t={one()}"}
        )
        proxy.server(asks)
        proxy.client(
            {"jsonrpc": "2.0", "id": f"s-{calls}", "result": {"action": one(), "content": {"password": one()}}}
        )
        proxy.server({"jsonrpc": "2.0", "method": f"notifications/{one()}", "params": {"progressToken": one()}})
        proxy.tap.data(1, Side.SERVER, f"banner {one()}\n".encode())
        proxy.tap.stderr(1, f"listening with {one()}\n".encode())
        proxy.tap.data(1, Side.CLIENT, b'{"half": "' + one().encode() + b"\n")
        large = "y" * (3 << 20)
        proxy.call(calls, "large", {"a": large + one()}, {"content": [{"type": "text", "text": one() + large}]})
        calls += 1
    proxy.tap.open(2, {
        "server": "web", "transport": "streamable-http",
        "http": {"method": "POST", "target": f"/mcp/{secret(900)}", "headers": {
            "user-agent": secret(901), "mcp-session-id": secret(902), "mcp-name": secret(903), "origin": secret(904),
            "content-type": "application/json", "x-agenttrace-run-id": secret(905), "traceparent": secret(906)}},
    })  # fmt: skip
    proxy.tap.data(2, Side.CLIENT, lines(request(1, "tools/call", {"name": secret(907)})))
    proxy.tap.say(Kind.END, 2, Side.CLIENT)
    headers = {"content-type": "application/json", "mcp-session-id": secret(908), "www-authenticate": secret(909)}
    proxy.tap.say(Kind.HEAD, 2, Side.SERVER, {"status": 401, "headers": headers})
    proxy.tap.data(2, Side.SERVER, orjson.dumps({"error": secret(910)}))
    proxy.tap.say(Kind.END, 2, Side.SERVER)
    proxy.tap.close(2)
    return calls


class Posted:
    """Stands on the collector's socket and keeps every byte that comes."""

    def __init__(self) -> None:
        self.bytes = b""
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                [length] = [
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                ]
                self.bytes += head + await reader.readexactly(length)
                self.requests += 1
                answer = b'{"accepted":1,"refused":[]}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()


def check(name: str, said: bytes) -> None:
    at = said.find(MARK.encode())
    assert at < 0, f"{name}: {said[max(0, at - 300) : at + 60]!r}"


@pytest.mark.parametrize("way", ["socket", "spool", "jsonl", "metadata_only"])
async def test_no_secret_leaves(tmp_path: Path, way: str) -> None:
    posted = Posted()
    home = tmp_path / "home"
    home.mkdir()
    server = await asyncio.start_unix_server(posted.serve, str(home / "collector.sock")) if way == "socket" else None
    path = tmp_path / "calls.jsonl"
    env: Json = {}
    if way == "metadata_only":
        # What is kept then is what no Capture has looked at for its own sake: names, ids, codes.
        env = {"AGENTTRACE_CAPTURE__INPUT__MODE": "off", "AGENTTRACE_CAPTURE__OUTPUT__MODE": "off"}
    proxy = Proxied(home, *(("--sink", f"jsonl:{path}") if way in ("jsonl", "metadata_only") else ()), env=env)
    live = b""
    try:
        socket = home / "proxies" / f"{proxy.process.pid}.sock"
        await until(socket.exists, "the proxy's socket")
        reader, writer = await asyncio.open_unix_connection(str(socket))
        calls = say_everything(proxy)
        ending = asyncio.create_task(proxy.end(60))
        live = await reader.read()
        await ending
        writer.close()
    finally:
        proxy.kill()
        if server is not None:
            server.close()
    kept = posted.bytes if way == "socket" else path.read_bytes() if path.exists() else b""
    kept += b"".join(file.read_bytes() for file in spooled(home))
    assert kept.count(b'"mcp.rpc.request"') >= calls
    assert live.count(b'"mcp.rpc.request"') >= calls
    check("kept", kept)
    check("live", live)
    check("log", proxy.log.read_bytes())
    view = View({"method": "/"}), View({})
    for event in map(orjson.loads, live.splitlines()):
        check("tail", repr([each.line(event) for each in view]).encode())
