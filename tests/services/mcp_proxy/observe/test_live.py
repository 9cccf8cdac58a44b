"""The socket of a running proxy: everything for who reads, a count for who is slow, nothing for anybody else."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import orjson
import pytest

from services.mcp_proxy import live, sockets
from services.mcp_proxy.live import Live

from .parts import calls, until

pytestmark = pytest.mark.integration


async def _attached(proxy: Live) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    before = len(proxy._readers)
    reader, writer = await asyncio.open_unix_connection(sockets.address(proxy.path))
    await until(lambda: len(proxy._readers) > before, "attached")
    return reader, writer


async def test_every_reader_gets_every_line_in_order(tmp_path: Path) -> None:
    proxy = Live(tmp_path)
    await proxy.start()
    assert proxy.path.stat().st_mode & 0o777 == 0o600
    assert proxy.path.parent.stat().st_mode & 0o777 == 0o700
    readers = [await _attached(proxy) for _ in range(3)]
    sent = calls(50)
    for event in sent:
        proxy.put([event])
    await proxy.close()
    for reader, writer in readers:
        assert [orjson.loads(line) for line in (await reader.read()).splitlines()] == sent
        writer.close()
    assert not proxy.path.exists()


async def test_a_slow_reader_misses_lines_and_is_told_how_many(tmp_path: Path) -> None:
    proxy = Live(tmp_path)
    await proxy.start()
    (slow, slow_writer), (quick, quick_writer) = await _attached(proxy), await _attached(proxy)
    got = []

    async def read_all() -> None:
        while line := await quick.readline():
            got.append(orjson.loads(line))

    reading = asyncio.create_task(read_all())
    sent = calls(6000)
    for first in range(0, len(sent), 10):
        proxy.put(sent[first : first + 10])
        await asyncio.sleep(0)
        if first % 500 == 0:
            await until(lambda need=first: len(got) >= need, "the quick reader keeps up")
    assert any(proxy._readers.values())
    lines: list[bytes] = []

    async def catch_up() -> None:
        while line := await slow.readline():
            lines.append(line)

    catching = asyncio.create_task(catch_up())
    await until(lambda: len(got) == len(sent), "the quick reader has all")
    await until(lambda: any(w.transport.get_write_buffer_size() == 0 for w in proxy._readers), "drained")
    last = calls(1, first=9999)
    await until(lambda: all(w.transport.get_write_buffer_size() == 0 for w in proxy._readers), "drained")
    proxy.put(last)
    await proxy.close()
    await asyncio.gather(reading, catching)
    assert got == sent + last
    found = [orjson.loads(line) for line in lines]
    missed = [line["missed"] for line in found if "missed" in line]
    assert len(found) - len(missed) + sum(missed) == len(sent) + len(last)
    assert sum(missed) > 0
    slow_writer.close()
    quick_writer.close()


async def test_the_socket_of_another_user_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Live(tmp_path)
    await proxy.start()
    monkeypatch.setattr(live, "is_ours", lambda connection: False)
    reader, writer = await asyncio.open_unix_connection(str(proxy.path))
    proxy.put(calls(1))
    assert await reader.read() == b""
    writer.close()
    await proxy.close()


async def test_who_is_at_the_other_end_is_asked_of_the_system() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert sockets.is_ours(here)
        uid, os_getuid = os.getuid(), os.getuid
        try:
            os.getuid = lambda: uid + 1  # type: ignore[assignment]
            assert sockets.is_ours(here) is (uid == 0)
        finally:
            os.getuid = os_getuid  # type: ignore[assignment]


async def test_a_home_with_a_long_name_and_the_sockets_of_the_dead(tmp_path: Path) -> None:
    home = tmp_path / ("h" * 120)
    folder = home / live.FOLDER
    folder.mkdir(parents=True)
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    stale = folder / f"{gone.pid}.sock"
    stale.touch()
    proxy = Live(home)
    await proxy.start()
    assert not stale.exists()
    reader, writer = await _attached(proxy)
    sent = calls(1)
    proxy.put(sent)
    assert orjson.loads(await reader.readline()) == sent[0]
    writer.close()
    await proxy.close()


async def test_a_folder_that_cannot_be_made_costs_only_the_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / live.FOLDER).write_text("in the way")
    proxy = Live(tmp_path)
    await proxy.start()
    proxy.put(calls(1))
    await proxy.close()
    assert "will not see this proxy" in caplog.text
