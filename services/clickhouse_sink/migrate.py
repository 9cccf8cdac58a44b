"""Brings the tables to this version: applies schemas/clickhouse/NNNN_*.sql in order and records their checksums."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from urllib.parse import urlsplit

from clickhouse_connect.driver import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from schemas.errors import UserError
from services.clickhouse_sink import clickhouse

_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    name String,
    checksum String COMMENT 'SHA-256 of the file',
    applied_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY name
"""
_NAME = re.compile(r"\d{4}_\w+\.sql")
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*` | --[^\n]* | /\*.*?\*/ | ; | [^'"`;/-]+ | .""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text, hex."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """The files of this version, in order."""
    folder = resources.files("schemas") / "clickhouse"
    found = [entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)]
    return [Migration(entry.name, entry.read_text(encoding="utf-8")) for entry in sorted(found, key=lambda e: e.name)]


def statements(sql: str) -> Iterator[str]:
    """The statements of a file, comments left out. A `;` in a text, a quoted name or a comment ends none."""
    statement: list[str] = []
    for match in _TOKEN.finditer(sql):
        token = match.group()
        if token == ";":
            yield from _kept(statement)
            statement = []
        elif not token.startswith(("--", "/*")):
            statement.append(token)
    yield from _kept(statement)


def _kept(tokens: list[str]) -> Iterator[str]:
    text = "".join(tokens).strip()
    if text:
        yield text


def pending(client: Client, files: list[Migration] | None = None) -> list[Migration]:
    """What `migrate` would apply. Raises UserError where an applied file has changed since."""
    files = migrations() if files is None else files
    if not client.command("EXISTS TABLE schema_migrations"):
        return files
    rows = client.query("SELECT name, checksum FROM schema_migrations FINAL").result_rows
    applied = {str(name): str(checksum) for name, checksum in rows}
    for file in files:
        if applied.get(file.name, file.checksum) != file.checksum:
            raise UserError(
                f"schemas/clickhouse/{file.name} is not the file that was applied to this database: "
                "applied files never change; put the change into a new one"
            )
    return [file for file in files if file.name not in applied]


def migrate(client: Client, files: list[Migration] | None = None) -> list[str]:
    """Apply what is missing to the client's database; returns the names of the files applied.

    Every statement may run twice (IF NOT EXISTS, OR REPLACE), so runners need no lock: of two at once each finds what
    the other has made. Raises UserError with file and statement for what ClickHouse refuses; a next run goes on there.
    """
    names = []
    client.command(_LEDGER)
    for file in pending(client, files):
        for number, statement in enumerate(statements(file.sql), 1):
            try:
                client.command(statement)
            except ClickHouseError as error:
                head = " ".join(statement.split()[:6])
                raise UserError(
                    f"schemas/clickhouse/{file.name}, statement {number} ({head} …): {str(error).splitlines()[0][:300]}"
                ) from None
        client.command(
            "INSERT INTO schema_migrations VALUES ({name:String}, {checksum:String}, now64(3))",
            parameters={"name": file.name, "checksum": file.checksum},
        )
        names.append(file.name)
    return names


def migrate_dsn(dsn: str) -> list[str]:
    """`migrate` on the database that a DSN names, which is made if there is none. Raises UserError."""
    with _server(dsn) as client:
        try:
            client.command(
                "CREATE DATABASE IF NOT EXISTS {name:Identifier}", parameters={"name": clickhouse.database(dsn)}
            )
        except ClickHouseError as error:
            raise clickhouse.explain(error, dsn) from None
    with clickhouse.connect(dsn) as client:
        return migrate(client)


def pending_dsn(dsn: str) -> list[str]:
    """Names of the files that `migrate_dsn` would apply. Raises UserError."""
    with _server(dsn) as client:
        known = client.command("EXISTS DATABASE {name:Identifier}", parameters={"name": clickhouse.database(dsn)})
    if not known:
        return [file.name for file in migrations()]
    with clickhouse.connect(dsn) as client:
        return [file.name for file in pending(client)]


def _server(dsn: str) -> Client:
    return clickhouse.connect(urlsplit(dsn)._replace(path="").geturl())
