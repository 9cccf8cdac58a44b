"""Whoever kills the owner with -9 leaves neither a JVM nor an engine behind, and the next start works."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from services.embedded.clickhouse import ClickHouseServer
from services.embedded.kafka import KafkaBroker
from services.embedded.pidfile import start_mark

pytestmark = pytest.mark.integration

RunScript = Callable[[str], "subprocess.Popen[str]"]
WaitUntil = Callable[..., None]


def test_servers_die_with_their_owner(tmp_path: Path, run_script: RunScript, wait_until: WaitUntil) -> None:
    owner = run_script(f"""
import json, pathlib
from services.embedded.clickhouse import ClickHouseServer
from services.embedded.kafka import KafkaBroker
folder = pathlib.Path({str(tmp_path)!r})
broker, server = KafkaBroker(folder / "kafka"), ClickHouseServer(folder / "clickhouse")
broker.start()
server.start()
print(json.dumps([[broker.pid, broker.port], [server.pid, server.port]]), flush=True)
input()
""")
    assert owner.stdout is not None
    (broker_pid, broker_port), (server_pid, server_port) = json.loads(owner.stdout.readline())
    assert start_mark(broker_pid)
    assert start_mark(server_pid)
    assert Path(f"/proc/{broker_pid}/exe").resolve().name == "java"

    owner.kill()
    wait_until(lambda: not start_mark(broker_pid) and not start_mark(server_pid), "JVM and engine have ended", 5)

    with (
        KafkaBroker(tmp_path / "kafka", port=broker_port) as broker,
        ClickHouseServer(tmp_path / "clickhouse", port=server_port) as server,
    ):
        assert broker.pid != broker_pid
        assert server.pid != server_pid
