"""A run file tells of a running stack only, and tells only its owner."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from services.embedded import run_file
from services.embedded.pidfile import start_mark
from services.embedded.run_file import Endpoints, PartState, RunFile

pytestmark = pytest.mark.unit


def a_run(mark: str | None = None) -> RunFile:
    mark = mark or start_mark(os.getpid()) or ""
    endpoints = Endpoints("127.0.0.1:19092", "http://agenttrace:x@127.0.0.1:18123/default", 18400, "/run/at.sock")
    parts = {"kafka": PartState(4711, 2, "/state/logs/kafka.log"), "sink": PartState(None, 0, "/state/logs/sink.log")}
    return RunFile(os.getpid(), mark, 1_764_500_000_000, endpoints, parts)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    run_file.write(tmp_path, a_run())
    assert run_file.read(tmp_path) == a_run()
    assert run_file.require(tmp_path) == a_run()
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600


def test_a_file_left_by_an_ended_stack_tells_nothing(tmp_path: Path) -> None:
    run_file.write(tmp_path, a_run(mark="another boot:1"))
    assert run_file.read(tmp_path) is None
    assert not run_file.stop(tmp_path)


@pytest.mark.parametrize("cut", range(0, 300, 37))
def test_a_truncated_file_tells_nothing(tmp_path: Path, cut: int) -> None:
    run_file.write(tmp_path, a_run())
    whole = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(whole[:cut])
    assert run_file.read(tmp_path) is None


@pytest.mark.parametrize(
    "change", [{"pid": "x"}, {"parts": []}, {"parts": {"a": 1}}, {"endpoints": {"unheard_of": 1}}, {"endpoints": None}]
)
def test_a_file_of_another_form_tells_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    run_file.write(tmp_path, a_run())
    content = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(content | change))
    assert run_file.read(tmp_path) is None
