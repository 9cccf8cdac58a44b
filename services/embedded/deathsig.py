"""Exec wrapper: the program it becomes is killed by the kernel when its owner dies, however the owner dies.

Run by path (`python -I -S deathsig.py OWNER_PID PROGRAM ARG…`) and free of imports of ours, so that it costs a few
milliseconds. The signal is prctl(2) PR_SET_PDEATHSIG; it survives execve(2) and exists on Linux only. Elsewhere the
wrapper just becomes the program, and the pid file is what finds an orphan.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become `PROGRAM ARG…`; exits 127 with one line on stderr if that cannot be run."""
    owner = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # An owner that died before the call above can no longer trigger the signal.
    if os.getppid() != owner:
        sys.exit("the process that started this one is gone")
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"cannot run {sys.argv[2]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
