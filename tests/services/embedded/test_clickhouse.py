"""A real engine: it serves clickhouse-connect, keeps what it acknowledged, lets nobody out of its folder."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from schemas.errors import UserError
from services.embedded.clickhouse import ClickHouseServer
from services.embedded.host import free_port
from services.embedded.pidfile import start_mark

pytestmark = pytest.mark.integration

WaitUntil = Callable[..., None]
PROGRAM = (sys.executable, "-P", "-m", "services.embedded.clickhouse.server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    with ClickHouseServer(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


def ids(server: ClickHouseServer) -> list[int]:
    with clickhouse_connect.get_client(dsn=server.dsn) as client:
        return [row[0] for row in client.query("SELECT id FROM kept ORDER BY id").result_rows]


def insert(server: ClickHouseServer, numbers: range) -> None:
    with clickhouse_connect.get_client(dsn=server.dsn) as client:
        client.insert("kept", [[n, f"row {n}"] for n in numbers], column_names=["id", "text"])


def test_acknowledged_rows_survive_a_stop_and_a_kill(tmp_path: Path, wait_until: WaitUntil) -> None:
    server = ClickHouseServer(tmp_path)
    with server:
        dsn = server.dsn
        with clickhouse_connect.get_client(dsn=dsn) as client:
            client.command("CREATE TABLE kept (id UInt32, text String) ENGINE = ReplacingMergeTree ORDER BY id")
        insert(server, range(1000))
    assert server.pid is None

    with server:
        assert server.dsn == dsn
        insert(server, range(1000, 2000))
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None, "the server has ended")
        server.start()
        assert ids(server) == list(range(2000))


def test_nothing_is_told_without_the_password(server: ClickHouseServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/?user=agenttrace&query=SELECT+1")
    assert caught.value.code in (401, 403)
    # `default` needs no password, and must not see what is recorded.
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]|500"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/?query=CREATE+TABLE+default.x+(a+Int8)+ENGINE=Memory")
    for secret in (server.state_dir / "password", server.state_dir / "logs" / "clickhouse.log"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "INSERT INTO FUNCTION file('/tmp/agenttrace-must-not-be', 'TSV', 'a String') VALUES ('x')",
        "CREATE TABLE out_of_bounds (a String) ENGINE = File('LineAsString', '/etc/hostname')",
        "CREATE TABLE out_of_bounds (a String) ENGINE = URL('http://127.0.0.1:1/', 'LineAsString')",
        "CREATE DICTIONARY out_of_bounds (a UInt64, b String) PRIMARY KEY a "
        "SOURCE(EXECUTABLE(COMMAND 'id' FORMAT 'TSV')) LAYOUT(FLAT()) LIFETIME(0)",
        "CREATE DATABASE out_of_bounds ENGINE = Filesystem('/etc')",
        "GRANT READ ON *.* TO agenttrace",
    ],
)
def test_a_client_gets_at_no_file_no_network_and_no_program(server: ClickHouseServer, statement: str) -> None:
    with (
        clickhouse_connect.get_client(dsn=server.dsn) as client,
        pytest.raises(DatabaseError, match=r"ACCESS_DENIED|code: 497"),
    ):
        client.command(statement)


def test_each_database_is_a_tests_own(clickhouse_db: str, clickhouse_dsn: str) -> None:
    with clickhouse_connect.get_client(dsn=clickhouse_db) as client:
        client.command("CREATE TABLE here (n UInt8) ENGINE = MergeTree ORDER BY n")
        client.insert("here", [[7]], column_names=["n"])
        assert client.query("SELECT n FROM here").result_rows == [(7,)]
    with clickhouse_connect.get_client(dsn=clickhouse_dsn) as client, pytest.raises(DatabaseError):
        client.query("SELECT n FROM here")


def test_views_and_aggregates_work(clickhouse_db: str) -> None:
    with clickhouse_connect.get_client(dsn=clickhouse_db) as client:
        client.command("CREATE TABLE raw (n UInt32) ENGINE = MergeTree ORDER BY n")
        client.command(
            "CREATE TABLE total (s AggregateFunction(sum, UInt32)) ENGINE = AggregatingMergeTree ORDER BY ()"
        )
        client.command("CREATE MATERIALIZED VIEW fill TO total AS SELECT sumState(n) AS s FROM raw")
        client.command("CREATE VIEW answer AS SELECT sumMerge(s) AS s FROM total")
        client.insert("raw", [[n] for n in range(101)], column_names=["n"])
        assert client.query("SELECT s FROM answer").result_rows == [(5050,)]


def test_a_second_server_object_is_told_who_has_the_folder(server: ClickHouseServer) -> None:
    with pytest.raises(UserError, match=rf"held by a running stack \(pid {os.getpid()}\)"):
        ClickHouseServer(server.state_dir).start()
    assert server.pid is not None
    assert start_mark(server.pid) is not None


def test_a_second_engine_on_the_data_is_told_who_has_it(server: ClickHouseServer) -> None:
    folder = server.state_dir
    options = ("--state-dir", str(folder), "--port", "1", "--password-file", str(folder / "password"))
    second = subprocess.run([*PROGRAM, *options], capture_output=True, text=True, check=False, timeout=30)
    assert f"another ClickHouse has {folder / 'data'} open (pid {server.pid})" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert second.returncode == os.EX_TEMPFAIL


def test_an_engine_that_dies_while_it_starts_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata").touch()
    with pytest.raises(UserError, match=r"clickhouse did not start: .*/data/metadata: File exists.*\.log$") as caught:
        ClickHouseServer(tmp_path).start()
    assert "\n" not in str(caught.value)


def test_a_port_taken_since_it_was_chosen_makes_the_launcher_choose_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("services.embedded.launcher.free_port", lambda: next(ports))
        with ClickHouseServer(tmp_path) as server:
            assert server.port != taken.getsockname()[1]
    assert "Address already in use" in (tmp_path / "logs" / "clickhouse.log").read_text()


def test_a_port_in_use_is_named_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} for clickhouse is in use by .*\(pid {os.getpid()}\)"):
            ClickHouseServer(tmp_path, port=port).start()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the state folder .*/file/ch: Not a directory"):
        ClickHouseServer(tmp_path / "file" / "ch").start()
