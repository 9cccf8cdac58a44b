"""The write-ahead journal: what was answered is on disk before it is published, and survives a crash between any two
steps.

One line a delivery, `<crc32 of the rest, 8 hex> <JSON array of events>\n`, so the events of one delivery stand or fall
together. Segments are named by the epoch and the first seq in them: `0000000003-0000000000000041.jsonl`. Where events
were let go for want of room and a receipt tells so, a line holds `{"dropped": [epoch, first, last]}` in their place.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from services.collector.files import cut_torn, private, sync_folder

SEGMENT_BYTES = 16 << 20
KEEP_BYTES = 64 << 20
"""Published segments kept so that a person can look back at what left this machine."""
_CRC = 8
_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where the next line begins: a segment's name and a byte offset in it. The empty name is before everything."""

    segment: str = ""
    offset: int = 0

    def to_json(self) -> list[Any]:
        """For state files."""
        return [self.segment, self.offset]

    @classmethod
    def from_json(cls, data: Any) -> Position:
        """From a state file; what does not fit is the position before everything."""
        match data:
            case [str(segment), int(offset)] if offset >= 0:
                return cls(segment, offset)
        return cls()


@dataclass(frozen=True, slots=True)
class Line:
    """One delivery read back. `events` is None where the checksum does not fit: the line was damaged after it was
    written. `dropped` is (epoch, first seq, last seq) of events that are gone and told.
    """

    position: Position
    next: Position
    events: list[dict[str, Any]] | None
    dropped: tuple[int, int, int] | None = None


class Journal:
    """Appends to and reads from the segments of one folder. One process at a time (the collector's lock sees to it)."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._file: BinaryIO | None = None
        self._end = Position()
        self._dirty = False
        self.barrier: str | None = None
        """`read` stops before this segment: it is being written anew."""
        # Segments that are full but not yet on the disk: `sync` sees to them, so that `put` never waits for it.
        self._full: list[BinaryIO] = []
        self._rolled = False
        self._handles = threading.Lock()

    # writing

    @property
    def end(self) -> Position:
        """Behind the last whole line."""
        return self._end

    def open_epoch(self, epoch: int) -> None:
        """Begin a new segment for this epoch; call it once, after `recover`. After an OSError `put` tries again."""
        self._end = Position(_name(epoch, 1))
        private(self.folder)
        self._open(_name(epoch, 1))

    def put(self, line: bytes, epoch: int, first_seq: int) -> int:
        """Append one delivery's line (see `encode`) in one write; returns the bytes written. Raises OSError with the
        journal unchanged.
        """
        if self._file is None or (self._end.offset and self._end.offset + len(line) > self._segment_bytes):
            self._open(_name(epoch, first_seq))
        return self._write(line)

    def put_back(self, line: bytes) -> int:
        """`put` for a line whose seqs were given earlier; it goes into the segment there is."""
        if self._file is None:
            self._open(self._end.segment)
        return self._write(line)

    def _write(self, line: bytes) -> int:
        file = self._file
        assert file is not None
        try:
            written = file.write(line)
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            self._cut_back()
            raise
        self._end = Position(self._end.segment, self._end.offset + len(line))
        self._dirty = True
        return len(line)

    def sync(self) -> None:
        """Force what was appended to the disk (fdatasync). May run in another thread than `put`. Raises OSError,
        still dirty.
        """
        with self._handles:
            full, self._full = self._full, []
            fds = [os.dup(file.fileno()) for file in (*full, self._file) if file is not None]
            rolled, self._rolled, self._dirty = self._rolled, False, False
        try:
            for fd in fds:
                os.fdatasync(fd)
            if rolled:
                sync_folder(self.folder)
        except OSError:
            with self._handles:
                self._full, self._rolled, self._dirty = full + self._full, rolled or self._rolled, True
            raise
        finally:
            for fd in fds:
                os.close(fd)
        for file in full:
            file.close()

    @property
    def dirty(self) -> bool:
        """True when lines were appended since the last `sync`."""
        return self._dirty

    def close(self) -> None:
        """Sync and close. Raises OSError when the disk does not take the last lines; the files are closed all the
        same.
        """
        try:
            self.sync()
        finally:
            for file in (*self._full, self._file):
                if file is not None:
                    file.close()
            self._file, self._full = None, []

    def _open(self, name: str) -> None:
        if (self.folder / name).exists():
            # Its first line failed halfway and could not be cut off then.
            self._cut_torn(name)
        file = open(self.folder / name, "ab", buffering=0, opener=_private)
        with self._handles:
            if self._file is not None:
                self._full.append(self._file)
            self._file = file
            self._rolled = self._dirty = True
        self._end = Position(name, file.tell())

    def _cut_back(self) -> None:
        # A full disk can take half a line. If cutting it off fails too, it ends a segment, where readers pass over it.
        file = self._file
        assert file is not None
        try:
            os.ftruncate(file.fileno(), self._end.offset)
        except OSError:
            with self._handles:
                self._full.append(file)
                self._file = None

    # reading

    def segments(self) -> list[str]:
        """Names of the segments, oldest first."""
        return sorted(path.name for path in self.folder.glob(f"*{_SUFFIX}"))

    def size(self) -> int:
        """Bytes of all segments."""
        return self.size_from(Position())

    def size_from(self, position: Position) -> int:
        """Bytes behind a position."""
        sizes = {name: (self.folder / name).stat().st_size for name in self.segments() if name >= position.segment}
        return sum(sizes.values()) - min(position.offset, sizes.get(position.segment, 0))

    def read(self, position: Position, max_bytes: int = 1 << 20) -> list[Line]:
        """Whole lines from `position` on, of one segment, about `max_bytes` of them (at least one line)."""
        for name in self.segments():
            if name < position.segment:
                continue
            if name == self.barrier:
                return []
            offset = position.offset if name == position.segment else 0
            with open(self.folder / name, "rb") as file:
                file.seek(offset)
                data = file.read(max_bytes)
                while data and b"\n" not in data and (more := file.read(max_bytes)):
                    data += more
            end = data.rfind(b"\n") + 1
            if end:
                return [line for _, line in parse_lines(name, data[:end], offset)]
        return []

    def recover(self, position: Position | None = None) -> Iterator[Line]:
        """All lines from `position` on; a torn last line of the newest segment is cut off the file first."""
        names = self.segments()
        if names:
            self._cut_torn(names[-1])
        return self.lines(position)

    def lines(self, position: Position | None = None) -> Iterator[Line]:
        """All whole lines from `position` (the beginning) on; changes nothing, so it may be called while another
        writes.
        """
        position = position or Position()
        while lines := self.read(position):
            yield from lines
            position = lines[-1].next

    def drop_before(self, position: Position, keep_bytes: int = KEEP_BYTES) -> int:
        """Delete segments that lie wholly before `position`, but keep the newest `keep_bytes` of them; returns how
        many went.
        """
        done = [name for name in self.segments() if name < position.segment and name != self._end.segment]
        kept = 0
        for number, name in enumerate(reversed(done)):
            kept += (self.folder / name).stat().st_size
            if kept > keep_bytes:
                gone = done[: len(done) - number]
                for old in gone:
                    (self.folder / old).unlink(missing_ok=True)
                return len(gone)
        return 0

    def _cut_torn(self, name: str) -> None:
        with open(self.folder / name, "rb+") as file:
            cut_torn(file)


def encode(content: list[dict[str, Any]] | dict[str, Any]) -> bytes:
    """A journal line, newline included."""
    return _line(orjson.dumps(content))


def encode_written(events: list[bytes]) -> bytes:
    """`encode` for events that are JSON already."""
    return _line(b"[%b]" % b",".join(events))


def _line(body: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(body), body)


def parse_lines(name: str, data: bytes, offset: int = 0) -> Iterator[tuple[bytes, Line]]:
    """(raw with its newline, line) of whole lines that begin at `offset` of the segment `name`; what follows the last
    newline is passed over.
    """
    for text in data.split(b"\n")[:-1]:
        raw = text + b"\n"
        after = offset + len(raw)
        found = _decode(raw)
        dropped = _dropped(found)
        events = [] if dropped else found if isinstance(found, list) else None
        yield raw, Line(Position(name, offset), Position(name, after), events, dropped)
        offset = after


def intact(raw: bytes) -> bool:
    """Whether a line, its newline included, fits its checksum."""
    try:
        return int(raw[:_CRC], 16) == zlib.crc32(raw[_CRC + 1 : -1])
    except ValueError:
        return False


def _decode(raw: bytes) -> Any:
    """The content of a line; None where the checksum or the form does not fit."""
    try:
        return orjson.loads(raw[_CRC + 1 : -1]) if intact(raw) else None
    except orjson.JSONDecodeError:
        return None


def _dropped(content: Any) -> tuple[int, int, int] | None:
    match content:
        case {"dropped": [int(epoch), int(first), int(last)]}:
            return epoch, first, last
    return None


def _name(epoch: int, first_seq: int) -> str:
    return f"{epoch:010d}-{first_seq:016d}{_SUFFIX}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
