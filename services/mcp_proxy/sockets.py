"""Unix sockets below AGENTTRACE_HOME: names of any length, and who is at the other end."""

from __future__ import annotations

import os
import socket
import struct
from functools import lru_cache
from pathlib import Path

_MAX_NAME = 100
_PEER = struct.Struct("3i")


def address(path: Path) -> str:
    """What to bind or connect to for a socket at `path`. Raises OSError where its folder cannot be opened.

    sun_path holds 108 bytes (unix(7)); a longer path is named by a descriptor of its folder, which stays open.
    """
    if len(os.fsencode(path)) <= _MAX_NAME:
        return str(path)
    return f"/proc/self/fd/{_folder(path.parent)}/{path.name}"


@lru_cache(maxsize=16)
def _folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def is_ours(connection: socket.socket) -> bool:
    """Whether the peer is this user or root; True where the system does not tell (the file's mode guards it then)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    uid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid in (os.getuid(), 0)
