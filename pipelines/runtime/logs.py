"""Log lines at a pace people can read: a Kafka client in an outage writes many lines at every reconnect."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 60.0
CLIENTS = ("aiokafka", "faust", "mode", "pipelines.runtime.transport")
"""Loggers of the Kafka clients. Services of Faust log under the module that defines their class: those of our transport
under ours."""
MAX_KNOWN = 1000


class Damper(logging.Filter):
    """Lets one warning of the same logger and template through a minute; the next says how many were held back.

    The Kafka clients say the same thing in ten ways, so all of theirs count as one; not what comes with a traceback.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._last: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the line may pass."""
        if record.levelno < logging.WARNING:
            return True
        # Several handlers ask about one record; they get one answer.
        passes: bool | None = getattr(record, "passes", None)
        if passes is None:
            passes = record.passes = self._passes(record)
        return passes

    def _passes(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        place = (record.name, record.levelno, str(record.msg)[:200])
        if record.exc_info is None and _of_client(record.name):
            place = ("a Kafka client", logging.WARNING, "")
        last, held = self._last.get(place, (-self._every_s, 0))
        if now - last < self._every_s:
            self._last[place] = (last, held + 1)
            return False
        if len(self._last) >= MAX_KNOWN:
            self._last.clear()
        self._last[place] = (now, 0)
        if held:
            record.msg = f"{record.msg} (and {held} like it since)"
        return True


def _of_client(name: str) -> bool:
    return any(name == client or name.startswith(f"{client}.") for client in CLIENTS)


def damp() -> None:
    """Damp the warnings of this process, and quiet what its Kafka clients write below WARNING."""
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    damper = Damper()
    for handler in logging.getLogger().handlers:
        handler.addFilter(damper)


@contextmanager
def quiet(name: str = "aiokafka") -> Iterator[None]:
    """Without a logger's lines; at a start what the Kafka client tells at length is one line of ours."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
