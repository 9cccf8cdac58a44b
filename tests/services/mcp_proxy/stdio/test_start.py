"""What a client waits for at the start: nothing is imported before the server runs that the server does not need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.services.mcp_proxy.stdio.proxied import Proxied, finish, python

pytestmark = pytest.mark.integration

HEAVY = ("click", "pydantic", "asyncio", "uvloop", "socket", "logging", "typing", "subprocess", "dataclasses", "json")
OURS = ("schemas", "services.config", "services.capture", "services.cli.commands", "services.mcp_proxy.tap")

_AT_FORK = f"""
import os, sys
before = set(sys.modules)
def fork():
    new = set(sys.modules) - before
    print(*sorted(new & set({HEAVY + OURS!r})), sep=",")
    print(len(new))
    sys.stdout.flush()
    os._exit(0)
os.fork = fork
from services.cli.main import main
main()
"""


def test_start_imports_next_to_nothing_before_the_server_runs() -> None:
    argv = [sys.executable, "-P", "-c", _AT_FORK, "proxy", "stdio", "--server", "x", "--timeout-ms=5", "--", "true"]
    heavy, count = subprocess.run(argv, capture_output=True, check=True, text=True).stdout.splitlines()
    assert heavy == ""
    assert int(count) < 25


def test_start_forwarder_never_imports_the_command_line_or_the_models(tmp_path: Path) -> None:
    client = Proxied(tmp_path).popen(*python("import os\nos.write(1, os.read(0, 10))\nos.read(0, 10)"))
    assert client.stdin and client.stdout
    client.stdin.write(b"x")
    assert client.stdout.read(1) == b"x"
    mapped = Path(f"/proc/{client.pid}/maps").read_text()
    assert "uvloop" in mapped
    assert "pydantic_core" not in mapped
    finish(client)


def _cpu_s(argv: list[str], env: dict[str, str]) -> float:
    """CPU time from exec to the start of the server, which tells it and ends all."""
    done = subprocess.run(argv, env=env, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return float(done.stdout)


def test_start_costs_a_fraction_of_the_interpreters_own(tmp_path: Path) -> None:
    """CPU of the process from its exec to its first fork, against an interpreter that does nothing; the best of ten."""
    told = "import os, time\nos.write(1, str(time.process_time()).encode())\nos._exit(0)"
    at_fork = "import os, time\ndef fork():\n os.write(1, str(time.process_time()).encode())\n os._exit(0)\n"
    at_fork += "os.fork = fork\nfrom services.cli.main import main\nmain()"
    words = ["proxy", "stdio", "--server", "x", "--", "true"]
    env = dict(os.environ)
    nothing, proxy = [], []
    for _ in range(10):
        nothing.append(_cpu_s([sys.executable, "-P", "-c", told], env))
        proxy.append(_cpu_s([sys.executable, "-P", "-c", at_fork, *words], env))
    assert min(proxy) < 2 * min(nothing)


def test_start_the_first_answer_does_not_wait_for_the_observer(tmp_path: Path) -> None:
    proxied = Proxied(tmp_path, observer="import sys, time\nassert sys.argv\ntime.sleep(2)")
    since = time.monotonic()
    client = proxied.popen("cat")
    out, _ = client.communicate(b"hello", timeout=5)
    assert out == b"hello"
    assert time.monotonic() - since < 2
