"""From the observer to wherever its events go: a bounded queue that never blocks and never loses without a receipt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from schemas.clock import to_rfc3339
from schemas.events import Dropped, to_json
from schemas.identity import event_id, new_delivery_id
from schemas.topics import drop_class
from services.mcp_proxy.ways import Way

log = logging.getLogger(__name__)

SOURCE = "mcp_proxy/1"
MAX_EVENTS = 20_000
MAX_BYTES = 32 << 20
"""Bounds of the queue. From half of either on events are kept without their summaries."""
BATCH_EVENTS = 1000
BATCH_BYTES = (1 << 20) - 4096
"""The collector's bounds of one POST, with room for the commas."""

_FILL = (0.75, 0.875, 1.0)
"""How full the queue may be for events of drop class 0, 1, 2: the end of a call still finds room where noise does not."""
_GATHER_S, _SLOW_S = 0.05, 1.0
"""How long events gather for a batch: while the collector answers, and while it does not."""
_RECEIPT_S, _RECEIPT_MAX_S, _CALM_S = 1.0, 600.0, 60.0
"""A loss that goes on is told after a second, then ever more rarely; after a minute without one it begins anew."""
_SIDES = ("request", "response", "content")


class _Item(NamedTuple):
    line: bytes
    drop_class: int


@dataclass(slots=True)
class _Owed:
    """A loss that no receipt tells of yet."""

    count: int = 0
    size_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)


class Outlet:
    """`common` are fields of every receipt (tenant_id, workspace_id, labels). Use `start`, `put` and `close` on one loop."""

    def __init__(
        self,
        way: Way,
        common: Mapping[str, Any] | None = None,
        *,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._way = way
        self._common = dict(common or {})
        self._queue: deque[_Item] = deque()
        self._bytes = 0
        self._owed: dict[str, _Owed] = {}
        self._receipts: list[bytes] = []
        self._receipt_gap = _RECEIPT_S
        self._receipt_due = 0.0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pressed(self) -> bool:
        """Whether the queue is half full."""
        return self._over(0.5)

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run())

    def put(self, events: list[dict[str, Any]]) -> None:
        """Queue finished events (JSON forms). Returns at once and raises nothing; what does not fit is counted."""
        for event in events:
            which = drop_class(event["event_name"])
            line = orjson.dumps(_bare(event) if self.pressed else event)
            if len(line) > BATCH_BYTES:
                line = orjson.dumps(_bare(event))
            if len(line) > BATCH_BYTES:
                self._owe("event_too_large", line, which)
            elif self._over(_FILL[which], len(line)):
                self._owe("proxy_queue_full", line, which)
            else:
                self._queue.append(_Item(line, which))
                self._bytes += len(line)
        self._wake.set()

    async def close(self, within_s: float) -> None:
        """Send what waits, for at most so long; what is left goes to the disk, and what does not fit there is told in a
        receipt.
        """
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._task, within_s)
        await self._way.close()
        while self._queue:
            batch = self._batch()
            if not self._way.keep([item.line for item in batch]):
                for item in self._queue:
                    self._owe("spool_full_mcp_proxy", item.line, item.drop_class)
                self._queue.clear()
                break
            self._taken(batch)
        self._write_receipts()
        if self._receipts and not self._way.keep(self._receipts, beyond=True):
            log.error("%d receipts of lost events could not be kept either", len(self._receipts))

    # parts

    async def _run(self) -> None:
        while True:
            await self._gathered()
            if self._closing.is_set() and not (self._queue or self._owed or self._receipts):
                return
            try:
                await self._send()
            except Exception as error:
                # A way that fails in a manner of its own must not end all sending.
                log.error("events could not be sent: %s", type(error).__name__)
                self._way.slow = True

    async def _gathered(self) -> None:
        """Returns when there is a batch to send: at once when a whole one waits or the end has come."""
        if not (self._queue or self._receipts or self._closing.is_set()):
            patience = max(self._receipt_due - time.monotonic(), 0) if self._owed else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), patience)
        self._wake.clear()
        full = len(self._queue) >= BATCH_EVENTS or self._bytes >= BATCH_BYTES
        if self._closing.is_set() or (full and not self._way.slow):
            return
        with contextlib.suppress(TimeoutError):
            # A full batch does not cut a slow second short: the disk or the collector has just refused one.
            await asyncio.wait_for(self._closing.wait(), _SLOW_S if self._way.slow else _GATHER_S)

    async def _send(self) -> None:
        """One round: the receipts that are due, then batches until none is whole or one is refused."""
        if self._owed and (self._closing.is_set() or time.monotonic() >= self._receipt_due):
            self._write_receipts()
        if self._receipts:
            sent = await self._way.send(self._receipts, hurry=True)
            if sent.taken or await asyncio.to_thread(self._way.keep, self._receipts, beyond=True):
                self._receipts = []
        while self._queue:
            batch = self._batch()
            hurry = self.pressed or self._closing.is_set()
            sent = await self._way.send([item.line for item in batch], hurry=hurry)
            for index in sent.refused:
                self._owe("refused_by_collector", *batch[index])
            self._taken(batch[: sent.taken])
            if sent.taken < len(batch):
                return

    def _batch(self) -> list[_Item]:
        batch: list[_Item] = []
        size = 0
        for item in self._queue:
            size += len(item.line)
            if len(batch) == BATCH_EVENTS or (batch and size > BATCH_BYTES - len(batch)):
                break
            batch.append(item)
        return batch

    def _taken(self, batch: list[_Item]) -> None:
        for _ in batch:
            self._bytes -= len(self._queue.popleft().line)

    def _over(self, share: float, more: int = 0) -> bool:
        return len(self._queue) >= self.max_events * share or self._bytes + more > self.max_bytes * share

    def _owe(self, reason: str, line: bytes, which: int) -> None:
        if not self._owed:
            now = time.monotonic()
            if now > self._receipt_due + _CALM_S:
                self._receipt_gap = _RECEIPT_S
            self._receipt_due = now + self._receipt_gap
            self._receipt_gap = min(self._receipt_gap * 2, _RECEIPT_MAX_S)
        owed = self._owed.setdefault(reason, _Owed())
        owed.count += 1
        owed.size_bytes += len(line)
        owed.by_class[str(which)] += 1

    def _write_receipts(self) -> None:
        """What is owed becomes events, whose ids stay the same until they have arrived."""
        for reason, owed in self._owed.items():
            log.warning("%d events were lost (%s)", owed.count, reason)
            now_ms = time.time_ns() // 1_000_000
            receipt = Dropped(
                event_name="producer.dropped",
                event_id=event_id(new_delivery_id(now_ms), 0),
                timestamp=to_rfc3339(now_ms),
                source_adapter=SOURCE,
                severity="critical",
                reason=reason,
                count=owed.count,
                size_bytes=owed.size_bytes,
                by_class=dict(owed.by_class),
                **self._common,
            )
            self._receipts.append(orjson.dumps(to_json(receipt)))
        self._owed.clear()


def _bare(event: dict[str, Any]) -> dict[str, Any]:
    """The event without what was said: sizes and hashes stay."""
    bare = dict(event)
    for side in _SIDES:
        if isinstance(bare.get(side), dict) and "summary" in bare[side]:
            bare[side] = {name: value for name, value in bare[side].items() if name != "summary"}
    return bare
