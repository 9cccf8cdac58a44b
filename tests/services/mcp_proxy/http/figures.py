"""What a forwarder process costs, measured from outside: memory for large bodies, long streams and idle ones, CPU a call.

`python -m tests.services.mcp_proxy.http.figures` prints the figures at full size; the tests run them smaller.
Memory is the growth of the process's resident set over that after a first exchange; CPU is user and system time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_BLOCK = bytes(range(256)) * 256
_EVENT = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":"' + b"x" * 900 + b'"}\n\n'
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x" * 950}}).encode()
_HEADERS = (
    b"Host: 127.0.0.1:8790\r\nAccept: application/json, text/event-stream\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\nContent-Type: application/json\r\n"
    b"Mcp-Protocol-Version: 2025-11-25\r\nMcp-Session-Id: 1868a90c1868a90c1868a90c\r\n"
)
_REQUEST = b"POST /mcp/a HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (_HEADERS, len(_CALL), _CALL)
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nDate: Tue, 01 Dec 2026 03:26:31 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\n"
    b"Mcp-Session-Id: 1868a90c1868a90c1868a90c\r\nContent-Length: %d\r\n\r\n%b" % (len(_CALL), _CALL)
)


class Forwarder:
    """`agenttrace proxy http` as a process of its own, with one route `a`."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def rss(self) -> int:
        """Bytes of memory held now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def cpu_s(self) -> float:
        """CPU seconds used so far, by user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self) -> socket.socket:
        """A client's connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextlib.contextmanager
def forwarder(*arguments: str, home: Path | None = None) -> Iterator[Forwarder]:
    """A forwarder with these arguments, ended by SIGTERM, and its observer with it."""
    with tempfile.TemporaryDirectory(prefix="agenttrace-test-http-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "services.cli.main", "proxy", "http", "--listen", "127.0.0.1:0", *arguments]
        environment = os.environ | {"AGENTTRACE_HOME": str(home or folder)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the forwarder did not start: exit code {process.wait()}"
            yield Forwarder(process, int(line.split("/mcp/")[0].rpartition(":")[2]))
        finally:
            observers = psutil.Process(process.pid).children() if process.poll() is None else []
            process.terminate()
            process.wait(10)
            process.stdout.close()
            # They end by themselves, and write until then.
            psutil.wait_procs(observers, 15)


@contextlib.contextmanager
def upstream(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server with a thread for each connection. Gives its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                handle(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def read_head(connection: socket.socket) -> bytes:
    """The bytes up to and after a head; no more than one message is expected."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError
        data += part
    return data


def read_exactly(connection: socket.socket, size: int) -> None:
    """Read and forget so many bytes."""
    buffer = memoryview(bytearray(1 << 18))
    while size:
        count = connection.recv_into(buffer[: min(size, len(buffer))])
        if not count:
            raise ConnectionError(f"{size} bytes are missing")
        size -= count


def body_growth(size: int, *arguments: str) -> dict[str, float]:
    """Memory while bodies of so many bytes pass, each way, in MiB."""

    def handle(connection: socket.socket) -> None:
        while True:
            head = read_head(connection)
            if head.startswith(b"POST"):
                read_exactly(connection, size - len(head.partition(b"\r\n\r\n")[2]))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
                for _ in range(size // len(_BLOCK)):
                    connection.sendall(_BLOCK)

    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp", *arguments) as proxy:
        with proxy.connect() as warm:
            warm.sendall(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
            warm.recv(1)
        before = proxy.rss()
        with Watched(proxy) as answer, proxy.connect() as client:
            client.sendall(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
            head = read_head(client)
            read_exactly(client, size - len(head.partition(b"\r\n\r\n")[2]))
        with Watched(proxy) as request, proxy.connect() as client:
            client.sendall(b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // len(_BLOCK)):
                client.sendall(_BLOCK)
            read_head(client)
        return {"answer": (answer.peak - before) / 2**20, "request": (request.peak - before) / 2**20}


def stream_growth(size: int) -> float:
    """Memory while a stream of events of so many bytes passes, in MiB."""
    events = size // len(_EVENT)

    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(_STREAM)
        for _ in range(events // 50):
            connection.sendall(_CHUNK * 50)

    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        before = proxy.rss()
        with Watched(proxy) as watched, proxy.connect() as client:
            client.sendall(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
            head = read_head(client)
            read_exactly(client, events // 50 * 50 * len(_CHUNK) - len(head.partition(b"\r\n\r\n")[2]))
        return (watched.peak - before) / 2**20


def idle_streams(count: int) -> float:
    """Memory of an idle stream, in KiB, with so many open."""

    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(_STREAM + _CHUNK)
        connection.recv(1)

    get = b"GET /mcp/a HTTP/1.1\r\n" + _HEADERS + b"\r\n"
    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        with contextlib.ExitStack() as stack:

            def open_stream() -> None:
                client = stack.enter_context(proxy.connect())
                client.sendall(get)
                read_exactly(client, len(_STREAM + _CHUNK))

            for _ in range(20):
                open_stream()
            time.sleep(0.5)
            before = proxy.rss()
            for _ in range(count):
                open_stream()
            time.sleep(0.5)
            return (proxy.rss() - before) / 1024 / count


def cpu_a_call(count: int, rounds: int = 5) -> float:
    """CPU of a call of 1 KiB each way on a connection that is kept, in µs: the median of so many rounds."""

    def handle(connection: socket.socket) -> None:
        while True:
            read_exactly(connection, size)
            connection.sendall(_ANSWER)

    size = len(_REQUEST) - len(b"/mcp/a") + len(b"/mcp")
    found = []
    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        with proxy.connect() as client:
            for number in range(rounds + 1):
                began = proxy.cpu_s()
                for _ in range(count):
                    client.sendall(_REQUEST)
                    read_exactly(client, len(_ANSWER))
                if number:
                    found.append((proxy.cpu_s() - began) / count * 1e6)
    return sorted(found)[rounds // 2]


class Watched:
    """The highest resident set of a process while something runs, looked at every 5 ms."""

    def __init__(self, proxy: Forwarder) -> None:
        self._proxy = proxy
        self._over = threading.Event()
        self.peak = 0

    def __enter__(self) -> Watched:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.peak = max(self.peak, self._proxy.rss())


def main() -> None:
    """Print the figures at full size."""
    print(json.dumps({"MiB of memory for bodies of 1 GiB": body_growth(1 << 30)}), flush=True)
    print(json.dumps({"MiB of memory for a stream of 200 MB": stream_growth(200_000_000)}), flush=True)
    print(json.dumps({"KiB of memory for an idle stream, 1,000 open": idle_streams(1000)}), flush=True)
    print(json.dumps({"µs of CPU for a call of 1 KiB each way": cpu_a_call(5000)}), flush=True)


if __name__ == "__main__":
    main()
