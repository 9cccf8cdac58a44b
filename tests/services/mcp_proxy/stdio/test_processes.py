"""Point 3 of the proxy's design: no process is left after 5 s however it ends, signals are passed on, S's end is the proxy's.

Each case runs a polite server and a deaf one, each behind a shell, each with children that leave their group, their
session and their parent. F is the forwarder, V its supervisor, S the server.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.mcp_proxy.stdio.proxied import Proxied, children, finish, python, wait

pytestmark = pytest.mark.integration

TREE = str(Path(__file__).with_name("tree.py"))
ROLES = {"plain", "own-group", "own-session", "deaf-child", "daemon", "deaf-daemon", "server"}
GONE_AFTER_S = 5.0


class Case:
    """One proxy with its tree of processes, all of them up."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.proxied = Proxied(folder)
        self.client = self.proxied.popen("sh", "-c", f"{sys.executable} -I -S {TREE} {kind}; exit $?")
        self.forwarder = self.client.pid

    def up(self) -> None:
        wait(lambda: self.proxied.roles().keys() >= ROLES, f"all of {ROLES}")
        wait(lambda: self.proxied.tap_file.exists(), "the observer")
        (self.supervisor,) = [
            pid for pid in children(self.forwarder) if os.getpgid(pid) == pid and pid in self.proxied.alive()
        ]
        (self.shell, *_) = children(self.supervisor)
        assert len(self.proxied.alive()) == len(ROLES) + 3

    def gone(self, since: float) -> None:
        wait(lambda: not self.proxied.alive(), f"gone: {self.proxied.alive()}", since + GONE_AFTER_S - time.monotonic())

    def end(self) -> None:
        for pid in self.proxied.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        finish(self.client)


@pytest.fixture(params=["polite", "deaf"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path, request.param)
    try:
        case.up()
        yield case
    finally:
        case.end()


def _after(case: Case, what: Callable[[], object]) -> int:
    """Do it, and see that all are gone in time; the proxy's exit code."""
    since = time.monotonic()
    what()
    case.gone(since)
    return case.client.wait(1)


def test_3_stdin_closed_ends_the_server_and_all_below(case: Case) -> None:
    assert case.client.stdin
    _after(case, case.client.stdin.close)


def test_3_forwarder_killed_leaves_nothing(case: Case) -> None:
    assert _after(case, lambda: os.kill(case.forwarder, signal.SIGKILL)) == -signal.SIGKILL


def test_3_forwarder_killed_is_seen_by_the_client_at_once(case: Case) -> None:
    assert case.client.stdout and case.client.stderr
    os.kill(case.forwarder, signal.SIGKILL)
    streams = [case.client.stdout, case.client.stderr]
    wait(lambda: len(select.select(streams, [], [], 0)[0]) == 2, "the end of both", 1)
    assert case.client.stdout.read() + case.client.stderr.read() == b""


def test_3_forwarder_and_supervisor_killed_leave_no_server(case: Case) -> None:
    os.kill(case.supervisor, signal.SIGSTOP)
    os.kill(case.forwarder, signal.SIGKILL)
    os.kill(case.supervisor, signal.SIGKILL)
    wait(lambda: case.shell not in case.proxied.alive(), "the server is gone")


def test_3_server_stopped_and_stdin_closed_leaves_nothing(case: Case) -> None:
    assert case.client.stdin
    for pid in case.proxied.roles().values():
        os.kill(pid, signal.SIGSTOP)
    _after(case, case.client.stdin.close)


def test_3_supervisor_killed_leaves_nothing_and_says_so_in_one_line(case: Case) -> None:
    assert _after(case, lambda: os.kill(case.supervisor, signal.SIGKILL)) == -signal.SIGKILL
    assert case.client.stderr
    said = case.client.stderr.read().decode()
    assert said.startswith("agenttrace: probe: ") and said.count("\n") == 1


def test_3_server_killed_leaves_nothing_and_the_signal_is_the_proxys(case: Case) -> None:
    assert _after(case, lambda: os.kill(case.shell, signal.SIGKILL)) == -signal.SIGKILL


def test_3_supervisor_stopped_and_stdin_closed_leaves_nothing(case: Case) -> None:
    assert case.client.stdin
    os.kill(case.supervisor, signal.SIGSTOP)
    _after(case, case.client.stdin.close)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_3_signal_to_the_forwarder_ends_the_server_and_all_below(case: Case, number: signal.Signals) -> None:
    _after(case, lambda: os.kill(case.forwarder, number))


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_3_client_killed_leaves_nothing(tmp_path: Path, kind: str) -> None:
    proxied = Proxied(tmp_path)
    server = ["sh", "-c", f"{sys.executable} -I -S {TREE} {kind}; exit $?"]
    start = "import subprocess, sys, time\nP = subprocess.PIPE\n"
    start += "p = subprocess.Popen(sys.argv[1:], stdin=P, stdout=P, stderr=P)\ntime.sleep(600)"
    client = subprocess.Popen([*python(start), *proxied.argv(*server)], env=proxied.env)
    try:
        wait(lambda: proxied.roles().keys() >= ROLES, f"all of {ROLES}")
        since = time.monotonic()
        client.kill()
        client.wait()
        wait(lambda: not proxied.alive(), "no process", since + GONE_AFTER_S - time.monotonic())
    finally:
        client.kill()
        client.wait()
        for pid in proxied.alive():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_3_node_server_with_detached_children_leaves_nothing(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    code = """
      const { spawn } = require('child_process');
      spawn('sleep', ['600'], { detached: true, stdio: 'ignore' }).unref();
      spawn('sh', ['-c', 'trap "" TERM; sleep 601 & sleep 602'], { detached: true, stdio: 'inherit' });
      process.stdin.on('data', (data) => process.stdout.write(data));
    """
    client = proxied.popen("sh", "-c", 'node -e "$0"; exit $?', code)
    assert client.stdin and client.stdout
    client.stdin.write(b"hello\n")
    assert client.stdout.readline() == b"hello\n"
    wait(lambda: sum("sleep 60" in line for line in proxied.alive().values()) >= 4, "children of node")
    since = time.monotonic()
    client.stdin.close()
    wait(lambda: not proxied.alive(), "no process", since + GONE_AFTER_S - time.monotonic())
    client.wait(1)
    finish(client)


SIGNALLED = """
import os, signal, sys
def got(number, frame):
    os.write(1, b"got %d\\n" % number)
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, got)
os.write(1, b"up\\n")
while os.read(0, 100):
    pass
"""


def test_3_what_does_not_end_with_its_input_gets_sigterm_before_sigkill(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
def got(number, frame):
    os.write(1, b"bye %d\\n" % (os.getsid(0) == os.getpid()))
    os._exit(5)
signal.signal(signal.SIGTERM, got)
if os.fork() == 0:
    os.setpgid(0, 0)
os.write(1, b"up\\n")
while True: time.sleep(60)
"""
    client = Proxied(tmp_path).popen(*python(code))
    assert client.stdout
    assert client.stdout.readline() + client.stdout.readline() == b"up\nup\n"
    out, _ = client.communicate(timeout=GONE_AFTER_S)
    assert (sorted(out.split(b"\n")), client.returncode) == ([b"", b"bye 0", b"bye 1"], 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_3_the_server_may_answer_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    client = Proxied(tmp_path).popen(*python(SIGNALLED))
    assert client.stdout
    assert client.stdout.readline() == b"up\n"
    client.send_signal(number)
    assert client.stdout.readline() == b"got %d\n" % number
    out, err = client.communicate(timeout=5)
    assert (out, err, client.returncode) == (b"", b"", 40 + number)


def test_3_a_signal_to_the_clients_group_comes_to_the_server_once(tmp_path: Path) -> None:
    counting = """
import os, signal, time
def got(number, frame): os.write(1, b"got\\n")
signal.signal(signal.SIGINT, got)
os.write(1, b"up\\n")
while os.read(0, 100): pass
time.sleep(0.2)
"""
    client = Proxied(tmp_path).popen(*python(counting), start_new_session=True)
    assert client.stdin and client.stdout
    assert client.stdout.readline() == b"up\n"
    os.killpg(client.pid, signal.SIGINT)
    assert client.stdout.readline() == b"got\n"
    out, _ = client.communicate(timeout=5)
    assert (out, client.returncode) == (b"", 0)


def test_3_a_signal_while_the_forwarder_still_starts_is_not_lost(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    server = "trap 'exit 5' TERM; : > $READY_FOLDER/server; while :; do sleep 0.05; done"
    # The command line itself: a test's own imports the forwarder's parts too early.
    argv = [sys.executable, "-m", "services.cli.main", "proxy", "stdio", "--server", "x", "--", "sh", "-c", server]
    for _ in range(3):
        client = subprocess.Popen(argv, env=proxied.env, stdin=subprocess.PIPE)
        wait((proxied.ready / "server").exists, "the server")
        client.terminate()
        assert client.wait(5) == 5
        (proxied.ready / "server").unlink()
        finish(client)


def test_3_a_signal_before_the_server_runs_ends_all(tmp_path: Path) -> None:
    for pause in (0, 0.02, 0.04, 0.06, 0.08, 0.1):
        proxied = Proxied(tmp_path)
        client = proxied.popen("sleep", "600")
        time.sleep(pause)
        client.terminate()
        assert client.wait(5) == -signal.SIGTERM
        assert not proxied.alive()
        finish(client)


def test_3_a_signal_that_the_client_ignores_stays_ignored(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen(
        *python(SIGNALLED.replace("signal.SIGHUP, ", "")), preexec_fn=lambda: signal.signal(1, signal.SIG_IGN)
    )
    assert client.stdin and client.stdout
    assert client.stdout.readline() == b"up\n"
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in proxied.alive()]
    ignored = [int(status.partition("SigIgn:")[2].split()[0], 16) for status in statuses]
    assert len(ignored) == 3 and all(mask & 1 for mask in ignored)
    client.send_signal(signal.SIGHUP)
    out, _ = client.communicate(timeout=5)
    assert (out, client.returncode) == (b"", 0)


def test_3_a_client_that_ignores_its_children_hides_no_exit_code(tmp_path: Path) -> None:
    script = (
        "import signal, os, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nos.execv(sys.argv[1], sys.argv[1:])"
    )
    proxied = Proxied(tmp_path)
    argv = [*python(script), *proxied.argv("sh", "-c", "exit 7")]
    assert subprocess.run(argv, env=proxied.env, input=b"", check=False, timeout=5).returncode == 7


def test_3_what_a_dead_servers_children_still_say_arrives_and_they_end(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen("sh", "-c", "(sleep 0.3; echo late; sleep 600) & exit 9")
    since = time.monotonic()
    out, _ = client.communicate(timeout=GONE_AFTER_S)
    assert (out, client.returncode) == (b"late\n", 9)
    assert time.monotonic() - since < GONE_AFTER_S
    assert not proxied.alive()


def test_3_server_that_reads_no_more_does_not_hide_the_clients_death(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen("sh", "-c", "exec <&-; trap '' TERM; touch $READY_FOLDER/server; while :; do sleep 1; done")
    wait(lambda: (proxied.ready / "server").exists(), "the server")
    assert client.stdin and client.stdout
    for stream in (client.stdin, client.stdout):
        stream.close()
    client.wait(GONE_AFTER_S)
    assert not proxied.alive()
    finish(client)


def test_3_a_client_that_reads_nothing_does_not_keep_the_proxy(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen(*python("import os\nwhile True: os.write(1, b'x' * 65536)"))
    wait(lambda: client.poll() is None and len(proxied.alive()) == 3, "the server")
    since = time.monotonic()
    client.terminate()
    client.wait(GONE_AFTER_S)
    assert time.monotonic() - since < GONE_AFTER_S
    finish(client)
