"""What the launchers ask of the machine: a port, a folder that can be written, a folder no other stack uses."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import BinaryIO

from schemas.errors import UserError

LOOPBACK = "127.0.0.1"

# Below the ranges from which Linux (32768…) and macOS (49152…) take ports of outgoing connections: a client
# that keeps dialling a stopped server's port could otherwise be given that very port and block the restart.
_PORTS = range(18_000, 32_000)


def free_port() -> int:
    """A TCP port on the loopback that nobody listens on now."""
    for port in random.sample(_PORTS, 200):
        with contextlib.suppress(OSError):
            _bind(port)
            return port
    raise UserError(
        f"no free TCP port found between {_PORTS.start} and {_PORTS.stop}; end some of the programs that listen there",
        exit_code=os.EX_UNAVAILABLE,
    )


def require_free(port: int, what: str) -> None:
    """Raises UserError if `what` could not listen on `port`, naming who does where the system tells."""
    try:
        _bind(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} for {what} is in use by {port_owner(port)}; end that program or choose another port"
        else:
            message = f"port {port} for {what} cannot be used: {error.strerror}; choose another port"
        raise UserError(message, exit_code=os.EX_UNAVAILABLE) from None


def port_owner(port: int) -> str:
    """Who listens on a TCP port, as `java (pid 4711)`, or `another program` where the system does not tell."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another program"


def ensure_folder(path: Path) -> None:
    """Make a folder for this user only (0700), and prove that it can be written. Raises UserError if it cannot."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write to the state folder {path}: {error.strerror}; choose another folder or mend its permissions",
            exit_code=os.EX_CANTCREAT,
        ) from None


class FolderLock:
    """Holds a folder for one stack; the kernel lets go of it when the holder ends, even by kill -9."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None

    def acquire(self) -> None:
        """Hold the folder, which must exist, from now on. Raises UserError with the holder's pid if it is held."""
        if self._file is not None:
            return
        file = (self._folder / "lock").open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read(32).decode("ascii", "replace").strip() or "unknown"
            file.close()
            raise UserError(
                f"the state folder {self._folder} is held by a running stack (pid {holder}); "
                "stop it with `agenttrace down` or choose another folder",
                exit_code=os.EX_TEMPFAIL,
            ) from None
        file.truncate(0)
        file.write(b"%d\n" % os.getpid())
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go of the folder; nothing happens if it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _bind(port: int) -> None:
    with socket.socket() as probe:
        # As servers do: a port whose last connections linger in TIME_WAIT is free all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
