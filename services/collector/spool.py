"""Reads the spool: what forwarders, plugins and MCP proxies wrote while no collector answered, oldest first.

A file is deleted only after its events are in the journal; a crash between the two repeats the delivery, which its id
makes harmless. Anything may lie in these folders: only regular files are opened, no link is followed, and what cannot
be read costs only itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from services.adapters.registry import ADAPTERS
from services.forwarder import protocol

FOLDERS = (*sorted(ADAPTERS), protocol.SPOOL_EVENTS)
"""The runtimes there are adapters for, and finished events."""
BAD_PREFIX = ".bad."
"""A delivery that could not be normalised at all is set aside under this prefix, for a person to look at."""
_TORN_AFTER_S = 3600.0
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Spooled:
    """One file of the spool. `body` is a marker with size and SHA-256 where the payload was over the limit."""

    path: Path
    runtime: str
    delivery_id: str | None
    body: bytes


def pending(folder: Path) -> list[Path]:
    """What waits in a runtime's folder: whole files, and those whose writer left them half done an hour ago. Raises
    OSError.

    Temporary names of other kinds (links, pipes) are removed on the way.
    """
    found: list[Path] = []
    deadline = time.time() - _TORN_AFTER_S
    for entry in os.scandir(folder):
        if not entry.name.startswith(protocol.SPOOL_TEMPORARY_PREFIX):
            if not entry.name.startswith("."):
                found.append(folder / entry.name)
        elif entry.is_file(follow_symlinks=False):
            if entry.stat(follow_symlinks=False).st_mtime < deadline:
                found.append(folder / entry.name)
        elif not entry.is_dir(follow_symlinks=False):
            (folder / entry.name).unlink()
    return found


def age(path: Path) -> str:
    """Sorts spool files oldest first: delivery ids sort by time."""
    return _name(path)


def strangers(spool: Path) -> list[Path]:
    """What lies in the spool and is none of the folders: nobody's, and never touched."""
    try:
        return [path for path in sorted(spool.iterdir()) if path.name not in FOLDERS or not _is_folder(path)]
    except OSError:
        return []


def read(path: Path) -> Spooled:
    """A spool file as a delivery. What is no spool file is taken as it is, so that it ends as a quarantined event.

    Raises OSError, also for what is no regular file.
    """
    with _regular(path) as file:
        content = file.read(protocol.MAX_BODY_BYTES + 4096)
        if len(content) > protocol.MAX_BODY_BYTES and (more := file.read(1 << 20)):
            digest, size = hashlib.sha256(content), len(content)
            while more:
                digest.update(more)
                size += len(more)
                more = file.read(1 << 20)
            marker = {protocol.OVERSIZED_KEY: {"size_bytes": size, "sha256": digest.hexdigest()}}
            return Spooled(path, path.parent.name, _id(path), orjson.dumps(marker))
    try:
        body = protocol.parse_spool_file(content).body
    except ValueError:
        body = content
    return Spooled(path, path.parent.name, _id(path), body)


def set_aside(path: Path) -> None:
    """Rename a file that no try will get through, so that it is kept and the next ones are read."""
    path.replace(path.with_name(BAD_PREFIX + _name(path)))


def drops(spool: Path) -> Iterator[tuple[Path, protocol.Drops]]:
    """Each folder's drops that no hook appends to any more; the caller removes the file once they are in the journal.

    The file is renamed in one round and read in the next. A crash before it is removed repeats the receipt: a loss may
    be told twice, never not at all.
    """
    for folder in folders(spool):
        taken = folder / f"{protocol.SPOOL_DROPPED}.taken"
        if _is_file(taken):
            with _regular(taken) as file:
                yield taken, protocol.parse_dropped(file.read(protocol.DROPPED_MAX_BYTES))
        current = folder / protocol.SPOOL_DROPPED
        if _is_file(current) and not taken.exists():
            current.replace(taken)


def folders(spool: Path) -> list[Path]:
    """Those of FOLDERS that are there."""
    return [spool / name for name in FOLDERS if _is_folder(spool / name)]


def _regular(path: Path) -> BinaryIO:
    fd = os.open(path, _READ_FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return open(fd, "rb")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _name(path: Path) -> str:
    return path.name.removeprefix(protocol.SPOOL_TEMPORARY_PREFIX)


def _id(path: Path) -> str | None:
    name = _name(path)
    return name if protocol.is_delivery_id(name) else None
