"""What still works on a full disk: a reserve of preallocated room for the last drop class, and a page that counts what
could not even be kept there.

Both files are opened and given their room while there is some, and then only written within it, by one pwrite each.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from services.collector.journal import Line, parse_lines

RESERVE_BYTES = 4 << 20
SPARE_BYTES = 64 << 10
SLOT_BYTES = 8 << 10
_SLOT = struct.Struct("<QII")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

Stamp = tuple[int, int]
"""(epoch, seq)."""


class _Held:
    """A file that is kept open. `dirty`: it was written since the last `sync`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.dirty = False

    def sync(self) -> None:
        """Force what was written to the disk. Raises OSError, still dirty."""
        if self.dirty and self._fd >= 0:
            self.dirty = False
            try:
                os.fdatasync(self._fd)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Reserve(_Held):
    """Journal lines in a file whose room was taken beforehand. They have their seqs, and go into the journal, in order,
    before anything else does.
    """

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        super().__init__(path)
        self._wanted = size
        self._room = 0
        self._begin = self._end = 0
        with contextlib.suppress(OSError):
            self._fd = os.open(path, _FLAGS, 0o600)
            self._room = os.fstat(self._fd).st_size

    @property
    def used(self) -> int:
        """Bytes of lines that the journal has not got yet."""
        return self._end - self._begin

    @property
    def room(self) -> int:
        """Bytes that can be added."""
        return self._room - self._end

    def load(self, journalled: Stamp) -> list[Line]:
        """Lines that a process before this one left and the journal has not got; `journalled` is the last stamp there.

        A line that did not get whole ends the reserve: it was never answered. Raises OSError.
        """
        if self._fd < 0:
            return []
        lines = reserve_lines(os.pread(self._fd, self._room, 0))
        self._end = lines[-1].next.offset if lines else 0
        known = [number for number, line in enumerate(lines) if line.events and stamp(line.events[-1]) <= journalled]
        left = lines[known[-1] + 1 :] if known else lines
        self._begin = left[0].position.offset if left else self._end
        return left

    def allocate(self) -> bool:
        """Take the room that is missing; False while there is none."""
        if self._room >= self._wanted:
            return True
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, _FLAGS, 0o600)
            os.posix_fallocate(self._fd, 0, self._wanted)
        except OSError:
            return False
        self._room, self.dirty = self._wanted, True
        return True

    def append(self, line: bytes) -> bool:
        """Keep a line; False where it does not fit or cannot be written."""
        if self._fd < 0 or len(line) > self.room:
            return False
        try:
            if os.pwrite(self._fd, line, self._end) != len(line):
                return False
        except OSError:
            return False
        self._end += len(line)
        self.dirty = True
        return True

    def drain(self, put: Callable[[bytes], object]) -> None:
        """Give every line to `put`, oldest first, then begin anew. An OSError goes through; the next call goes on where it
        stopped.

        The room is kept: lines are overwritten, not cut off. A crash before that is seen by their stamps.
        """
        if self.used:
            data = os.pread(self._fd, self.used, self._begin)
            for raw, line in parse_lines("", data, self._begin):
                put(raw)
                self._begin = line.next.offset
            self._begin = self._end
        if self._end:
            if os.pwrite(self._fd, bytes(self._end), 0) != self._end:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._begin = self._end = 0
            self.dirty = True

    def spare(self) -> bool:
        """Give a little of the free room back, so that a small file can be written on a full disk."""
        spare = min(SPARE_BYTES, self._wanted // 4)
        try:
            if self.room < spare:
                return False
            os.ftruncate(self._fd, self._room - spare)
        except OSError:
            return False
        self._room -= spare
        return True


@dataclass(slots=True)
class Owed:
    """A loss without seqs that no receipt tells of yet. `receipt` is the event id its receipt will have, so that it is
    told once whatever happens between writing the receipt and forgetting the debt.
    """

    receipt: str
    count: int = 0
    size_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)


class CounterPage(_Held):
    """What is owed, by reason, in a file of two slots written in turn: `<generation, length, crc32> JSON`. The valid
    slot with the higher generation counts, so a torn write costs nothing but itself.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._generation = 0

    def allocate(self) -> bool:
        """Take the file's room, written with zeros so that no later write needs a new block; False while there is
        none.
        """
        if self._fd >= 0:
            return True
        fd = -1
        try:
            fd = os.open(self._path, _FLAGS, 0o600)
            size = os.fstat(fd).st_size
            missing = 2 * SLOT_BYTES - size
            if missing > 0 and os.pwrite(fd, bytes(missing), size) != missing:
                raise OSError
        except OSError:
            if fd >= 0:
                os.close(fd)
            return False
        self._fd = fd
        return True

    def load(self) -> dict[str, Owed]:
        """What was owed when the page was last written."""
        if not self.allocate():
            return {}
        self._generation, owed = read_page(os.pread(self._fd, 2 * SLOT_BYTES, 0))
        return owed

    def store(self, owed: dict[str, Owed]) -> bool:
        """Write the page; False where that cannot be done."""
        body = orjson.dumps(owed)
        generation = self._generation + 1
        head = _SLOT.pack(generation, len(body), zlib.crc32(body, generation))
        if len(head) + len(body) > SLOT_BYTES or not self.allocate():
            return False
        try:
            os.pwrite(self._fd, head + body, generation % 2 * SLOT_BYTES)
        except OSError:
            return False
        self._generation, self.dirty = generation, True
        return True


def reserve_lines(data: bytes) -> list[Line]:
    """The lines of a reserve's content; a line that did not get whole ends them."""
    return [line for _, line in parse_lines("reserve", data.rstrip(b"\0"))]


def read_page(data: bytes) -> tuple[int, dict[str, Owed]]:
    """(generation, what is owed by reason) of a counter page's content; (0, {}) where nothing was ever written."""
    return max((_slot(data[:SLOT_BYTES]), _slot(data[SLOT_BYTES:])), key=lambda slot: slot[0])


def _slot(raw: bytes) -> tuple[int, dict[str, Owed]]:
    if len(raw) < _SLOT.size:
        return 0, {}
    generation, length, crc = _SLOT.unpack_from(raw)
    body = raw[_SLOT.size : _SLOT.size + length]
    if not generation or len(body) != length or zlib.crc32(body, generation) != crc:
        return 0, {}
    data: dict[str, Any] = orjson.loads(body)
    return generation, {
        reason: Owed(item["receipt"], item["count"], item["size_bytes"], Counter(item["by_class"]))
        for reason, item in data.items()
    }


def stamp(event: dict[str, Any]) -> Stamp:
    """(epoch, seq) of a journalled event."""
    return event["producer"]["epoch"], event["producer"]["seq"]
