"""Stands before a command of standard input and output and writes down what passes: `python shim.py PREFIX COMMAND ARGS…`.

The files are PREFIX.in, PREFIX.out, PREFIX.err (bytes as they came) and PREFIX.exit (the command's exit status). What is
written down is written down before it is passed on. Only the standard library: it also runs outside of `.venv`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def copy(source: int, target: int, record: str) -> None:
    """Until the end of the file; a target that is gone does not end the reading."""
    broken = False
    with open(record, "ab", buffering=0) as file:
        while data := os.read(source, 65536):
            file.write(data)
            view = memoryview(data)
            while view and not broken:
                try:
                    view = view[os.write(target, view) :]
                except OSError:
                    broken = True
    os.close(target)


def main() -> None:
    """Run the command; end as it ends."""
    prefix, command = sys.argv[1], sys.argv[2:]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: process.send_signal(got))
    ways = (
        (0, os.dup(process.stdin.fileno()), f"{prefix}.in"),
        (process.stdout.fileno(), os.dup(1), f"{prefix}.out"),
        (process.stderr.fileno(), os.dup(2), f"{prefix}.err"),
    )
    process.stdin.close()
    os.close(1)
    threads = [threading.Thread(target=copy, args=way, daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    status = process.wait()
    with open(f"{prefix}.exit", "w") as file:
        file.write(str(status))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    # The thread that reads standard input may wait for ever: the client closes it when it likes.
    os._exit(status)


if __name__ == "__main__":
    main()
