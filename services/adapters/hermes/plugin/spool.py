"""The spool folder, where deliveries wait for a collector; format: services/forwarder/README.md."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path

BLOCK_BYTES = 4096
MAX_FILES = 10_000
MAX_BYTES = 256 << 20
FULL_TRUSTED_MS = 1_000
DROPPED_NAMED_BYTES = 4 << 20
DROPPED_MAX_BYTES = 8 << 20

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Spool:
    """One runtime's folder under `home`, bounded in files and bytes together with the forwarder that shares it."""

    def __init__(self, home: Path, runtime: str, env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._home = home
        self._folder = home / "spool" / runtime
        self._max_files = _number(env.get("AGENTTRACE_SPOOL_MAX_FILES"), MAX_FILES)
        self._max_blocks = _number(env.get("AGENTTRACE_SPOOL_MAX_BYTES"), MAX_BYTES) // BLOCK_BYTES

    def write(self, identity: str, body: bytes, oversized: int | None = None) -> None:
        """Write one delivery, or count it as dropped. Never raises OSError."""
        extra = "" if oversized is None else f" oversized={oversized}"
        content = f"agenttrace-spool/1 pid={os.getpid()}{extra}\n".encode() + body
        with self._lock:
            try:
                self._enter()
            except OSError:
                return
            temporary, final = self._folder / f".tmp.{identity}", self._folder / identity
            try:
                if not final.exists():
                    self._keep(temporary, final, content)
            except OSError:
                self._drop(temporary, identity, len(body) if oversized is None else oversized)

    def _keep(self, temporary: Path, final: Path, content: bytes) -> None:
        blocks = _blocks(len(content))
        room = self._fits(self._length(".files") + 1, self._length(".blocks") + blocks)
        if not room and not self._recount(1, blocks):
            raise OSError("the spool is full")
        with open(os.open(temporary, _NEW, 0o600), "wb") as file:
            file.write(content)
        self._append(".files", b" ")
        self._append(".blocks", b" " * blocks)
        temporary.rename(final)

    def _enter(self) -> None:
        """Only folders that are ours, no symlink, and closed to others: payloads are raw."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self._home / "spool", self._folder):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise OSError(f"{folder} is not ours")
            if found.st_mode & 0o077:
                folder.chmod(0o700)

    def _fits(self, files: int, blocks: int) -> bool:
        return files <= self._max_files and blocks <= self._max_blocks

    def _length(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return 0

    def _append(self, name: str, content: bytes) -> int:
        file = os.open(self._folder / name, _APPEND, 0o600)
        try:
            os.write(file, content)
            return os.fstat(file).st_size
        finally:
            os.close(file)

    def _recount(self, files: int, blocks: int) -> bool:
        """The counters only grow while the collector empties the folder, so "full" is believed only after a count."""
        mark = self._folder / ".full"
        now = int(time.time() * 1000)
        with contextlib.suppress(OSError, ValueError):
            if 0 <= now - int(mark.read_text()) < FULL_TRUSTED_MS:
                return False
        there = used = 0
        for entry in os.scandir(self._folder):
            if entry.name.startswith(".") and not entry.name.startswith(".tmp."):
                continue
            with contextlib.suppress(OSError):
                used += _blocks(entry.stat(follow_symlinks=False).st_size)
                there += 1
        (self._folder / ".files").write_bytes(b" " * there)
        (self._folder / ".blocks").write_bytes(b" " * used)
        if self._fits(there + files, used + blocks):
            return True
        mark.write_text(f"{now}\n")
        return False

    def _drop(self, temporary: Path, identity: str, size: int) -> None:
        # A disk too full for this record: the collector's own counts show the gap.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            told = self._length(".dropped")
            if told < DROPPED_NAMED_BYTES:
                self._append(".dropped", f"{identity} {min(size, 9_999_999_999):010d}\n".encode())
            elif told < DROPPED_MAX_BYTES:
                self._append(".dropped", b"+")


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 15 else otherwise
