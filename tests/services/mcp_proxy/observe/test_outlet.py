"""The outlet: what is put arrives once, also over a collector that is away, dies, hangs or refuses; what cannot be kept is
told exactly.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import orjson
import pytest

from services.collector import service
from services.mcp_proxy import outlet as outlets
from services.mcp_proxy import ways
from services.mcp_proxy.outlet import Outlet
from services.mcp_proxy.spooling import Spool
from services.mcp_proxy.ways import CollectorWay, JsonlWay
from tests.services.collector.running import running, settings

from .parts import (
    CollectorProcess,
    Json,
    by_class,
    calls,
    event,
    ids,
    journal,
    lost,
    outlet,
    receipts,
    spooled,
    until,
)

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)
    monkeypatch.setattr(outlets, "_SLOW_S", 0.1)


async def test_events_arrive_once_and_in_order(tmp_path: Path) -> None:
    sent = calls(1200)
    async with running(settings(tmp_path)):
        out = outlet(tmp_path)
        for given in sent:
            out.put([given])
        await until(lambda: len(journal(tmp_path)) >= len(sent), "all in the journal")
        await out.close(3)
    assert ids(journal(tmp_path)) == ids(sent)
    assert not spooled(tmp_path)


async def test_without_a_collector_events_wait_in_the_spool_and_arrive_once(tmp_path: Path) -> None:
    sent = calls(300)
    out = outlet(tmp_path)
    out.put(sent[:200])
    await until(lambda: spooled(tmp_path), "a file in the spool")
    out.put(sent[200:])
    await out.close(3)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in spooled(tmp_path))
    assert (tmp_path / "spool" / "events").stat().st_mode & 0o777 == 0o700
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path), "the spool is empty")
    assert ids(journal(tmp_path)) == ids(sent)


async def test_a_collector_killed_in_the_middle_has_every_event_once_in_the_end(tmp_path: Path) -> None:
    sent: list[Json] = []
    first = await CollectorProcess(tmp_path).ready()
    out = outlet(tmp_path)
    try:
        for number in range(40):
            some = calls(10, first=number * 10)
            sent += some
            out.put(some)
            await asyncio.sleep(0.005)
            if number == 12:
                await until(lambda: journal(tmp_path), "some are in the journal")
                first.kill()
        await until(lambda: spooled(tmp_path), "the spool takes over")
    finally:
        first.kill()
    second = await CollectorProcess(tmp_path).ready()
    try:
        late = calls(5, first=1000)
        out.put(late)
        await until(lambda: not spooled(tmp_path) and late[-1]["event_id"] in ids(journal(tmp_path)), "all taken")
        await out.close(3)
    finally:
        second.stop()
    arrived = ids(journal(tmp_path))
    assert sorted(arrived) == sorted(ids(sent + late))
    assert not receipts(journal(tmp_path))


@pytest.mark.parametrize("seed", range(4))
async def test_what_was_sent_is_what_arrived_and_what_receipts_tell(tmp_path: Path, seed: int) -> None:
    """5,000 calls while the collector is dead, into bounds of any size."""
    dice = random.Random(seed)
    sent = calls(5000)
    spool = Spool(tmp_path / "spool", max_files=dice.randint(1, 12), max_bytes=dice.choice((1 << 18, 1 << 20, 1 << 26)))
    out = outlet(
        tmp_path, spool=spool, max_events=dice.choice((50, 2000, 20_000)), max_bytes=dice.choice((1 << 17, 1 << 25))
    )
    step = dice.choice((7, 100, 2500))
    for first in range(0, len(sent), step):
        out.put(sent[first : first + step])
        if not dice.randrange(5):
            await asyncio.sleep(dice.choice((0, 0.002)))
    await out.close(3)
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path), "the spool is empty")
    found = journal(tmp_path)
    arrived = ids(found)
    assert len(arrived) == len(set(arrived))
    assert set(arrived) <= set(ids(sent))
    assert len(arrived) + lost(found) == len(sent)
    assert lost(found) == sum(by_class(found).values())
    missing = [given for given in sent if given["event_id"] not in set(arrived)]
    assert by_class(found)["1"] == sum(given["event_name"] == "mcp.rpc.request" for given in missing)


async def test_a_full_spool_keeps_its_bound_and_a_receipt_comes_when_there_is_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_files=2, max_bytes=64 << 10)
    out = outlet(tmp_path, spool=spool, max_events=100)
    sent = []
    for number in range(60):
        some = calls(20, first=number * 20)
        sent += some
        out.put(some)
        await asyncio.sleep(0.01)
    kept = [path for path in spooled(tmp_path) if path.read_bytes().count(b"producer.dropped") == 0]
    assert len(kept) <= 2
    assert sum(path.stat().st_size for path in kept) <= 64 << 10
    async with running(settings(tmp_path)):
        # Everything that waited goes, and then the receipt, while the proxy lives on.
        await until(lambda: receipts(journal(tmp_path)), "a receipt")
        await until(
            lambda: not spooled(tmp_path) and len(ids(journal(tmp_path))) + lost(journal(tmp_path)) == len(sent),
            "all accounted for",
        )
        await out.close(3)
    assert {found["reason"] for found in receipts(journal(tmp_path))} <= {"proxy_queue_full", "spool_full_mcp_proxy"}


async def test_summaries_go_first_then_noise_and_ends_last(tmp_path: Path) -> None:
    out = Outlet(CollectorWay(tmp_path / "none.sock", Spool(tmp_path / "spool")), max_events=16)
    ends = [event("mcp.rpc.response", number) for number in range(12)]
    out.put(ends)
    assert out.pressed
    out.put([event("mcp.rpc.notification", 99, method="notifications/progress"), event("mcp.rpc.request", 98)])
    out.put([event("mcp.rpc.response", number) for number in range(12, 30)])
    await out.close(0)
    lines = [orjson.loads(line) for path in spooled(tmp_path) for line in path.read_bytes().splitlines()]
    kept = [line for line in lines if line["event_name"] == "mcp.rpc.response"]
    assert [line["response"].get("summary") for line in kept[:8]] == [f"text {number}" for number in range(8)]
    assert all("summary" not in line["response"] and line["response"]["size_bytes"] == 5 for line in kept[8:])
    assert by_class(lines) == {"0": 1, "2": 15}
    assert len(kept) + lost(lines) == 31


async def test_what_the_collector_refuses_is_told_and_the_rest_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = calls(2), {**calls(1)[0], "status": "gone", "event_id": "not an id"}
    async with running(settings(tmp_path)):
        out = outlet(tmp_path)
        out.put([good[0], bad, *good[1:]])
        await until(lambda: receipts(journal(tmp_path)), "a receipt")
        await out.close(3)
    assert ids(journal(tmp_path)) == ids(good)
    [receipt] = receipts(journal(tmp_path))
    assert (receipt["reason"], receipt["count"], receipt["by_class"]) == ("refused_by_collector", 1, {"1": 1})
    assert "refused an event" in caplog.text


async def test_a_collector_without_room_is_asked_again_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = CollectorWay._post, []

    async def post(self: CollectorWay, lines: list[bytes]) -> ways.Sent | None:
        answers.append(await real(self, lines))
        return answers[-1]

    monkeypatch.setattr(CollectorWay, "_post", post)
    sent = calls(50)
    async with running(settings(tmp_path)) as collector:
        room, collector.intake.max_bytes = collector.intake.max_bytes, -1
        out = outlet(tmp_path)
        out.put(sent)
        await until(lambda: len(answers) >= 3, "the collector was asked again")
        assert answers[:3] == [ways.Sent(0)] * 3
        assert not journal(tmp_path)
        assert not spooled(tmp_path)
        collector.intake.max_bytes = room
        await until(lambda: len(journal(tmp_path)) == len(sent), "all in the journal")
        await out.close(3)


async def test_a_collector_that_never_answers_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_unix_server(silent, str(tmp_path / "collector.sock"))
    out = outlet(tmp_path)
    sent = calls(20)
    out.put(sent)
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await out.close(1)
    assert time.monotonic() - began < 2.5
    gone.set()
    server.close()
    await server.wait_closed()
    lines = [orjson.loads(line) for path in spooled(tmp_path) for line in path.read_bytes().splitlines()]
    assert set(ids(lines)) == set(ids(sent))


async def test_an_event_over_the_collectors_bound_is_a_receipt(tmp_path: Path) -> None:
    async with running(settings(tmp_path)):
        out = outlet(tmp_path)
        # The summary alone is too much: the event stays. The rest is too much: it goes.
        out.put([event("mcp.rpc.response", 1, response={"size_bytes": 1, "summary": "x" * (1 << 20)})])
        out.put([event("mcp.rpc.response", 2, labels={"a": "x" * (1 << 20)})])
        await until(lambda: len(journal(tmp_path)) == 2, "both told")
        await out.close(3)
    [kept] = [found for found in journal(tmp_path) if found["event_name"] == "mcp.rpc.response"]
    assert kept["response"] == {"size_bytes": 1}
    assert [found["reason"] for found in receipts(journal(tmp_path))] == ["event_too_large"]


async def test_a_folder_that_is_no_folder_of_ours_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "events").symlink_to(elsewhere)
    out = outlet(tmp_path)
    out.put(calls(1))
    await out.close(1)
    assert not list(elsewhere.iterdir())
    assert "cannot be written" in caplog.text
    assert "receipts of lost events could not be kept" in caplog.text


async def test_lines_go_to_a_file_alone_one_write_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = ways.os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    monkeypatch.setattr(ways.os, "write", write)
    path = tmp_path / "deep" / "calls.jsonl"
    out = Outlet(JsonlWay(path))
    out.start()
    sent = calls(100)
    out.put(sent)
    await until(lambda: path.exists(), "the file")
    await out.close(3)
    assert [orjson.loads(line) for line in path.read_bytes().splitlines()] == sent
    assert len(writes) == 1
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_on_a_full_disk_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, dice = ways.os.write, random.Random(7)

    def write(fd: int, data: bytes) -> int:
        if not dice.randrange(3):
            raise OSError(28, "No space left on device")
        return real(fd, data[: dice.randint(1, len(data))])

    monkeypatch.setattr(ways.os, "write", write)
    monkeypatch.setattr(outlets, "_SLOW_S", 0.001)
    path = tmp_path / "calls.jsonl"
    out = Outlet(JsonlWay(path))
    out.start()
    sent = calls(60)
    out.put(sent)
    await until(lambda: not out._queue, "all written")
    monkeypatch.undo()
    await out.close(3)
    whole = []
    for line in path.read_bytes().splitlines():
        try:
            whole.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    assert ids(whole) == ids(sent)
