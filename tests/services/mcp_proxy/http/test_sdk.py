"""The public SDK's client and server, of both HTTP transports, through the relay."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from services.embedded.host import free_port
from services.mcp_proxy.tap import Kind
from tests.services.mcp_proxy.http.conftest import World

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def port(wait_until: Callable[..., None]) -> Iterator[int]:
    """Of a server in a process of its own."""
    port = free_port()

    def answers() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("sdk_server.py")), str(port)])
    try:
        wait_until(answers, "the server listens", timeout_s=30)
        yield port
    finally:
        process.kill()
        process.wait()


async def _add(transport: AbstractAsyncContextManager[Any]) -> str:
    said: list[str | None] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        said.append(message)

    async with transport as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        assert [tool.name for tool in (await session.list_tools()).tools] == ["add"]
        result = await session.call_tool("add", {"a": 2, "b": 3}, progress_callback=progress)
    assert said == ["added"]
    return str(result.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_the_older_transport_works_and_its_messages_say_which_stream_answers(
    world: World, port: int, name: str
) -> None:
    await world.relay(f"old=http://127.0.0.1:{port}/sse")
    assert await _add(sse_client(f"http://{name}:{world.port}/mcp/old")) == "5"
    opened = [r.json() for r in world.records if r.kind is Kind.OPEN]
    posts = [about for about in opened if about["http"]["method"] == "POST"]
    assert posts and {(about["transport"], about["stream"]) for about in posts} == {("sse", 1)}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_streamable_http_works(world: World, port: int, name: str) -> None:
    await world.relay(f"new=http://127.0.0.1:{port}/mcp")
    assert await _add(streamable_http_client(f"http://{name}:{world.port}/mcp/new")) == "5"


@pytest.mark.parametrize("header", [b"Host: evil.example", b"Host: HERE\r\nOrigin: http://evil.example"])
async def test_the_servers_check_against_dns_rebinding_decides_as_without_the_relay(
    world: World, port: int, header: bytes
) -> None:
    await world.relay(f"new=http://127.0.0.1:{port}/mcp")
    answers = []
    for target, where in ((b"/mcp", port), (b"/mcp/new", world.port)):
        client = await world.connect(where)
        host = header.replace(b"HERE", b"127.0.0.1:%d" % where)
        client.send(
            b"POST %b HTTP/1.1\r\n%b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % (target, host)
        )
        head, body = await client.answer()
        answers.append((head.split(b"\r\n")[0], body))
    assert answers[0] == answers[1] and answers[0][0].split()[1] in {b"421", b"403"}
