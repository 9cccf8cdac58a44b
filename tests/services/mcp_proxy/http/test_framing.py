"""Where messages end: against h11 on generated streams, and through a real relay: what comes out is what went in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import h11
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.mcp_proxy.http.bodies import Chunked
from services.mcp_proxy.http.heads import BadHead, check_beginning, read_answer, read_request
from services.mcp_proxy.http.repeats import Repeats
from tests.services.mcp_proxy.http.conftest import World

pytestmark = pytest.mark.integration

Message = tuple[bytes, bytes, bool]
"""First line's two words that matter, content, whether it is whole."""

_CONTENT = st.binary(max_size=40)
_VALUE = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\x00", exclude_categories=["Cc"]), max_size=12)
_HEADER = st.builds(
    lambda name, space, value: name + b":" + space + value.encode("latin-1") + b"\r\n",
    st.sampled_from([b"Accept", b"X-y", b"mcp-session-id", b"MCP-Method", b"Content-type"]),
    st.sampled_from([b"", b" ", b"\t "]),
    _VALUE,
)


@st.composite
def _chunked(draw: st.DrawFn) -> bytes:
    framed = b""
    for content in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4)):
        size = draw(st.sampled_from([b"%x", b"%X", b"00%x", b"%x ", b"%x;a=b", b'%x;q="\x80;"'])) % len(content)
        framed += size + b"\r\n" + content + b"\r\n"
    return framed + draw(st.sampled_from([b"0\r\n\r\n", b"000;x\r\n\r\n", b"0\r\nX-T: 1\r\nY:\r\n\r\n"]))


@st.composite
def _framed(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Header lines and a body that go together."""
    if draw(st.booleans()):
        content = draw(_CONTENT)
        name, zeros = draw(st.sampled_from([b"Content-Length", b"content-length"])), draw(st.sampled_from([b"", b"00"]))
        return name + b": " + zeros + b"%d\r\n" % len(content), content
    return draw(st.sampled_from([b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:Chunked \r\n"])), draw(
        _chunked()
    )


@st.composite
def _request(draw: st.DrawFn) -> bytes:
    framing, body = draw(st.one_of(_framed(), st.just((b"", b""))))
    lines = [b"Host: x\r\n", *draw(st.lists(_HEADER, max_size=3)), framing]
    method = draw(st.sampled_from([b"GET", b"POST", b"DELETE", b"OPTIONS"]))
    return method + b" /mcp/a HTTP/1.1\r\n" + b"".join(draw(st.permutations(lines))) + b"\r\n" + body


@st.composite
def _answer(draw: st.DrawFn) -> bytes:
    interim = b"".join(
        draw(st.lists(st.sampled_from([b"HTTP/1.1 100 \r\n\r\n", b"HTTP/1.1 103 X\r\nA: b\r\n\r\n"]), max_size=2))
    )
    framing, body = draw(st.one_of(_framed(), st.tuples(st.just(b""), _CONTENT)))
    lines = [*draw(st.lists(_HEADER, max_size=3)), framing]
    status = draw(st.sampled_from([b"200 OK", b"404 Not Found", b"503 "]))
    return interim + b"HTTP/1.1 " + status + b"\r\n" + b"".join(draw(st.permutations(lines))) + b"\r\n" + body


@st.composite
def _harmed(draw: st.DrawFn, stream: st.SearchStrategy[bytes]) -> bytes:
    """The bytes with a few of them taken out, put in or changed, at line ends most of all."""
    data = bytearray(draw(stream))
    for _ in range(draw(st.integers(1, 3))):
        ends = [at for at, byte in enumerate(data) if byte in b"\r\n:"] or [0]
        at = draw(st.one_of(st.sampled_from(ends), st.integers(0, len(data))))
        piece = draw(
            st.one_of(
                st.sampled_from(
                    [
                        b"\n",
                        b"\r",
                        b" ",
                        b"\t",
                        b"\x00",
                        b",",
                        b";",
                        b"0",
                        b"Content-Length: 3\r\n",
                        b"Transfer-Encoding: chunked\r\n",
                    ]
                ),
                st.binary(max_size=2),
            )
        )
        data[at : at + draw(st.integers(0, 2))] = piece
    return bytes(data)


@st.composite
def _cut(draw: st.DrawFn, stream: st.SearchStrategy[bytes]) -> list[bytes]:
    """The bytes in pieces."""
    data = draw(stream)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


_REQUESTS = st.lists(_request(), min_size=1, max_size=3).map(b"".join)


def _ours(pieces: list[bytes], *, like_h11: bool = False) -> list[Message]:
    """The requests in a stream, until one is refused; or until one comes that only h11 would refuse: it wants a Host, knows
    no coding but chunked, and takes no blank line before a request (RFC 9112 section 2.2).
    """
    found: list[Message] = []
    waiting, request, content = b"", None, b""
    for piece in pieces:
        waiting += piece
        while waiting:
            if request is None:
                while waiting.startswith(b"\r\n"):
                    if like_h11:
                        return found
                    waiting = waiting[2:]
                end = waiting.find(b"\r\n\r\n") + 4
                try:
                    if end < 4:
                        if waiting and waiting != b"\r":
                            check_beginning(waiting)
                        break
                    request = read_request(waiting[:end])
                except BadHead:
                    return found
                coding = request.fields.get(b"transfer-encoding", b"chunked")
                if like_h11 and (b"host" not in request.fields or coding.lower() != b"chunked"):
                    return found
                waiting = waiting[end:]
            if not request.body.done:
                used, part = request.body.feed(waiting, 0)
                content, waiting = content + part, waiting[used:]
                if request.body.fault:
                    return [*found, (request.method + request.target, content, False)]
            if not request.body.done:
                break
            found.append((request.method + request.target, content, True))
            if not request.keep:
                return found
            request, content = None, b""
    return [*found, (request.method + request.target, content, False)] if request else found


def _theirs(data: bytes) -> list[Message]:
    """The same by h11."""
    found: list[Message] = []
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    request: h11.Request | None = None
    content = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, content = event, b""
            elif isinstance(event, h11.Data):
                content += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                found.append((request.method + request.target, content, True))
                request = None
                connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return found
                connection.start_next_cycle()
            else:
                break
    except h11.RemoteProtocolError:
        pass
    return [*found, (request.method + request.target, content, False)] if request else found


@settings(max_examples=150, deadline=None)
@given(_cut(_REQUESTS))
def test_requests_are_framed_as_h11_does(pieces: list[bytes]) -> None:
    found = _ours(pieces)
    assert found == _theirs(b"".join(pieces)) and found and all(whole for _, _, whole in found)


@settings(max_examples=150, deadline=None)
@given(_cut(_harmed(_REQUESTS)))
@example(
    [
        b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1"
    ]
)
def test_what_is_taken_of_a_harmed_stream_h11_takes_for_the_same(pieces: list[bytes]) -> None:
    """Stricter than h11 in places (a bare LF), never laxer: whoever reads on behind the relay sees the same requests."""
    ours = [message for message in _ours(pieces, like_h11=True) if message[2]]
    theirs = [message for message in _theirs(b"".join(pieces)) if message[2]]
    assert ours == theirs[: len(ours)]


@settings(max_examples=150, deadline=None)
@given(_answer())
def test_answers_are_framed_as_h11_does(data: bytes) -> None:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, theirs = 0, b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            theirs += bytes(event.data)
    start = 0
    while True:
        end = data.index(b"\r\n\r\n", start) + 4
        answer = read_answer(data[start:end], b"GET")
        start = end
        if not answer.interim:
            break
    used, ours = answer.body.feed(data, start)
    answer.body.end()
    assert (answer.status, ours, used, answer.body.done) == (status, theirs, len(data), True)


@given(st.lists(_request(), min_size=2, max_size=4), st.data())
def test_a_head_is_taken_for_a_repetition_only_if_it_is_one_but_for_its_length(heads: list[bytes], data: Any) -> None:
    repeats: Repeats[bytes] = Repeats()
    for stream in heads:
        head = stream[: stream.index(b"\r\n\r\n") + 4]
        repeats.keep(head, head)
        other = data.draw(_harmed(st.just(head)))
        found = repeats.find(other)
        if found is not None:
            kept, digits = found
            length = int(read_request(kept).fields[b"content-length"])
            read = read_request(other)
            assert read.fields == read_request(kept).fields | {b"content-length": digits} and length >= 0


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=8))
def test_where_a_chunk_is_cut_is_known(content: bytes, sizes: list[int]) -> None:
    framed, at = b"", 0
    for size in sizes:
        part = content[at : at + size]
        framed += b"%x\r\n%b\r\n" % (len(part), part) if part else b""
        at += size
    framed += b"0\r\n\r\n"
    for cut in range(len(framed)):
        body = Chunked()
        body.feed(framed[:cut], 0)
        if body.cut is not None:
            rest = (b"%x\r\n" % body.cut if body.cut else b"") + framed[cut:]
            again = Chunked()
            assert again.feed(rest, 0)[0] == len(rest) and again.done


# through a relay


@pytest.fixture(scope="module", params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


async def _relayed(asked: list[bytes], answered: list[bytes] | None) -> tuple[bytes, bytes]:
    """What an upstream got, and what a client got, who sends this, ends its side and waits. The upstream sends such an
    answer and closes; or answers each request with 204.
    """
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    got = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = 0
        while data := await reader.read(1 << 16):
            got.extend(data)
            if answered is not None:
                for piece in answered:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                return
            whole = [message for message in _ours([bytes(got)]) if message[2]]
            for _ in whole[told:]:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            told = len(whole)

    world = World()
    port = await world.upstream(handle)
    await world.relay(f"a=http://127.0.0.1:{port}/mcp/a")
    client = await world.connect()
    received = b""
    try:
        for piece in asked:
            client.send(piece)
            await client.writer.drain()
            await asyncio.sleep(0)
        client.writer.write_eof()
        while part := await asyncio.wait_for(client.reader.read(1 << 16), 5):
            received += part
    except ConnectionError:
        pass
    finally:
        await world.end()
    assert complaints == []
    return bytes(got), received


_RELAYED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_RELAYED
@given(pieces=_cut(_REQUESTS))
def test_requests_come_out_as_they_went_in(runner: asyncio.Runner, pieces: list[bytes]) -> None:
    got, received = runner.run(_relayed(pieces, None))
    assert got == b"".join(pieces)
    assert received == b"HTTP/1.1 204 No Content\r\n\r\n" * len(_ours(pieces))


@_RELAYED
@given(pieces=_cut(_harmed(_REQUESTS)))
def test_of_harmed_requests_nothing_comes_out_that_did_not_go_in(runner: asyncio.Runner, pieces: list[bytes]) -> None:
    got, _ = runner.run(_relayed(pieces, None))
    # Blank lines between requests are left out.
    assert b"".join(pieces).replace(b"\r\n\r\n\r\n", b"\r\n\r\n").lstrip(b"\r\n").startswith(got) or got in b"".join(
        pieces
    )


@_RELAYED
@given(pieces=_cut(_answer()))
def test_answers_come_out_as_they_went_in(runner: asyncio.Runner, pieces: list[bytes]) -> None:
    _, received = runner.run(_relayed([b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n"], pieces))
    assert received == b"".join(pieces)


@_RELAYED
@given(pieces=_cut(_harmed(_answer())))
def test_of_harmed_answers_nothing_comes_out_that_did_not_go_in(runner: asyncio.Runner, pieces: list[bytes]) -> None:
    _, received = runner.run(_relayed([b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n"], pieces))
    assert b"".join(pieces).startswith(received) or received.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
