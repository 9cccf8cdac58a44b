"""A collector in small on a Unix socket, for the plugins: it takes deliveries, refuses them, or lets them wait."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import orjson
import pytest

from services.forwarder import protocol


@pytest.fixture
def home() -> Iterator[Path]:
    """An AGENTTRACE_HOME with a short name, since the path of a Unix socket is bounded."""
    with tempfile.TemporaryDirectory(prefix="at-") as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Taken:
    """One delivery as it came."""

    path: str
    delivery_id: str
    body: bytes

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found


@dataclass
class Collector:
    """`status` is what it answers; while `waiting` is set it answers nothing."""

    socket: Path
    status: int = 200
    waiting: bool = False
    taken: list[Taken] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    change: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int, seconds: float = 30) -> None:
        """Until so many deliveries have come; fails when they do not."""
        with self.change:
            assert self.change.wait_for(lambda: len(self.taken) >= count, seconds), f"{len(self.taken)} of {count}"


@contextmanager
def collector(socket: Path, **given: Any) -> Iterator[Collector]:
    """Listens on `socket` as long as the block runs."""
    state = Collector(socket, **given)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with state.change:
                state.taken.append(Taken(self.path, self.headers[protocol.HEADER_DELIVERY], body))
                state.change.notify_all()
            if state.waiting:
                state.over.wait(30)
                return
            self.send_response(state.status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def address_string(self) -> str:
            return "plugin"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingMixIn, UnixStreamServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a plugin's process that ends resets its connection

    with Server(str(socket), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            state.over.set()
            server.shutdown()
            thread.join()


def spooled(home: Path, runtime: str) -> list[tuple[str, dict[str, Any]]]:
    """Delivery id and payload of each spool file, in the order in which the collector reads them."""
    folder = home / protocol.SPOOL_FOLDER / runtime
    found = []
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if not path.name.startswith("."):
            assert protocol.is_delivery_id(path.name)
            with suppress(FileNotFoundError):  # a running collector took it meanwhile
                found.append((path.name, orjson.loads(protocol.parse_spool_file(path.read_bytes()).body)))
    return found
