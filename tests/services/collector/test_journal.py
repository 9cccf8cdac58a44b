"""The journal: what was appended is read back; torn and damaged lines cost nothing but themselves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.journal import Journal, Position, encode

pytestmark = pytest.mark.unit


def event(seq: int, text: str = "x") -> dict:
    return {"event_id": str(seq), "producer": {"id": "p", "epoch": 1, "seq": seq}, "text": text}


def filled(folder: Path, lines: int, segment_bytes: int = 1 << 20) -> Journal:
    journal = Journal(folder, segment_bytes)
    journal.open_epoch(1)
    for seq in range(1, lines + 1):
        journal.put(encode([event(seq)]), 1, seq)
    return journal


def seqs(journal: Journal, position: Position | None = None) -> list[int | None]:
    return [
        line.events[0]["producer"]["seq"] if line.events else None for line in journal.recover(position or Position())
    ]


def test_reads_back_over_segments_in_order(tmp_path: Path) -> None:
    journal = filled(tmp_path, 200, segment_bytes=4096)
    assert len(journal.segments()) > 3
    assert seqs(journal) == list(range(1, 201))


def test_reading_goes_on_from_any_position(tmp_path: Path) -> None:
    journal = filled(tmp_path, 50, segment_bytes=2048)
    positions = [line.next for line in journal.recover()]
    for index, position in enumerate(positions):
        assert seqs(journal, position) == list(range(index + 2, 51))


@pytest.mark.parametrize("cut", [1, 2, 9, 20])
def test_a_torn_last_line_is_cut_off_and_the_rest_stands(tmp_path: Path, cut: int) -> None:
    journal = filled(tmp_path, 3)
    journal.close()
    path = tmp_path / journal.segments()[-1]
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    again = Journal(tmp_path)
    assert seqs(again) == [1, 2]
    again.open_epoch(2)
    again.put(encode([event(1)]), 2, 1)
    assert seqs(again) == [1, 2, 1]


@settings(max_examples=60, deadline=None)
@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_reads_as_an_event(tmp_path_factory: pytest.TempPathFactory, where: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("flip")
    journal = filled(folder, 5)
    journal.close()
    path = folder / journal.segments()[-1]
    data = bytearray(path.read_bytes())
    data[where % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    found = seqs(Journal(folder))
    assert set(found) <= {1, 2, 3, 4, 5, None}
    assert len([seq for seq in found if seq]) >= 3


def test_an_append_that_fails_halfway_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path, 2)
    real = journal._file
    assert real is not None

    class Full:
        def write(self, data: bytes) -> int:
            real.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def fileno(self) -> int:
            return real.fileno()

    monkeypatch.setattr(journal, "_file", Full())
    with pytest.raises(OSError, match="space"):
        journal.put(encode([event(3)]), 1, 3)
    monkeypatch.setattr(journal, "_file", real)
    journal.put(encode([event(3)]), 1, 3)
    assert seqs(journal) == [1, 2, 3]


def test_acknowledged_segments_go_and_the_current_one_stays(tmp_path: Path) -> None:
    journal = filled(tmp_path, 200, segment_bytes=4096)
    before = journal.segments()
    assert journal.drop_before(journal.end, keep_bytes=0) == len(before) - 1
    assert journal.segments() == before[-1:]


def test_the_newest_acknowledged_segments_are_kept_for_looking_back(tmp_path: Path) -> None:
    journal = filled(tmp_path, 200, segment_bytes=4096)
    before = journal.segments()
    journal.drop_before(journal.end, keep_bytes=3 * 4096)
    assert before[-1] in journal.segments()
    assert 2 <= len(journal.segments()) <= 5
