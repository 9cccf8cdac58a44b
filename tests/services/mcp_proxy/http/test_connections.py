"""How connections begin and end: early answers, half-closed and vanished clients, upstreams that drop, and bad framing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from pathlib import Path

import pytest

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.http.conftest import Scripted, World, ok

pytestmark = pytest.mark.integration

_POST = b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with socket.socket(fileno=socket.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("said", [b"Connection: close\r\n", b""], ids=["it says close", "without a word"])
async def test_a_413_before_the_body_is_read_reaches_a_client_that_is_still_sending(world: World, said: bytes) -> None:
    answer = b"HTTP/1.1 413 Content Too Large\r\n" + said + b"Content-Length: 3\r\n\r\nbig"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        # Unread bytes: the kernel resets the connection.
        writer.transport.abort()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    for channel in range(1, 11):
        client = await world.connect()
        client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
        sending = asyncio.create_task(_send(client.writer, b"x" * 8_000_000))
        assert await client.bytes(len(answer)) == answer
        assert await world.closed(channel) == "done"
        sending.cancel()
        client.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(data), 1 << 16):
            writer.write(data[at : at + (1 << 16)])
            await writer.drain()


async def test_an_early_answer_on_a_connection_that_is_kept_lets_the_body_finish(world: World) -> None:
    size = 3_000_000

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ok(b"early"))
            await reader.readexactly(size)
        await reader.read()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    for _ in range(2):
        client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        assert (await client.answer())[1] == b"early"
        client.send(b"x" * size)
    assert [await world.closed(1), await world.closed(2)] == ["done", "done"]


async def test_a_half_closed_client_gets_its_answers_and_the_upstream_sees_the_end(world: World) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for count in range(2):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"hi"
            if count:
                assert await reader.read() == b""
            writer.write(ok(b"%d" % count))

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST * 2)
    client.writer.write_eof()
    assert await client.rest() == ok(b"0") + ok(b"1")
    assert [await world.closed(1), await world.closed(2)] == ["done", "done"]


@pytest.mark.parametrize("left", [b"\r\n", b"\r\nPOST /mc"])
async def test_what_a_half_closed_client_left_unfinished_does_not_keep_its_connection(
    world: World, left: bytes
) -> None:
    port = await world.upstream(Scripted(ok(), body=2))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST + left)
    client.writer.write_eof()
    assert await client.rest() == ok()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_is_gone_takes_its_upstream_connection_along(world: World, how: str) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b"hi"
        gone.set()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    await asyncio.wait_for(asked.wait(), 5)
    if how == "close":
        client.close()
    else:
        _reset(client.writer)
    await asyncio.wait_for(gone.wait(), 1)
    assert await world.closed() in {"client", "upstream"}


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 O", id="half a head"),
        pytest.param(ok(b"abcdef")[:-2], id="a part of the length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nab", id="a part of a chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", id="no last chunk"),
    ],
)
@pytest.mark.parametrize("how", ["end", "reset"])
async def test_an_upstream_that_drops_surfaces_at_once_and_never_as_a_clean_end(
    world: World, part: bytes, how: str
) -> None:
    seen = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(part)
        await writer.drain()
        await asyncio.wait_for(seen.wait(), 5)
        if how == "reset":
            _reset(writer)

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    passed = part if b"\r\n\r\n" in part else b""
    assert await client.bytes(len(passed)) == passed
    seen.set()
    assert await asyncio.wait_for(client.closed(), 1)
    assert await world.closed() == "upstream"


async def test_an_answer_that_lasts_until_the_end_is_broken_by_a_reset_and_ended_by_an_end(world: World) -> None:
    breaks = iter([False, True])
    seen = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        if next(breaks):
            await seen.wait()
            _reset(writer)

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    assert await client.rest() == b"HTTP/1.1 200 OK\r\n\r\npart"
    assert await world.closed(1) == "done"
    client = await world.connect()
    client.send(_POST)
    assert await client.bytes(23) == b"HTTP/1.1 200 OK\r\n\r\npart"
    seen.set()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert await world.closed(2) == "upstream"


async def test_an_idle_connection_that_the_upstream_ends_ends_for_the_client_too(world: World) -> None:
    port = await world.upstream(Scripted(ok(), body=2, close=True))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    await client.answer()
    assert await client.closed()


@pytest.mark.parametrize("who", ["client", "upstream"])
async def test_connection_close_is_honoured_both_ways(world: World, who: str) -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ok(b"{}", b"Connection: close") if who == "upstream" else ok())
        assert await reader.read() == b""
        ended.set()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    close = b"Connection: Close\r\n" if who == "client" else b""
    client.send(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n" + close + b"\r\n")
    assert (await client.answer())[1] == b"{}"
    assert await client.closed()
    await asyncio.wait_for(ended.wait(), 5)


async def test_bytes_that_nobody_asked_for_are_never_taken_for_the_next_answer(world: World) -> None:
    port = await world.upstream(Scripted(ok(b"1") + ok(b"forged"), ok(b"2"), body=2))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST + _POST)
    assert await client.rest() == ok(b"1")


async def test_bytes_of_an_upstream_between_two_requests_end_the_connection(world: World) -> None:
    asked = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ok(b"1"))
        await asyncio.wait_for(asked.wait(), 5)
        writer.write(ok(b"forged"))
        await reader.read()

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    assert (await client.answer())[1] == b"1"
    asked.set()
    assert await client.closed()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"POST /mcp/a HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both"),
        (b"POST /mcp/a HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi", "Content-Length"),
        (b"POST /mcp/a HTTP/1.1\r\nContent-Length: 2, 3\r\n\r\nhi", "Content-Length"),
        (b"POST /mcp/a HTTP/1.1\r\nContent-Length: +2\r\n\r\nhi", "Content-Length"),
        (b"POST /mcp/a HTTP/1.1\r\nContent-Length: 0x2\r\n\r\nhi", "Content-Length"),
        (b"POST /mcp/a HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "chunked"),
        (b"POST /mcp/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked"),
        (b"POST /mcp/a HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", "chunked"),
        (b"POST /mcp/a HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", "HTTP/1.1"),
        (b"POST /mcp/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "chunked"),
        (b"POST /mcp/a HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n", "HTTP/1.1"),
        (b"GET /mcp/a HTTP/1.1\nHost: x\n\n", "LF"),
        (b"GET /mcp/a HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", "LF"),
        (b"GET /mcp/a HTTP/1.1\r\nX: y\r\n folded\r\n\r\n", "folded"),
        (b"GET /mcp/a HTTP/1.1\r\nX: a\rb\r\n\r\n", "HTTP/1.1"),
        (b"GET /mcp/a HTTP/1.1\r\nX: a\x00b\r\n\r\n", "HTTP/1.1"),
        (b"GET /mcp/a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Host"),
        (b"GET /mcp/a\r\n\r\n", "HTTP/1.1"),
        (b"GET /mcp/a HTTP/2.0\r\n\r\n", "HTTP/1.1"),
        (b"GET  /mcp/a HTTP/1.1\r\n\r\n", "HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(world: World, request_: bytes, why: str) -> None:
    upstream = Scripted(ok())
    port = await world.upstream(upstream)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(request_)
    head, body = await client.answer()
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and why in json.loads(body)["error"]
    assert await client.closed()
    assert upstream.heads == []


@pytest.mark.parametrize(
    "chunks",
    [
        b"2\nhi\r\n0\r\n\r\n",
        b"2\r\nhi0\r\n\r\n",
        b"2\r\nhi\n0\r\n\r\n",
        b"0x2\r\nhi\r\n",
        b"-2\r\n",
        b"2 2\r\n",
        b"0\r\nX:\n\r\n",
        b"2;\rx",
        b"f" * 16 + b"\r\n",
    ],
)
async def test_chunks_that_can_be_read_in_two_ways_are_refused_and_not_passed_on(world: World, chunks: bytes) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got.set_result(await reader.read())

    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await world.said(Kind.OPEN)
    client.send(chunks)
    assert (await client.answer())[0].startswith(b"HTTP/1.1 400 ")
    assert await client.closed()
    passed = await asyncio.wait_for(got, 5)
    assert passed != chunks and chunks.startswith(passed)
    assert await world.closed() == "client"


async def test_a_head_without_end_is_refused(world: World) -> None:
    await world.relay("a=http://127.0.0.1:1/mcp")
    client = await world.connect()
    client.send(b"GET /mcp/a HTTP/1.1\r\n" + b"X: %b\r\n" % (b"y" * 1000) * 80)
    assert (await client.head()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi", "both"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 4\r\n\r\nhi", "Content-Length"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "LF"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 answer"),
        (b"HTTP/2 200\r\n\r\n", "HTTP/1.1 answer"),
    ],
)
async def test_an_answer_that_can_be_read_in_two_ways_becomes_a_502(world: World, answer: bytes, why: str) -> None:
    port = await world.upstream(Scripted(answer, body=2))
    await world.relay(f"a=http://127.0.0.1:{port}/mcp")
    client = await world.connect()
    client.send(_POST)
    head, body = await client.answer()
    assert head.startswith(b"HTTP/1.1 502 ") and why in json.loads(body)["error"] and "'a'" in json.loads(body)["error"]
    assert await world.closed() == "upstream"


async def test_a_refused_connection_is_a_502_that_says_which_route_and_the_tap_has_the_request(world: World) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        await world.relay(f"a=http://127.0.0.1:{port}/mcp", "b=http://name.invalid/mcp")
        client = await world.connect()
        client.send(_POST)
        head, body = await client.answer()
        assert head.startswith(b"HTTP/1.1 502 ") and body.count(b"\n") == 1
        assert json.loads(body) == {
            "error": f"route 'a': 127.0.0.1:{port} refuses connections; is the server running there?"
        }
        assert await world.closed() == "connect"
        assert world.content(Side.CLIENT) == b"hi"
        client = await world.connect()
        client.send(_POST.replace(b"/mcp/a", b"/mcp/b"))
        assert b"name.invalid is not a name that resolves" in (await client.answer())[1]
        client = await world.connect()
        client.send(b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % world.port)
        listed = json.loads((await client.answer())[1])["routes"]
        assert "refuses" in listed["a"]["trouble"] and listed["b"]["path"] == "/mcp/b"


async def test_tls_is_verified_and_named(world: World, tmp_path: Path) -> None:
    authority, server = certificates(tmp_path)
    names: list[str | None] = []
    server.sni_callback = lambda _, name, __: names.append(name)
    port = await world.upstream(Scripted(ok(b"safe"), ok(b"again"), body=2), tls=server)
    trusting = ssl.create_default_context(cafile=authority)
    await world.relay(f"a=https://localhost:{port}/mcp", f"b=https://127.0.0.1:{port}/mcp", tls=trusting)
    client = await world.connect()
    for wanted in (b"safe", b"again"):
        client.send(_POST)
        assert (await client.answer())[1] == wanted
    assert names == ["localhost"]
    client = await world.connect()
    client.send(_POST.replace(b"/mcp/a", b"/mcp/b"))
    assert b"certificate that does not hold" in (await client.answer())[1]
    assert world.hub is not None
    world.hub.tls = ssl.create_default_context()
    client = await world.connect()
    client.send(_POST)
    assert b"--ca FILE" in (await client.answer())[1]

    async def speak_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.read(1)) == b"\x16"
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    plain = await world.upstream(speak_plain)
    world.hub.routes.by_name["a"].port = plain
    client = await world.connect()
    client.send(_POST)
    assert b"does not speak TLS" in (await client.answer())[1]


def certificates(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The file of an authority, and a server's context for the name localhost."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.now(UTC)
        unsigned = x509.CertificateBuilder(
            name("authority"), name(subject), key.public_key(), x509.random_serial_number()
        )
        unsigned = unsigned.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        return unsigned.add_extension(extension, critical=False).sign(authority_key, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = sign("authority", authority_key, x509.BasicConstraints(ca=True, path_length=None))
    certificate = sign("localhost", key, x509.SubjectAlternativeName([x509.DNSName("localhost")]))
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return folder / "ca.pem", context
