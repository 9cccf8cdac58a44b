"""Migrations: in order, once, by many at a time, and never a changed file."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from clickhouse_connect.driver import Client

from schemas.errors import UserError
from services.clickhouse_sink import clickhouse
from services.clickhouse_sink.migrate import (
    Migration,
    migrate,
    migrate_dsn,
    migrations,
    pending,
    pending_dsn,
    statements,
)


@pytest.mark.unit
def test_statements_end_at_semicolons_that_are_none_of_a_texts() -> None:
    sql = """
    -- a comment; with 'quotes
    SELECT 'a;b', "c;d", `e;f`, 'it''s; \\'fine\\';' /* one; two */ ;
    ;;
    SELECT 1 - 2, 4 / 2
    """
    assert list(statements(sql)) == [
        "SELECT 'a;b', \"c;d\", `e;f`, 'it''s; \\'fine\\';'",
        "SELECT 1 - 2, 4 / 2",
    ]


@pytest.mark.contract
def test_files_are_numbered_without_gaps_and_each_statement_may_run_twice() -> None:
    files = migrations()
    assert [file.name[:4] for file in files] == [f"{number:04d}" for number in range(1, len(files) + 1)]
    again = re.compile(r"CREATE (TABLE|MATERIALIZED VIEW|FUNCTION) IF NOT EXISTS |CREATE OR REPLACE VIEW ")
    for file in files:
        for statement in statements(file.sql):
            assert again.match(statement), f"{file.name}: {statement[:80]}"


@pytest.mark.integration
def test_an_empty_database_gets_all_and_a_second_run_nothing(clickhouse_db: str, client: Client) -> None:
    names = [file.name for file in migrations()]
    assert pending_dsn(clickhouse_db) == names
    assert migrate(client) == names
    assert migrate(client) == []
    assert pending_dsn(clickhouse_db) == []
    rows = client.query("SELECT name, checksum FROM schema_migrations ORDER BY name").result_rows
    assert [tuple(row) for row in rows] == [(file.name, file.checksum) for file in migrations()]


@pytest.mark.integration
def test_a_database_that_is_missing_is_made(clickhouse_db: str, client: Client) -> None:
    name = clickhouse.database(clickhouse_db) + "_made"
    dsn = urlsplit(clickhouse_db)._replace(path=f"/{name}").geturl()
    names = [file.name for file in migrations()]
    try:
        assert pending_dsn(dsn) == names
        assert migrate_dsn(dsn) == names
    finally:
        client.command(f"DROP DATABASE IF EXISTS {name} SYNC")


@pytest.mark.integration
def test_runners_at_the_same_time_all_end_with_all_tables(clickhouse_db: str, client: Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate_dsn, clickhouse_db) for _ in range(4)]:
            done.result()
    assert pending(client) == []
    [[tables]] = client.query("SELECT count() FROM system.tables WHERE database = currentDatabase()").result_rows
    made = sum(1 for file in migrations() for text in statements(file.sql) if not text.startswith("CREATE FUNCTION"))
    assert tables == made + 1


@pytest.mark.integration
def test_a_changed_file_is_refused_and_a_later_one_applied(client: Client) -> None:
    first = Migration("0001_a.sql", "CREATE TABLE IF NOT EXISTS a (x Int8) ENGINE = Null")
    second = Migration("0002_b.sql", "CREATE TABLE IF NOT EXISTS b (x Int8) ENGINE = Null;")
    assert migrate(client, [first]) == ["0001_a.sql"]
    assert migrate(client, [first, second]) == ["0002_b.sql"]
    changed = Migration("0001_a.sql", first.sql + " -- better")
    with pytest.raises(UserError, match=r"0001_a\.sql is not the file that was applied"):
        migrate(client, [changed, second])


@pytest.mark.integration
def test_a_statement_that_fails_is_named_and_taken_up_again(client: Client) -> None:
    bad = Migration("0001_a.sql", "CREATE TABLE IF NOT EXISTS a (x Int8) ENGINE = Null;\nCREATE TABLE nonsense")
    with pytest.raises(UserError, match=r"0001_a\.sql, statement 2 \(CREATE TABLE nonsense"):
        migrate(client, [bad])
    good = Migration("0001_a.sql", "CREATE TABLE IF NOT EXISTS a (x Int8) ENGINE = Null;")
    assert migrate(client, [good]) == ["0001_a.sql"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "told", "code"),
    [
        ({"netloc": "nobody:wrong@{at}"}, "refused the login: check user and password", 77),
        ({"netloc": "nobody:wrong@127.0.0.1:9"}, "cannot be reached", 69),
        ({"query": "no_such_option=1"}, "clickhouse.dsn: unknown option 'no_such_option'", 78),
        ({"netloc": "nobody:wrong@127.0.0.1:port"}, "clickhouse.dsn: not a DSN", 78),
        ({"path": "/no_such_db"}, "has no database 'no_such_db': make it with `agenttrace migrate`", 78),
    ],
)
def test_what_is_wrong_with_the_server_is_one_line(
    clickhouse_db: str, change: dict[str, str], told: str, code: int
) -> None:
    at = clickhouse.place(clickhouse_db)
    dsn = urlsplit(clickhouse_db)._replace(**{key: text.format(at=at) for key, text in change.items()}).geturl()
    with pytest.raises(UserError) as error:
        clickhouse.connect(dsn)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert "wrong" not in str(error.value)
    assert error.value.exit_code == code
