"""The hot path of the doors: what it takes, what it leaves to aiohttp, and that a caller cannot tell which one answered."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.collector import hot
from services.collector.app import MAX_BATCH_BYTES
from services.collector.hot import read_head
from services.collector.service import Collector
from services.forwarder.protocol import HEADER_DELIVERY

from .running import PRE, journalled, running, settings

BODY = orjson.dumps(PRE)


def request(body: bytes = BODY, *headers: str, path: str = "/hooks/codex", host: str = "localhost") -> bytes:
    """A hook as callers send it: one header a line."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def call(number: int) -> bytes:
    return request(orjson.dumps({**PRE, "tool_use_id": f"toolu_{number}"}))


@pytest.mark.unit
class TestReadHead:
    def test_the_head_that_the_forwarder_sends_is_a_plain_one(self) -> None:
        delivery = new_delivery_id()
        data = request(BODY, f"{HEADER_DELIVERY}: {delivery}", "X-AgentTrace-Pid: 1", "Connection: close")
        asked = read_head(data)
        assert asked is not None
        assert (asked.name, asked.delivery, asked.host, asked.close) == ("codex", delivery, "localhost", True)
        assert data[asked.start : asked.end] == BODY

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(request().replace(b"POST", b"PUT"), id="another method"),
            pytest.param(request().replace(b"1.1", b"1.0"), id="another version"),
            pytest.param(request(path="/hooks/nobody"), id="no such runtime"),
            pytest.param(request(path="/hooks/codex?x=1"), id="a query"),
            pytest.param(request(path="/api/v1/events"), id="another path"),
            pytest.param(request(BODY, "Origin: http://localhost"), id="a web page"),
            pytest.param(request(BODY, "Expect: 100-continue"), id="waits for an answer before the body"),
            pytest.param(request(BODY, "Transfer-Encoding: chunked"), id="chunks"),
            pytest.param(request(BODY, "Content-Encoding: gzip"), id="a compressed body"),
            pytest.param(request(BODY, "Connection: upgrade"), id="another protocol"),
            pytest.param(request(BODY, "Content-Length: 5"), id="two lengths"),
            pytest.param(request(BODY, "Host: evil.example"), id="two hosts"),
            pytest.param(request(BODY, "Accept : x"), id="a space before the colon"),
            pytest.param(request(BODY, "Accept: a", " folded"), id="a folded header"),
            pytest.param(request(BODY, "Accept: \x01"), id="a control character"),
            pytest.param(request(BODY, "Accept: a\nOrigin: b"), id="a bare line feed"),
            pytest.param(request().replace(b"Host: localhost\r\n", b""), id="no host"),
            pytest.param(request().replace(b"Content-Length: ", b"Content-Length: +"), id="a signed length"),
            pytest.param(b"POST /hooks/codex HTTP/1.1\r\nHost: localhost\r\n\r\n", id="no length"),
            pytest.param(
                f"POST /hooks/codex HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_BATCH_BYTES + 1}\r\n\r\n".encode(),
                id="a large body",
            ),
        ],
    )
    def test_anything_else_is_left_to_aiohttp(self, data: bytes) -> None:
        assert read_head(data) is None


class Caller:
    """One connection to the loopback door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces, each one a read of its own at the other end."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0.02)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers but for the date and the server's name, and body."""
        async with asyncio.timeout(10):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:-2])}
            body = await self._reader.readexactly(int(headers["content-length"]))
        assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers.pop("date"))
        headers.pop("server", "")
        return int(lines[0].split()[1]), headers, body

    async def ended(self) -> bool:
        """Whether the collector closes the connection."""
        async with asyncio.timeout(10):
            return await self._reader.read(1) == b""

    def close(self) -> None:
        self._writer.close()


class Passed(list[bytes]):
    """The first bytes of each connection that became aiohttp's."""


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Passed:
    found, real = Passed(), hot.Connection._pass_on

    def pass_on(self: hot.Connection, data: bytes) -> None:
        found.append(data)
        real(self, data)

    monkeypatch.setattr(hot.Connection, "_pass_on", pass_on)
    return found


@pytest.fixture
async def collector(tmp_path: Path) -> AsyncIterator[Collector]:
    async with running(settings(tmp_path)) as found:
        yield found


async def caller(collector: Collector) -> Caller:
    return Caller(*await asyncio.open_connection("127.0.0.1", collector.port))


def calls(home: Path) -> list[str]:
    return [event["tool_call_id"] for event in journalled(home) if "tool_call_id" in event]


NEUTRAL: tuple[int, dict[str, str], bytes] = (
    200,
    {"content-type": "application/json", "content-length": "2"},
    b"{}",
)

pytestmark = pytest.mark.integration


async def test_hooks_on_one_connection_are_answered_without_aiohttp(
    tmp_path: Path, collector: Collector, passed: Passed
) -> None:
    one = await caller(collector)
    for number in range(5):
        await one.send(call(number))
        assert await one.answer() == NEUTRAL
    one.close()
    assert calls(tmp_path) == [f"toolu_{number}" for number in range(5)]
    assert passed == []


async def test_a_hook_in_pieces_is_taken_once_it_is_whole(tmp_path: Path, collector: Collector, passed: Passed) -> None:
    one, data = await caller(collector), call(1)
    middle = data.index(b"\r\n\r\n") + 10
    await one.send(data[:3], data[3:40], data[40:middle])
    assert calls(tmp_path) == []
    await one.send(data[middle:])
    assert await one.answer() == NEUTRAL
    large = orjson.dumps({**PRE, "tool_use_id": "toolu_2", "tool_input": {"command": "x" * 900_000}})
    await one.send(request(large)[:500_000], request(large)[500_000:])
    assert await one.answer() == NEUTRAL
    assert calls(tmp_path) == ["toolu_1", "toolu_2"]
    assert passed == []


async def test_the_answer_closes_the_connection_where_the_caller_asked_for_it(collector: Collector) -> None:
    one = await caller(collector)
    await one.send(request(BODY, "Connection: close"))
    status, headers, _ = await one.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await one.ended()


async def test_hooks_sent_before_the_answer_are_answered_in_order(
    tmp_path: Path, collector: Collector, passed: Passed
) -> None:
    one = await caller(collector)
    await one.send(b"".join(call(number) for number in range(4)) + call(4)[:50], call(4)[50:])
    for _ in range(5):
        assert await one.answer() == NEUTRAL
    assert calls(tmp_path) == [f"toolu_{number}" for number in range(5)]
    assert len(passed) == 1


CHUNKED = b"POST /hooks/codex HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(CHUNKED % (len(BODY), BODY), id="chunks"),
        pytest.param(request(BODY, "X-Unknown: 1"), id="an unknown header"),
        pytest.param(request(gzip.compress(BODY), "Content-Encoding: gzip"), id="a compressed body"),
    ],
)
async def test_what_is_left_to_aiohttp_is_answered_alike_and_so_is_what_follows(
    tmp_path: Path, collector: Collector, passed: Passed, data: bytes
) -> None:
    one = await caller(collector)
    for odd in (call(0), data, call(2)):
        await one.send(odd)
        assert await one.answer() == NEUTRAL
    assert calls(tmp_path) == ["toolu_0", PRE["tool_use_id"], "toolu_2"]
    assert passed == [data]


async def test_a_caller_that_waits_for_100_continue_gets_it_before_the_body(
    tmp_path: Path, collector: Collector
) -> None:
    one, data = await caller(collector), request(BODY, "Expect: 100-continue")
    await one.send(data[: -len(BODY)])
    async with asyncio.timeout(10):
        assert await one._reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await one.send(BODY)
    assert await one.answer() == NEUTRAL
    assert len(journalled(tmp_path)) == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"POST /hooks/codex HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /hooks/codex HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n", 400),
        (request(host="evil.example"), 403),
        (request(BODY, "Origin: http://localhost"), 403),
        (request(path="/hooks/nobody"), 404),
    ],
)
async def test_what_is_wrong_is_refused_as_before(
    tmp_path: Path, collector: Collector, data: bytes, status: int
) -> None:
    one = await caller(collector)
    await one.send(data)
    assert (await one.answer())[0] == status
    assert journalled(tmp_path) == []


async def test_a_journal_that_takes_nothing_is_told_to_callers_that_spool(collector: Collector, passed: Passed) -> None:
    collector.intake.journal_bytes, kept = collector.intake.max_bytes + 1, collector.intake.journal_bytes
    one = await caller(collector)
    await one.send(request(BODY, f"{HEADER_DELIVERY}: {new_delivery_id()}"))
    status, _, body = await one.answer()
    assert (status, orjson.loads(body)["error"]) == (
        503,
        "journal_full: the journal takes nothing now, spool this delivery",
    )
    await one.send(request())
    assert await one.answer() == NEUTRAL
    collector.intake.journal_bytes = kept
    assert passed == []


async def test_with_fsync_before_the_answer_the_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: Passed
) -> None:
    async with running(settings(tmp_path, fsync_before_answer=True)) as collector:
        go = asyncio.Event()
        real: Callable[[], Any] = collector._sync

        async def slow() -> bool:
            await go.wait()
            return bool(await real())

        monkeypatch.setattr(collector, "_sync", slow)
        one = await caller(collector)
        await one.send(call(1) + call(2))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await one._reader.read(1)
        go.set()
        assert await one.answer() == NEUTRAL
        assert await one.answer() == NEUTRAL
        assert calls(tmp_path) == ["toolu_1", "toolu_2"]
        one.close()


async def test_a_stop_closes_idle_connections_and_lets_a_hook_under_way_end(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        idle, busy = await caller(collector), await caller(collector)
        await idle.send(call(1))
        assert await idle.answer() == NEUTRAL
        await busy.send(call(2)[:80])
        collector.stop()
        assert await idle.ended()
        await busy.send(call(2)[80:])
        status, headers, _ = await busy.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await busy.ended()
    assert calls(tmp_path) == ["toolu_1", "toolu_2"]


async def test_a_fault_of_the_collector_costs_only_its_delivery(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await caller(collector)
    with monkeypatch.context() as broken:
        broken.setattr(type(collector.intake), "take", _raise)
        await one.send(call(1))
        assert await one.answer() == NEUTRAL
    await one.send(call(2))
    assert await one.answer() == NEUTRAL
    assert calls(tmp_path) == ["toolu_2"]


def _raise(*_: Any) -> bool:
    raise RuntimeError("broken")
