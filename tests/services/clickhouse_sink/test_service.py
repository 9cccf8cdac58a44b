"""A whole sink between a real Kafka and a real ClickHouse."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from clickhouse_connect.driver import Client

from schemas.errors import UserError
from schemas.topics import DLQ, RULES, TOOL_CALL, record_key
from services.clickhouse_sink.migrate import migrate_dsn
from services.clickhouse_sink.service import Sink
from services.clickhouse_sink.settings import SinkSettings
from services.embedded.clickhouse import ClickHouseServer
from services.embedded.kafka import KafkaBroker
from tests.services.clickhouse_sink.conftest import until
from tests.services.clickhouse_sink.events import Json, completed, event, producer, started, topic_of
from tests.services.clickhouse_sink.test_tables import every_kind

pytestmark = pytest.mark.integration

Rows = Callable[[str], list[Json]]


@contextlib.asynccontextmanager
async def running(settings: SinkSettings) -> AsyncIterator[Sink]:
    """A sink that is a member of its group; stopped in order at the end, within 10 s."""
    sink = Sink(settings)
    task = asyncio.create_task(sink.run())
    await until(lambda: task.done() or not sink.not_ready(), "the sink is ready", 30)
    if task.done():
        task.result()
    try:
        yield sink
    finally:
        began = time.monotonic()
        sink.stop()
        await task
        assert time.monotonic() - began < 10


async def until_rows(client: Client, sql: str, wanted: Any, timeout_s: float = 30) -> None:
    found: Any = None
    deadline = time.monotonic() + timeout_s
    while found != wanted:
        assert time.monotonic() < deadline, f"{sql}: {found}, not {wanted}"
        found = await asyncio.to_thread(client.command, sql)
        await asyncio.sleep(0.02)


@pytest.fixture
async def publish(kafka_bootstrap: str, topics: str) -> AsyncIterator[Callable[..., Any]]:
    """`await publish(events)`: acknowledged by the broker, keys as the topic table says."""
    sender = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all", linger_ms=5)
    await sender.start()

    async def send(events: Sequence[Json | bytes], topic: str = TOOL_CALL, **fields: Any) -> None:
        waiting = []
        for value in events:
            if isinstance(value, bytes):
                waiting.append(await sender.send(topics + topic, value, key=b"k", **fields))
            else:
                place = topics + topic_of(value)
                waiting.append(await sender.send(place, orjson.dumps(value), key=record_key(value), **fields))
        await asyncio.gather(*waiting)

    yield send
    await sender.stop()


async def committed(settings: SinkSettings) -> int:
    """Sum of the group's committed offsets over all partitions."""
    admin = AIOKafkaAdminClient(**settings.kafka)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(settings.group_id)
    finally:
        await admin.close()
    return sum(int(entry.offset) for entry in offsets.values() if entry.offset > 0)


async def test_events_of_every_topic_become_rows_and_their_offsets_are_committed(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    events = every_kind()
    async with running(settings) as sink:
        await publish(events)
        await until_rows(client, "SELECT count() FROM events", 19)
        await until_rows(client, "SELECT status FROM risk_findings", "resolved")
        await until_rows(client, "SELECT max(count) FROM tool_metrics", 8)
        assert (
            await asyncio.to_thread(client.command, "SELECT _topic FROM alerts")
            == f"{settings.topic_prefix}agenttrace.alert"
        )
        await publish([b"progress"], headers=[("at_kind", b"control")])
        await until(lambda: sink.metrics.control._value.get() == 1, "the progress record is passed over")
    assert await committed(settings) == len(events) + 1
    assert await asyncio.to_thread(client.command, "SELECT count() FROM dlq") == 0


async def test_after_a_stop_the_next_sink_goes_on_where_it_ended(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    async with running(settings):
        await publish([started(f"a{n}") for n in range(50)])
        await until_rows(client, "SELECT count() FROM events", 50)
    await publish([started(f"b{n}") for n in range(50)])
    async with running(settings) as sink:
        await until_rows(client, "SELECT count() FROM events", 100)
    # Counted once ClickHouse has answered, which is after a query can see the rows; the stop waits for that.
    rows = sink.metrics.rows.labels("ingest_events")._value.get()
    assert rows == 50


async def test_records_no_row_can_be_made_of_become_dead_letters_and_rows_of_dlq(
    settings: SinkSettings, publish: Callable[..., Any], client: Client, kafka_bootstrap: str
) -> None:
    nameless = {key: value for key, value in started(producer=producer(1, 2)).items() if key != "event_name"}
    secret = b"hunter2-hunter2 {"
    async with running(settings):
        await publish([started(), secret, orjson.dumps(nameless), completed()])
        await until_rows(client, "SELECT count() FROM dlq", 2)
        await until_rows(client, "SELECT count() FROM events", 2)

    letters = {row["why"]: row for row in client.query("SELECT * FROM dlq").named_results()}
    assert set(letters) == {"not JSON from byte 0 on", "event_name is missing"}
    row = letters["event_name is missing"]
    assert (row["refused_by"], row["tries"], row["event_id"]) == ("clickhouse_sink", 1, nameless["event_id"])
    assert (row["producer_id"], row["producer_epoch"], row["producer_seq"]) == ("collector-1", 1, 2)
    topic, _, offset = row["source"].split("/")
    assert topic == settings.topic_prefix + TOOL_CALL
    assert int(offset) in range(4)
    assert row["refused_at"] is not None
    losses = client.query("SELECT kind, first_seq, last_seq FROM producer_losses").result_rows
    assert [tuple(loss) for loss in losses] == [("refused", 2, 2)]

    consumer = AIOKafkaConsumer(
        settings.topic_prefix + DLQ, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        values = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(2)]
    finally:
        await consumer.stop()
    assert not any(b"hunter2" in value for value in values)


async def test_what_clickhouse_refuses_becomes_a_dead_letter_and_the_batch_goes_on(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    client.command("ALTER TABLE events_raw ADD CONSTRAINT no_poison CHECK tool_name != 'Poison'")
    async with running(replace(settings, batch_ms=500)):
        await publish([started(f"k{n}", tool_name="Poison" if n == 17 else "Bash") for n in range(40)])
        await until_rows(client, "SELECT count() FROM events", 39)
        await until_rows(
            client, "SELECT any(why) FROM dlq", "ClickHouse refused it: VIOLATED_CONSTRAINT (469), constraint no_poison"
        )
    assert await committed(settings) == 41


async def test_a_dead_letter_that_cannot_be_stored_stays_in_kafka_and_stops_nothing(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    client.command("ALTER TABLE dlq_raw ADD CONSTRAINT none CHECK 0")
    async with running(settings) as sink:
        await publish([b"nonsense", started()])
        await until_rows(client, "SELECT count() FROM events", 1)
        await until(lambda: sink.metrics.unwritten._value.get() == 1, "the dead letter is given up")
        await publish([completed()])
        await until_rows(client, "SELECT count() FROM events", 2)
    assert await committed(settings) == 4


async def test_dead_letters_of_others_are_rows_too(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    receipt = orjson.dumps({"event_id": started()["event_id"], "size_bytes": 9, "producer": producer(3, 7)})
    headers = [("at_why", b"too large"), ("at_from", b"agenttrace.tool.call"), ("at_by", b"collector")]
    async with running(settings):
        await publish([receipt, receipt, b"\xff\x00"], DLQ, headers=headers)
        await until_rows(client, "SELECT count() FROM dlq", 2)
    row = client.query("SELECT why, source, refused_by, producer_seq FROM dlq WHERE producer_seq > 0").result_rows[0]
    assert tuple(row) == ("too large", "agenttrace.tool.call", "collector", 7)


async def test_two_sinks_share_the_partitions_and_one_may_leave(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    async def stream(first: int, last: int) -> None:
        for start in range(first, last, 50):
            await publish([started(f"k{n}", root_session_id=f"s-{n % 7}") for n in range(start, start + 50)])

    async with running(settings) as one:
        await stream(0, 500)
        async with running(settings) as two:
            await until(lambda: two.metrics.partitions._value.get() > 0, "the second has partitions")
            await until(lambda: one.metrics.partitions._value.get() < 24, "the first gave some away")
            await stream(500, 1000)
            await until_rows(client, "SELECT count() FROM events", 1000)
            await until(lambda: two.metrics.rows.labels("ingest_events")._value.get() > 0, "the second wrote some")
        await stream(1000, 1500)
        await until_rows(client, "SELECT count() FROM events", 1500)
    assert await asyncio.to_thread(client.command, "SELECT uniqExact(event_id) FROM events") == 1500
    assert await committed(settings) == 1500


async def test_while_clickhouse_is_away_rows_wait_and_none_is_lost_or_doubled(
    settings: SinkSettings, publish: Callable[..., Any], tmp_path: Path
) -> None:
    server = ClickHouseServer(tmp_path / "clickhouse")
    await asyncio.to_thread(server.start)
    try:
        await asyncio.to_thread(migrate_dsn, server.dsn)
        async with running(replace(settings, clickhouse_dsn=server.dsn)) as sink:
            await publish([started(f"a{n}") for n in range(100)])
            await until(lambda: sink.metrics.rows.labels("ingest_events")._value.get() == 100, "the first rows")
            before = await committed(settings)

            await asyncio.to_thread(server.stop)
            await publish([started(f"b{n}") for n in range(100)])
            await until(lambda: sink.metrics.retries._value.get() >= 3, "some tries failed")
            assert [reason for reason in sink.not_ready() if reason.startswith("ClickHouse")]
            assert sink.unhealthy() == []
            assert await committed(settings) == before
            assert sink._consumer is not None
            await until(sink._consumer.paused, "the consumer is paused")

            await asyncio.to_thread(server.start)
            await until(lambda: sink.metrics.rows.labels("ingest_events")._value.get() >= 200, "the rest", 40)
            await until(lambda: not sink.not_ready(), "ready again")
            import clickhouse_connect

            with clickhouse_connect.get_client(dsn=server.dsn) as mine:
                assert mine.command("SELECT count() FROM events") == 200
        assert await committed(settings) == 200
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_stop_while_clickhouse_is_away_ends_in_time_and_commits_nothing(
    settings: SinkSettings, publish: Callable[..., Any], tmp_path: Path
) -> None:
    server = ClickHouseServer(tmp_path / "clickhouse")
    await asyncio.to_thread(server.start)
    try:
        await asyncio.to_thread(migrate_dsn, server.dsn)
        async with running(replace(settings, clickhouse_dsn=server.dsn)) as sink:
            await asyncio.to_thread(server.stop)
            await publish([started()])
            await until(lambda: sink.metrics.retries._value.get() >= 1, "a try failed")
    finally:
        await asyncio.to_thread(server.stop)
    assert await committed(settings) == 0


async def test_a_batch_is_bounded_in_bytes(settings: SinkSettings, publish: Callable[..., Any], client: Client) -> None:
    big = [started(f"k{n}", native={"text": "x" * 100_000}) for n in range(60)]
    async with running(replace(settings, batch_bytes=1 << 20, batch_ms=5_000)) as sink:
        await publish(big)
        await until_rows(client, "SELECT count() FROM events", 60)
        # 6 MB at about 1 MB a batch; a fetch brings more than one batch takes.
        batches = next(s.value for s in sink.metrics.batch.collect()[0].samples if s.name.endswith("_count"))
        assert batches >= 3


async def test_the_page_tells_health_readiness_and_metrics(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    async with running(settings) as sink, aiohttp.ClientSession(f"http://127.0.0.1:{sink.port}") as http:
        await publish([started()])
        await until(lambda: sink.metrics.rows.labels("ingest_events")._value.get() == 1, "the row is acknowledged")
        async with http.get("/healthz") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "ok")
        async with http.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": []})
        async with http.get("/metrics") as answer:
            text = await answer.text()
        assert 'agenttrace_sink_rows_total{table="ingest_events"} 1.0' in text
        assert "agenttrace_sink_clickhouse_up 1.0" in text

        busy = Sink(replace(settings, port=sink.port))
        with pytest.raises(UserError, match=r"port \d+ on 127\.0\.0\.1 cannot be used .*: set sink\.port"):
            await busy.run()


async def test_the_program_tells_in_one_line_why_it_does_not_run(settings: SinkSettings) -> None:
    async def program(**env: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "services.clickhouse_sink"),
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(Path.cwd()), **env},
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, told.decode().strip()

    kafka = {"AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": settings.servers}
    code, told = await program(**kafka)
    assert (code, told) == (78, "no ClickHouse to talk to: set clickhouse.dsn (AGENTTRACE_CLICKHOUSE__DSN)")
    code, told = await program(**kafka, AGENTTRACE_CLICKHOUSE__DSN=settings.clickhouse_dsn + "_missing")
    assert code == 78
    assert told.endswith("make it with `agenttrace migrate`")
    assert "\n" not in told


async def refusal(settings: SinkSettings) -> UserError:
    with pytest.raises(UserError) as error:
        await asyncio.wait_for(Sink(settings).run(), 60)
    assert "\n" not in str(error.value)
    return error.value


async def test_tables_that_are_missing_or_old_are_told(settings: SinkSettings, client: Client) -> None:
    client.command("ALTER TABLE schema_migrations DELETE WHERE name > '0005' SETTINGS mutations_sync = 1")
    told = await refusal(settings)
    assert "0005_findings.sql is not applied): run `agenttrace migrate`" in str(told)


async def test_a_missing_topic_is_told(settings: SinkSettings, kafka_bootstrap: str) -> None:
    told = await refusal(replace(settings, topic_prefix="nowhere."))
    assert "has no topic nowhere.agenttrace.tool.call" in str(told)
    assert "agenttrace topics create" in str(told)
    assert RULES not in str(told)


async def test_a_refused_login_to_clickhouse_is_told(settings: SinkSettings) -> None:
    from urllib.parse import urlsplit

    from services.clickhouse_sink import clickhouse

    at = clickhouse.place(settings.clickhouse_dsn)
    dsn = urlsplit(settings.clickhouse_dsn)._replace(netloc=f"nobody:wrong@{at}").geturl()
    told = await refusal(replace(settings, clickhouse_dsn=dsn))
    assert "refused the login" in str(told)
    assert told.exit_code == 77


async def test_a_refused_login_to_kafka_is_told(settings: SinkSettings, tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", sasl_users={"alice": "open sesame"}) as broker:
        login = {
            "bootstrap_servers": broker.sasl_bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "open barley",
        }
        told = await refusal(replace(settings, kafka=login))
    assert "refused the login" in str(told)
    assert told.exit_code == 77
    assert "barley" not in str(told)


async def test_a_kafka_that_is_away_at_the_start_is_waited_for(settings: SinkSettings) -> None:
    from services.embedded.host import free_port

    sink = Sink(replace(settings, kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"}))
    task = asyncio.create_task(sink.run())
    await until(lambda: any(reason.startswith("Kafka") for reason in sink.not_ready()), "it says that Kafka is away")
    assert sink.unhealthy() == []
    sink.stop()
    await asyncio.wait_for(task, 10)


async def test_the_same_event_published_twice_is_one_row(
    settings: SinkSettings, publish: Callable[..., Any], client: Client
) -> None:
    value = event("session.started", 0, reason="startup")
    async with running(settings):
        await publish([value, value])
        await publish([value, completed()])
        await until_rows(client, "SELECT count() FROM events", 2)
    assert await committed(settings) == 4
