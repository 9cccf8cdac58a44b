"""What a worker must be told: how to reach Kafka, which operators to run, and its bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from pipelines.runtime.port import OperatorFactory

_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_EPOCH_NS = time.time_ns() - time.clock_gettime_ns(_TICKS)


def wall_ms() -> int:
    """Milliseconds since the Unix epoch by this host's clock as it was set when the process began.

    A clock that is set anew meanwhile must not count as time that passed: calls would be given up, and their state
    forgotten, while their ends are still to come.
    """
    return (_EPOCH_NS + time.clock_gettime_ns(_TICKS)) // 1_000_000


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker process.

    `kafka` is what every aiokafka client takes (bootstrap_servers, security_protocol, …). `topic_prefix` goes before
    every topic's name. `http_port` 0 takes a free port. A worker that dies is replaced after `session_timeout_s`.
    `rebuild_max_records` bounds what a take-over reads again per partition number; a state that it cuts is partial.
    The state of each partition number goes to the checkpoint topic every `checkpoint_s`, if it changed.
    `consumer` and `producer` make the Kafka clients of everything but group membership; a simulation puts its own here.
    """

    kafka: Mapping[str, Any]
    operators: tuple[OperatorFactory, ...]
    group_id: str = "agenttrace-pipelines"
    topic_prefix: str = ""
    http_port: int = 8723
    session_timeout_s: float = 15.0
    start_timeout_s: float = 30.0
    rebuild_max_records: int = 10_000_000
    checkpoint_s: float = 30.0
    clock: Callable[[], int] = wall_ms
    consumer: Callable[..., Any] = AIOKafkaConsumer
    producer: Callable[..., Any] = AIOKafkaProducer

    @property
    def servers(self) -> str:
        """The brokers, for messages to people."""
        return str(self.kafka["bootstrap_servers"])
