"""Point 1: a pump between real descriptors, also where the system does not let it open a pipe once more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from services.mcp_proxy.stdio import pump
from services.mcp_proxy.stdio.pump import HangUps, Pump, Stream

pytestmark = pytest.mark.integration


@pytest.fixture
def others_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of another user cannot be opened through /proc."""
    real = os.open

    def refuse(path: str | Path, *how: int) -> int:
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError
        return real(path, *how)

    monkeypatch.setattr(pump.os, "open", refuse)


async def _read_slowly(descriptor: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += await asyncio.to_thread(os.read, descriptor, 10_000)
        await asyncio.sleep(0)
    return got


@pytest.mark.parametrize("source_is_ours", [False, True])
async def test_1_a_pipe_that_must_stay_blocking_never_blocks_the_loop(others_pipe: None, source_is_ours: bool) -> None:
    to_read, writer = os.pipe()
    reader, to_write = os.pipe()
    data = os.urandom(1 << 20)
    copied, ended = bytearray(), asyncio.Event()
    Pump(
        Stream(to_read, ours=source_is_ours),
        Stream(to_write, writing=True),
        HangUps(asyncio.get_running_loop()),
        copied.extend,
        lambda unread: ended.set(),
    )
    assert os.get_blocking(to_write)
    assert os.get_blocking(to_read) is not source_is_ours
    sending = asyncio.create_task(asyncio.to_thread(_write_and_close, writer, data))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.2)  # nobody reads: both pipes are full
    assert ticks > 20
    assert await _read_slowly(reader, len(data)) == data
    await asyncio.wait_for(ended.wait(), 5)
    await sending
    ticking.cancel()
    assert bytes(copied) == data
    assert os.read(reader, 1) == b""
    os.close(reader)


def _write_and_close(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.close(descriptor)


async def test_1_the_end_of_the_reader_is_told_while_nothing_moves() -> None:
    to_read, writer = os.pipe()
    reader, to_write = os.pipe()
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    source, sink = Stream(to_read, ours=True), Stream(to_write, ours=True)
    Pump(source, sink, HangUps(asyncio.get_running_loop()), lambda data: None, ended.set_result)
    os.close(reader)
    assert await asyncio.wait_for(ended, 5) is True
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)
