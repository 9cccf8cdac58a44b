"""Which process is which, across restarts of its owner: by then its pid may be somebody else's."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas.errors import UserError

_POLL_S = 0.02


def start_mark(pid: int) -> str | None:
    """What tells this process from every other that had or will have its pid; None if it has ended.

    Linux: boot id and start time in clock ticks since boot (proc(5), field 22 of /proc/PID/stat), which no
    change of the wall clock touches. A zombie counts as ended.
    """
    if sys.platform != "linux":
        return _start_mark_portable(pid)
    try:
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else f"{_boot_id()}:{int(fields[19])}"


def end_process(pid: int, mark: str, *, grace_s: float) -> None:
    """SIGTERM to the process that has this pid and this mark, then SIGKILL to its group after `grace_s`
    seconds.

    Does nothing if the pid is somebody else's by now. Returns once the process has ended.
    """
    with contextlib.suppress(ProcessLookupError):
        if start_mark(pid) == mark:
            os.kill(pid, signal.SIGTERM)
        if not wait_ended(pid, mark, grace_s):
            os.killpg(pid, signal.SIGKILL)
            wait_ended(pid, mark, 5)


def wait_ended(pid: int, mark: str, timeout_s: float) -> bool:
    """Whether the process with this pid and mark has ended, waiting at most `timeout_s` seconds for it."""
    deadline = time.monotonic() + timeout_s
    while start_mark(pid) == mark:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by this user only (0600): a reader sees the old text or the
    new.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


@dataclass(frozen=True, slots=True)
class _Record:
    pid: int
    mark: str
    owner_pid: int
    owner_mark: str


class PidFile:
    """Remembers on disk which process runs a part, and which owner started it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, pid: int) -> None:
        """Note a child of this process. Writes nothing if it has ended already."""
        mark, owner_mark = start_mark(pid), start_mark(os.getpid())
        if mark and owner_mark:
            write_private(self.path, json.dumps(asdict(_Record(pid, mark, os.getpid(), owner_mark))))

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def reap(self, *, grace_s: float) -> None:
        """End the process that a dead owner left behind, and drop the file.

        Raises UserError if that process runs and its owner does too. A file that cannot be read names nobody.
        """
        record = self._read()
        if record is not None and start_mark(record.pid) == record.mark:
            if start_mark(record.owner_pid) == record.owner_mark:
                raise UserError(
                    f"{self.path.stem} already runs from {self.path.parent} (pid {record.pid}, started by pid "
                    f"{record.owner_pid}); stop that one or choose another folder",
                    exit_code=os.EX_TEMPFAIL,
                )
            end_process(record.pid, record.mark, grace_s=grace_s)
        self.clear()

    def _read(self) -> _Record | None:
        try:
            raw = json.loads(self.path.read_bytes())
            return _Record(int(raw["pid"]), str(raw["mark"]), int(raw["owner_pid"]), str(raw["owner_mark"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_mark_portable(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return None
