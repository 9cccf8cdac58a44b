"""Where finished events wait while no collector answers: whole files of JSON lines in `<spool>/events`, taken by the
collector in the order of their names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from schemas.identity import new_delivery_id
from services.forwarder.protocol import (
    SPOOL_BLOCK_BYTES,
    SPOOL_EVENTS,
    SPOOL_MAX_BYTES,
    SPOOL_MAX_FILES,
    SPOOL_TEMPORARY_PREFIX,
)

_TRUSTED_S = 1.0
"""How long a count of the folder is believed; what other proxies write meanwhile is how far it may go over its bound."""


class Spool:
    """The folder, below `spool`. `max_files` and `max_bytes` (in whole blocks of 4,096) are for all proxies together."""

    def __init__(self, spool: Path, *, max_files: int = SPOOL_MAX_FILES, max_bytes: int = SPOOL_MAX_BYTES) -> None:
        self.folder = spool / SPOOL_EVENTS
        self.max_files = max_files
        self.max_bytes = max_bytes
        self._files = self._bytes = 0
        self._counted = -_TRUSTED_S
        self._last_ms = 0

    def write(self, lines: Sequence[bytes], *, beyond: bool = False) -> bool:
        """One more file, synced; False where the folder is full, unless it may go `beyond` the bound. Raises OSError.

        Blocks for the disk: call it in a thread. The files of one process sort in the order of their writing.
        """
        content = b"\n".join(lines) + b"\n"
        self._prepare()
        self._count()
        size = _blocks(len(content))
        if not beyond and (self._files >= self.max_files or self._bytes + size > self.max_bytes):
            return False
        self._last_ms = max(self._last_ms + 1, time.time_ns() // 1_000_000)
        name = new_delivery_id(self._last_ms)
        temporary = self.folder / f"{SPOOL_TEMPORARY_PREFIX}{name}"
        try:
            with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fdatasync(file.fileno())
            temporary.rename(self.folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._files += 1
        self._bytes += size
        return True

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise OSError(errno.EPERM, "not a folder of this user", str(self.folder))

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._counted < _TRUSTED_S:
            return
        sizes = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(_blocks(entry.stat(follow_symlinks=False).st_size))
        self._files, self._bytes, self._counted = len(sizes), sum(sizes), now


def _blocks(size: int) -> int:
    return -(-size // SPOOL_BLOCK_BYTES) * SPOOL_BLOCK_BYTES
