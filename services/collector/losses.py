"""What was lost and no receipt in the journal tells of yet. Losses without seqs are on the counter page before the caller
gets its answer; lost seqs are found again by whoever reads the journal, so memory is enough for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from schemas.events import SeqRange
from schemas.identity import event_id, new_delivery_id
from services.collector.drops import RANGES_PER_RECEIPT
from services.collector.journal import Position
from services.collector.metrics import Metrics
from services.collector.reserve import CounterPage, Owed
from services.collector.state import Gap

DAMAGED = "journal_damaged"


class Losses:
    """The receipts that are owed."""

    def __init__(self, page: CounterPage, metrics: Metrics) -> None:
        self.page = page
        self._metrics = metrics
        self._owed: dict[str, Owed] = {}
        self._ranges: list[SeqRange] = []
        self._lines: list[Position] = []

    def load(self, told: Callable[[str], bool]) -> None:
        """What a process before this one owed, but for the receipts that it journalled: `told` knows their event ids."""
        found = self.page.load()
        self._owed = {reason: owed for reason, owed in found.items() if not told(owed.receipt)}
        if len(self._owed) < len(found):
            self._forget()

    def dropped(self, reason: str, count: int, size_bytes: int, by_class: Mapping[str, int]) -> None:
        """Something that had no seq."""
        self._metrics.dropped.labels(reason).inc(count)
        owed = self._owed.setdefault(reason, Owed(event_id(new_delivery_id(), 0)))
        owed.count += count
        owed.size_bytes += size_bytes
        owed.by_class.update(by_class)
        self._store()

    def lost(self, ranges: list[SeqRange]) -> None:
        """Seqs that the journal gave and cannot read again."""
        self._metrics.dropped.labels(DAMAGED).inc(_width(ranges))
        self._ranges += ranges

    def lost_lines(self, lines: list[Position]) -> None:
        """Damaged lines of which nobody knows the seqs."""
        self._metrics.dropped.labels(DAMAGED).inc(len(lines))
        self._lines += lines

    def unaccounted(self) -> list[SeqRange]:
        """Lost seqs that no receipt in the journal names yet."""
        return list(self._ranges)

    def untold(self) -> set[Gap]:
        """All damage that no receipt in the journal tells of yet."""
        return {*_gaps(self._ranges), *self._lines}

    def settle(self, tell: Callable[..., bool]) -> None:
        """Let `tell` journal a receipt with these fields for each loss; what it returns False for stays owed."""
        for reason, owed in list(self._owed.items()):
            if tell(
                event_id=owed.receipt,
                reason=reason,
                count=owed.count,
                size_bytes=owed.size_bytes,
                by_class=dict(owed.by_class),
            ):
                del self._owed[reason]
                self._forget()
        while self._ranges:
            ranges = self._ranges[:RANGES_PER_RECEIPT]
            if not tell(reason=DAMAGED, count=_width(ranges), ranges=tuple(ranges)):
                return
            del self._ranges[: len(ranges)]
        if self._lines:
            native: dict[str, Any] = {"lines": [line.to_json() for line in self._lines]}
            if tell(reason=DAMAGED, count=len(self._lines), native=native):
                self._lines.clear()

    def _forget(self) -> None:
        # Twice, so that either slot of the page says so.
        self._store()
        self._store()

    def _store(self) -> None:
        if not self.page.store(self._owed):
            self._metrics.failures.labels("counter_page").inc()


def told(receipt: Mapping[str, Any]) -> set[Gap]:
    """The damage that a `producer.dropped` tells of."""
    if receipt["reason"] != DAMAGED:
        return set()
    lines = receipt.get("native", {}).get("lines", ())
    ranges = [SeqRange.model_validate(given) for given in receipt.get("ranges", ())]
    return {*_gaps(ranges), *map(Position.from_json, lines)}


def _gaps(ranges: list[SeqRange]) -> Iterator[tuple[int, int, int]]:
    return ((given.epoch, given.first, given.last) for given in ranges)


def _width(ranges: list[SeqRange]) -> int:
    return sum(given.last - given.first + 1 for given in ranges)
