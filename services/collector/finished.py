"""Files of finished events in the spool: what an MCP proxy wrote while no collector answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import orjson

from schemas.events import Quarantined
from schemas.identity import MAX_EVENTS_PER_DELIVERY, event_id, is_delivery_id, new_delivery_id
from services.collector import spool
from services.collector.intake import Intake, JournalError

log = logging.getLogger(__name__)

_CHUNK = 50
_UNREADABLE = object()


async def take_file(intake: Intake, path: Path, now_ms: int) -> bool:
    """Journal the events of a file (JSON lines, or one JSON array); False where it is not in the journal. Raises OSError.

    What is no event becomes an agent.payload.quarantined with size and keyed hash, so that a file costs only what is
    wrong in it; a file without any event is set aside. A file that comes again changes nothing.
    """
    items = await asyncio.to_thread(lambda: _items(spool.read(path).body))
    good = [(line, item) for line, item in items if item is not _UNREADABLE]
    refused = [line for line, item in items if item is _UNREADABLE]
    taken = 0
    try:
        for first in range(0, len(good), _CHUNK):
            chunk = good[first : first + _CHUNK]
            answers = intake.events([item for _, item in chunk], now_ms)
            refused += [line for (line, _), answer in zip(chunk, answers, strict=True) if answer is not None]
            taken += answers.count(None)
            # Hooks of agents go between two chunks.
            await asyncio.sleep(0)
    except JournalError:
        return False
    except Exception as error:
        # It would meet the same fault in every round, and all that was spooled after it would wait.
        intake.fault(path.parent.name, sum(len(line) for line, _ in items), error)
        with contextlib.suppress(OSError):
            spool.set_aside(path)
        return False
    base = path.name if is_delivery_id(path.name) else new_delivery_id(now_ms)
    if not all(_quarantine(intake, base, number, line, now_ms) for number, line in enumerate(refused)):
        return False
    if not taken:
        log.error("%s holds no event and is set aside", path)
        spool.set_aside(path)
        return False
    return True


def _items(content: bytes) -> list[tuple[bytes, Any]]:
    """Each line with what it holds; of an array each entry with its JSON."""
    try:
        whole = orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    else:
        if isinstance(whole, list):
            return [(orjson.dumps(item), item) for item in whole]
    return [(line, _parsed(line)) for line in content.split(b"\n") if line.strip()]


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except (orjson.JSONDecodeError, RecursionError):
        return _UNREADABLE


def _quarantine(intake: Intake, base: str, number: int, line: bytes, now_ms: int) -> bool:
    # Ids of the file's name, so that the same file again makes the same event.
    made = event_id(base, min(number, MAX_EVENTS_PER_DELIVERY - 1))
    if made in intake.seen:
        return True
    told = intake.own(
        Quarantined,
        "agent.payload.quarantined",
        now_ms,
        event_id=made,
        size_bytes=len(line),
        hash=intake.capture.raw_hash(line),
        reason="refused_event",
        severity="warning",
    )
    if told:
        intake.seen.add(made)
        intake.metrics.quarantined.labels("events", "refused_event").inc()
    return told
