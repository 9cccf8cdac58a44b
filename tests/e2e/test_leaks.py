"""Secrets planted in every field of every recorded payload reach no topic, no table, no log, no journal and no spool file."""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import clickhouse_connect
import orjson
import pytest

from schemas.identity import new_delivery_id
from schemas.topics import TOPICS
from services.adapters.recordings import read
from services.adapters.registry import ADAPTERS
from services.cli.demo import SESSIONS
from services.cli.stack import begin
from services.demo import check
from services.embedded import run_file
from services.forwarder import protocol

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FIXTURES = Path(__file__).parents[1] / "fixtures"
MARK = "Zq7xW9vK2mR4tB8nH3"
"""Part of every planted secret; nothing else in the world contains it."""


def secret(number: int) -> str:
    """A token of one of four kinds that people leak, with the mark inside."""
    tail = f"{number:06d}"
    return (
        f"ghp_{MARK}{'Ab1' * 4}{tail}",
        f"sk-ant-api03-{MARK}{'xY9' * 20}{tail}-AA",
        f"glpat-{MARK}{tail}"[:26] + tail,
        f"postgres://app:{MARK}{tail}@db.example.internal/main",
    )[number % 4]


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def percent(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" for letter in text)


FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": lambda text: base64.b64encode(f"token={text}".encode()).decode(),
    "url": lambda text: "https://example.com/?next=" + percent(text),
    "json": lambda text: orjson.dumps({"inner": orjson.dumps({"token": text}).decode()}).decode(),
    "escaped": escaped,
}


def needles() -> list[bytes]:
    """The mark in every form in which one could read it: as it is, base64 at three alignments, percent and \\u escapes."""
    found = [
        MARK.encode(),
        percent(MARK).encode(),
        percent(MARK).lower().encode(),
        escaped(MARK).encode(),
        quote(MARK).encode(),
    ]
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + MARK.encode()).decode()
        found.append(coded[4 if shift else 0 : -4].encode())
    found.append(MARK.encode().hex().encode())
    return found


def planted(value: Any, form: Callable[[str], str], count: Iterator[int]) -> Any:
    """The value with a secret after every text in it."""
    if isinstance(value, dict):
        return {key: planted(item, form, count) for key, item in value.items()}
    if isinstance(value, list):
        return [planted(item, form, count) for item in value]
    if isinstance(value, str):
        return f"{value} {form(secret(next(count)))}"
    return value


def payloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recorded payload, those from documentation and source, and every session's."""
    for runtime in sorted(ADAPTERS):
        for file in sorted((FIXTURES / runtime).glob("payloads*.jsonl")):
            for line in file.read_bytes().splitlines():
                row = orjson.loads(line)["payload"]
                yield runtime, row.get("stdin", row)
        for file in sorted((SESSIONS / runtime).glob("*.jsonl")):
            for recorded in read(file):
                yield runtime, recorded.body


def deliveries() -> Iterator[tuple[str, bytes]]:
    """Each payload in each form; what says which hook it is stays, so that the adapter's own path is taken."""
    count = iter(range(10**9))
    for runtime, payload in payloads():
        for form in FORMS.values():
            body = planted(payload, form, count)
            for name in ("hook", "hook_event_name"):
                if name in payload:
                    body[name] = payload[name]
            yield runtime, orjson.dumps(body)
        yield runtime, orjson.dumps({**payload, secret(next(count)): "as a key"})


async def send(home: Path, socket: str, rows: list[tuple[str, bytes]]) -> None:
    connector = aiohttp.UnixConnector(min(socket, os.path.relpath(socket), key=len), limit=8)
    waiting = asyncio.Semaphore(8)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def one(runtime: str, body: bytes) -> None:
            async with waiting, client.post(f"http://agenttrace/hooks/{runtime}", data=body) as response:
                assert response.status == 200
                await response.read()

        await asyncio.gather(*(one(runtime, body) for runtime, body in rows))


async def all_records(bootstrap: str) -> dict[str, bytes]:
    from aiokafka import AIOKafkaConsumer

    from services.kafka import partitions_of

    kwargs = {"bootstrap_servers": bootstrap}
    consumer = AIOKafkaConsumer(**kwargs, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    found: dict[str, bytearray] = {}
    try:
        partitions = await partitions_of(kwargs, [topic.name for topic in TOPICS])
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for place, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    row = found.setdefault(place.topic, bytearray())
                    row += (record.key or b"") + b"\n" + (record.value or b"") + b"\n"
                    row += b"".join(name.encode() + value for name, value in record.headers) + b"\n"
    finally:
        await consumer.stop()
    return {topic: bytes(data) for topic, data in found.items()}


def spool(home: Path, rows: list[tuple[str, bytes]]) -> None:
    for runtime, body in rows:
        folder = home / protocol.SPOOL_FOLDER / runtime
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / new_delivery_id()).write_bytes(f"{protocol.SPOOL_MAGIC} pid=1\n".encode() + body)


def assert_clean(where: str, data: bytes) -> None:
    for needle in needles():
        at = data.find(needle)
        assert at < 0, f"{where}: {data[max(at - 300, 0) : at + 100]!r}"


def test_the_search_finds_what_is_planted() -> None:
    for name, form in FORMS.items():
        data = form(secret(0)).encode()
        assert any(needle in data for needle in needles()), name


def test_planted_secrets_are_found_nowhere(tmp_path: Path, wait_until: Callable[..., None]) -> None:
    home = tmp_path / "home"
    rows = list(deliveries())
    random.Random(1).shuffle(rows)
    spooled, sent = rows[:400], rows[400:]
    spool(home, spooled)
    env = {f"AGENTTRACE_{part}__PORT": "0" for part in ("COLLECTOR", "PIPELINES", "SINK")}
    env["AGENTTRACE_RELIABILITY__PENDING_CALL_TTL_MS"] = "2000"
    env["AGENTTRACE_LOG"] = "info"
    begin(home, lambda *_: None, env)
    try:
        where = run_file.require(home).endpoints
        assert where.socket and where.clickhouse_dsn and where.kafka_bootstrap
        asyncio.run(send(home, where.socket, sent))
        wait_until(lambda: check.journalled(home).deliveries >= len(rows), "every payload is journalled", timeout_s=120)
        with clickhouse_connect.get_client(dsn=where.clickhouse_dsn) as client:
            wanted = check.journalled(home).seqs
            wait_until(lambda: wanted <= set(check.in_clickhouse(client)), "all events are rows", timeout_s=120)
            wait_until(lambda: client.query("select count() from risk_findings").result_rows[0][0] > 0, "findings", 60)
            tables = [row[0] for row in client.query("show tables").result_rows]
            for table in tables:
                engine = client.query(f"select engine from system.tables where name = '{table}'").result_rows[0][0]
                if engine.endswith("MergeTree"):
                    assert_clean(f"table {table}", client.raw_query(f"select * from {table}", fmt="Native"))
        topics = asyncio.run(all_records(where.kafka_bootstrap))
        assert len(topics["agenttrace.tool.call"]) > 1_000_000
        for topic, data in topics.items():
            assert_clean(f"topic {topic}", data)
        kept = [path for path in (home / protocol.SPOOL_FOLDER).rglob("*") if path.is_file() and path.name[0] != "."]
        assert kept == []
    finally:
        run_file.stop(home)
    files = [*(home / "logs").iterdir(), *(home / protocol.SPOOL_FOLDER).rglob("*"), *(home / "collector").rglob("*")]
    for path in files:
        if path.is_file():
            assert_clean(path.name, path.read_bytes())
