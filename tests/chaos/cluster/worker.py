"""A worker with the operators that are shipped, as a process that a storm may kill, freeze and thaw.

As a program: bootstrap, topic prefix, HTTP port.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from pipelines.operators import build_operators
from pipelines.runtime.port import OperatorFactory
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.worker import run
from schemas.config import Config, PipelinesConfig, Reliability
from schemas.errors import UserError
from services.embedded import deathsig
from services.embedded.host import free_port

ROOT = Path(__file__).parents[3]
TTL_MS = 4000
SESSION_TIMEOUT_S = 6.0


def operators() -> tuple[OperatorFactory, ...]:
    """The operators of worker and replay: all that are shipped, calls time out soon."""
    return tuple(
        build_operators(
            Config(
                reliability=Reliability(pending_call_ttl_ms=TTL_MS),
                pipelines=PipelinesConfig(approval_ttl_ms=TTL_MS),
            )
        )
    )


class Worker:
    """A worker process; it ends with this one."""

    def __init__(self, bootstrap: str, prefix: str, log: Path) -> None:
        self.port = free_port()
        self.frozen = False
        self.log = log
        wrapper = [sys.executable, "-I", "-S", deathsig.__file__, str(os.getpid())]
        args = [sys.executable, "-m", "tests.chaos.cluster.worker", bootstrap, prefix, str(self.port)]
        with log.open("wb") as out:
            self.process = subprocess.Popen([*wrapper, *args], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)

    @property
    def alive(self) -> bool:
        """True while the process exists, frozen or not."""
        return self.process.poll() is None

    def ready(self) -> bool:
        """True once it has made the state of all its partitions."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stand still, as a process that is swapped out or a machine that is paused."""
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Go on as if nothing had been."""
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def terminate(self) -> float:
        """SIGTERM; the seconds until it is gone."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return time.monotonic() - began


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    try:
        run(
            WorkerSettings(
                kafka={"bootstrap_servers": sys.argv[1]},
                operators=operators(),
                group_id=f"{sys.argv[2]}workers",
                topic_prefix=sys.argv[2],
                http_port=int(sys.argv[3]),
                session_timeout_s=SESSION_TIMEOUT_S,
            )
        )
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
