"""Deliveries to the collector in a thread of its own, in order; to the spool when no collector answers."""

from __future__ import annotations

import atexit
import hashlib
import http.client
import json
import os
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from .spool import Spool

TIMEOUT_S = 2.0
AWAY_S = 1.0
"""How long a collector that did not answer is not asked again."""
MAX_QUEUE_BYTES = 64 << 20
MAX_BODY_BYTES = 32 << 20
EXIT_S = 2.0
"""How long the process's end waits for the thread before the rest is spooled."""


@dataclass(frozen=True)
class Delivery:
    """`oversized` is the size in bytes of a payload in whose place `body` is only a marker."""

    id: str
    body: bytes
    oversized: int | None = None


class Sender:
    """A bounded queue (bytes) and the thread that empties it, started with the first payload."""

    def __init__(self, runtime: str, env: dict[str, str] | None = None) -> None:
        given = dict(os.environ) if env is None else env
        home = _path(given.get("AGENTTRACE_HOME")) or Path.home() / ".agenttrace"
        self.socket = _path(given.get("AGENTTRACE_SOCKET")) or home / "collector.sock"
        self._path = f"/hooks/{runtime}"
        self._spool = Spool(home, runtime, given)
        self._ids = _Ids()
        self._queue: deque[Delivery] = deque()
        self._bytes = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._away_until = 0.0
        self._connection: _UnixConnection | None = None

    def send(self, body: bytes, now: float) -> None:
        """Queue one payload (JSON). Waits for no I/O."""
        with self._change:
            delivery = _delivery(self._ids.next(int(now * 1000)), body)
            self._queue.append(delivery)
            self._bytes += len(delivery.body)
            self._change.notify_all()
            if self._closing or not self._running():
                self._spool_all()

    def close(self) -> None:
        """Let the thread finish what it can, then spool the rest. The collector knows a repeated id."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(EXIT_S)
        with self._change:
            self._spool_all()

    def _running(self) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return True
        first = self._thread is None
        thread = threading.Thread(target=self._run, name="agenttrace", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started while the interpreter ends
            return False
        self._thread = thread
        if first:
            atexit.register(self.close)
        return True

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._closing:
                    self._change.wait()
                if not self._queue:
                    return
                delivery = self._queue[0]
                # A collector that is too slow costs memory only up to a bound.
                ask = self._bytes <= MAX_QUEUE_BYTES and time.monotonic() >= self._away_until
            if not (ask and self._post(delivery)):
                self._spool.write(delivery.id, delivery.body, delivery.oversized)
            with self._change:
                if self._queue and self._queue[0] is delivery:
                    self._queue.popleft()
                    self._bytes -= len(delivery.body)

    def _post(self, delivery: Delivery) -> bool:
        headers = {
            "Content-Type": "application/json",
            "X-AgentTrace-Delivery": delivery.id,
            "X-AgentTrace-Pid": str(os.getpid()),
        }
        if delivery.oversized is not None:
            headers["X-AgentTrace-Oversized"] = str(delivery.oversized)
        connection = self._connection or _UnixConnection(self.socket)
        self._connection = None
        try:
            connection.request("POST", self._path, delivery.body, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._away_until = time.monotonic() + AWAY_S
            return False
        self._connection = connection
        if answer.status // 100 != 2:
            self._away_until = time.monotonic() + AWAY_S
            return False
        return True

    def _spool_all(self) -> None:
        while self._queue:
            delivery = self._queue.popleft()
            self._spool.write(delivery.id, delivery.body, delivery.oversized)
        self._bytes = 0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._socket_path = str(path)

    def connect(self) -> None:
        """Connect to the collector's Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._socket_path)


class _Ids:
    """UUIDv7 (RFC 9562) whose low 16 bits are zero, since the collector numbers a delivery's events there.

    The 12 bits behind the time count within a millisecond, so that the spool, which is read in the order of names,
    keeps the order of the hooks.
    """

    def __init__(self) -> None:
        self._ms = 0
        self._count = 0

    def next(self, ms: int) -> str:
        if ms > self._ms:
            self._ms, self._count = ms, 0
        elif self._count < 0xFFF:
            self._count += 1
        else:
            self._ms, self._count = self._ms + 1, 0
        time_ms, rest = f"{self._ms:012x}", f"{secrets.randbits(46) | 1 << 47:012x}"
        return f"{time_ms[:8]}-{time_ms[8:]}-7{self._count:03x}-{rest[:4]}-{rest[4:]}0000"


def _delivery(identity: str, body: bytes) -> Delivery:
    if len(body) <= MAX_BODY_BYTES:
        return Delivery(identity, body)
    marker = {"size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return Delivery(identity, json.dumps({"agenttrace_oversized": marker}).encode(), len(body))


def _path(value: str | None) -> Path | None:
    path = Path(value or ".")
    return path if path.is_absolute() else None
