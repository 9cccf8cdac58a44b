"""What is left on a full disk: the reserve and the counter page, also torn and with flipped bits. And what a segment is
without its lowest classes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import EVENT
from schemas.topics import DROP_CLASSES, INPUT_TOPICS, LAST_CLASS, TOPIC_OF_EVENT, drop_class
from services.collector.drops import Merkle, finish, rewrite
from services.collector.journal import Journal, encode
from services.collector.reserve import SLOT_BYTES, SPARE_BYTES, CounterPage, Owed, Reserve

pytestmark = pytest.mark.unit


def line(seq: int, name: str = "tool.call.completed", epoch: int = 1) -> bytes:
    return encode([event(seq, name, epoch)])


def event(seq: int, name: str, epoch: int = 1) -> dict:
    return {"event_name": name, "producer": {"id": "p", "epoch": epoch, "seq": seq}, "text": "x" * 100}


def reserve(folder: Path, size: int = 128 << 10) -> Reserve:
    made = Reserve(folder / "reserve", size)
    assert made.allocate()
    return made


def seqs(reserve: Reserve, journalled: tuple[int, int] = (0, 0)) -> list[int | None]:
    return [line.events[0]["producer"]["seq"] if line.events else None for line in reserve.load(journalled)]


def test_the_reserve_takes_its_room_beforehand_and_keeps_it(tmp_path: Path) -> None:
    kept = reserve(tmp_path)
    path = tmp_path / "reserve"
    assert path.stat().st_blocks * 512 >= 128 << 10
    while kept.append(line(1)):
        pass
    assert path.stat().st_size == 128 << 10
    got: list[bytes] = []
    kept.drain(got.append)
    assert len(got) > 500
    assert (kept.used, kept.room) == (0, 128 << 10)
    assert seqs(reserve(tmp_path)) == []


def test_what_the_journal_has_is_not_taken_from_the_reserve_again(tmp_path: Path) -> None:
    kept = reserve(tmp_path)
    for seq in range(1, 6):
        assert kept.append(line(seq))
    assert seqs(reserve(tmp_path)) == [1, 2, 3, 4, 5]
    assert seqs(reserve(tmp_path), (1, 3)) == [4, 5]
    assert seqs(reserve(tmp_path), (2, 1)) == []


def test_a_drain_that_meets_a_full_disk_goes_on_where_it_stopped(tmp_path: Path) -> None:
    kept = reserve(tmp_path)
    for seq in range(1, 6):
        kept.append(line(seq))
    got: list[bytes] = []

    def put(raw: bytes) -> None:
        if len(got) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        got.append(raw)

    with pytest.raises(OSError, match="space"):
        kept.drain(put)
    kept.append(line(6))
    kept.drain(lambda raw: got.append(raw))
    assert got == [line(seq) for seq in range(1, 7)]


def test_a_little_of_the_reserve_can_be_given_back_for_small_files(tmp_path: Path) -> None:
    kept = reserve(tmp_path)
    assert kept.spare()
    assert kept.room == (128 << 10) - min(SPARE_BYTES, 32 << 10)
    assert kept.allocate()
    assert kept.room == 128 << 10


@settings(max_examples=60, deadline=None)
@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_reserve_costs_one_line_at_most_two(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    kept = reserve(folder)
    for seq in range(1, 6):
        kept.append(line(seq))
    data = bytearray((folder / "reserve").read_bytes())
    data[where % kept.used] ^= 1 << bit
    (folder / "reserve").write_bytes(bytes(data))
    found = seqs(reserve(folder))
    assert set(found) <= {1, 2, 3, 4, 5, None}
    assert len([seq for seq in found if seq]) >= 3


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_torn_line_of_the_reserve_is_passed_over_and_written_over(tmp_path: Path, cut: int) -> None:
    kept = reserve(tmp_path)
    kept.append(line(1))
    kept.append(line(2))
    with open(tmp_path / "reserve", "rb+") as file:
        file.seek(kept.used - cut)
        file.write(bytes(cut))
    again = reserve(tmp_path)
    assert seqs(again) == [1]
    again.append(line(2))
    assert seqs(reserve(tmp_path)) == [1, 2]


def owed(count: int) -> dict[str, Owed]:
    return {"journal_full": Owed("id", count, 10 * count, Counter({"0": count}))}


def test_the_counter_page_survives_a_torn_write_with_the_count_before(tmp_path: Path) -> None:
    page = CounterPage(tmp_path / "counters")
    for count in range(1, 6):
        assert page.store(owed(count))
    assert CounterPage(tmp_path / "counters").load() == owed(5)
    with open(tmp_path / "counters", "rb+") as file:
        file.seek(SLOT_BYTES + 40)
        file.write(b"\0")
    torn = CounterPage(tmp_path / "counters")
    assert torn.load() == owed(4)
    torn.store(owed(5))
    assert CounterPage(tmp_path / "counters").load() == owed(5)


@settings(max_examples=60, deadline=None)
@given(where=st.integers(0, 2 * SLOT_BYTES - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_never_reads_as_another_count(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flip") / "counters"
    page = CounterPage(path)
    page.store(owed(1))
    page.store(owed(2))
    data = bytearray(path.read_bytes())
    data[where] ^= 1 << bit
    path.write_bytes(bytes(data))
    assert CounterPage(path).load() in (owed(1), owed(2))


def test_a_page_and_a_reserve_without_room_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "posix_fallocate", full)
    kept = Reserve(tmp_path / "reserve", 1 << 16)
    assert (kept.allocate(), kept.append(line(1)), kept.spare()) == (False, False, False)
    assert not CounterPage(tmp_path / "counters").store(owed(1))
    monkeypatch.undo()
    assert kept.allocate()


# what goes first


def test_every_name_a_collector_journals_has_a_drop_class() -> None:
    given = {name for names in DROP_CLASSES for name in names}
    taken = {name for name, topic in TOPIC_OF_EVENT.items() if topic in INPUT_TOPICS}
    assert given < taken
    assert sum(len(names) for names in DROP_CLASSES) == len(given)
    last = {name for name in taken if drop_class(name) == LAST_CLASS}
    assert last >= {"tool.call.completed", "tool.call.error", "tool.call.blocked", "tool.call.approval_decided"}
    assert last >= {"policy.decision.created", "producer.dropped", "agent.payload.quarantined", "session.ended"}


NAMES = ["turn.started", "tool.call.started", "tool.call.completed", "llm.call.ended", "tool.call.started"]


def segment(folder: Path) -> Path:
    """Seqs 1 … 15 in lines of three, with the five names in turn."""
    journal = Journal(folder)
    journal.open_epoch(1)
    for first in range(1, 16, 3):
        journal.put(encode([event(seq, NAMES[seq % 5]) for seq in range(first, first + 3)]), 1, first)
    journal.close()
    return folder / journal.segments()[0]


def content(folder: Path) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for one in Journal(folder).lines():
        found += [("kept", event["producer"]["seq"]) for event in one.events or []]
        found += [("gone", one.dropped)] if one.dropped else []
    return found


def test_classes_go_one_after_the_other_and_the_places_stay_marked(tmp_path: Path) -> None:
    path = segment(tmp_path)
    before = {event["producer"]["seq"]: event for one in Journal(tmp_path).lines() for event in one.events or []}
    made = rewrite(path, 0)
    assert made
    made.commit()
    [loss] = made.losses
    assert [(gap.first, gap.last) for gap in loss.ranges] == [(3, 3), (5, 5), (8, 8), (10, 10), (13, 13), (15, 15)]
    assert (loss.count, loss.by_class) == (6, {"0": 6})
    assert loss.size_bytes == sum(len(orjson.dumps(before[gap.first])) for gap in loss.ranges)
    assert rewrite(path, 0) is None
    made = rewrite(path, 1)
    assert made
    made.commit()
    assert made.losses[0].by_class == {"1": 5}
    kept = [number for kind, number in content(tmp_path) if kind == "kept"]
    assert kept == [1, 2, 7, 12]
    assert [gone for kind, gone in content(tmp_path) if kind == "gone"] == [(1, 3, 6), (1, 8, 11), (1, 13, 15)]
    assert rewrite(path, LAST_CLASS) is None


def test_a_segment_with_a_damaged_line_stays_as_it_is(tmp_path: Path) -> None:
    path = segment(tmp_path)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    assert rewrite(path, 1) is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_rewrite_that_finds_no_room_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        rewrite(path, 0)
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_form_without_a_receipt_is_forgotten_and_one_with_it_takes_its_place(tmp_path: Path) -> None:
    path = segment(tmp_path)
    before = path.read_bytes()
    rewrite(path, 0)
    finish(tmp_path, set())
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], before)
    made = rewrite(path, 0)
    assert made
    finish(tmp_path, {made.temporary.name})
    assert list(tmp_path.iterdir()) == [path]
    assert len(path.read_bytes()) == len(before) - made.freed


@pytest.mark.parametrize("leaves", [0, 1, 2, 3, 4, 5, 7, 8, 13])
def test_the_root_is_the_tree_hash_of_rfc_9162(leaves: int) -> None:
    data = [b"%d" % number for number in range(leaves)]

    def root(part: list[bytes]) -> bytes:
        if len(part) < 2:
            return hashlib.sha256(b"\0" + part[0] if part else b"").digest()
        split = 1 << (len(part) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + root(part[:split]) + root(part[split:])).digest()

    tree = Merkle()
    for one in data:
        tree.add(one)
    assert tree.root() == f"sha256:{root(data).hex()}"


def test_a_receipt_of_a_rewrite_is_a_valid_event() -> None:
    assert EVENT.validate_json(
        orjson.dumps(
            {
                "event_name": "producer.dropped",
                "event_id": "01a22ee0-80fe-7c1f-b9ca-d466413d0000",
                "timestamp": "2026-11-30T23:53:14.750Z",
                "source_adapter": "collector/1",
                "reason": "journal_full",
                "count": 1,
                "by_class": {"0": 1},
                "ranges": [{"epoch": 1, "first": 3, "last": 3}],
                "merkle_root": "sha256:00",
            }
        )
    )
