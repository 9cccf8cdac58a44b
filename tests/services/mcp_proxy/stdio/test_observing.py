"""Points 3 and 7: the process that observes may die, hang, or never start; not one byte passes differently."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from services.mcp_proxy import observing
from services.mcp_proxy.tap import Kind, Reader, Side
from tests.services.mcp_proxy.stdio.proxied import OBSERVER, Proxied, children, finish, python, wait

pytestmark = pytest.mark.integration

ANSWER = python(
    """
import os, sys
for line in sys.stdin.buffer:
    os.write(1, b'{"jsonrpc":"2.0","id":' + line.split(b":")[2].split(b",")[0] + b',"result":{}}\\n')
"""
)


def _observers(proxied: Proxied, forwarder: int) -> list[int]:
    """The observer of a forwarder: its child that is not the supervisor."""
    return [pid for pid in children(forwarder) if pid not in proxied.alive() and _alive(pid)]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _calls(client, numbers: range) -> None:
    for number in numbers:
        client.stdin.write(b'{"jsonrpc":"2.0","id":%d,"method":"tools/call"}\n' % number)
        assert client.stdout.readline() == b'{"jsonrpc":"2.0","id":%d,"result":{}}\n' % number


def test_7_observer_killed_again_and_again_while_1000_calls_pass(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen(*ANSWER)
    killed = 0
    for start in range(0, 1000, 50):
        for pid in _observers(proxied, client.pid):
            os.kill(pid, signal.SIGKILL)
            killed += 1
        _calls(client, range(start, start + 50))
    assert killed >= 1
    # It is started again and told of the channel again.
    wait(lambda: _observers(proxied, client.pid), "another observer")
    _calls(client, range(1000, 1010))
    assert client.stdin
    client.stdin.close()
    assert client.wait(5) == 0
    finish(client)
    wait(lambda: proxied.tap_file.exists() and b'"reason"' in proxied.tap_file.read_bytes()[-40:], "the end of the tap")
    again = re.split(rb'"resumed": ?true', proxied.tap_file.read_bytes())
    assert len(again) >= 2
    assert b'"id":1009,"result"' in again[-1]


def test_7_observer_stopped_while_1000_calls_pass(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen(*ANSWER)
    (observer,) = wait(lambda: _observers(proxied, client.pid), "the observer")
    os.kill(observer, signal.SIGSTOP)
    try:
        _calls(client, range(1000))
        assert client.stdin
        client.stdin.close()
        assert client.wait(5) == 0
    finally:
        os.kill(observer, signal.SIGCONT)
        finish(client)


def test_7_observer_has_its_own_session_and_low_priority(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path)
    client = proxied.popen(*ANSWER)
    (observer,) = wait(lambda: _observers(proxied, client.pid), "the observer")
    assert os.getsid(observer) == observer
    wait(lambda: os.getpriority(os.PRIO_PROCESS, observer) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 19), "nice")
    _calls(client, range(10))
    finish(client)


@pytest.mark.parametrize(
    "why",
    ["('/no/such/program',)", "(sys.executable, '-c', 'print(1 / 0)')"],
    ids=["cannot be started", "dies at once"],
)
def test_7_without_an_observer_traffic_passes_and_one_line_says_so(tmp_path: Path, why: str) -> None:
    home = tmp_path / "home"
    code = f"import sys\nfrom services.mcp_proxy import observing\nobserving.COMMAND = {why}\n"
    code += "observing._FIRST_PAUSE_S = 0.02\nfrom services.cli.main import main\nmain()"
    env = {**os.environ, "AGENTTRACE_HOME": str(home)}
    argv = [sys.executable, "-P", "-c", code, "proxy", "stdio", "--server", "probe", "--", *ANSWER]
    import subprocess

    client = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-1, bufsize=0, env=env)
    _calls(client, range(20))
    assert client.stdin and client.stderr
    line = client.stderr.readline().decode()
    assert line.startswith("agenttrace: MCP traffic passes unobserved") and str(home) in line
    _calls(client, range(20))
    client.stdin.close()
    assert client.stderr.read() == b""
    assert client.wait(5) == 0
    if "1 / 0" in why:
        assert "ZeroDivisionError" in (home / "logs" / "mcp-proxy.log").read_text()
    finish(client)


def test_7_the_log_of_the_observer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTTRACE_HOME", str(tmp_path))
    log = tmp_path / "logs" / "mcp-proxy.log"
    for _ in range(3):
        with observing._log() as file:
            assert not isinstance(file, int)
            file.write(b"x" * ((1 << 20) + 1))
    assert log.stat().st_size == (1 << 20) + 1
    assert sorted(path.name for path in log.parent.iterdir()) == ["mcp-proxy.log", "mcp-proxy.log.1"]
    assert log.stat().st_mode & 0o777 == 0o600


async def test_7_a_home_that_cannot_be_written_keeps_nothing_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTTRACE_HOME", str(tmp_path / "file"))
    tap = tmp_path / "tap"
    monkeypatch.setattr(observing, "COMMAND", (sys.executable, "-I", "-S", "-c", OBSERVER, str(tap)))
    observed = observing.Observing()
    observed.tap.open(1, {"server": "x"})
    await observed.start()
    observed.tap.data(1, Side.CLIENT, b"hello")
    await observed.close()
    async with asyncio.timeout(5):
        while not tap.exists() or b"hello" not in tap.read_bytes():
            await asyncio.sleep(0.01)
    first = next(Reader().feed(tap.read_bytes()))
    assert (first.kind, json.loads(first.data)) == (Kind.OPEN, {"server": "x"})
