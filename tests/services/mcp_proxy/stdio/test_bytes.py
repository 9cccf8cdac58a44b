"""Points 1 and 2: every byte passes as it came, whatever it is and however it is cut, at once, in both directions."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.stdio.proxied import Proxied, finish, python, wait

pytestmark = pytest.mark.integration

ECHO = python("import os\nwhile data := os.read(0, 1 << 20):\n while data: data = data[os.write(1, data):]")

CUTS = [
    b'{"text":"\xe2\x80',
    b"\xa8 \xf0\x9f",
    b'\x98\x80"}\r\n',
    b"\xef\xbb\xbf{}\n",
    '{"line":"\u2028\u2029\x85"}\n'.encode(),
    b"\r\r\n\n\n",
    b"Server listening on stdio\n",
    b"\x00\xff\xfe\x80",
    b'{"jsonrpc": "2.0",  "id" : 1.0}\n',
    b"[{},{}]",
    b"{" * 100,
]
"""UTF-8 cut in the middle, line separators in a line, CRLF, a byte order mark, banners, binary, half a frame."""


class Echo:
    """A proxy in front of a server that sends back what it gets."""

    def __init__(self, folder: Path) -> None:
        self.proxied = Proxied(folder)
        self.client = self.proxied.popen(*ECHO)
        assert self.client.stdin and self.client.stdout
        self.write_to, self.read_from = self.client.stdin.fileno(), self.client.stdout.fileno()
        self.sent = bytearray()

    def read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            assert select.select([self.read_from], [], [], 20)[0], f"{len(got)} of {size} bytes came"
            chunk = os.read(self.read_from, size - len(got))
            assert chunk, f"the stream ended after {len(got)} of {size} bytes"
            got += chunk
        return bytes(got)

    def exchange(self, chunks: list[bytes]) -> bytes:
        self.sent += b"".join(chunks)

        def write() -> None:
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(self.write_to, rest) :]

        writer = threading.Thread(target=write)
        writer.start()
        got = self.read(sum(map(len, chunks)))
        writer.join()
        return got


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Echo]:
    echo = Echo(tmp_path_factory.mktemp("echo"))
    yield echo
    finish(echo.client)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(CUTS) | st.binary(min_size=1, max_size=300) | st.text(min_size=1).map(str.encode), min_size=1
    )
)
def test_1_any_chunks_pass_both_ways_byte_for_byte(echo: Echo, chunks: list[bytes]) -> None:
    assert echo.exchange(chunks) == b"".join(chunks)


@pytest.mark.parametrize("size", [1, 4095, 4096, 65_535, 65_536, 65_537, 1 << 20, 16 << 20])
def test_1_lines_of_any_length_pass_both_ways(echo: Echo, size: int) -> None:
    line = os.urandom(1 << 16).replace(b"\n", b"x") * (size // (1 << 16) + 1)
    line = line[: size - 1] + b"\n"
    assert echo.exchange([line]) == line


def test_1_each_byte_passes_at_once_without_a_line_end(echo: Echo) -> None:
    for number in range(256):
        assert echo.exchange([bytes([number])]) == bytes([number])


def test_2_what_a_server_prints_and_a_client_mistypes_passes_and_is_tapped(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    code = "import os\nos.write(1, b'Banner\\n\\xff{')\nos.write(2, b'log\\n')\nos.write(1, os.read(0, 100))"
    client = proxied.popen(*python(code))
    out, err = client.communicate(b"not json\xff", timeout=5)
    assert (out, err, client.returncode) == (b"Banner\n\xff{not json\xff", b"log\n", 0)
    wait(lambda: [r for r in proxied.records() if r.kind is Kind.CLOSE], "the end of the tap")
    assert proxied.tapped(Side.SERVER) == out
    assert proxied.tapped(Side.CLIENT) == b"not json\xff"
    assert proxied.tapped(Side.SERVER, Kind.STDERR) == b"log\n"
    first = proxied.records()[0]
    assert first.kind is Kind.OPEN
    about = first.json()
    assert about.keys() == {"server", "transport", "command", "pid", "parent"}
    assert (about["server"], about["transport"]) == ("probe", "stdio")
    assert about["parent"]["pid"] == os.getpid()
    ends = {record.side for record in proxied.records() if record.kind is Kind.END}
    assert ends == {Side.CLIENT, Side.SERVER}


def test_1_the_tap_has_every_byte_that_passed(tmp_path: Path) -> None:
    echo = Echo(tmp_path)
    for _ in range(20):
        echo.exchange(CUTS)
    assert echo.client.stdin
    echo.client.stdin.close()
    assert echo.client.wait(5) == 0
    wait(lambda: [r for r in echo.proxied.records() if r.kind is Kind.CLOSE], "the end of the tap")
    assert echo.proxied.tapped(Side.CLIENT) == echo.proxied.tapped(Side.SERVER) == bytes(echo.sent)
    finish(echo.client)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# Writes without end, and tells on standard error what it reads.
FLOOD = python(
    """
import os, threading
def flood():
    while True: os.write(1, b"x" * 65536)
threading.Thread(target=flood, daemon=True).start()
while data := os.read(0, 65536): os.write(2, b"read %d\\n" % len(data))
os._exit(0)
"""
)
# An observer that is there and reads nothing, to the end of the tap.
READS_NOTHING = """
import select, sys
gone = select.poll()
gone.register(int(sys.argv[-1]), 0)
gone.poll()
"""
# Reads nothing, and goes on writing.
CHATTER = python("import os, time\nwhile True:\n os.write(1, b'tick\\n')\n time.sleep(0.01)")


def test_7_a_client_that_does_not_read_slows_only_the_server_and_memory_is_bounded(tmp_path: Path) -> None:
    # The observer reads nothing either: all that can wait does.
    proxied = Proxied(tmp_path, observer=READS_NOTHING)
    client = proxied.popen(*FLOOD)
    assert client.stdin and client.stdout and client.stderr
    try:
        os.read(client.stdout.fileno(), 1)
        before = _resident(client.pid)
        for _ in range(100):
            client.stdin.write(b"y" * 100)
            assert client.stderr.readline() == b"read 100\n"
        stalled = os.read(client.stdout.fileno(), 1)
        until = time.monotonic() + 1.5
        passed = 0
        while time.monotonic() < until:  # far more than may wait goes through
            passed += len(os.read(client.stdout.fileno(), 1 << 16))
        assert stalled == b"x" and passed > 50 << 20
        assert _resident(client.pid) - before < 20 << 20
    finally:
        client.terminate()
        client.wait(5)
        finish(client)


def test_7_a_client_may_read_long_after_the_server_has_ended(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    data = bytes(range(256)) * 700
    client = proxied.popen(*python("import os\nos.write(1, bytes(range(256)) * 700)\nos._exit(3)"))
    assert client.stdin and client.stdout
    client.stdin.close()
    wait(lambda: len(proxied.alive()) == 1 and proxied.tap_file.exists(), "only the forwarder is left")
    time.sleep(1.5)  # longer than the forwarder would wait for a client that signalled the end
    assert client.stdout.read() == data
    assert client.wait(5) == 3
    finish(client)


def test_7_a_server_that_does_not_read_slows_only_the_client(tmp_path: Path) -> None:
    client = Proxied(tmp_path).popen(*CHATTER)
    assert client.stdin and client.stdout
    os.set_blocking(client.stdin.fileno(), False)
    taken = 0

    def full() -> bool:
        nonlocal taken
        try:
            taken += os.write(client.stdin.fileno(), b"z" * 65536)
        except BlockingIOError:
            return True
        return False

    wait(full, "the way to the server is full")
    for _ in range(50):
        assert client.stdout.readline() == b"tick\n"
    wait(full, "it is still full")
    assert taken <= 4 * 65536  # two pipes and one chunk
    client.stdin.close()  # which nobody can read any more, and is seen all the same
    client.wait(5)
    finish(client)


def test_7_nobody_reads_standard_error_and_answers_still_pass(tmp_path: Path) -> None:
    code = "import os, threading\n"
    code += "threading.Thread(target=lambda: [os.write(2, b'e' * 65536) for _ in iter(int, 1)], daemon=True).start()\n"
    code += "while data := os.read(0, 100): os.write(1, data)\nos._exit(0)"
    client = Proxied(tmp_path).popen(*python(code))
    assert client.stdin and client.stdout
    for number in range(200):
        client.stdin.write(b"%d\n" % number)
        assert client.stdout.readline() == b"%d\n" % number
    client.terminate()
    client.wait(5)
    finish(client)
