"""What the tests of processes share: a program to watch, and a look at whether a process still is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Says when it starts and when it is asked to end, in a file that all parts of a test share.
_SPEAKER = """
import signal, sys
name, diary, deaf = sys.argv[1], sys.argv[2], sys.argv[3] == "deaf"
def say(what):
    with open(diary, "a") as file:
        file.write(f"{name} {what}\\n")
def end(*_):
    say("asked to end")
    if not deaf:
        sys.exit()
signal.signal(signal.SIGTERM, end)
say("started")
while True:
    signal.pause()
"""


@pytest.fixture
def speaker(tmp_path: Path) -> Callable[..., list[str]]:
    """`speaker(name, deaf=False)`: command line of a program that notes its start and end in `tmp_path/diary`."""

    def command(name: str, deaf: bool = False) -> list[str]:
        return [sys.executable, "-c", _SPEAKER, name, str(tmp_path / "diary"), "deaf" if deaf else ""]

    return command


@pytest.fixture
def diary(tmp_path: Path) -> Callable[[], list[str]]:
    """`diary()`: the lines that speakers have written so far."""

    def read() -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (tmp_path / "diary").read_text().splitlines()
        return []

    return read


@pytest.fixture
def run_script() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`run_script(code)`: a Python process with its standard output to read from; killed at the end of the test."""
    running: list[subprocess.Popen[str]] = []

    def run(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def stray() -> Iterator[Callable[[list[str]], int]]:
    """`stray(argv)`: pid of a process in a session of its own that nothing ends but the test; killed after it."""
    running: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str]) -> int:
        running.append(subprocess.Popen(argv, start_new_session=True))
        return running[-1].pid

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
