"""The demo as a newcomer runs it, and again with its parts killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import psutil
import pytest

from services.embedded import run_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def start(tmp_path: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.cli.main", "demo", "--home", str(tmp_path / "home")]
    command += ["--json", str(tmp_path / "summary.json"), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2])


def summary(tmp_path: Path) -> dict:
    return orjson.loads((tmp_path / "summary.json").read_bytes())


def adds_up(found: dict) -> None:
    assert found["problems"] == []
    assert found["payloads"] == found["deliveries"]
    assert found["accepted"] == found["kafka"] == found["clickhouse"] > found["payloads"] * 0.9
    assert {row["agent_runtime"] for row in found["calls"]} == {"claude_code", "codex", "hermes", "openclaw"}
    assert sum(row["calls"] for row in found["calls"]) == found["tool_calls"]
    assert sum(row["calls"] for row in found["mcp"]) == len(found["mcp_sent"]) > 0


def processes_below(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        try:
            line = " ".join(process.info["cmdline"] or [])
            home = (process.info["environ"] or {}).get("AGENTTRACE_HOME", "")
        except (psutil.Error, TypeError):
            continue
        if str(folder) in line or str(folder) in home:
            found.append(line)
    return found


def test_the_demo_ends_by_itself_adds_up_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path)
    output, _ = process.communicate(timeout=350)
    assert process.returncode == 0, output.decode()
    adds_up(summary(tmp_path))
    text = output.decode()
    for told in ("What the agents did", "Calls that never ended", "Findings", "Do the numbers add up?", "equal"):
        assert told in text
    assert not (tmp_path / "home").exists()
    assert processes_below(tmp_path) == []


def test_numbers_add_up_although_collector_worker_and_sink_are_killed(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    process = start(tmp_path)
    home = tmp_path / "home"
    try:
        wait_until(lambda: run_file.read(home) is not None, "the stack is up", timeout_s=150)
        journal = home / "collector" / "journal"
        for name in ("collector", "worker", "sink"):
            size = sum(path.stat().st_size for path in journal.glob("*.jsonl"))
            wait_until(
                lambda size=size: sum(path.stat().st_size for path in journal.glob("*.jsonl")) > size + 20_000,
                "more was sent",
                timeout_s=60,
            )
            run = run_file.read(home)
            assert run is not None
            pid = run.parts[name].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda name=name: (again := run_file.read(home)) is not None and again.parts[name].restarts == 1,
                f"{name} was started again",
                timeout_s=60,
            )
        output, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)
    assert process.returncode == 0, output.decode()
    found = summary(tmp_path)
    adds_up(found)
    assert found["restarts"] == {"collector": 1, "worker": 1, "sink": 1}


def test_interrupting_the_demo_leaves_nothing(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    process = start(tmp_path)
    wait_until(lambda: (tmp_path / "home" / "kafka.pid").exists(), "the broker is being started", timeout_s=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode != 0
    deadline = time.monotonic() + 10
    while processes_below(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_below(tmp_path) == []
    assert not (tmp_path / "home").exists()
