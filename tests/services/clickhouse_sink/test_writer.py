"""What the writer does when ClickHouse refuses rows, is away, or is short of memory: on the real engine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from clickhouse_connect.driver import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from services.clickhouse_sink.clickhouse import Away, Refused, TooBig, of_insert
from services.clickhouse_sink.metrics import Metrics
from services.clickhouse_sink.migrate import migrate_dsn
from services.clickhouse_sink.records import blocks
from services.clickhouse_sink.writer import Writer
from services.embedded.clickhouse import ClickHouseServer
from tests.services.clickhouse_sink.conftest import Written, until
from tests.services.clickhouse_sink.events import T0, Json, records, started

Rows = Callable[[str], list[Json]]


@pytest.mark.integration
async def test_one_bad_row_of_many_is_found_and_the_others_are_stored(
    write: Written, client: Client, rows: Rows
) -> None:
    # No event that passes `fault` is refused by the tables as they are, so a rule is added that some break.
    client.command("ALTER TABLE events_raw ADD CONSTRAINT no_poison CHECK tool_name != 'Poison'")
    poison = {37, 38, 211}
    events = [started(f"k{n}", n, tool_name="Poison" if n in poison else "Bash") for n in range(300)]
    await write(events)

    assert sorted(record.offset for record, _, _ in write.refused) == sorted(poison)
    for _, why, tries in write.refused:
        assert why == "ClickHouse refused it: VIOLATED_CONSTRAINT (469), constraint no_poison"
        assert tries > 1
    assert rows("SELECT count() AS n, uniqExact(event_id) AS ids FROM events") == [{"n": 297, "ids": 297}]


@pytest.mark.integration
async def test_a_batch_of_nothing_but_bad_rows_ends(write: Written, client: Client, rows: Rows) -> None:
    client.command("ALTER TABLE events_raw ADD CONSTRAINT nothing CHECK 0")
    await write([started(f"k{n}") for n in range(5)])
    assert len(write.refused) == 5
    assert rows("SELECT count() AS n FROM events") == [{"n": 0}]


@pytest.mark.integration
async def test_a_block_of_ids_from_two_hundred_months_is_one_insert(write: Written, rows: Rows) -> None:
    month_ms = 31 * 86_400_000
    await write([started(f"k{n}", n * month_ms) for n in range(200)])
    assert write.refused == []
    assert rows("SELECT count() AS n, uniqExact(toYYYYMM(timestamp)) AS months FROM events") == [
        {"n": 200, "months": 200}
    ]


@pytest.mark.integration
async def test_a_batch_too_big_for_the_memory_is_halved(tables: str, client: Client) -> None:
    refused: list[str] = []

    async def refuse(record: object, why: str, tries: int) -> None:
        refused.append(why)

    metrics = Metrics()
    writer = Writer(tables, metrics, refuse)
    await writer.open()
    assert writer._client is not None
    writer._client.set_client_setting("max_memory_usage", 80 << 20)
    try:
        events = [started(f"k{n}", native={"text": os.urandom(150_000).hex()}) for n in range(200)]
        [block] = blocks(records(events), "", T0)
        await writer.write(block)
    finally:
        writer.close()
    assert client.command("SELECT count() FROM events") == 200
    assert refused == []
    inserts = next(sample.value for sample in metrics.insert.collect()[0].samples if sample.name.endswith("_count"))
    assert inserts > 1


@pytest.mark.integration
async def test_rows_wait_for_a_server_that_goes_away_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server = ClickHouseServer(tmp_path / "clickhouse")
    server.start()
    refused: list[str] = []

    async def refuse(record: object, why: str, tries: int) -> None:
        refused.append(why)

    metrics = Metrics()
    writer = Writer(server.dsn, metrics, refuse)
    try:
        await asyncio.to_thread(migrate_dsn, server.dsn)
        await writer.open()
        [block] = blocks(records([started("a")]), "", T0)
        await writer.write(block)

        await asyncio.to_thread(server.stop)
        [block] = blocks(records([started("b")], offset=1), "", T0)
        task = asyncio.create_task(writer.write(block))
        await until(lambda: metrics.retries._value.get() >= 3, "three tries failed")
        assert not task.done()
        assert writer.away
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(task, 30)
        assert writer.away == ""

        assert writer._client is not None
        assert writer._client.command("SELECT count() FROM events") == 2
        assert refused == []
        said = [record.getMessage() for record in caplog.records if record.name == "services.clickhouse_sink.writer"]
        assert len(said) == 2
        assert "does not take rows" in said[0]
        assert "again after" in said[1]
    finally:
        writer.close()
        await asyncio.to_thread(server.stop)


@pytest.mark.unit
def test_only_what_a_value_can_cause_is_held_against_the_value() -> None:
    def error(code: int | None, name: str | None = None) -> Exception:
        return DatabaseError("Code: 27. Cannot parse 'AKIASECRET' while ...", code=code, name=name)

    assert isinstance(of_insert(error(27, "CANNOT_PARSE_INPUT_ASSERTION_FAILED")), Refused)
    assert isinstance(of_insert(error(469)), Refused)
    assert isinstance(of_insert(error(241, "MEMORY_LIMIT_EXCEEDED")), TooBig)
    for code in (None, 60, 81, 159, 202, 209, 210, 242, 243, 252, 394, 516, 999):
        assert isinstance(of_insert(error(code)), Away), code
    assert isinstance(of_insert(ConnectionRefusedError()), Away)
    assert isinstance(of_insert(TimeoutError()), Away)
    for code in (27, 241, 252):
        assert "AKIA" not in str(of_insert(error(code, "NAME")))
