"""The tap: what is written is read, in order, however it is cut; past its bounds it counts and never blocks."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mcp_proxy.tap import Kind, Reader, Record, Side, Tap

pytestmark = pytest.mark.unit


async def _read_all(connection: socket.socket) -> list[Record]:
    loop, reader, found = asyncio.get_running_loop(), Reader(), []
    while chunk := await loop.sock_recv(connection, 1 << 16):
        found += list(reader.feed(chunk))
    return found


def _pair() -> tuple[socket.socket, socket.socket]:
    here, there = socket.socketpair()
    there.setblocking(False)
    return here, there


async def test_what_is_written_is_read_in_order() -> None:
    tap, (here, there) = Tap(), _pair()
    tap.open(7, {"server": "files", "transport": "stdio"})
    tap.attach(here)
    for number in range(200):
        tap.data(7, Side(number % 2), b"x" * number)
    tap.say(Kind.EXIT, 7, Side.SERVER, {"code": 3})
    tap.close(7)
    read = asyncio.ensure_future(_read_all(there))
    await tap.end(5)
    records = await read
    assert [record.kind for record in records] == [Kind.OPEN, *[Kind.DATA] * 200, Kind.EXIT, Kind.CLOSE]
    assert [len(record.data) for record in records[1:201]] == list(range(200))
    assert records[201].json() == {"code": 3}
    assert sorted(record.at_ns for record in records) == [record.at_ns for record in records]


async def test_past_its_bound_bytes_become_a_gap_and_records_are_counted() -> None:
    tap, (here, there) = Tap(max_bytes=10_000), _pair()
    tap.open(1, {})
    for _ in range(100):
        tap.data(1, Side.SERVER, b"y" * 1000)
    for _ in range(2000):
        tap.say(Kind.HEAD, 1, Side.SERVER, {"status": 200})
    assert tap.waiting < 2 * 10_000 + 100
    tap.attach(here)
    read = asyncio.ensure_future(_read_all(there))
    await tap.end(5)
    records = await read
    kept = sum(len(record.data) for record in records if record.kind is Kind.DATA)
    lost = sum(record.json()["records"] for record in records if record.kind is Kind.LOST)
    heads = sum(record.kind is Kind.HEAD for record in records)
    assert kept + tap._gaps[1, Side.SERVER] == 100_000
    assert heads + lost == 2000
    assert lost > 0


async def test_a_gap_stands_where_bytes_are_missing() -> None:
    tap, (here, there) = Tap(max_bytes=5_000), _pair()
    tap.data(1, Side.SERVER, b"a" * 4000)
    tap.data(1, Side.SERVER, b"b" * 4000)
    tap.say(Kind.END, 1, Side.SERVER)
    tap.attach(here)
    read = asyncio.ensure_future(_read_all(there))
    await tap.end(5)
    records = await read
    assert [record.kind for record in records] == [Kind.DATA, Kind.GAP, Kind.END]
    assert records[1].json() == {"bytes": 4000}


async def test_a_reader_that_dies_is_followed_by_one_that_learns_of_open_channels() -> None:
    tap, (here, there) = Tap(), _pair()
    tap.attach(here)
    tap.open(1, {"server": "a"})
    tap.open(2, {"server": "b"})
    tap.close(1)
    reader = Reader()
    first: list[Record] = []
    while len(first) < 3:
        first += list(reader.feed(await asyncio.get_running_loop().sock_recv(there, 1 << 16)))
    there.close()
    while tap._socket is not None:
        tap.data(2, Side.CLIENT, b"z" * 100)
        await asyncio.sleep(0)
    tap.data(2, Side.CLIENT, b"after")
    here, there = _pair()
    tap.attach(here)
    read = asyncio.ensure_future(_read_all(there))
    await tap.end(5)
    records = [record for record in await read if record.data != b"z" * 100]
    assert records[0].channel == 2
    assert records[0].json() == {"server": "b", "resumed": True}
    assert records[-1].data == b"after"


@given(st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=50)), max_size=20), st.data())
def test_records_survive_any_cut(said: list[tuple[int, bytes]], data: st.DataObject) -> None:
    tap = Tap()
    for channel, content in said:
        tap.data(channel, Side.SERVER, content)
    wire = b"".join(head + body for head, body in tap._records)
    reader, found, start = Reader(), [], 0
    while start < len(wire):
        size = data.draw(st.integers(1, len(wire) - start))
        found += list(reader.feed(wire[start : start + size]))
        start += size
    assert [(record.channel, record.data) for record in found] == said


def test_json_of_a_record_without_data_is_empty() -> None:
    record = Record(Kind.END, 1, Side.CLIENT, 0, b"")
    assert record.json() == {}
    assert json.loads(json.dumps(record.json())) == {}
