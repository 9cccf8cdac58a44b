"""A process is known by more than its pid, so that nobody else's is ever ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.embedded.pidfile import PidFile, end_process, reap_all, start_mark, write_private

pytestmark = pytest.mark.unit

Speaker = Callable[..., list[str]]
Stray = Callable[[list[str]], int]
WaitUntil = Callable[..., None]
Diary = Callable[[], list[str]]


def test_a_mark_is_steady_and_ends_with_the_process() -> None:
    assert start_mark(os.getpid()) == start_mark(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = start_mark(child.pid)
    assert mark is not None
    assert mark != start_mark(os.getpid())
    child.kill()
    # Not yet waited for, it is a zombie: ended all the same.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_mark(child.pid) is None
    child.communicate()
    assert start_mark(child.pid) is None


def test_what_a_dead_owner_left_is_ended(
    tmp_path: Path, stray: Stray, speaker: Speaker, diary: Diary, wait_until: WaitUntil
) -> None:
    pid = stray(speaker("left-over"))
    wait_until(diary, "the process has started")
    PidFile(tmp_path / "left-over.pid").write(pid)
    reap_all(tmp_path)
    assert not start_mark(pid)
    assert diary() == ["left-over started", "left-over asked to end"]
    assert not (tmp_path / "left-over.pid").exists()


def test_a_process_that_does_not_listen_is_killed(
    tmp_path: Path, stray: Stray, speaker: Speaker, diary: Diary, wait_until: WaitUntil
) -> None:
    pid = stray(speaker("deaf", deaf=True))
    wait_until(diary, "the process has started")
    mark = start_mark(pid)
    assert mark is not None
    end_process(pid, mark, grace_s=0.2)
    assert not start_mark(pid)


def test_a_pid_that_was_given_to_somebody_else_is_left_alone(
    tmp_path: Path, stray: Stray, speaker: Speaker, diary: Diary, wait_until: WaitUntil
) -> None:
    pid = stray(speaker("bystander"))
    wait_until(diary, "the process has started")
    write_private(tmp_path / "part.pid", json.dumps({"pid": pid, "mark": "another boot:4711"}))
    reap_all(tmp_path)
    assert start_mark(pid)
    assert diary() == ["bystander started"]
    assert not (tmp_path / "part.pid").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"pid": "x", "mark": "y"}', '{"pid": 1}', "4711\n"])
def test_a_pid_file_that_says_nothing_harms_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "part.pid"
    path.write_text(content)
    reap_all(tmp_path)
    assert not path.exists()


def test_a_private_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old and longer")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
