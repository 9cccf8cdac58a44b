"""A sink as a process of its own, so that a test can freeze and end it. Argument: SinkSettings as JSON."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.clickhouse_sink.service import run
from services.clickhouse_sink.settings import SinkSettings
from services.embedded.host import free_port
from tests.part_process import PartProcess


class SinkProcess(PartProcess):
    """A running sink."""

    stop_s = 20.0

    def __init__(self, settings: SinkSettings, log: Path) -> None:
        settings = replace(settings, port=free_port())
        wanted = {name: getattr(settings, name) for name in SinkSettings.__slots__ if name != "on_ready"}
        super().__init__("tests.services.clickhouse_sink.sink_process", [json.dumps(wanted)], log, settings.port)

    def reasons(self) -> list[str]:
        """Why it is not ready."""
        text = self.get("/readyz")[1]
        return list(json.loads(text)["reasons"]) if text else ["no page"]

    def metric(self, name: str) -> float:
        """Sum over the labels of a metric of the page."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"agenttrace_sink_{name}")]
        return sum(float(line.split()[-1]) for line in lines)

    def end_at_once(self) -> None:
        """Whatever happened, leave no process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    given: dict[str, Any] = json.loads(sys.argv[1])
    run(SinkSettings(**given))
