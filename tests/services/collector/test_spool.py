"""The spool as it may be found: torn files, links, pipes, folders of nobody, files nobody may read, payloads nobody
can take.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.collector import heavy, hot, service, spool
from services.forwarder import protocol

from .running import PRE, all_journalled, journalled, named, post, running, settings, until

pytestmark = pytest.mark.integration

HEAD = f"{protocol.SPOOL_MAGIC} pid=1\n".encode()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "spool" / "claude_code"
    made.mkdir(parents=True)
    return made


def put(path: Path, tool_use_id: str, *, age_s: int = 0) -> Path:
    path.write_bytes(HEAD + orjson.dumps({**PRE, "tool_use_id": tool_use_id}))
    if age_s:
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    return path


def started(home: Path) -> list[str]:
    return [event["tool_call_id"] for event in named(home, "tool.call.started")]


async def test_a_torn_name_of_a_delivery_that_was_accepted_is_a_repeat(tmp_path: Path, folder: Path) -> None:
    delivery = new_delivery_id()
    async with running(settings(tmp_path)) as collector:
        await post(collector, orjson.dumps(PRE), **{protocol.HEADER_DELIVERY: delivery})
        torn = put(folder / f".tmp.{delivery}", "toolu_1", age_s=7200)
        half = folder / f".tmp.{new_delivery_id()}"
        half.write_bytes(HEAD[:9])
        os.utime(half, (1, 1))
        young = put(folder / f".tmp.{new_delivery_id()}", "young")
        await until(lambda: not torn.exists() and not half.exists())
        assert young.exists()
    assert started(tmp_path) == ["toolu_1"]
    [quarantined] = named(tmp_path, "agent.payload.quarantined")
    assert quarantined["event_id"][:-4] == half.name.removeprefix(".tmp.")[:-4]


async def test_pipes_links_and_folders_keep_nobody_waiting(tmp_path: Path, folder: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for the journal")
    os.mkfifo(folder / "00000000-pipe")
    (folder / "00000000-link").symlink_to(secret)
    (folder / "00000000-folder").mkdir()
    os.mkfifo(folder / ".tmp.pipe")
    (folder / ".tmp.link").symlink_to(secret)
    good = put(folder / new_delivery_id(), "good")
    async with running(settings(tmp_path)):
        await until(lambda: not good.exists())
    assert started(tmp_path) == ["good"]
    assert sorted(path.name for path in folder.iterdir()) == ["00000000-folder", "00000000-link", "00000000-pipe"]
    assert secret.exists()
    assert len(journalled(tmp_path)) == 1


async def test_folders_of_nobody_and_unreadable_files_starve_nobody(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = tmp_path / "spool" / "cursor"
    stranger.mkdir()
    for number in range(service.DRAIN_FILES + 1):
        (stranger / new_delivery_id(1_000_000_000_000 + number)).write_bytes(HEAD + b"{}")
    locked = put(folder / new_delivery_id(1_000_000_000_000), "locked")
    good = put(folder / new_delivery_id(), "good")
    real = spool.read

    def read(path: Path) -> Any:
        # Root may read everything, so a mode of 000 would prove nothing here.
        if path == locked:
            raise PermissionError(13, os.strerror(13))
        return real(path)

    monkeypatch.setattr(spool, "read", read)
    async with running(settings(tmp_path)) as collector:
        await until(lambda: not good.exists())
        rounds = len(caplog.records)
        for _ in range(3):
            await collector._tick()
        assert len(caplog.records) == rounds
    assert started(tmp_path) == ["good"]
    assert locked.exists()
    assert len(list(stranger.iterdir())) == service.DRAIN_FILES + 1
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("spool:")]
    assert len(said) == 2


async def test_a_delivery_that_breaks_the_collector_is_set_aside_and_the_next_is_taken(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = heavy.normalise

    def normalise(body: bytes, context: Any) -> Any:
        if b"poison" in body:
            raise RuntimeError("the payload said poison")
        return real(body, context)

    for module in (heavy, hot):
        monkeypatch.setattr(module, "normalise", normalise)
    bad = put(folder / new_delivery_id(1_000_000_000_000), "poison")
    good = put(folder / new_delivery_id(), "good")
    async with running(settings(tmp_path)) as collector:
        await until(lambda: not good.exists())
        assert await post(collector, orjson.dumps({**PRE, "tool_use_id": "poison"})) == (200, b"{}")
        assert await post(collector, orjson.dumps({**PRE, "tool_use_id": "after"})) == (200, b"{}")
        await until(lambda: sum(event["count"] for event in named(tmp_path, "producer.dropped")) == 2)
    assert started(tmp_path) == ["good", "after"]
    assert not bad.exists()
    assert bad.with_name(f".bad.{bad.name}").exists()
    assert {event["reason"] for event in named(tmp_path, "producer.dropped")} == {"collector_fault"}


async def test_drops_are_receipted_before_they_are_forgotten(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = f"{new_delivery_id()} 0000000120\n".encode()
    taken = folder / ".dropped.taken"
    async with running(settings(tmp_path)) as collector:
        collector.intake.max_bytes = -1
        (folder / ".dropped").write_bytes(record * 2 + b"+")
        await until(taken.exists)
        for _ in range(3):
            await collector._tick()
        assert taken.exists()
        collector.intake.max_bytes = 1 << 30
        await until(lambda: not taken.exists())
        monkeypatch.setattr(protocol, "DROPPED_MAX_BYTES", 100)
        (folder / ".dropped").write_bytes(record * 3)
        await until(lambda: len(named(tmp_path, "producer.dropped")) == 2)
    first, second = named(tmp_path, "producer.dropped")
    assert (first["reason"], first["count"], first["size_bytes"]) == ("spool_full_claude_code", 3, 240)
    assert "native" not in first
    assert second["native"] == {"at_least": True}


async def test_many_files_share_one_sync(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(120):
        put(folder / new_delivery_id(1_796_000_000_000 + number), f"t{number}")
    syncs = 0
    real = os.fdatasync

    def counting(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real(fd)

    monkeypatch.setattr("services.collector.journal.os.fdatasync", counting)
    async with running(settings(tmp_path, sinks=[])):
        await until(lambda: not any(folder.iterdir()))
        assert syncs < 20
    assert started(tmp_path) == [f"t{number}" for number in range(120)]


async def test_a_large_spooled_body_does_not_hold_the_loop(tmp_path: Path, folder: Path) -> None:
    path = folder / new_delivery_id()
    path.write_bytes(HEAD + orjson.dumps({**PRE, "tool_input": {"command": "echo 42\n" * 1_000_000}}))
    async with running(settings(tmp_path)) as collector:
        import asyncio

        loop = asyncio.get_running_loop()
        longest = 0.0
        while path.exists():
            began = loop.time()
            await asyncio.sleep(0.001)
            longest = max(longest, loop.time() - began)
        assert collector is not None
    assert longest < 0.5
    assert (
        next(e for e in all_journalled(tmp_path) if e["event_name"] == "tool.call.started")["input"]["size_bytes"]
        > 7 << 20
    )
