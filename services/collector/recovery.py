"""What a start makes of what is on disk: snapshot, then the journal behind it, then the reserve; and what a kill left half
done is finished or undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from services.collector.drops import finish
from services.collector.intake import Identity, Intake, replay_into
from services.collector.journal import Journal
from services.collector.losses import Losses, told
from services.collector.metrics import Metrics
from services.collector.publisher import pointer_path, read_pointer
from services.collector.reserve import RESERVE_BYTES, CounterPage, Reserve, stamp
from services.collector.state import Snapshot, next_epoch

if TYPE_CHECKING:
    from services.collector.service import CollectorSettings

log = logging.getLogger(__name__)

T = TypeVar("T")


def recover(settings: CollectorSettings, journal: Journal, snapshot: Snapshot, metrics: Metrics) -> Intake:
    """The intake of a new epoch, with all that was answered before; `snapshot` is brought to the journal's end. Raises
    OSError.
    """
    reserve = Reserve(settings.folder / "reserve", min(RESERVE_BYTES, settings.journal_max_bytes // 16))
    pointers = [read_pointer(pointer_path(settings.folder, sink)) for sink in settings.sinks]
    segments = [*journal.segments(), *(position.segment for position, _ in pointers)]
    used = [snapshot.epoch, *(epoch for _, (epoch, _) in pointers), *map(_epoch_of, segments)]
    identity = Identity(*_with_spare(reserve, lambda: next_epoch(settings.folder, max(used))))
    # What a sink has, the journal once had, whatever happened to its last lines since.
    for epoch, seq in ((snapshot.epoch, snapshot.seq), *(published for _, published in pointers)):
        identity.follows(epoch, seq)
    _replay(journal, reserve, snapshot, identity)
    losses = Losses(CounterPage(settings.folder / "counters"), metrics)
    losses.load(snapshot.seen.__contains__)
    intake = Intake(
        journal=journal,
        calls=snapshot.calls,
        seen=snapshot.seen,
        identity=identity,
        capture=settings.capture,
        metrics=metrics,
        losses=losses,
        reserve=reserve,
        spool_helps=_device(settings.spool) != _device(settings.folder),
        tenant_id=settings.tenant_id,
        workspace_id=settings.workspace_id,
        labels=settings.labels,
        max_bytes=settings.journal_max_bytes,
    )
    try:
        journal.open_epoch(identity.epoch)
    except OSError as error:
        log.error("journal %s cannot be written: %s", journal.folder, error.strerror)
    intake.journal_bytes = journal.size()
    intake.begin()
    return intake


def _replay(journal: Journal, reserve: Reserve, snapshot: Snapshot, identity: Identity) -> None:
    # Events that waited in the reserve when the snapshot was taken are folded into it, wherever they are now.
    folded = (snapshot.epoch, snapshot.seq)
    last = (0, 0)
    lines = damaged = 0
    rewrites: set[str] = set()
    for line in journal.recover(snapshot.position):
        if line.events is None:
            damaged += 1
        elif line.dropped:
            identity.follows(line.dropped[0], line.dropped[2])
        else:
            lines += 1
            last = stamp(line.events[-1])
            if last > folded:
                replay_into(snapshot.calls, snapshot.seen, identity, line.events)
            for event in line.events:
                if event["event_name"] == "producer.dropped":
                    snapshot.told.update(told(event))
                    rewrites.add(event.get("native", {}).get("rewrite", ""))
    finish(journal.folder, rewrites)
    for line in reserve.load(last):
        if line.events and stamp(line.events[-1]) > folded:
            lines += 1
            replay_into(snapshot.calls, snapshot.seen, identity, line.events)
    if lines or damaged:
        log.info("recovered %d deliveries from the journal; %d lines were damaged", lines, damaged)


def _epoch_of(segment: str) -> int:
    return int(segment[:10]) if segment[:10].isdigit() else 0


def _with_spare(reserve: Reserve, write: Callable[[], T]) -> T:
    """`write`, which on a full disk may have a little of the reserve's room."""
    try:
        return write()
    except OSError:
        if not reserve.spare():
            raise
        return write()


def _device(path: Path) -> int:
    """The file system that a path is or will be on."""
    return next(level for level in (path, *path.parents) if level.exists()).stat().st_dev
