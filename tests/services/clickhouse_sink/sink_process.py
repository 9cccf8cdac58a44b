"""A sink as a process of its own, so that a test can freeze and end it. Argument: SinkSettings as JSON."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.clickhouse_sink.service import run
from services.clickhouse_sink.settings import SinkSettings
from services.embedded.host import free_port

ROOT = Path(__file__).parents[3]


class SinkProcess:
    """A running sink."""

    def __init__(self, settings: SinkSettings, log: Path) -> None:
        settings = replace(settings, port=free_port())
        self.port = settings.port
        self._log = log
        wanted = {name: getattr(settings, name) for name in SinkSettings.__slots__ if name != "on_ready"}
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.clickhouse_sink.sink_process", json.dumps(wanted)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
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

    def reasons(self) -> list[str]:
        """Why it is not ready."""
        text = self.get("/readyz")[1]
        return list(json.loads(text)["reasons"]) if text else ["no page"]

    def metric(self, name: str) -> float:
        """Sum over the labels of a metric of the page."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"agenttrace_sink_{name}")]
        return sum(float(line.split()[-1]) for line in lines)

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")

    def terminate(self) -> float:
        """SIGTERM; the seconds until it is gone."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return time.monotonic() - began

    def end_at_once(self) -> None:
        """Whatever happened, leave no process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    given: dict[str, Any] = json.loads(sys.argv[1])
    run(SinkSettings(**given))
