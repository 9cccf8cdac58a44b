"""Lets go of the least of a journal segment: it is written anew beside itself without the lowest drop classes, and
renamed into place once the receipt of what goes is in the journal.

The receipt names the file to be renamed, so a crash at any point leaves either the old segment without a receipt or a
receipt whose rename the next start makes up for (`finish`). Where events went, a line `{"dropped": [epoch, first,
last]}` stays, so that whoever reads the segment knows that they were told.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from schemas.events import SeqRange
from schemas.topics import LAST_CLASS, drop_class
from services.collector.files import sync_folder
from services.collector.journal import encode, parse_lines

RANGES_PER_RECEIPT = 1000
"""A receipt of so many ranges is about 50 KiB; more of them make several receipts."""
_TEMPORARY = ".tmp"


class Merkle:
    """The tree hash of RFC 9162, built leaf by leaf."""

    def __init__(self) -> None:
        self._peaks: list[bytes] = []
        self._leaves = 0

    def add(self, data: bytes) -> None:
        """The next leaf."""
        node, number = hashlib.sha256(b"\0" + data).digest(), self._leaves
        while number & 1:
            node = hashlib.sha256(b"\1" + self._peaks.pop() + node).digest()
            number >>= 1
        self._peaks.append(node)
        self._leaves += 1

    def root(self) -> str:
        """`sha256:<hex>`; of no leaves the hash of nothing."""
        if not self._peaks:
            return f"sha256:{hashlib.sha256().hexdigest()}"
        node = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            node = hashlib.sha256(b"\1" + peak + node).digest()
        return f"sha256:{node.hex()}"


@dataclass(slots=True)
class Loss:
    """What one receipt tells of."""

    count: int = 0
    size_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    ranges: list[SeqRange] = field(default_factory=list)
    tree: Merkle = field(default_factory=Merkle)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment's new form, on the disk as `temporary` and not yet in its place. `freed` is in bytes."""

    path: Path
    temporary: Path
    losses: list[Loss]
    freed: int

    def commit(self) -> None:
        """Put the new form in the old one's place. Raises OSError with the old one still there."""
        self.temporary.replace(self.path)
        sync_folder(self.path.parent)

    def abandon(self) -> None:
        """Forget the new form."""
        with contextlib.suppress(OSError):
            self.temporary.unlink()


def goes(event: Mapping[str, Any], highest: int) -> bool:
    """Whether an event is of a class up to `highest`. The first of an epoch never goes: it says where the last ended."""
    return drop_class(event["event_name"]) <= min(highest, LAST_CLASS - 1) and event["producer"]["seq"] != 1


def rewrite(path: Path, highest: int) -> Rewritten | None:
    """The segment without the drop classes up to `highest`, written beside it and synced; None where none of them is in
    it, or a damaged line, which has to stay where it is.

    May run in a thread: nobody else may change the segment meanwhile. Raises OSError with nothing left behind.
    """
    data = path.read_bytes()
    writer = _Writer()
    for raw, line in parse_lines(path.name, data):
        if line.events is None:
            return None
        if line.dropped:
            writer.strike(*line.dropped)
        elif not any(goes(event, highest) for event in line.events):
            writer.keep(raw)
        else:
            for going, group in groupby(line.events, lambda event: goes(event, highest)):
                if going:
                    for event in group:
                        writer.drop(event)
                else:
                    writer.keep(encode(list(group)))
    if not writer.losses:
        return None
    made = writer.finished()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{_TEMPORARY}")
    result = Rewritten(path, temporary, writer.losses, len(data) - len(made))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(made)
            while view:
                view = view[os.write(fd, view) :]
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync_folder(path.parent)
    except OSError:
        result.abandon()
        raise
    return result


def finish(folder: Path, receipted: set[str]) -> None:
    """After a crash: put the new forms in place whose receipts (they name the file) are in the journal, and remove all
    others. Raises OSError.
    """
    for path in sorted(folder.glob(f".*{_TEMPORARY}")):
        if path.name in receipted:
            path.replace(folder / path.name[1:].rsplit(".", 2)[0])
            sync_folder(folder)
        else:
            path.unlink()


class _Writer:
    """Collects the new form of a segment; events that follow each other become one dropped line and one range."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self._parts: list[bytes] = []
        self._gone: tuple[int, int, int] | None = None

    def keep(self, line: bytes) -> None:
        self._close()
        self._parts.append(line)

    def strike(self, epoch: int, first: int, last: int) -> None:
        """Seqs that are not there any more."""
        if self._gone and self._gone[0] == epoch and self._gone[2] == first - 1:
            first = self._gone[1]
        else:
            self._close()
        self._gone = epoch, first, last

    def drop(self, event: dict[str, Any]) -> None:
        epoch, seq = event["producer"]["epoch"], event["producer"]["seq"]
        loss = self.losses[-1] if self.losses else None
        last = loss.ranges[-1] if loss else None
        if loss and last and (last.epoch, last.last) == (epoch, seq - 1):
            loss.ranges[-1] = SeqRange(epoch=epoch, first=last.first, last=seq)
        else:
            if loss is None or len(loss.ranges) == RANGES_PER_RECEIPT:
                loss = Loss()
                self.losses.append(loss)
            loss.ranges.append(SeqRange(epoch=epoch, first=seq, last=seq))
        body = orjson.dumps(event)
        loss.count += 1
        loss.size_bytes += len(body)
        loss.by_class[str(drop_class(event["event_name"]))] += 1
        loss.tree.add(body)
        self.strike(epoch, seq, seq)

    def finished(self) -> bytes:
        self._close()
        return b"".join(self._parts)

    def _close(self) -> None:
        if self._gone:
            self._parts.append(encode({"dropped": self._gone}))
            self._gone = None
