"""A journal without room: its bound, a full disk, a disk that does not sync. Agents are answered, what must not be lost
is kept, the rest is counted, and it heals.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.collector import service
from services.collector.journal import Journal, Position
from services.collector.reserve import read_page
from services.collector.service import Collector
from services.forwarder import protocol

from .running import POST, PRE, Memory, client, journalled, named, post, published, running, settings, until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


class Disk:
    """Makes appends fail with ENOSPC while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        for name in ("put", "put_back"):
            self._fill(monkeypatch, name)

    def _fill(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Journal, name)

        def write(journal: Journal, *args: Any) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(real(journal, *args))

        monkeypatch.setattr(Journal, name, write)


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


def hook(number: int, *, end: bool = False) -> bytes:
    payload = POST if end else PRE
    return orjson.dumps({**payload, "tool_use_id": f"t{number}", "tool_input": {"command": "x" * 300}})


async def hooks(collector: Collector, *bodies: bytes, spools: bool = True) -> list[int]:
    """The answers' status to hooks one after the other on one connection."""
    answers = []
    async with client(collector) as session:
        for body in bodies:
            headers = {protocol.HEADER_DELIVERY: new_delivery_id()} if spools else {}
            async with session.post("/hooks/claude_code", data=body, headers=headers) as answer:
                answers.append(answer.status)
    return answers


async def test_at_the_bound_noise_makes_room_for_every_hook_and_is_told_exactly(tmp_path: Path) -> None:
    bound = 192 << 10
    away, other = Memory("away", away=True), Memory("other", away=False)
    async with running(settings(tmp_path, [away, other], journal_max_bytes=bound)) as collector:
        for first in range(0, 360, 12):
            bodies = [hook(number, end=number % 8 == 7) for number in range(first, first + 12)]
            assert set(await hooks(collector, *bodies)) == {200}
            await until(lambda: not collector._room.needed)
            assert Journal(tmp_path / "collector" / "journal").size() <= bound
        assert collector.publishers[0].published[1] == 0
        away.away = False
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        collector._heartbeat()
        await until(lambda: collector.publishers[0].position == collector.journal.end)
    seqs = Counter(event["producer"]["seq"] for event in away.events)
    receipts = [event for event in away.events if event["event_name"] == "producer.dropped"]
    for receipt in receipts:
        named = [seq for gap in receipt["ranges"] for seq in range(gap["first"], gap["last"] + 1)]
        seqs.update(named)
        assert receipt["reason"] == "journal_full"
        assert receipt["count"] == len(named) == sum(receipt["by_class"].values())
        assert set(receipt["by_class"]) <= {"0", "1"}
    assert seqs == Counter(range(1, max(seqs) + 1))
    assert sum(receipt["count"] for receipt in receipts) > 100
    assert sum(event["event_name"] == "tool.call.completed" for event in away.events) == 45
    beats = [event for event in away.events if event["event_name"] == "producer.heartbeat"]
    assert beats[-1]["published_through"] == beats[-1]["producer"]["seq"] - 1


async def test_where_only_the_last_class_is_left_callers_that_spool_are_told_to(tmp_path: Path) -> None:
    away = Memory("away", away=True)
    async with running(settings(tmp_path, [away], journal_max_bytes=96 << 10)) as collector:
        answers: list[int] = []
        while 503 not in answers[-5:]:
            answers += await hooks(collector, hook(len(answers), end=True))
        first = answers.index(503)
        [*_, receipt] = await hooks(collector, hook(999, end=True), hook(999, end=True), spools=False)
        assert receipt == 200
        # On the page before the answer: a kill now would not lose the count.
        assert read_page((tmp_path / "collector" / "counters").read_bytes())[1]["journal_full"].count == 2
        away.away = False
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        await until(lambda: read_page((tmp_path / "collector" / "counters").read_bytes())[1] == {})
        assert not collector.not_ready()
    assert sum(event["event_name"] == "tool.call.completed" for event in away.events) == answers.count(200)
    unread = [event for event in away.events if event.get("by_class") == {"claude_code": 2}]
    assert [event["count"] for event in unread] == [2]
    assert first > 20


async def test_on_a_full_disk_agents_are_answered_ends_are_kept_and_starts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    sink = Memory("memory", away=False)
    killed = tmp_path.with_name(tmp_path.name + "-killed")
    async with running(settings(tmp_path, [sink])) as collector:
        await hooks(collector, hook(0))
        disk.full = True
        for spools in (True, False):
            bodies = [hook(number // 2, end=number % 2 == 1) for number in range(2, 8)]
            assert set(await hooks(collector, *bodies, spools=spools)) == {200}
        status, reasons = await ready(collector)
        assert status == 503
        assert "no_space_left_on_device" in reasons[0]
        assert collector.intake.reserve.used
        collector._kept = Position()
        await until(lambda: collector._kept != Position())
        disk.full = False
        await until(lambda: collector.intake.problem is None)
        # A kill here: what waited in the reserve is in the snapshot and in the journal behind it.
        shutil.copytree(tmp_path, killed, ignore=shutil.ignore_patterns("*.sock", "*.tmp"))
        live = collector.intake.calls.dump()
        await hooks(collector, hook(0, end=True))
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
    seqs = [event["producer"]["seq"] for event in sink.events]
    assert seqs == list(range(1, len(seqs) + 1))
    assert sum(event["event_name"] == "tool.call.completed" for event in sink.events) == 7
    [receipt] = [event for event in sink.events if event["event_name"] == "producer.dropped"]
    assert (receipt["count"], receipt["by_class"]) == (6, {"1": 6})
    assert receipt["reason"] == "journal_no_space_left_on_device"
    again = Collector(settings(killed, [sink]))
    assert again.intake.calls.dump() == live
    again._lock.close()


async def test_a_restart_on_a_full_disk_goes_on_with_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for restart in range(3):
        async with running(settings(tmp_path, [Memory("memory", away=True)])) as collector:
            if not restart:
                await hooks(collector, hook(0))
            disk.full = True
            assert await hooks(collector, hook(restart, end=True), hook(10 + restart)) == [200, 200]
    disk.full = False
    sink = Memory("memory", away=False)
    async with running(settings(tmp_path, [sink])) as collector:
        assert not collector.intake.reserve.used
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
    stamps = [(event["producer"]["epoch"], event["producer"]["seq"]) for event in sink.events]
    assert stamps == sorted(set(stamps))
    assert sum(event["event_name"] == "tool.call.completed" for event in sink.events) == 3
    receipts = [event for event in sink.events if event["event_name"] == "producer.dropped"]
    assert [receipt["by_class"] for receipt in receipts] == [{"1": 3}]


async def test_a_reserve_that_is_full_counts_also_the_last_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with running(settings(tmp_path, journal_max_bytes=256 << 10)) as collector:
        disk.full = True
        answers = await hooks(collector, *(hook(number, end=True) for number in range(40)))
        assert set(answers) == {200}
        disk.full = False
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
    kept = len(named(tmp_path, "tool.call.completed"))
    [receipt] = named(tmp_path, "producer.dropped")
    assert kept > 3
    assert receipt["by_class"]["2"] == 40 - kept


async def test_segments_go_only_after_the_pointers_that_passed_them_are_saved(tmp_path: Path) -> None:
    given = settings(tmp_path, [Memory("memory", away=False)], journal_max_bytes=256 << 10)
    async with running(given) as collector:
        await hooks(collector, *(hook(number, end=True) for number in range(60)))
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        await collector._snapshot(keep_bytes=0)
        pointer = Position.from_json(
            orjson.loads((tmp_path / "collector" / "published-memory.json").read_bytes())["position"]
        )
        assert collector.journal.segments()[0] == pointer.segment


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
        assert named(tmp_path, "producer.dropped") == []
        assert rounds.get_sample_value("agenttrace_collector_spool_drained_total", {"runtime": "claude_code"}) is None
        disk.full = False
        await until(lambda: not any(path.exists() for path in paths))
    assert sorted(event["tool_call_id"] for event in named(tmp_path, "tool.call.started")) == ["t0", "t1", "t2"]


async def test_with_the_spool_on_another_disk_a_delivery_that_met_the_full_disk_is_journalled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    delivery = new_delivery_id()
    async with running(settings(tmp_path)) as collector:
        collector.intake.spool_helps = True
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
        await until(lambda: not collector.not_ready() and not collector.journal.dirty)
    assert len(named(tmp_path, "tool.call.started")) == 1
