"""A journal that takes nothing: its bound, a full disk, a disk that does not sync. Nothing is lost silently, and it
heals.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.collector import service
from services.collector.journal import Journal
from services.collector.service import Collector
from services.forwarder import protocol

from .running import POST, PRE, client, journalled, named, post, published, running, settings, until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


class Disk:
    """Makes appends fail with ENOSPC while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = Journal.append

        def append(journal: Journal, *args: Any) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(journal, *args)

        monkeypatch.setattr(Journal, "append", append)


def spool(home: Path, payload: dict[str, Any], delivery: str | None = None) -> Path:
    """A file as the forwarder leaves it."""
    folder = home / "spool" / "claude_code"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (delivery or new_delivery_id())
    path.write_bytes(f"{protocol.SPOOL_MAGIC} pid=1\n".encode() + orjson.dumps(payload))
    return path


async def ready(collector: Collector) -> tuple[int, list[str]]:
    async with client(collector) as session, session.get("/readyz") as answer:
        return answer.status, (await answer.json())["reasons"]


async def test_at_the_bound_callers_that_spool_are_told_and_others_are_counted(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        await post(collector, orjson.dumps(PRE))
        collector.intake.max_bytes = -1
        body = orjson.dumps({**PRE, "tool_use_id": "t2"})
        status, answer = await post(collector, body, **{protocol.HEADER_DELIVERY: new_delivery_id()})
        assert status == 503
        assert "journal_full" in orjson.loads(answer)["error"]
        for _ in range(3):
            assert await post(collector, body) == (200, b"{}")
        assert len(collector.intake.calls) == 1
        status, reasons = await ready(collector)
        assert status == 503
        assert "the journal takes no events (journal_full)" in reasons
        collector.intake.max_bytes = 1 << 30
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
        assert (await ready(collector))[0] == 200
    [receipt] = named(tmp_path, "producer.dropped")
    assert (receipt["reason"], receipt["count"], receipt["size_bytes"]) == ("journal_full", 3, 3 * len(body))
    assert receipt["by_class"] == {"claude_code": 3}
    assert len(named(tmp_path, "tool.call.started")) == 1


async def test_a_batch_of_events_is_asked_to_come_again(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector, client(collector) as session:
        collector.intake.max_bytes = -1
        event = {
            "event_name": "agent.config.changed",
            "event_id": new_delivery_id(),
            "timestamp": "2026-11-30T20:06:12.123Z",
            "source_adapter": "x/1",
        }
        async with session.post("/api/v1/events", json=[event]) as answer:
            assert answer.status == 503
        collector.intake.max_bytes = 1 << 30
        async with session.post("/api/v1/events", json=[event]) as answer:
            assert await answer.json() == {"accepted": 1, "refused": []}


async def test_spooled_files_stay_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    async with running(settings(tmp_path)) as collector:
        disk.full = True
        paths = [spool(tmp_path, {**PRE, "tool_use_id": f"t{number}"}) for number in range(3)]
        await until(lambda: collector.intake.problem is not None)
        rounds = collector.metrics.registry
        await asyncio.sleep(0.3)
        assert all(path.exists() for path in paths)
        assert rounds.get_sample_value("agenttrace_collector_spool_drained_total", {"runtime": "claude_code"}) is None
        disk.full = False
        await until(lambda: not any(path.exists() for path in paths))
    assert sorted(event["tool_call_id"] for event in named(tmp_path, "tool.call.started")) == ["t0", "t1", "t2"]


async def test_a_delivery_that_met_the_full_disk_is_journalled_once_and_the_calls_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    delivery = new_delivery_id()
    async with running(settings(tmp_path)) as collector:
        disk.full = True
        header = {protocol.HEADER_DELIVERY: delivery}
        assert (await post(collector, orjson.dumps(PRE), **header))[0] == 503
        assert (await post(collector, orjson.dumps(PRE), **header))[0] == 503
        path = spool(tmp_path, PRE, delivery)
        assert "journal_no_space_left_on_device" in str(await ready(collector))
        disk.full = False
        await until(lambda: not path.exists())
        await post(collector, orjson.dumps(POST))
        live = collector.intake.calls.dump()
    calls = [event for event in journalled(tmp_path) if event["event_name"].startswith("tool.call")]
    assert [(event["event_name"], event["occurrence"]) for event in calls] == [
        ("tool.call.started", 1),
        ("tool.call.completed", 1),
    ]
    (tmp_path / "collector" / "snapshot.json").unlink()
    again = Collector(settings(tmp_path))
    assert again.intake.calls.dump() == live
    again._lock.close()


async def test_a_small_bound_heals_by_itself_once_the_sink_has_all(tmp_path: Path) -> None:
    bound = 1 << 20
    count = 0
    async with running(settings(tmp_path, journal_max_bytes=bound)) as collector:
        while count < 1500:
            body = orjson.dumps({**PRE, "tool_use_id": f"t{count}", "tool_input": {"command": "x" * 1500}})
            status, _ = await post(collector, body, **{protocol.HEADER_DELIVERY: new_delivery_id()})
            if status == 200:
                count += 1
            else:
                await asyncio.sleep(0.05)
        assert Journal(tmp_path / "collector" / "journal").size() <= bound + (64 << 10)
    assert sum(event["event_name"] == "tool.call.started" for event in published(tmp_path)) == 1500


async def test_a_snapshot_that_cannot_be_written_does_not_keep_published_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path, journal_max_bytes=1 << 20)) as collector:
        for number in range(200):
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        await collector._snapshot(keep_bytes=1 << 30)
        before = len(collector.journal.segments())
        assert before > 1

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(service, "write_atomic", full)
        await post(collector, orjson.dumps(POST))
        await collector._snapshot(keep_bytes=0)
        assert len(collector.journal.segments()) < before
        monkeypatch.undo()


@pytest.mark.parametrize("first", [False, True])
async def test_a_disk_that_does_not_sync_is_told_and_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    broken = True
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    async with running(settings(tmp_path, sinks=[], fsync_before_answer=first)) as collector:
        monkeypatch.setattr("services.collector.journal.os.fdatasync", fdatasync)
        assert await post(collector, orjson.dumps(PRE)) == (200, b"{}")
        await until(lambda: bool(collector.not_ready()))
        assert collector.not_ready() == ["the journal cannot be synced (Input/output error)"]
        assert collector.journal.dirty
        broken = False
        await until(lambda: not collector.not_ready())
        assert not collector.journal.dirty
    assert len(named(tmp_path, "tool.call.started")) == 1
