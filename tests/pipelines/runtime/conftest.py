"""A broker's topics and worker processes for one test."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from services.embedded.host import free_port
from tests.pipelines.runtime.harness import Broker, Process


@pytest.fixture
async def broker(kafka_bootstrap: str, topic_prefix: str) -> AsyncIterator[Broker]:
    made = Broker(kafka_bootstrap, topic_prefix)
    yield made
    await made.close()


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts worker processes, which end with the test."""
    started: list[Process] = []

    def start(
        ttl_ms: int = 2000,
        port: int | None = None,
        broker: Broker = broker,
        operators: str = "pairs",
        checkpoint_s: float = 30.0,
    ) -> Process:
        log = tmp_path / f"worker{len(started)}.log"
        process = Process(
            broker, log, ttl_ms=ttl_ms, port=port or free_port(), operators=operators, checkpoint_s=checkpoint_s
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            os.kill(process.process.pid, signal.SIGCONT)
            process.kill()
