"""Keeps the journal below its bound while a sink is away: the oldest segments that nobody has read yet are written anew
without the lowest drop class, then without the next. The last class stays: where only that is left, nothing is taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from schemas.topics import LAST_CLASS
from services.collector.drops import Rewritten, rewrite
from services.collector.intake import Intake
from services.collector.journal import Journal, Position
from services.collector.publisher import Publisher

log = logging.getLogger(__name__)


class Room:
    """Makes room in the journal. Above `mark` it is time to, so that callers need not wait for it at the bound."""

    def __init__(
        self,
        journal: Journal,
        intake: Intake,
        publishers: Sequence[Publisher],
        sync: Callable[[], Awaitable[bool]],
    ) -> None:
        self._journal = journal
        self._intake = intake
        self._publishers = publishers
        self._sync = sync
        self.mark = intake.max_bytes - intake.max_bytes // 8
        self._target = intake.max_bytes - intake.max_bytes // 4
        # The lowest drop class that may still be in a segment.
        self._lowest: dict[str, int] = {}
        self._receipted: Rewritten | None = None
        self._said = self._in_trouble = False

    @property
    def needed(self) -> bool:
        """Whether the journal is above the mark."""
        return self._intake.journal_bytes > self.mark

    @property
    def unfinished(self) -> bool:
        """Whether a segment's receipts are in the journal and it is not in its place yet: no snapshot may pass them."""
        return self._receipted is not None

    async def make(self, kept: Position) -> None:
        """Drop events until the journal is well below the mark or there is nothing to drop. `kept` is the position of
        the snapshot on disk: what is behind it is needed for recovery.
        """
        if self._receipted and not await self._finish(self._receipted):
            return
        for highest in range(LAST_CLASS):
            done: set[str] = set()
            while self._intake.journal_bytes > self._target:
                names = [name for name in self._candidates(kept) if self._lowest.get(name, 0) <= highest]
                name = next((name for name in names if name not in done), None)
                if name is None:
                    break
                if not await self._thin(name, highest):
                    return
                done.add(name)

    def _candidates(self, kept: Position) -> list[str]:
        """Segments that the slowest sink has not begun and that no position points into, oldest first."""
        if not self._publishers:
            return []
        begun = min(publisher.position for publisher in self._publishers).segment
        pinned = {name for publisher in self._publishers for name in publisher.segments}
        end = min(kept.segment, self._journal.end.segment)
        names = [name for name in self._journal.segments() if begun < name < end]
        self._lowest = {name: lowest for name, lowest in self._lowest.items() if name in names}
        return [name for name in names if name not in pinned]

    async def _thin(self, name: str, highest: int) -> bool:
        """Whether to go on."""
        # A publisher that gets here waits; positions in the segment would not fit its new form.
        self._journal.barrier = name
        try:
            made = await asyncio.to_thread(rewrite, self._journal.folder / name, highest)
            if made is None:
                self._lowest[name] = highest + 1
                return True
            if not self._intake.receipts(made, time.time_ns() // 1_000_000):
                made.abandon()
                return False
            self._receipted = made
            if not self._said:
                self._said = True
                log.warning("the journal is at its bound: events are dropped by class, each told in a receipt")
            return await self._finish(made)
        except OSError as error:
            self._trouble("no room can be made in the journal", error)
            return False
        finally:
            if self._receipted is None:
                self._open()

    async def _finish(self, made: Rewritten) -> bool:
        # The receipts outlive what they tell of, also through a power loss.
        if not await self._sync():
            return False
        try:
            made.commit()
        except OSError as error:
            self._trouble(f"journal segment {made.path.name} cannot be replaced", error)
            return False
        self._receipted = None
        self._in_trouble = False
        self._intake.journal_bytes -= made.freed
        self._open()
        return True

    def _trouble(self, what: str, error: OSError) -> None:
        # It is tried again each second, and told once.
        if not self._in_trouble:
            self._in_trouble = True
            log.error("%s: %s", what, error.strerror)

    def _open(self) -> None:
        self._journal.barrier = None
        for publisher in self._publishers:
            publisher.wake()
