"""Warnings of an outage are damped, news are not."""

from __future__ import annotations

import logging

import pytest

from pipelines.runtime.logs import Damper

pytestmark = pytest.mark.unit


def record(level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", level, __file__, 1, message, args, None)


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
