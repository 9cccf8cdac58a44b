"""The collector's side of the spool of finished events: whole, broken, poisoned, repeated, foreign files."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from schemas.identity import new_delivery_id
from services.collector import service, spool
from services.collector.intake import Intake, JournalError
from services.mcp_proxy.spooling import Spool
from tests.services.collector.running import PRE, named, post, running, settings, until

from .parts import Json, calls, ids, journal, spooled

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "spool" / "events"
    made.mkdir(parents=True)
    return made


def lines(events: list[Json]) -> list[bytes]:
    return [orjson.dumps(found) for found in events]


async def test_files_are_taken_in_the_order_of_their_writing(tmp_path: Path) -> None:
    sent = calls(200)
    spooling = Spool(tmp_path / "spool")
    for first in range(0, len(sent), 10):
        assert spooling.write(lines(sent[first : first + 10]))
    async with running(settings(tmp_path)) as collector:
        await until(lambda: not spooled(tmp_path))
        assert collector.metrics.spool_drained.labels("events")._value.get() == 40
    assert ids(journal(tmp_path)) == ids(sent)


async def test_a_json_array_is_taken_as_lines_are(tmp_path: Path, folder: Path) -> None:
    sent = calls(3)
    (folder / new_delivery_id()).write_bytes(orjson.dumps(sent))
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path))
    assert ids(journal(tmp_path)) == ids(sent)


async def test_a_file_that_comes_again_changes_nothing_also_after_a_restart(tmp_path: Path, folder: Path) -> None:
    sent = calls(70)
    content = b"\n".join([*lines(sent), b"no json"])
    name = new_delivery_id()
    for _ in range(2):
        async with running(settings(tmp_path)):
            for _ in range(2):
                (folder / name).write_bytes(content)
                await until(lambda: not spooled(tmp_path))
            # The same events under another name: its proxy died between writing and knowing that it had written.
            (folder / new_delivery_id()).write_bytes(b"\n".join(lines(sent)))
            await until(lambda: not spooled(tmp_path))
    assert ids(journal(tmp_path)) == ids(sent)
    assert len(named(tmp_path, "agent.payload.quarantined")) == 1


async def test_of_a_partly_wrong_file_the_good_is_taken_and_the_rest_told(tmp_path: Path, folder: Path) -> None:
    sent = calls(60)
    wrong = [b'{"event_name":"mcp.rpc.request"', b"[]", b"\xff\xfe\x00", orjson.dumps({**sent[0], "secret": "hunter2"})]
    (folder / new_delivery_id()).write_bytes(b"\n".join([*lines(sent[:30]), *wrong, *lines(sent[30:])]) + b"\n")
    async with running(settings(tmp_path)) as collector:
        await until(lambda: not spooled(tmp_path))
        expected = {(len(line), collector.settings.capture.raw_hash(line)) for line in wrong}
    assert ids(journal(tmp_path)) == ids(sent)
    told = named(tmp_path, "agent.payload.quarantined")
    assert {(found["size_bytes"], found["hash"]) for found in told} == expected
    assert {found["reason"] for found in told} == {"refused_event"}
    assert "hunter2" not in repr(told)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"agenttrace-spool/1 pid=1\n{}", b"[" * 100_000, b'{"a":1}\n' * 3]
)
async def test_a_file_without_any_event_is_set_aside_and_the_next_is_taken(
    tmp_path: Path, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bad = folder / new_delivery_id(1_000_000_000_000)
    bad.write_bytes(content)
    sent = calls(1)
    (folder / new_delivery_id()).write_bytes(b"\n".join(lines(sent)))
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path))
    assert bad.with_name(f"{spool.BAD_PREFIX}{bad.name}").read_bytes() == content
    assert ids(journal(tmp_path)) == ids(sent)
    assert caplog.text.count("is set aside") == 1


async def test_a_fault_of_the_collector_costs_one_file(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Intake.events

    def events(self: Intake, batch: list[Json], now_ms: int) -> list[str | None]:
        if batch[0]["jsonrpc_id"] == "0":
            raise RuntimeError("a fault")
        return real(self, batch, now_ms)

    monkeypatch.setattr(Intake, "events", events)
    bad, good = calls(1), calls(1, first=1)
    (folder / new_delivery_id(1_000_000_000_000)).write_bytes(b"\n".join(lines(bad)))
    (folder / new_delivery_id()).write_bytes(b"\n".join(lines(good)))
    async with running(settings(tmp_path)):
        await until(lambda: not spooled(tmp_path))
        await until(lambda: bool(named(tmp_path, "producer.dropped")))
    assert ids(journal(tmp_path)) == ids(good)
    [receipt] = named(tmp_path, "producer.dropped")
    assert (receipt["reason"], receipt["by_class"]) == ("collector_fault", {"events": 1})


async def test_a_journal_that_fills_up_in_the_middle_leaves_the_file_where_it_is(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = Intake.events, []

    def events(self: Intake, batch: list[Json], now_ms: int) -> list[str | None]:
        if batch[0]["jsonrpc_id"] == "25" and len(full) < 3:
            full.append(path.exists())
            raise JournalError("journal_full")
        return real(self, batch, now_ms)

    monkeypatch.setattr(Intake, "events", events)
    sent = calls(60)
    path = folder / new_delivery_id()
    path.write_bytes(b"\n".join([b"no json", *lines(sent)]))
    async with running(settings(tmp_path)):
        await until(lambda: not path.exists())
    assert full == [True] * 3
    assert ids(journal(tmp_path)) == ids(sent)
    assert len(named(tmp_path, "agent.payload.quarantined")) == 1
    assert not list(folder.iterdir())


async def test_pipes_and_links_keep_nobody_waiting_and_hooks_are_taken_beside(tmp_path: Path, folder: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\n".join(lines(calls(1))))
    os.mkfifo(folder / "00000000-pipe")
    (folder / "00000000-link").symlink_to(secret)
    sent = calls(1)
    good = folder / new_delivery_id()
    good.write_bytes(b"\n".join(lines(sent)))
    async with running(settings(tmp_path)) as collector:
        await until(lambda: not good.exists())
        assert (await post(collector, orjson.dumps(PRE)))[0] == 200
    assert ids(journal(tmp_path)) == ids(sent)
    assert len(named(tmp_path, "tool.call.started")) == 1
    assert len(list(folder.iterdir())) == 2
