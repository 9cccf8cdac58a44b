"""Point 6: streams of events, and the endpoint that the older HTTP+SSE transport names in one."""

from __future__ import annotations

import asyncio
import re

import pytest

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.http.conftest import Conversation, World, ok

pytestmark = pytest.mark.integration

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
_CHUNKED = _STREAM + b"Transfer-Encoding: chunked\r\n\r\n"
_EVENTS = [
    b"id: 1\nretry: 100\ndata:\n\n",
    b": keep-alive\n\n",
    b'event: message\ndata: {"jsonrpc":"2.0",\ndata: "method":"x"}\r\n\r\n',
    b'data: {"a":"\xe2\x80\xa8"}\rid: 2\r\r',
    b"data: half",
    b" of it\n\n",
]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("framing", ["chunked", "until the end"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_each_part_of_a_stream_passes_before_the_next_is_written(
    world: World, framing: str, method: bytes
) -> None:
    passed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"\r\nLast-Event-ID: 41\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(_CHUNKED if framing == "chunked" else _STREAM + b"\r\n")
        for event in _EVENTS:
            await asyncio.wait_for(passed.wait(), 5)
            passed.clear()
            writer.write(_chunk(event) if framing == "chunked" else event)
        await asyncio.wait_for(passed.wait(), 5)
        writer.write(b"0\r\n\r\n" if framing == "chunked" else b"")

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(method + b" /mcp/a HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 41\r\n\r\n")
    await client.head()
    for event in _EVENTS:
        passed.set()
        wanted = _chunk(event) if framing == "chunked" else event
        assert await client.bytes(len(wanted)) == wanted
    passed.set()
    assert await client.rest() == (b"0\r\n\r\n" if framing == "chunked" else b"")
    assert await world.closed() == "done"
    assert world.content(Side.SERVER) == b"".join(_EVENTS)
    assert (await world.said(Kind.OPEN)).json()["http"]["headers"] == {"last-event-id": "41"}


async def test_a_client_that_leaves_a_stream_closes_it_at_the_upstream_at_once(world: World) -> None:
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_CHUNKED)
        assert await reader.read() == b""
        gone.set()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.head()
    client.close()
    await asyncio.wait_for(gone.wait(), 1)
    assert await world.closed() == "client"


async def test_a_stream_of_one_client_does_not_hold_up_its_other_connections(world: World) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            writer.write(_CHUNKED if head.startswith(b"GET") else ok())

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    stream, client = await world.connect(), await world.connect()
    stream.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await stream.head() == _CHUNKED
    for _ in range(3):
        client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert (await client.answer())[1] == b"{}"


# the older transport


async def _legacy(world: World, event: bytes, framing: str = "chunked", cut: int = 1 << 20) -> tuple[Conversation, int]:
    """An upstream whose stream begins with this event (PORT: its own), written in pieces of so many bytes; messages are
    answered with 202. Returns the client's stream and the upstream's port.
    """
    streams: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
        if method == b"GET":
            streams.append(writer)
            said = event.replace(b"PORT", b"%d" % port)
            data = _CHUNKED + _chunk(said) if framing == "chunked" else _STREAM + b"\r\n" + said
            for at in range(0, len(data), cut):
                writer.write(data[at : at + cut])
                await asyncio.sleep(0.001)
            await reader.read()
            return
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))
        message = b"event: message\ndata: {}\n\n"
        streams[0].write(_chunk(message) if framing == "chunked" else message)

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/sse", "b=http://127.0.0.1:1/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % world.port)
    assert (await client.head()).startswith(b"HTTP/1.1 200 OK")
    return client, port


async def _post(world: World, target: bytes) -> bytes:
    client = await world.connect()
    client.send(b"POST %b HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 0\r\n\r\n" % (target, world.port))
    head, body = await client.answer()
    return body if b" 202 " in head else head


@pytest.mark.parametrize(
    ("named", "used", "reaches"),
    [
        (b"/messages/?session_id=abc", b"/messages/?session_id=abc", b"/messages/?session_id=abc"),
        (b"messages?s=1", b"/mcp/messages?s=1", b"/messages?s=1"),
        (b"?s=1", b"/mcp/a?s=1", b"/sse?s=1"),
        (b"/", b"/", b"/"),
    ],
)
@pytest.mark.parametrize("cut", [1 << 20, 1], ids=["whole", "byte by byte"])
async def test_an_endpoint_named_by_path_passes_as_it_came_and_leads_to_its_upstream(
    world: World, named: bytes, used: bytes, reaches: bytes, cut: int
) -> None:
    event = b"event: endpoint\r\ndata: " + named + b"\r\n\r\n"
    stream, _ = await _legacy(world, event, cut=cut)
    assert await stream.bytes(len(_chunk(event))) == _chunk(event)
    assert await _post(world, used) == reaches
    assert await stream.bytes(31) == b"19\r\nevent: message\ndata: {}\n\n\r\n"
    about = (await world.said(Kind.OPEN, 2)).json()
    assert (about["server"], about["transport"], about["stream"]) == ("a", "sse", 1)
    stream.close()
    await world.closed(1)
    assert world.hub is not None
    found = world.hub.routes.find(used)
    assert found is None or found.stream is None


@pytest.mark.parametrize("framing", ["chunked", "until the end"])
@pytest.mark.parametrize("cut", [1 << 20, 1], ids=["whole", "byte by byte"])
async def test_an_endpoint_named_by_url_gets_the_proxys_origin_and_nothing_else_changes(
    world: World, framing: str, cut: int
) -> None:
    first = b": hello\n\nevent: endpoint\ndata: http://127.0.0.1:PORT/messages?s=1\n\n: more\n\n"
    stream, port = await _legacy(world, first, framing, cut)
    wanted = first.replace(b"127.0.0.1:PORT", b"localhost:%d" % world.port)
    if framing == "chunked":
        passed = await _content(stream, len(wanted))
    else:
        passed = await stream.bytes(len(wanted))
    assert passed == wanted
    assert await _post(world, b"/messages?s=1") == b"/messages?s=1"
    message = b"event: message\ndata: {}\n\n"
    wanted = _chunk(message) if framing == "chunked" else message
    assert await stream.bytes(len(wanted)) == wanted
    came = first.replace(b"PORT", b"%d" % port)
    assert (await world.tapped(Side.SERVER, len(came))).startswith(came)


async def _content(stream: Conversation, size: int) -> bytes:
    content = b""
    while len(content) < size:
        line = await asyncio.wait_for(stream.reader.readuntil(b"\r\n"), 5)
        content += await stream.bytes(int(line, 16))
        assert await stream.bytes(2) == b"\r\n"
    return content


@pytest.mark.parametrize("named", [b"/mcp/b", b"/mcp/b/x?s=1", b"http://127.0.0.1:PORT/mcp/b"])
async def test_an_upstream_cannot_draw_the_messages_of_another_to_itself(world: World, named: bytes) -> None:
    stream, _ = await _legacy(world, b"event: endpoint\ndata: " + named + b"\n\n", "until the end")
    assert await stream.bytes(22) == b"event: endpoint\ndata: "
    told = await asyncio.wait_for(stream.reader.readuntil(b"\n\n"), 5)
    path = named.removeprefix(b"http://127.0.0.1:PORT")
    assert told.removeprefix(b"http://localhost:%d" % world.port) == b"/mcp/a" + path + b"\n\n"
    assert await _post(world, b"/mcp/a" + path) == path
    assert (await _post(world, path)).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "event",
    [
        b"event: endpoint\ndata: http://elsewhere.example/messages?s=1\n\n",
        b"event: endpoint\ndata: //127.0.0.1:PORT.evil/messages?s=1\n\n",
        b"event: endpoint\ndata: http://[bad/messages?s=1\n\n",
        b"event: endpoint\ndata: \xff\xfe/messages?s=1\n\n",
        b"event: endpoint\n\n",
        b"event: endpoints\ndata: /messages?s=1\n\n",
        b"data: http://127.0.0.1:PORT/messages?s=1\n\n",
    ],
)
async def test_other_first_events_pass_as_they_came_and_open_no_path(world: World, event: bytes) -> None:
    stream, port = await _legacy(world, event)
    wanted = _chunk(event.replace(b"PORT", b"%d" % port))
    assert await stream.bytes(len(wanted)) == wanted
    assert (await _post(world, b"/messages?s=1")).startswith(b"HTTP/1.1 404 ")


async def test_comments_before_the_first_event_are_not_held(world: World) -> None:
    said = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_CHUNKED + _chunk(b": ping\n\n"))
        await asyncio.wait_for(said.wait(), 5)
        writer.write(_chunk(b"event: endpoint\ndata: http://127.0.0.1:%d/x\n\n" % port))
        await reader.read()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/sse")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % world.port)
    await client.head()
    assert await client.bytes(13) == _chunk(b": ping\n\n")
    said.set()
    wanted = b"event: endpoint\ndata: http://localhost:%d/x\n\n" % world.port
    assert re.fullmatch(rb"[0-9a-f]+\r\n" + re.escape(wanted) + b"\r\n", await client.bytes(len(_chunk(wanted))))
