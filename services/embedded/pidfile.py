"""Which process is which, across restarts of its owner: by then its pid may be somebody else's."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

_POLL_S = 0.02


def start_mark(pid: int) -> str | None:
    """What tells this process from every other that had or will have its pid; None if it has ended.

    Linux: boot id and start time in clock ticks since boot (proc(5), field 22 of /proc/PID/stat), which no change of
    the wall clock touches. A zombie counts as ended, once the last of its threads has let go of its files.
    """
    if sys.platform != "linux":
        return _start_mark_portable(pid)
    try:
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return None if state in (b"Z", b"X") and threads <= 1 else f"{_boot_id()}:{started}"


def end_process(pid: int, mark: str, *, grace_s: float) -> None:
    """SIGTERM to the process that has this pid and this mark, SIGKILL after `grace_s` seconds (to its group if it
    leads one). Does nothing if the pid is somebody else's by now; returns once the process has ended.
    """
    with contextlib.suppress(ProcessLookupError):
        if start_mark(pid) == mark:
            os.kill(pid, signal.SIGTERM)
        if not wait_ended(pid, mark, grace_s):
            (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
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
    """Replace a file in one step, readable by this user only (0600): a reader sees the old text or the new."""
    draft = path.with_name(f".{path.name}.draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


class PidFile:
    """Remembers on disk which process runs a part, for a later owner of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, pid: int) -> None:
        """Note a child of this process. Writes nothing if it has ended already."""
        if mark := start_mark(pid):
            write_private(self.path, json.dumps({"pid": pid, "mark": mark}))

    def clear(self) -> None:
        """Forget the process."""
        self.path.unlink(missing_ok=True)

    def reap(self, *, grace_s: float = 10) -> None:
        """End the process, if it is still the one that was noted, and forget it. An unreadable file names nobody."""
        try:
            raw = json.loads(self.path.read_bytes())
            pid, mark = int(raw["pid"]), str(raw["mark"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
        else:
            end_process(pid, mark, grace_s=grace_s)
        self.clear()


def reap_all(folder: Path) -> None:
    """End what an owner that was killed has left running from this folder. Only for who holds the folder's lock."""
    for path in sorted(folder.glob("*.pid")):
        PidFile(path).reap()


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
