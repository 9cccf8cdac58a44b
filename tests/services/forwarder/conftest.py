"""Runs the real command in each of its forms against a real server on a Unix socket."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.forwarder import protocol

SOURCES = Path(protocol.__file__).parent
SHELLS = ["dash", "busybox", "bash"]


@dataclass
class Hook:
    """One form of the command with a home of its own."""

    form: str
    argv: list[str]
    path: str
    home: Path

    @property
    def native(self) -> bool:
        return self.form == "c"

    def env(self, **settings: str) -> dict[str, str]:
        return {"PATH": self.path, "HOME": str(self.home.parent), "AGENTTRACE_HOME": str(self.home), **settings}

    def run(
        self,
        payload: bytes = b"{}",
        *arguments: str,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        **settings: str,
    ) -> subprocess.CompletedProcess[bytes]:
        """Start it as a runtime does; asserts the one promise that holds always: exit code 0."""
        done = subprocess.run(
            [*self.argv, *(arguments or ("codex",))],
            input=payload,
            capture_output=True,
            env=self.env(**settings) if env is None else env,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done
        return done

    def start(self, **options: object) -> subprocess.Popen[bytes]:
        settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": self.env(), **options}
        return subprocess.Popen([*self.argv, "codex"], **settings)  # type: ignore[call-overload, no-any-return]

    @property
    def folder(self) -> Path:
        return self.home / protocol.SPOOL_FOLDER / "codex"

    def spooled(self) -> dict[str, protocol.SpooledDelivery]:
        """What the collector would find, by delivery id; asserts that nothing half-written is left."""
        if not self.folder.exists():
            return {}
        names = [entry.name for entry in self.folder.iterdir()]
        assert not [name for name in names if name.startswith(protocol.SPOOL_TEMPORARY_PREFIX)]
        ids = [name for name in names if not name.startswith(".")]
        assert all(protocol.is_delivery_id(name) for name in ids)
        return {name: protocol.parse_spool_file((self.folder / name).read_bytes()) for name in ids}

    def dropped(self) -> protocol.Drops:
        file = self.folder / protocol.SPOOL_DROPPED
        return protocol.parse_dropped(file.read_bytes() if file.exists() else b"")


@pytest.fixture(scope="session")
def native_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler ({compiler[0]})")
    target = tmp_path_factory.mktemp("native") / protocol.COMMAND
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([*compiler, *flags, "-o", str(target), str(SOURCES / "agenttrace_hook.c")], check=True)
    return [str(target)]


def _shell(name: str, tools: Path) -> tuple[list[str], str]:
    """The script under one shell: (argv, PATH). Busybox gets its own tools only, as on a small system."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    script = str(SOURCES / "agenttrace-hook.sh")
    if name != "busybox":
        return [found, *(["--posix"] if name == "bash" else []), script], os.environ["PATH"]
    tools.mkdir()
    for applet in subprocess.check_output([found, "--list"], text=True).split():
        (tools / applet).symlink_to(found)
    return [str(tools / "sh"), script], str(tools)


@pytest.fixture(params=["c", *SHELLS])
def hook(request: pytest.FixtureRequest, tmp_path: Path) -> Hook:
    if request.param == "c":
        argv, path = request.getfixturevalue("native_command"), os.environ["PATH"]
    else:
        argv, path = _shell(request.param, tmp_path / "tools")
    return Hook(request.param, argv, path, tmp_path / "home")


@pytest.fixture
def native(native_command: list[str], tmp_path: Path) -> Hook:
    return Hook("c", native_command, os.environ["PATH"], tmp_path / "home")


@dataclass
class Request:
    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        return dict(self.headers)[name]


def listen_at(path: Path) -> socket.socket:
    """A listening socket, also where the path is longer than bind(2) takes (Linux)."""
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    listener.listen(256)
    return listener


@dataclass
class Collector:
    """A server whose answers a test chooses: `answer` gets the connection after the whole request was read."""

    path: Path
    answer: Callable[[socket.socket], None]
    read_request: bool = True
    requests: list[Request] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def __enter__(self) -> Collector:
        self._listener = listen_at(self.path)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Only a shutdown wakes the thread; one left waiting would take connections of the next test's listener.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self.held:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self.held.append(connection)
        if self.read_request:
            stream = connection.makefile("rb")
            line = stream.readline().decode().rstrip("\r\n")
            headers: list[tuple[str, str]] = []
            while (text := stream.readline().decode().rstrip("\r\n")) != "":
                name, _, value = text.partition(": ")
                headers.append((name, value))
            body = stream.read(int(dict(headers)["Content-Length"]))
            self.requests.append(Request(line, headers, body))
        self.answer(connection)


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def say() -> Callable[..., Callable[[socket.socket], None]]:
    """Makes an answer: `say("200 OK", b"{}")`, or `say(raw=b"...")`; `close=False` leaves the connection open."""

    def make(status: str = "200 OK", body: bytes = b"", *, raw: bytes | None = None, close: bool = True):  # type: ignore[no-untyped-def]
        def answer(connection: socket.socket) -> None:
            try:
                connection.sendall(http(status, body) if raw is None else raw)
                if close:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

        return answer

    return make


@pytest.fixture
def collector(native: Hook, say: Callable[..., Callable[[socket.socket], None]]) -> Iterator[Collector]:
    """Listens where the command looks by default and has nothing to say."""
    native.home.mkdir()
    with Collector(native.home / protocol.SOCKET_NAME, say("200 OK", b"{}")) as server:
        yield server


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition, at most ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "waited ten seconds in vain"
            time.sleep(0.01)

    return wait
