"""What happens when journal, pointers and sinks disagree after damage, a crash or a restore: gaps are told, nothing
waits for ever.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.errors import UserError
from services.collector import service
from services.collector.files import cut_torn
from services.collector.intake import Intake
from services.collector.journal import Journal, encode
from services.collector.publisher import gaps_between
from services.collector.service import Collector
from services.collector.sinks import JsonlSink, SinkError
from services.collector.state import hold

from .running import PRE, all_journalled, named, post, published, running, settings, until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


class Memory:
    """A sink that keeps what it got; refuses while `error` is set."""

    name = "memory"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, events: list[dict[str, Any]], now_ms: int) -> None:
        if self.error:
            raise self.error
        self.events += events


def seqs(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(event["producer"]["epoch"], event["producer"]["seq"]) for event in events]


async def some(home: Path, count: int, sinks: list[Any]) -> None:
    """One epoch with `count` calls, started and stopped."""
    async with running(settings(home, sinks)) as collector:
        for number in range(count):
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))


def damage(home: Path, *seqs_of_lines: int, epoch: int = 1) -> None:
    """Flip a bit in the lines that hold these seqs."""
    journal = Journal(home / "collector" / "journal")
    for line in list(journal.lines()):
        stamps = seqs(line.events or [])
        if any((epoch, seq) in stamps for seq in seqs_of_lines):
            with open(journal.folder / line.position.segment, "rb+") as file:
                file.seek(line.position.offset + 20)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))


def ranges(home: Path) -> list[tuple[int, int, int]]:
    receipts = named(home, "producer.dropped")
    assert all(event["reason"] == "journal_damaged" for event in receipts)
    return [(gap["epoch"], gap["first"], gap["last"]) for event in receipts for gap in event["ranges"]]


async def test_damaged_lines_are_told_with_their_seqs_once_for_all_sinks(tmp_path: Path) -> None:
    away = [Memory(), Memory()]
    away[1].name = "second"
    for sink in away:
        sink.error = SinkError("away")
    await some(tmp_path, 6, away)
    damage(tmp_path, 3, 4)
    sinks = [Memory(), Memory()]
    sinks[1].name = "second"
    async with running(settings(tmp_path, sinks)):
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
        await until(lambda: all((2, 2) in seqs(sink.events) for sink in sinks))
    assert ranges(tmp_path) == [(1, 3, 4)]
    assert sum(event["count"] for event in named(tmp_path, "producer.dropped")) == 2
    for sink in sinks:
        told = seqs(sink.events)
        assert set(told) >= {(1, seq) for seq in (1, 2, 5, 6)}
        assert not {(1, 3), (1, 4)} & set(told)


async def test_damage_is_told_once_although_the_reader_starts_again_before_it(tmp_path: Path) -> None:
    away = Memory()
    away.error = SinkError("away")
    await some(tmp_path, 6, [away])
    _, last = max(seqs(list(all_journalled(tmp_path))))
    damage(tmp_path, 3, last)
    pointer = tmp_path / "collector" / "published-memory.json"
    for name in ("snapshot.json", "", ""):
        sink = Memory()
        async with running(settings(tmp_path, [sink])):
            await until(lambda sink=sink: len(sink.events) > 5)
        # As after a crash: the receipts are in the journal, the pointer was not saved.
        pointer.unlink()
        (tmp_path / "collector" / name).unlink() if name else None
    assert ranges(tmp_path) == [(1, 3, 3), (1, last, last)]


async def test_damage_at_the_end_of_an_epoch_is_told_by_number_once_for_all_sinks(tmp_path: Path) -> None:
    away = [Memory(), Memory()]
    away[1].name = "second"
    for sink in away:
        sink.error = SinkError("away")
    await some(tmp_path, 3, away)
    last = max(seqs(list(all_journalled(tmp_path))))
    damage(tmp_path, last[1])
    (tmp_path / "collector" / "snapshot.json").unlink()
    sinks = [Memory(), Memory()]
    sinks[1].name = "second"
    async with running(settings(tmp_path, sinks)):
        await until(lambda: all((2, 2) in seqs(sink.events) for sink in sinks))
    [receipt] = named(tmp_path, "producer.dropped")
    assert (receipt["reason"], receipt["count"]) == ("journal_damaged", 1)
    assert "ranges" not in receipt


async def test_damage_after_publishing_does_not_take_seqs_back(tmp_path: Path) -> None:
    await some(tmp_path, 3, [Memory()])
    last = max(seqs(list(all_journalled(tmp_path))))
    damage(tmp_path, last[1], last[1] - 1)
    async with running(settings(tmp_path, [Memory()])):
        pass
    first = next(event for event in all_journalled(tmp_path) if event["producer"]["epoch"] == 2)
    assert (first["producer"]["previous_epoch"], first["producer"]["previous_seq"]) == last


async def test_a_heartbeat_does_not_pass_over_a_gap_without_a_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Memory()
    async with running(settings(tmp_path, [sink])) as collector:
        sink.error = SinkError("away")
        for number in range(6):
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
            # What it tries to send by then it has read already; the rest is read after the damage.
            await until(lambda: collector.publishers[0].failed)
        damage(tmp_path, 5)
        collector.intake.max_bytes = -1
        sink.error = None
        await until(lambda: bool(collector.intake.losses.unaccounted()))
        monkeypatch.setattr(Intake, "settle", lambda intake, now_ms: None)
        collector.intake.max_bytes = 1 << 30
        collector._heartbeat()
        [*_, beat] = named(tmp_path, "producer.heartbeat")
        assert beat["published_through"] == 4
        monkeypatch.undo()
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
        collector._heartbeat()
        await until(lambda: collector.publishers[0].position == collector.journal.end)
        collector._heartbeat()
        [*_, beat] = named(tmp_path, "producer.heartbeat")
        assert beat["published_through"] > 5


@pytest.mark.parametrize(
    ("last", "stamp", "gaps"),
    [
        ((1, 5), {"epoch": 1, "seq": 6}, []),
        ((1, 5), {"epoch": 1, "seq": 9}, [(1, 6, 8)]),
        ((1, 5), {"epoch": 2, "seq": 1, "previous_epoch": 1, "previous_seq": 5}, []),
        ((1, 5), {"epoch": 2, "seq": 1, "previous_epoch": 1, "previous_seq": 7}, [(1, 6, 7)]),
        ((1, 5), {"epoch": 2, "seq": 3}, [(2, 1, 2)]),
        ((1, 5), {"epoch": 4, "seq": 1, "previous_epoch": 3, "previous_seq": 2}, [(3, 1, 2)]),
        ((0, 0), {"epoch": 4, "seq": 9}, []),
        ((4, 9), {"epoch": 3, "seq": 1}, []),
    ],
)
def test_gaps(last: tuple[int, int], stamp: dict[str, int], gaps: list[tuple[int, int, int]]) -> None:
    assert [(gap.epoch, gap.first, gap.last) for gap in gaps_between(last, stamp)] == gaps


async def test_a_journal_that_is_gone_does_not_stop_publishing(tmp_path: Path) -> None:
    await some(tmp_path, 3, [Memory()])
    folder = tmp_path / "collector"
    for path in (folder / "journal").iterdir():
        path.unlink()
    (folder / "producer.json").unlink()
    (folder / "snapshot.json").unlink()
    (folder / "published-memory.json").write_bytes(
        orjson.dumps({"position": ["0000000007-0000000000000001.jsonl", 99], "epoch": 7, "seq": 40})
    )
    sink = Memory()
    async with running(settings(tmp_path, [sink])) as collector:
        assert collector.intake.identity.epoch == 8
        await post(collector, orjson.dumps(PRE))
        await until(lambda: any(event["event_name"] == "tool.call.started" for event in sink.events))
    first = next(all_journalled(tmp_path))
    assert (first["producer"]["previous_epoch"], first["producer"]["previous_seq"]) == (7, 40)


@pytest.mark.parametrize("position", [["zzz", 5], ["0000000001-0000000000000001.jsonl", 1 << 40]])
async def test_a_pointer_to_nowhere_does_not_stop_publishing(tmp_path: Path, position: list[Any]) -> None:
    await some(tmp_path, 1, [Memory()])
    pointer = {"position": position, "epoch": 1, "seq": 3}
    (tmp_path / "collector" / "published-memory.json").write_bytes(orjson.dumps(pointer))
    sink = Memory()
    async with running(settings(tmp_path, [sink])) as collector:
        await post(collector, orjson.dumps({**PRE, "tool_use_id": "new"}))
        await until(lambda: any(event.get("tool_call_id") == "new" for event in sink.events))


async def test_the_epoch_is_above_every_file_that_names_one(tmp_path: Path) -> None:
    await some(tmp_path, 1, [Memory()])
    snapshot = tmp_path / "collector" / "snapshot.json"
    snapshot.write_bytes(orjson.dumps(orjson.loads(snapshot.read_bytes()) | {"epoch": 11}))
    (tmp_path / "collector" / "producer.json").write_bytes(b'{"id": "kept", "epoch": 3}')
    collector = Collector(settings(tmp_path, [Memory()]))
    assert (collector.intake.identity.id, collector.intake.identity.epoch) == ("kept", 12)
    collector._lock.close()


async def test_a_pointer_is_written_only_when_it_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path, [Memory()])) as collector:
        [publisher] = collector.publishers
        await until(lambda: publisher.position == collector.journal.end)
        await publisher.save()
        pointer = tmp_path / "collector" / "published-memory.json"
        before = pointer.stat().st_mtime_ns
        await publisher.save()
        assert pointer.stat().st_mtime_ns == before
        await post(collector, orjson.dumps(PRE))
        await until(lambda: pointer.stat().st_mtime_ns != before)


async def test_a_sink_that_raises_anything_costs_readiness_and_not_the_collector(tmp_path: Path) -> None:
    sink = Memory()
    async with running(settings(tmp_path, [sink])) as collector:
        for number, error in enumerate((UserError("login refused"), KeyError("event_name"), SinkError("away"))):
            sink.error = error
            await post(collector, orjson.dumps({**PRE, "tool_use_id": f"t{number}"}))
            await until(lambda: collector.publishers[0].failed)
            assert collector.not_ready() == ["sink memory does not take events"]
            sink.error = None
            await until(lambda: not collector.publishers[0].failed)
    assert sum(event["event_name"] == "tool.call.started" for event in sink.events) == 3


async def test_a_housekeeping_round_that_fails_does_not_end_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def strangers(spool: Path) -> list[Path]:
        nonlocal calls
        calls += 1
        raise RuntimeError("odd")

    monkeypatch.setattr("services.collector.spool.strangers", strangers)
    async with running(settings(tmp_path, [Memory()])) as collector:
        await until(lambda: calls > 2)
        assert (await post(collector, orjson.dumps(PRE)))[0] == 200


# the JSON-lines sink


async def test_a_torn_line_of_a_sink_file_is_cut_off_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n{"torn": "' + b"x" * 200_000)
    sink = JsonlSink(path)
    await sink.start()
    await sink.send([{"b": 2}], 0)
    await sink.stop()
    assert path.read_bytes() == b'{"a": 1}\n{"b":2}\n'


async def test_a_failed_write_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path)
    await sink.start()
    await sink.send([{"a": 1}], 0)
    real = sink._file
    assert real is not None

    class Full:
        def write(self, data: memoryview) -> int:
            if len(data) < 10:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real.write(data[: len(data) // 2]) or 0

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    sink._file = Full()  # type: ignore[assignment]
    with pytest.raises(SinkError, match="space"):
        await sink.send([{"b": "x" * 100}], 0)
    sink._file = real
    await sink.send([{"b": 2}], 0)
    await sink.stop()
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n'


def test_cutting_torn_files(tmp_path: Path) -> None:
    for content, kept in (
        (b"", b""),
        (b"abc", b""),
        (b"a\n", b"a\n"),
        (b"a\n" + b"b" * 100_000, b"a\n"),
        (b"\n" * 3, b"\n" * 3),
    ):
        path = tmp_path / "file"
        path.write_bytes(content)
        with open(path, "rb+") as file:
            cut_torn(file)
        assert path.read_bytes() == kept


# the journal's files


def test_rolling_while_another_thread_syncs_loses_no_sync(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=4096)
    journal.open_epoch(1)
    stop, errors = threading.Event(), []

    def sync() -> None:
        while not stop.is_set():
            try:
                journal.sync()
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    for seq in range(1, 3000):
        journal.put(encode([{"seq": seq, "text": "x" * 200}]), 1, seq)
    stop.set()
    thread.join()
    journal.close()
    assert errors == []
    assert sum(len(line.events or []) for line in Journal(tmp_path).lines()) == 2999


def test_a_failed_sync_leaves_the_journal_dirty_and_full_segments_are_synced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, segment_bytes=1024)
    journal.open_epoch(1)
    for seq in range(1, 20):
        journal.put(encode([{"seq": seq, "text": "x" * 200}]), 1, seq)
    real, synced = os.fdatasync, set()

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("services.collector.journal.os.fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        journal.sync()
    assert journal.dirty

    def noting(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr("services.collector.journal.os.fdatasync", noting)
    journal.sync()
    assert not journal.dirty
    assert synced == {path.stat().st_ino for path in tmp_path.iterdir()}


def test_a_line_whose_cutting_off_failed_too_harms_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    journal.open_epoch(1)
    real = journal._file
    assert real is not None

    class Full:
        def write(self, data: bytes) -> int:
            real.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    def stuck(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal._file = Full()  # type: ignore[assignment]
    monkeypatch.setattr("services.collector.journal.os.ftruncate", stuck)
    with pytest.raises(OSError, match="space"):
        journal.put(encode([{"seq": 1}]), 1, 1)
    journal.put(encode([{"seq": 1, "again": True}]), 1, 1)
    assert [line.events for line in journal.lines()] == [[{"seq": 1, "again": True}]]


def test_every_folder_made_is_for_this_user_only(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        hold(tmp_path / "a" / "b" / "collector").close()
    finally:
        os.umask(umask)
    for level in ("a", "a/b", "a/b/collector"):
        assert (tmp_path / level).stat().st_mode & 0o777 == 0o700


async def test_published_lines_are_whole_and_in_order_after_many_batches(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as collector:
        bodies = [orjson.dumps({**PRE, "tool_use_id": f"t{number}"}) for number in range(60)]
        await asyncio.gather(*(post(collector, body) for body in bodies))
    found = seqs(published(tmp_path))
    assert found == [(1, seq) for seq in range(1, len(found) + 1)]
