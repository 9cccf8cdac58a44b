"""Runs `agenttrace proxy stdio` as a client does, with an observer that only writes the tap to a file, and finds what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.mcp_proxy.tap import Kind, Reader, Record, Side

# Reads the tap as the real observer does, a few hundred milliseconds sooner.
OBSERVER = """
import socket, sys
tap = socket.socket(fileno=int(sys.argv[-1]))
with open(sys.argv[1], "ab", buffering=0) as file:
    while data := tap.recv(1 << 20):
        file.write(data)
"""

# The command line as it is; only the observer is another.
_PROXY = """
import sys
from services.mcp_proxy import observing
observing.COMMAND = (sys.executable, "-I", "-S", "-c", {observer!r}, {tap!r})
from services.cli.main import main
main()
"""

READY = "READY_FOLDER"
"""Environment variable: where processes of a test leave a file when they are up."""
_MARK = "AGENTTRACE_TEST_MARK"


MADE: list[Proxied] = []
"""What the run has started, for whom a failed test leaves something behind."""


@dataclass
class Proxied:
    """A command line, and the mark by which every process that comes of it is found."""

    folder: Path
    observer: str = OBSERVER

    def __post_init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.tap_file = self.folder / f"{self.mark}.tap"
        self.ready = self.folder / self.mark
        self.ready.mkdir()
        MADE.append(self)

    def argv(self, *command: str) -> list[str]:
        """`agenttrace proxy stdio` for a server's command."""
        code = _PROXY.format(observer=self.observer, tap=str(self.tap_file))
        return [sys.executable, "-P", "-c", code, "proxy", "stdio", "--server", "probe", "--", *command]

    @property
    def env(self) -> dict[str, str]:
        home = self.folder / "home"
        return {**os.environ, _MARK: self.mark, READY: str(self.ready), "AGENTTRACE_HOME": str(home)}

    def popen(self, *command: str, **how: Any) -> subprocess.Popen[bytes]:
        """The proxy in front of a command."""
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0, **how}
        return subprocess.Popen(self.argv(*command), env=self.env, **how)

    def alive(self) -> dict[int, str]:
        """The processes of this command line that live, without the observer; their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if f"{_MARK}={self.mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words != [b""] and self.observer.encode() not in words:
                found[int(entry.name)] = b" ".join(words).decode(errors="replace")
        return found

    def roles(self) -> dict[str, int]:
        """Role of each process that reported itself ready, and its id."""
        return {file.name: int(file.read_text()) for file in self.ready.iterdir() if not file.suffix}

    def records(self) -> list[Record]:
        """What the observer was given."""
        return list(Reader().feed(self.tap_file.read_bytes())) if self.tap_file.exists() else []

    def tapped(self, side: Side, kind: Kind = Kind.DATA) -> bytes:
        """The bytes of one side as the observer saw them."""
        return b"".join(record.data for record in self.records() if record.kind is kind and record.side is side)


def wait(condition: Callable[[], Any], what: str, timeout_s: float = 10) -> Any:
    """What the condition gives, once that is true."""
    until = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < until, f"after {timeout_s} s still not: {what}"
        time.sleep(0.01)
    return found


def finish(client: subprocess.Popen[bytes]) -> None:
    """End the client's side of a test, whatever became of it."""
    client.kill()
    for stream in (client.stdin, client.stdout, client.stderr):
        if stream is not None:
            stream.close()
    client.wait()


def children(pid: int) -> list[int]:
    """The children of a process, whichever of its threads started them."""
    return [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def python(code: str, *arguments: str) -> Sequence[str]:
    """A command that runs this code and imports no site."""
    return [sys.executable, "-I", "-S", "-c", code, *arguments]
