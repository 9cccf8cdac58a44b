"""The command `agenttrace proxy http` as a process of its own: start, end, errors, and how much memory it takes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from tests.services.mcp_proxy.http import figures
from tests.services.mcp_proxy.http.figures import forwarder, read_exactly, read_head, upstream

pytestmark = pytest.mark.integration

_POST = b"POST /mcp/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def _plain(connection: socket.socket) -> None:
    while read_head(connection):
        connection.sendall(_OK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_relays_until_a_signal_lets_a_call_end_and_breaks_streams_off(number: signal.Signals) -> None:
    called, go_on = threading.Event(), threading.Event()

    def handle(connection: socket.socket) -> None:
        if read_head(connection).startswith(b"GET"):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hi\n\n")
            connection.recv(1)
        else:
            called.set()
            go_on.wait(5)
            connection.sendall(_OK)

    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        with proxy.connect() as stream, proxy.connect() as idle, proxy.connect() as client:
            stream.sendall(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
            read_head(stream)
            client.sendall(_POST)
            assert called.wait(5)
            proxy.process.send_signal(number)
            while stream.recv(100):
                pass
            assert idle.recv(1) == b""
            go_on.set()
            read_exactly(client, len(_OK))
            assert client.recv(1) == b""
        assert proxy.process.wait(5) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--route", "a"], 64, "--route a: write NAME=URL"),
        (["--route", "a=http://x", "--route", "a=http://y"], 64, "given twice"),
        (["--route", "a=http://x", "--listen", "0.0.0.0:0"], 64, "--allow-remote"),
        (["--route", "a=https://x", "--ca", "/nowhere.pem"], 66, "--ca /nowhere.pem: No such file"),
        (["--route", "a=https://x", "--ca", __file__], 66, "no certificates in PEM form"),
        ([], 2, "Missing option '--route'"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(arguments: list[str], code: int, why: str) -> None:
    command = [sys.executable, "-m", "services.cli.main", "proxy", "http", "--listen", "127.0.0.1:0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert why in ended.stderr.splitlines()[-1] and "Traceback" not in ended.stderr
    assert code == 2 or ended.stderr.count("\n") == 1


def test_a_death_of_the_observer_is_not_noticed_by_calls(wait_until: Callable[..., None]) -> None:
    with upstream(_plain) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        observers = psutil.Process(proxy.process.pid).children
        with proxy.connect() as client:
            for number in range(200):
                if number in {50, 100}:
                    wait_until(observers, "an observer runs")
                    for observer in observers():
                        observer.kill()
                client.sendall(_POST)
                read_exactly(client, len(_OK))


def test_large_bodies_pass_in_bounded_memory() -> None:
    grown = figures.body_growth(256 << 20)
    assert max(grown.values()) < 16, grown


def test_a_long_stream_passes_in_bounded_memory() -> None:
    assert figures.stream_growth(30_000_000) < 16


def test_idle_streams_are_small() -> None:
    assert figures.idle_streams(300) < 40


def test_who_does_not_read_holds_up_its_upstream_only(wait_until: Callable[..., None]) -> None:
    size, sent = 64 << 20, 0

    def handle(connection: socket.socket) -> None:
        nonlocal sent
        if read_head(connection).startswith(b"POST"):
            connection.sendall(_OK)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            connection.sendall(bytes(1 << 16))
            sent += 1 << 16

    with upstream(handle) as port, forwarder("--route", f"a=http://127.0.0.1:{port}/mcp") as proxy:
        before = proxy.rss()
        with proxy.connect() as slow:
            slow.sendall(b"GET /mcp/a HTTP/1.1\r\nHost: x\r\n\r\n")
            last = [0, time.monotonic()]

            def stands_still() -> bool:
                if sent != last[0]:
                    last[:] = [sent, time.monotonic()]
                return sent > 0 and time.monotonic() - last[1] > 0.5

            wait_until(stands_still, "the upstream waits for the reader")
            assert sent < size / 2
            with proxy.connect() as other:
                other.sendall(_POST)
                read_exactly(other, len(_OK))
            assert proxy.rss() - before < 12 << 20
            head = read_head(slow)
            read_exactly(slow, size - len(head.partition(b"\r\n\r\n")[2]))
