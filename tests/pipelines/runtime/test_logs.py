"""Warnings of an outage are damped, news are not."""

from __future__ import annotations

import logging

import pytest

from pipelines.runtime import logs
from pipelines.runtime.logs import CLIENTS, Damper

pytestmark = pytest.mark.unit


def record(level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("pipelines.runtime.host", level, __file__, 1, message, args, None)


def test_the_same_warning_passes_once_a_minute_and_tells_how_many_were_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("pipelines.runtime.logs.time.monotonic", lambda: now)
    damper = Damper()
    passed = [damper.filter(record(logging.ERROR, "cannot reach %s", n)) for n in range(5)]
    assert passed == [True, False, False, False, False]
    assert damper.filter(record(logging.ERROR, "something else"))
    assert damper.filter(record(logging.WARNING, "cannot reach %s", 1))
    now += 61
    later = record(logging.ERROR, "cannot reach %s", "k")
    assert damper.filter(later)
    assert damper.filter(later), "a second handler"
    assert later.getMessage() == "cannot reach k (and 4 like it since)"


def test_information_is_not_damped_and_memory_is_bounded() -> None:
    damper = Damper()
    assert all(damper.filter(record(logging.INFO, "partition given away")) for _ in range(3))
    for n in range(5000):
        assert damper.filter(record(logging.ERROR, f"line {n}"))
    assert len(damper._last) <= 1000


def test_an_hour_without_kafka_is_a_line_a_minute_of_all_kafka_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pipelines.runtime.logs.time.monotonic", lambda: now)
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    levels = {name: logging.getLogger(name).level for name in CLIENTS}
    logging.getLogger().addHandler(handler)
    try:
        logs.damp()
        for _ in range(3600):
            now += 1
            # What the clients write at each try, through their own loggers.
            logging.getLogger("aiokafka").error("Unable connect to node with id %s: %s", 1, "refused")
            logging.getLogger("aiokafka.consumer.fetcher").error("Failed fetch messages from %s: %s", 1, "closed")
            group = logging.getLogger("aiokafka.consumer.group_coordinator")
            group.error("Group Coordinator Request failed: %s", "not ready")
            group.warning("Marking the coordinator dead (node %s)for group %s.", 1, "g")
            logging.getLogger("aiokafka.producer.sender").warning("Got error produce response: %s", "not ready")
            logging.getLogger("mode.timers").warning("Timer %s is overlapping", "commit")
            logging.getLogger("pipelines.runtime.transport").error("Thread keepalive is not responding...")
            logging.getLogger("aiokafka.conn").info("quiet")
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert len(lines) == 60
    assert lines[1].endswith("(and 419 like it since)")


def test_what_comes_with_a_traceback_of_a_client_is_not_held_back_by_the_others() -> None:
    damper = Damper()
    assert damper.filter(logging.LogRecord("aiokafka", logging.ERROR, __file__, 1, "away", (), None))
    error = (ValueError, ValueError("defect"), None)
    assert damper.filter(logging.LogRecord("mode", logging.ERROR, __file__, 1, "crashed", (), error))
