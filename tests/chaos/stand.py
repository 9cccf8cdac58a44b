"""A whole stack to do harm to: broker and engine owned here, so that they can stay away; collector, worker and sink under
the supervisor of `agenttrace up`, which starts again what is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from schemas.config import Config, KafkaConfig, Reliability
from schemas.topics import EMBEDDED_PARTITIONS
from services.embedded import run_file
from services.embedded.clickhouse import ClickHouseServer
from services.embedded.kafka import KafkaBroker
from services.embedded.launcher import Launcher
from services.kafka import client_kwargs, create_topics

TTL_MS = 20_000
"""Calls that never end are said to be timed out after this, so that a storm sees it happen."""
UP_S = 120.0
PARTS = ("collector", "worker", "sink")


class Failure(Exception):
    """A storm cannot be judged: something that must happen did not, in the time it had."""


def wait_for(reached: Callable[[], object], what: str, timeout_s: float, every_s: float = 0.1) -> float:
    """Seconds until the condition held; an OSError of it means not yet. Raises Failure."""
    began = time.monotonic()

    def holds() -> bool:
        with suppress(OSError):
            return bool(reached())
        return False

    while not holds():
        if time.monotonic() - began > timeout_s:
            raise Failure(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)
    return time.monotonic() - began


class Stand:
    """`with Stand(folder) as stand:` — on fresh state, up when the block begins, ended with it.

    `ttl_ms` is the time a call has to end, `env` is added to the supervisor's environment.
    """

    def __init__(self, folder: Path, *, ttl_ms: int = TTL_MS, env: Mapping[str, str] | None = None) -> None:
        self.home = folder / "home"
        self.broker = KafkaBroker(folder / "kafka")
        self.engine = ClickHouseServer(folder / "clickhouse")
        self.ttl_ms = ttl_ms
        self._env = env or {}
        self._log = folder / "stack.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as held:
            self.home.mkdir(parents=True, exist_ok=True)
            held.callback(self.broker.stop)
            self.broker.start(60)
            held.callback(self.engine.stop)
            self.engine.start(60)
            asyncio.run(create_topics(self.kafka, partitions=EMBEDDED_PARTITIONS))
            held.callback(self._end)
            self._begin()
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def kafka(self) -> dict[str, Any]:
        """Client settings for aiokafka."""
        return client_kwargs(KafkaConfig(bootstrap_servers=self.broker.bootstrap))

    @property
    def config(self) -> Config:
        """What the parts run with, as far as the operators see it."""
        return Config(reliability=Reliability(pending_call_ttl_ms=self.ttl_ms))

    def _begin(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTTRACE_")}
        env |= {
            "AGENTTRACE_HOME": str(self.home),
            "AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": self.broker.bootstrap,
            "AGENTTRACE_CLICKHOUSE__DSN": self.engine.dsn,
            "AGENTTRACE_RELIABILITY__PENDING_CALL_TTL_MS": str(self.ttl_ms),
            **{f"AGENTTRACE_{name}__PORT": "0" for name in ("COLLECTOR", "PIPELINES", "SINK")},
            **self._env,
        }
        command = [sys.executable, "-P", "-m", "services.cli.main", "up", "--foreground"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        process = self._process

        def up() -> bool:
            if process.poll() is not None:
                raise Failure(f"the stack did not start: {self._log.read_text(errors='replace')[-500:]}")
            return run_file.read(self.home) is not None

        wait_for(up, "the stack is up", UP_S)

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def parts(self) -> dict[str, run_file.PartState]:
        """Collector, worker and sink as the supervisor sees them."""
        run = run_file.read(self.home)
        if run is None:
            raise Failure("the supervisor has ended")
        return run.parts

    def kill(self, name: str) -> None:
        """kill -9 of a part, as soon as it runs."""
        wait_for(lambda: self.parts()[name].pid, f"{name} runs", 60)
        pid = self.parts()[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def all_up(self) -> bool:
        """Every part has a process."""
        return all(part.pid for part in self.parts().values())

    def metric(self, name: str) -> float:
        """Sum of a metric of the collector over its labels; raises OSError where it does not answer."""
        run = run_file.require(self.home)
        page = urllib.request.urlopen(f"http://127.0.0.1:{run.endpoints.http_port}/metrics", timeout=5).read().decode()
        return sum(
            float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((name + "{", name + " "))
        )


def strike(server: Launcher) -> None:
    """kill -9 of broker or engine; it stays away until `bring_back`."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: server.pid is None, f"{server.name} has ended", 10)


def bring_back(server: Launcher) -> None:
    """Start it again on its data and its port."""
    server.start(90)
