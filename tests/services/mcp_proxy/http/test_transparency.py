"""Point 5 of the proxy's requirements: what client and server say to each other is what they would say without it."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.http.conftest import Scripted, World, ok

pytestmark = pytest.mark.integration

_HEADERS = (
    b"accept: application/json,   text/event-stream\r\nX-Odd-CASE:\tvalue with\ttab \r\nContent-TYPE: application/json\r\n"
    b"Mcp-Session-Id: 1868a90c\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: get-sum\r\n"
    b"Mcp-Param-Region: =?base64?w6Q=?=\r\nAuthorization: Bearer secret\r\nCookie: a=b\r\nX-Twice: 1\r\nx-twice: 2\r\n"
    b"X-Empty:\r\nX-Latin: caf\xe9\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
)


async def test_a_request_reaches_the_upstream_byte_for_byte_but_for_its_target_and_own_host(world: World) -> None:
    upstream = Scripted(ok(), body=5)
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp/")
    client = await world.connect()
    client.send(
        b"POST /mcp/a?x=%%20&y HTTP/1.1\r\nhOST: 127.0.0.1:%d\r\n%bContent-Length: 5\r\n\r\nhello"
        % (world.port, _HEADERS)
    )
    assert await client.answer() == (ok()[:-2], b"{}")
    assert upstream.heads == [
        b"POST /mcp/?x=%%20&y HTTP/1.1\r\nhOST: 127.0.0.1:%d\r\n%bContent-Length: 5\r\n\r\n" % (port, _HEADERS)
    ]
    assert upstream.bodies == [b"hello"]


async def test_the_tap_gets_bodies_and_listed_headers_and_no_credential(world: World) -> None:
    port = await world.upstream(
        Scripted(ok(b'{"r":1}', b"Set-Cookie: s=1", b"Mcp-Session-Id: new", b"Content-Type: text/x"), body=5)
    )
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"POST /mcp/a?key=secret HTTP/1.1\r\nHost: x\r\n" + _HEADERS + b"Content-Length: 5\r\n\r\nhello")
    await client.answer()
    assert await world.closed() == "done"
    about = (await world.said(Kind.OPEN)).json()
    assert (about["server"], about["http"]["method"], about["http"]["target"]) == ("a", "POST", "/mcp/a")
    assert about["http"]["headers"] == {
        "accept": "application/json,   text/event-stream",
        "content-type": "application/json",
        "mcp-session-id": "1868a90c",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "get-sum",
        "mcp-param-region": "=?base64?w6Q=?=",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    assert (await world.said(Kind.HEAD)).json() == {
        "status": 200,
        "headers": {"mcp-session-id": "new", "content-type": "text/x"},
    }
    assert await world.tapped(Side.CLIENT, 5) == b"hello"
    assert await world.tapped(Side.SERVER, 7) == b'{"r":1}'
    assert [r.kind.name for r in world.records] == ["OPEN", "DATA", "END", "HEAD", "DATA", "END", "CLOSE"]
    assert not any(b"secret" in r.data or b"a=b" in r.data or b"s=1" in r.data for r in world.records)


async def test_of_a_challenge_the_tap_gets_the_scheme_only(world: World) -> None:
    port = await world.upstream(Scripted(_CHALLENGE))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.answer()
    assert (await world.said(Kind.HEAD)).json() == {"status": 401, "headers": {"www-authenticate": "Bearer"}}


@pytest.mark.parametrize(
    ("host", "becomes"),
    [
        (b"127.0.0.1:PROXY", b"127.0.0.1:UPSTREAM"),
        (b"LOCALHOST:PROXY", b"127.0.0.1:UPSTREAM"),
        (b"[::1]:PROXY", b"127.0.0.1:UPSTREAM"),
        (b"evil.example:PROXY", b"evil.example:PROXY"),
        (b"localhost", b"localhost"),
        (b"localhost:1", b"localhost:1"),
        (b"", b""),
    ],
)
async def test_a_host_that_is_not_the_proxys_own_is_kept(world: World, host: bytes, becomes: bytes) -> None:
    upstream = Scripted(ok())
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: " + host.replace(b"PROXY", b"%d" % world.port) + b"\r\n\r\n")
    await client.answer()
    wanted = becomes.replace(b"PROXY", b"%d" % world.port).replace(b"UPSTREAM", b"%d" % port)
    assert upstream.heads == [b"GET /mcp HTTP/1.1\r\nHost: " + wanted + b"\r\n\r\n"]


@pytest.mark.parametrize(
    ("origin", "more", "becomes"),
    [
        (b"https://app.example", b"", b"https://app.example"),
        (b"null", b"", b"null"),
        (b"http://localhost:6274", b"", b"http://localhost:6274"),
        (b"http://localhost:PROXY", b"", b"http://127.0.0.1:UPSTREAM"),
        # A page that some upstream served through the proxy must not pass for this upstream's own.
        (b"http://localhost:PROXY", b"Sec-Fetch-Site: same-origin\r\n", b"http://localhost:PROXY"),
        (b"https://localhost:PROXY", b"", b"https://localhost:PROXY"),
    ],
)
async def test_an_origin_is_kept_unless_a_program_took_it_from_the_proxys_url(
    world: World, origin: bytes, more: bytes, becomes: bytes
) -> None:
    upstream = Scripted(ok())
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    origin = origin.replace(b"PROXY", b"%d" % world.port)
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\nOrigin: " + origin + b"\r\n" + more + b"\r\n")
    await client.answer()
    wanted = becomes.replace(b"PROXY", b"%d" % world.port).replace(b"UPSTREAM", b"%d" % port)
    assert upstream.heads == [b"GET /mcp HTTP/1.1\r\nHost: x\r\nOrigin: " + wanted + b"\r\n" + more + b"\r\n"]


_CHALLENGE = (
    b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer error="invalid_token", '
    b'resource_metadata="https://x.example/.well-known/oauth-protected-resource/mcp"\r\nContent-Length: 9\r\n\r\n{"e": 41}'
)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_CHALLENGE, id="401 with WWW-Authenticate"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", id="404 for a dead session"),
        pytest.param(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n", id="405"),
        pytest.param(b"HTTP/1.1 400 \r\nContent-Length: 4\r\n\r\noops", id="400 with a body"),
        pytest.param(b"HTTP/1.1 503\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy", id="503 without a reason"),
        pytest.param(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", id="202"),
        pytest.param(b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", id="204"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", id="304 that names a length"),
        pytest.param(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", id="307"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0006 \r\n world\r\n"
            b"0\r\nX-Trailer: t\r\n\r\n",
            id="chunks with extensions and trailers",
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok(), id="1xx before it"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(b"{}" * 99))
            + gzip.compress(b"{}" * 99),
            id="gzip",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\n\x0b\x00\xff", id="br"),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 7], ids=["whole", "byte by byte", "by seven bytes"])
async def test_an_answer_passes_as_it_came_and_another_request_can_follow(
    world: World, answer: bytes, cut: int
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(answer), cut or len(answer)):
                writer.write(answer[at : at + (cut or len(answer))])
                await asyncio.sleep(0)
        await reader.read()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    for _ in range(2):
        client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert await client.bytes(len(answer)) == answer
    assert [await world.closed(1), await world.closed(2)] == ["done", "done"]


async def test_the_tap_gets_chunked_bodies_without_their_framing_and_gzip_as_it_is(world: World) -> None:
    packed = gzip.compress(b"{}" * 99)
    chunks = b"%x\r\n%b\r\n" % (len(packed[:9]), packed[:9]) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed[9:]), packed[9:])
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    port = await world.upstream(Scripted(answer, body=len(chunks)))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunks)
    assert await client.bytes(len(answer)) == answer
    await world.closed()
    assert await world.tapped(Side.CLIENT, len(packed)) == packed
    assert await world.tapped(Side.SERVER, len(packed)) == packed


@pytest.mark.parametrize("method", [b"HEAD", b"DELETE", b"OPTIONS", b"GET", b"PATCH", b"X-OWN"])
async def test_any_method_passes_and_head_has_no_body(world: World, method: bytes) -> None:
    body = b"" if method == b"HEAD" else b"ok"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + body
    upstream = Scripted(answer, answer)
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    for _ in range(2):
        client.send(method + b" /mcp/a/below HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await client.bytes(len(answer)) == answer
    assert upstream.heads == [method + b" /mcp/below HTTP/1.1\r\nHost: x\r\n\r\n"] * 2


async def test_a_body_in_a_second_segment_and_one_that_waits_for_100_continue(world: World) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(ok())
        await reader.read()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"body")
    assert (await client.answer())[1] == b"{}"
    await world.closed()
    assert [r.json()["status"] for r in world.records if r.kind is Kind.HEAD] == [100, 200]


async def test_a_request_in_single_bytes(world: World) -> None:
    upstream = Scripted(ok(), body=len(b"3\r\nabc\r\n0\r\n\r\n"))
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    for byte in b"\r\nPOST /mcp/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
        client.send(bytes([byte]))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer())[1] == b"{}"
    assert upstream.heads == [b"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"]
    assert upstream.bodies == [b"3\r\nabc\r\n0\r\n\r\n"]


async def test_requests_sent_ahead_are_answered_in_order_each_by_its_own_upstream(world: World) -> None:
    first, second = Scripted(ok(b"1"), ok(b"3"), body=2), Scripted(ok(b"2"), body=2)
    ports = await world.upstream(first), await world.upstream(second)
    await world.relay(f"a=http://127.0.0.1:{ports[0]}/one", f"b=http://127.0.0.1:{ports[1]}/two")
    client = await world.connect()
    client.send(
        b"".join(
            b"POST /mcp/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi" % name for name in [b"a", b"b", b"a"]
        )
    )
    assert [(await client.answer())[1] for _ in range(3)] == [b"1", b"2", b"3"]
    assert [head.split()[1] for head in first.heads + second.heads] == [b"/one", b"/one", b"/two"]


async def test_an_old_clients_connection_ends_with_its_answer(world: World) -> None:
    upstream = Scripted(b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nuntil the end", close=True)
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.0\r\n\r\n")
    assert await client.rest() == b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nuntil the end"
    assert upstream.heads == [b"GET /mcp HTTP/1.0\r\n\r\n"]
    assert await world.closed() == "done"


async def test_an_upgrade_is_as_the_upstream_says_but_for_http2(world: World) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"websocket" not in head:
            assert b"h2c" not in head and b"HTTP2-Settings: " not in head
            writer.write(ok())
            return
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nhi")
        while data := await reader.read(100):
            writer.write(data.upper())

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert await client.head() == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert await client.bytes(2) == b"hi"
    client.send(b"\x00GET / HTTP/1.1\n\n")
    assert await client.bytes(17) == b"\x00GET / HTTP/1.1\n\n"
    client.close()
    assert await world.closed() == "client"
    client = await world.connect()
    client.send(
        b"GET /mcp/a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n"
    )
    assert (await client.answer())[1] == b"{}"
