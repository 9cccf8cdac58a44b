"""Writes blocks into ClickHouse until all of their rows are in or refused one by one."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import urllib3
from aiokafka import ConsumerRecord
from clickhouse_connect.driver import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from schemas.errors import UserError
from services.clickhouse_sink import clickhouse
from services.clickhouse_sink.clickhouse import Away, Refused, TooBig
from services.clickhouse_sink.metrics import Metrics
from services.clickhouse_sink.records import COLUMNS, TYPES, Block

log = logging.getLogger(__name__)

RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
SAY_EVERY_S = 60.0
# A block of ids from many months (clocks that jumped) makes many partitions; that is no reason to refuse it.
_SETTINGS = {"max_partitions_per_insert_block": 0}

T = TypeVar("T")
Refuse = Callable[[ConsumerRecord, str, int], Awaitable[None]]
"""Told of each record that ClickHouse refuses: the record, why, and after how many tries."""


class Writer:
    """The only one who talks to ClickHouse. `away` says why rows wait; empty while they flow."""

    def __init__(self, dsn: str, metrics: Metrics, refuse: Refuse) -> None:
        self._dsn = dsn
        self._metrics = metrics
        self._refuse = refuse
        self._client: Client | None = None
        self._said_at = -SAY_EVERY_S
        self._failures = 0
        self.away = ""
        self._asked_at: float | None = None

    def silent_s(self) -> float:
        """For how long ClickHouse has not answered the insert on its way; 0 if there is none."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def open(self) -> None:
        """Connect; waits as long as ClickHouse is away. Raises UserError for a refused login or a missing database."""
        while self._client is None:
            try:
                self._client = await _aside(lambda: clickhouse.connect(self._dsn))
            except UserError as error:
                if error.exit_code != os.EX_UNAVAILABLE:
                    raise
                await self._wait(Away(str(error)))
        self._back()

    async def write(self, block: Block) -> None:
        """Return when each row of the block is in ClickHouse or was refused; retries for as long as that takes."""
        waiting = [(block, 1)]
        while waiting:
            part, tries = waiting.pop()
            try:
                await self._insert(part)
            except Refused as error:
                if len(part) == 1:
                    await self._refuse(part.records[0], str(error), tries)
                else:
                    waiting.extend((half, tries + 1) for half in reversed(part.halves()))
            except TooBig as error:
                if len(part) == 1:
                    waiting.append((part, tries + 1))
                    await self._wait(Away(f"it has no memory for a row: {error}"))
                else:
                    waiting.extend((half, tries + 1) for half in reversed(part.halves()))
            except Away as error:
                waiting.append((part, tries + 1))
                await self._wait(error)
            else:
                self._back()

    def close(self) -> None:
        """Close the connections; an insert that still runs is given up."""
        if self._client is not None:
            self._client.close()

    async def _insert(self, block: Block) -> None:
        client = self._client
        assert client is not None
        began = self._asked_at = time.monotonic()
        try:
            await _aside(
                lambda: client.insert(
                    block.table,
                    block.columns,
                    column_names=COLUMNS[block.table],
                    column_type_names=TYPES[block.table],
                    column_oriented=True,
                    settings=_SETTINGS,
                )
            )
        except (ClickHouseError, OSError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
            raise clickhouse.of_insert(error) from None
        finally:
            self._asked_at = None
        self._metrics.insert.observe(time.monotonic() - began)
        self._metrics.rows.labels(block.table).inc(len(block))

    async def _wait(self, error: Away) -> None:
        self.away = str(error)
        self._metrics.up.set(0)
        self._metrics.retries.inc()
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            log.warning(
                "ClickHouse at %s does not take rows (%s); they wait in Kafka", clickhouse.place(self._dsn), self.away
            )
        pause = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        await asyncio.sleep(pause)

    def _back(self) -> None:
        if self._failures:
            log.warning(
                "ClickHouse at %s takes rows again after %d failed tries", clickhouse.place(self._dsn), self._failures
            )
        self.away, self._failures, self._said_at = "", 0, -SAY_EVERY_S
        self._metrics.up.set(1)


async def _aside(work: Callable[[], T]) -> T:
    """Await work that blocks. Its thread, unlike an executor's, does not hold up the end of the process.

    (clickhouse-connect has an asynchronous client too; it took a quarter longer for the same insert.)
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def go() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=go, name="clickhouse", daemon=True).start()
    return await future
