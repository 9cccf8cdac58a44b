"""Files that survive a crash: private folders, atomic replacement, and logs whose last line may be torn."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO


def private(folder: Path) -> None:
    """Make a folder and what is missing above it, each 0700; what exists stays as it is. Raises OSError."""
    missing = [level for level in (folder, *folder.parents) if not level.exists()]
    for level in reversed(missing):
        level.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def write_atomic(path: Path, data: bytes) -> None:
    """Write, sync and rename, so that a reader or a crash sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, so that a rename or a new file outlives a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cut_torn(file: BinaryIO) -> None:
    """Cut off what lies behind the last newline; leaves the file's position at its end."""
    size = start = file.seek(0, os.SEEK_END)
    keep = 0
    while start > 0 and not keep:
        step = min(start, 1 << 16)
        start -= step
        file.seek(start)
        newline = file.read(step).rfind(b"\n")
        keep = 0 if newline < 0 else start + newline + 1
    if keep < size:
        file.truncate(keep)
    file.seek(0, os.SEEK_END)
