"""A worker or a sink in a process of its own, seen from outside: its page, its log, its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


class PartProcess:
    """`python -m module *args`, whose page is on `port` and whose output goes to `log`."""

    stop_s = 15.0
    """How long a stop may take before the test fails."""

    def __init__(self, module: str, args: Sequence[str], log: Path, port: int) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *args], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def terminate(self) -> float:
        """SIGTERM; the seconds until it is gone."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(self.stop_s)
        return time.monotonic() - began
