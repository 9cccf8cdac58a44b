"""Point 3: how a server ends is how the proxy ends. Each case runs with and without the proxy, and both must agree."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.mcp_proxy.tap import Kind, Side
from tests.services.mcp_proxy.stdio.proxied import Proxied, finish, python, wait

pytestmark = pytest.mark.integration

CASES: dict[str, list[str]] = {
    "exit 0": ["true"],
    "exit 1": ["false"],
    "exit 3 with words": ["sh", "-c", "echo out; echo err >&2; exit 3"],
    "exit 255": ["sh", "-c", "exit 255"],
    "echo until end of input": ["cat"],
    "reads nothing": ["sh", "-c", "exec <&-; sleep 0.3; exit 4"],
    "large output": [*python("import os\nfor _ in range(16): os.write(1, bytes(range(256)) * 1024)")],
    "large errors": [*python("import os\nfor _ in range(64): os.write(2, bytes(range(256)) * 64)")],
    "ended by SIGTERM": ["sh", "-c", "kill -TERM $$"],
    "ended by SIGKILL": ["sh", "-c", "kill -KILL $$"],
    "ended by SIGINT": ["sh", "-c", "kill -INT $$"],
    "ended by SIGSEGV": [*python("import os, signal, resource\nos.kill(os.getpid(), signal.SIGSEGV)")],
    "ended by SIGABRT": [*python("import os\nos.abort()")],
    "ended by SIGUSR1": ["sh", "-c", "kill -USR1 $$"],
    "SIGPIPE has its default": ["sh", "-c", "kill -PIPE $$; exit 5"],
    "a shell and its child": ["sh", "-c", "sh -c 'exit 6'; exit $?"],
    "arguments as they are": [*python("import sys\nprint(sys.argv)"), "a b", "", "--server", "--", "$HOME", "é\udcff"],
    "environment, folder and limits": ["sh", "-c", "env | grep -v ^_= | sort; pwd; umask; ulimit -a"],
    "open descriptors": ["sh", "-c", "ls /proc/self/fd | wc -l"],
    "signals ignored and blocked": ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"],
    "isatty": [*python("import os\nprint([os.isatty(n) for n in (0, 1, 2)])")],
}


def _outcome(argv: list[str], env: dict[str, str], data: bytes) -> tuple[int, bytes, bytes]:
    done = subprocess.run(argv, check=False, input=data, env=env, capture_output=True, timeout=20)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_3_exit_code_output_and_environment_are_those_without_the_proxy(name: str, tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    data = b"one\ntwo\n"
    direct = _outcome(CASES[name], proxied.env, data)
    assert _outcome(proxied.argv(*CASES[name]), proxied.env, data) == direct
    code = direct[0]
    wait(lambda: [r for r in proxied.records() if r.kind is Kind.CLOSE], "the end of the tap")
    (ended,) = [record.json() for record in proxied.records() if record.kind is Kind.EXIT]
    assert ended == ({"code": code} if code >= 0 else {"signal": -code})
    assert proxied.tapped(Side.SERVER) == direct[1]
    assert proxied.tapped(Side.SERVER, Kind.STDERR) == direct[2]


@pytest.mark.parametrize(("command", "code"), [("no-such-server", 127), ("/etc/passwd", 126), ("/", 126)])
def test_3_a_command_that_cannot_run_ends_as_in_a_shell_with_one_line(tmp_path: Path, command: str, code: int) -> None:
    proxied = Proxied(tmp_path)
    shell = _outcome(["sh", "-c", command], proxied.env, b"")
    got, out, err = _outcome(proxied.argv(command, "secret-argument"), proxied.env, b"")
    assert (got, out) == (shell[0], b"") == (code, b"")
    assert err.startswith(f"agenttrace: cannot run {command}: ".encode()) and err.count(b"\n") == 1
    wait(lambda: [r for r in proxied.records() if r.kind is Kind.CLOSE], "the end of the tap")
    assert proxied.tapped(Side.SERVER, Kind.STDERR) == err


@pytest.mark.parametrize("fork", [1, 2])
def test_3_no_process_left_is_one_line(tmp_path: Path, fork: int) -> None:
    code = f"import os\nforks, real = [], os.fork\ndef fork():\n forks.append(1)\n if len(forks) == {fork}:\n"
    code += "  raise BlockingIOError(11, 'Resource temporarily unavailable')\n return real()\nos.fork = fork\n"
    proxied = Proxied(tmp_path)
    argv = proxied.argv("true")
    argv[3] = code + argv[3]
    got, out, err = _outcome(argv, proxied.env, b"")
    assert (got, out) == (os.EX_OSERR, b"")
    assert err.startswith(b"agenttrace: probe: the server cannot be started: ") and err.count(b"\n") == 1


def test_3_a_reader_that_goes_away_is_seen_by_the_server(tmp_path: Path) -> None:
    endless = ["sh", "-c", "exec yes"]
    for argv in (endless, Proxied(tmp_path).argv(*endless)):
        client = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=Proxied(tmp_path).env)
        assert client.stdout
        assert client.stdout.read(10) == b"y\n" * 5
        client.stdout.close()
        assert client.wait(5) == -13
        finish(client)


def test_3_a_server_that_closes_its_input_is_seen_by_the_client(tmp_path: Path) -> None:
    closes = ["sh", "-c", "exec <&-; echo closed; sleep 600"]
    for argv in (closes, Proxied(tmp_path).argv(*closes)):
        proxied = Proxied(tmp_path)
        client = subprocess.Popen(argv, stdin=-1, stdout=-1, bufsize=0, env=proxied.env)
        try:
            assert client.stdin and client.stdout
            assert client.stdout.readline() == b"closed\n"
            wait(lambda stdin=client.stdin: _refused(stdin.fileno()), "EPIPE")
            assert client.poll() is None
        finally:
            client.terminate()
            client.wait(5)
            finish(client)


@pytest.mark.parametrize("stream", ["pipe", "socket"])
def test_3_a_server_that_closes_its_output_is_seen_by_the_client(tmp_path: Path, stream: str) -> None:
    here, there = os.pipe() if stream == "pipe" else (end.detach() for end in socket.socketpair())
    client = Proxied(tmp_path).popen("sh", "-c", "echo closing; exec >&-; sleep 600", stdout=there)
    os.close(there)
    assert os.read(here, 100) == b"closing\n"
    assert select.select([here], [], [], 5)[0]
    assert os.read(here, 100) == b""
    assert client.poll() is None
    client.terminate()
    client.wait(5)
    finish(client)
    os.close(here)


def _refused(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"x")
    except BrokenPipeError:
        return True
    return False


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_3_a_standard_descriptor_that_is_closed_does_no_harm(tmp_path: Path, closed: int) -> None:
    proxied = Proxied(tmp_path)
    command = python("import os\nwhile data := os.read(0, 10): os.write(1, data)\nos._exit(8)")
    done = subprocess.run(
        proxied.argv(*command),
        check=False,
        input=b"hello",
        env=proxied.env,
        capture_output=True,
        preexec_fn=lambda: os.close(closed),
    )
    assert done.returncode == 8
    assert done.stdout == (b"hello" if closed == 2 else b"")


@pytest.mark.parametrize("place", ["file", "socket", "terminal"])
def test_3_standard_streams_need_not_be_pipes(tmp_path: Path, place: str) -> None:
    proxied = Proxied(tmp_path)
    data = os.urandom(300_000) if place != "terminal" else b"hello\r\n"
    command = python(
        "import os\nwhile data := os.read(0, 65536):\n n = 0\n while n < len(data): n += os.write(1, data[n:])"
    )
    if place == "file":
        (tmp_path / "in").write_bytes(data)
        with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as sink:
            sink.write(b"before")
            sink.flush()
            done = subprocess.run(
                proxied.argv(*command), check=False, stdin=source, stdout=sink, env=proxied.env, timeout=10
            )
        assert (tmp_path / "out").read_bytes() == b"before" + data
        assert done.returncode == 0
    elif place == "socket":
        here, there = socket.socketpair()
        client = subprocess.Popen(proxied.argv(*command), stdin=there, stdout=there, env=proxied.env)
        there.close()
        here.settimeout(10)
        got = b""
        for start in range(0, len(data), 50_000):
            here.sendall(data[start : start + 50_000])
            while len(got) < min(start + 50_000, len(data)):
                got += here.recv(65536)
        assert got == data
        here.shutdown(socket.SHUT_WR)
        assert client.wait(5) == 0
        here.close()
    else:
        master, slave = pty.openpty()
        client = subprocess.Popen(proxied.argv(*command), stdin=slave, stdout=slave, stderr=slave, env=proxied.env)
        os.close(slave)
        os.write(master, b"hello\n")
        got = b""
        while got.count(b"hello") < 2:  # the terminal's own echo, then the server's
            got += os.read(master, 100)
        os.close(master)
        assert client.wait(5) == 0


def test_3_shared_streams_stay_as_they_were(tmp_path: Path) -> None:
    """A non-blocking flag would be seen by every process that shares the client's stream."""
    here, there = os.pipe()
    error_here, error_there = os.pipe()
    client = Proxied(tmp_path).popen("sh", "-c", "echo up; read x", stdout=there, stderr=error_there)
    assert os.read(here, 10) == b"up\n"
    assert os.get_blocking(there) and os.get_blocking(error_there)
    finish(client)
    for descriptor in (here, there, error_here, error_there):
        os.close(descriptor)


def test_3_a_person_gets_usage_errors_in_words(tmp_path: Path) -> None:
    for words, said in (
        (["--server", "x"], "no command to run"),
        (["--server", "", "--", "true"], "--server"),
        (["--", "true"], "--server"),
        (["--server", "x", "--sink", "kafka:x", "--", "true"], "only jsonl:FILE is possible"),
        (["--server", "x", "--timeout-ms", "0", "--", "true"], "--timeout-ms"),
        (["--server", "x", "--real-args", "a", "--", "true"], "--real-args needs --real-command"),
        (["--server", "x", "--real-command", "a", "--", "true"], "not both"),
    ):
        argv = [sys.executable, "-m", "services.cli.main", "proxy", "stdio", *words]
        code, out, err = _outcome(argv, dict(os.environ), b"")
        assert (code, out) == (2, b"")
        assert said in err.decode()


def test_3_real_command_and_real_args_are_the_same_server(tmp_path: Path) -> None:
    env = {**os.environ, "AGENTTRACE_HOME": str(tmp_path)}
    argv = [
        sys.executable,
        "-m",
        "services.cli.main",
        "proxy",
        "stdio",
        "--server",
        "x",
        "--sink",
        f"jsonl:{tmp_path}/e",
    ]
    for words in (["--real-command", "printf", "--real-args", "%s+%s,a,b"], ["--", "printf", "%s+%s", "a", "b"]):
        assert _outcome([*argv, *words], env, b"")[:2] == (0, b"a+b")
