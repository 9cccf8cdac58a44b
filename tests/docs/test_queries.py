"""Every query of docs/queries.md, word for word, on events that came in as the sink writes them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import orjson
import pytest
from clickhouse_connect.driver import Client

from pipelines.rolling_metrics.sketch import bucket
from schemas.identity import call_id, derived_id, event_id, new_delivery_id
from schemas.topics import DLQ
from services.clickhouse_sink.migrate import migrate_dsn
from tests.services.clickhouse_sink.conftest import Written
from tests.services.clickhouse_sink.events import (
    T0,
    Json,
    completed,
    derived,
    event,
    failed,
    finding,
    metric,
    producer,
    record,
    rpc,
    started,
)

PAGE = Path(__file__).parents[2] / "docs" / "queries.md"
BLOCKS: dict[str, str] = dict(re.findall(r"^## (.+?)\n+```sql\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))

Ask = Callable[[str], list[Json]]


@pytest.fixture
def client(clickhouse_db: str) -> Iterator[Client]:
    """A client of a database with all tables."""
    migrate_dsn(clickhouse_db)
    with clickhouse_connect.get_client(dsn=clickhouse_db) as connected:
        yield connected


@pytest.fixture
async def write(clickhouse_db: str, client: Client) -> AsyncIterator[Written]:
    """`await write(events)`: one batch, by the sink's own code."""
    written = Written(clickhouse_db)
    await written.writer.open()
    yield written
    written.writer.close()


@pytest.fixture
def ask(client: Client) -> Ask:
    """`ask(heading)`: the rows that the query under a heading gives."""

    def answer(heading: str) -> list[Json]:
        return list(client.query(BLOCKS[heading]).named_results())

    return answer


SESSION: Json = {"session_id": "session-1", "root_session_id": "session-1"}


@pytest.mark.contract
def test_every_heading_has_a_query_and_a_test() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert headings == list(BLOCKS)
    here = Path(__file__).read_text()
    assert [heading for heading in headings if f'ask("{heading}")' not in here] == []


@pytest.mark.integration
def test_the_page_names_every_view_and_its_columns(client: Client) -> None:
    told = {
        name: set(re.findall(r"`(\w+)`", columns))
        for name, columns in re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    }
    views = client.query("SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View'")
    assert set(told) == set(views.result_columns[0])
    for name, columns in told.items():
        known = set(client.query(f"DESCRIBE TABLE {name}").result_columns[0])
        assert columns <= known, f"{name}: {columns - known}"
        if name not in ("mcp_daily_stats", "producer_losses"):
            assert {"_topic", "_partition", "_offset", "_log_time"} <= known, name


@pytest.mark.integration
async def test_a_session_in_order(write: Written, ask: Ask) -> None:
    child = {"session_id": "session-2", "root_session_id": "session-1"}
    await write(
        [
            completed("b", 400, **child),
            started("a", 100, **SESSION, facts={"paths": ({"path": "/etc/hosts", "kind": "read"},)}),
            started("b", 300, **child),
            event("session.started", 0, **SESSION),
            completed("a", 200, **SESSION),
            started("c", 150, session_id="session-9", root_session_id="session-9"),
        ]
    )
    rows = ask("What did a session do, in order?")
    assert [row["event_name"] for row in rows] == [
        "session.started",
        "tool.call.started",
        "tool.call.completed",
        "tool.call.started",
        "tool.call.completed",
    ]
    assert rows[1]["paths"] == ["/etc/hosts"]


@pytest.mark.integration
async def test_calls_of_a_session(write: Written, ask: Ask) -> None:
    child = {"session_id": "session-2", "root_session_id": "session-1"}
    await write([started("b", 50, **child), started("a", 0, **SESSION), started("c", 10), failed("b", 90, **child)])
    rows = ask("Which calls did a session make?")
    assert [(row["call_id"], row["status"]) for row in rows] == [
        (call_id("a", 1), "started"),
        (call_id("b", 1), "error"),
    ]


@pytest.mark.integration
async def test_calls_that_never_ended(write: Written, ask: Ask) -> None:
    await write([started("open", 5), started("gone"), started("late"), started("fine"), completed("fine")])
    await write([derived("tool.call.timed_out", "gone", maybe_blocked=True), derived("tool.call.timed_out", "late")])
    await write([completed("late", 999_000)])
    rows = ask("Which calls never ended?")
    assert [(row["call_id"], row["status"], row["maybe_blocked"]) for row in rows] == [
        (call_id("gone", 1), "timed_out", True),
        (call_id("open", 1), "started", False),
    ]


@pytest.mark.integration
async def test_quantiles_of_any_window_are_within_the_promised_error(write: Written, ask: Ask) -> None:
    chance = random.Random(7)
    windows: list[Json] = []
    exact: dict[str, list[float]] = {}
    for tool, spread in (("Bash", 1.5), ("WebFetch", 0.4), ("Nap", 0.0)):
        for start in range(12):
            for partition in range(3):
                durations = [chance.lognormvariate(5, spread) for _ in range(chance.randint(1, 60))]
                durations += [0.0] * (chance.random() < 0.3)
                sketch: dict[int, int] = {}
                for ms in durations:
                    index = bucket(ms)
                    if index is not None:
                        sketch[index] = sketch.get(index, 0) + 1
                zero = durations.count(0.0)
                windows.append(metric(sketch, start=start, partition=partition, tool_name=tool, zero_count=zero))
                exact.setdefault(tool, []).extend(durations)
    # A superseded window, the wire's view of the same calls, and a longer window: none of them may be added.
    windows += [metric({900: 5000}, version=0, start=3), metric({900: 5000}, tool_name="rpc:tools/call:x")]
    windows += [metric({900: 5000}) | {"window": "5m", "event_id": derived_id("five")}]
    chance.shuffle(windows)
    for first in range(0, len(windows), 13):
        await write(windows[first : first + 13])

    rows = {row["tool_name"]: row for row in ask("Which tools are slowest?")}
    assert set(rows) == set(exact)
    for tool, durations in exact.items():
        durations.sort()
        assert rows[tool]["calls"] == len(durations)
        for name, q in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
            wanted = durations[max(1, math.ceil(q * len(durations))) - 1]
            # The query rounds to a tenth of a millisecond.
            assert rows[tool][name] == pytest.approx(wanted, rel=0.0109, abs=0.05), f"{tool} {name}"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("zero", "sketch", "q", "wanted"),
    [
        (0, {}, 0.5, None),
        (3, {}, 0.99, 0.0),
        (3, {0: 1}, 0.75, 0.0),
        (3, {0: 1}, 0.76, 2 ** (1 / 32) * 2 / (1 + 2 ** (1 / 32))),
        (0, {-640: 1, 320: 1}, 0.0, 2**-20 * 2 ** (1 / 32) * 2 / (1 + 2 ** (1 / 32))),
        (0, {-640: 1, 320: 1}, 1.0, 1024 * 2 ** (1 / 32) * 2 / (1 + 2 ** (1 / 32))),
        (0, {-32768: 1}, 0.5, 0.0),
    ],
)
def test_the_quantile_function_at_its_edges(
    client: Client, zero: int, sketch: dict[int, int], q: float, wanted: float | None
) -> None:
    buckets = ", ".join(f"{index}, {count}" for index, count in sketch.items())
    sql = f"SELECT agenttrace_quantile({q}, {zero}, CAST(map({buckets}), 'Map(Int16, UInt64)'))"
    [[found]] = client.query(sql).result_rows
    assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-12))


@pytest.mark.integration
async def test_the_quantile_function_agrees_with_the_pipelines(client: Client) -> None:
    from pipelines.rolling_metrics.sketch import quantiles

    chance = random.Random(3)
    for _ in range(20):
        sketch = {chance.randint(-200, 600): chance.randint(1, 9) for _ in range(chance.randint(1, 40))}
        zero = chance.randint(0, 20)
        text = ", ".join(f"{index}, {count}" for index, count in sketch.items())
        wanted = (0.01, 0.5, 0.9, 0.95, 0.99, 1.0)
        calls = ", ".join(f"agenttrace_quantile({q}, {zero}, CAST(map({text}), 'Map(Int16, UInt64)'))" for q in wanted)
        [found] = client.query(f"SELECT {calls}").result_rows
        assert list(found) == pytest.approx(quantiles(zero, sketch, wanted))


@pytest.mark.integration
async def test_error_rate_by_server_and_hour(write: Written, ask: Ask) -> None:
    mcp = {"mcp": {"server_name": "github", "tool_name": "search"}, "tool_source": "mcp"}
    hour = 3_600_000
    await write(
        [
            completed("a", 0, **mcp),
            failed("b", 10, **mcp),
            completed("c", 20, **mcp, outcome="unknown", outcome_evidence="none"),
            failed("d", hour, **mcp),
            rpc("mcp.rpc.request", "op", 30),
            rpc("mcp.rpc.response", "op", 40, is_error_result=True),
        ]
    )
    rows = ask("What is the error rate of each MCP server, by hour?")
    assert [(row["hour"].hour, row["calls"], row["failed"], row["error_rate"]) for row in rows] == [
        (18, 4, 2, 0.667),
        (19, 1, 1, 1.0),
    ]


@pytest.mark.integration
async def test_a_secret_and_what_followed(write: Written, ask: Ask) -> None:
    reads = {"paths": ({"path": "/home/dev/project/.env", "kind": "read"},)}
    sends = {"hosts": ({"host": "collect.example.net", "domain": "example.net"},)}
    await write(
        [
            started("read", 0, **SESSION, tool_name="Read", facts=reads),
            completed("read", 50, **SESSION, tool_name="Read", facts={"secret_kinds": ("aws_access_key",)}),
            started("send", 10_000, **SESSION, facts=sends),
            started("later", 200_000, **SESSION, facts=sends),
            started("other", 10_000, session_id="session-2", root_session_id="session-2", facts=sends),
        ]
    )
    rows = ask("Who read a secret, and what followed?")
    assert [(row["session"], row["reader"], row["secret_kinds"], row["then_domains"]) for row in rows] == [
        ("session-1", "Read", [], ["example.net"]),
        ("session-1", "Read", ["aws_access_key"], ["example.net"]),
    ]


@pytest.mark.integration
async def test_a_value_that_moved(write: Written, ask: Ask) -> None:
    await write(
        [
            completed("read", 0, facts={"fingerprints": ("aa", "bb")}),
            started("send", 10, facts={"fingerprints": ("bb",)}),
            completed("send", 20, facts={"fingerprints": ("cc",)}),
        ]
    )
    rows = ask("Where did a value go?")
    assert [(row["fingerprint"], row["event_name"]) for row in rows] == [
        ("bb", "tool.call.completed"),
        ("bb", "tool.call.started"),
    ]


def beat(epoch: int, seq: int, through: int, **fields: Any) -> Json:
    return event(
        "producer.heartbeat", producer=producer(epoch, seq, **fields), published_through=through, uptime_ms=seq
    )


@pytest.mark.integration
async def test_losses_are_exact(write: Written, ask: Ask) -> None:
    """Epoch 1: 20 seqs, of which 4 and 5 vanish, 8 to 10 are dropped with a receipt and 13 is a dead letter. Epoch 2 begins
    and says that epoch 1 had 22; 21 and 22 are missing too. Seqs of epoch 2 above its heartbeat are under way.
    """
    there = [n for n in range(1, 21) if n not in (4, 5, 8, 9, 10, 13, 17, 20)]
    events = [started(f"one-{n}", n, producer=producer(1, n)) for n in there]
    receipt = {"reason": "journal_full", "count": 3, "ranges": ({"epoch": 1, "first": 8, "last": 10},)}
    events += [event("producer.dropped", producer=producer(1, 17), **receipt), beat(1, 20, 19)]
    chance = random.Random(1)
    for _ in range(3):
        chance.shuffle(events)
        for first in range(0, len(events), 4):
            await write(events[first : first + 4])
    letter = orjson.dumps({"event_id": event_id(new_delivery_id(T0), 0), "producer": producer(1, 13)})
    await write.records([record(DLQ, letter, headers=(("at_by", b"collector"), ("at_why", b"too large")))])

    def losses() -> list[tuple[Any, ...]]:
        rows = ask("What was lost?")
        return [(row["producer_epoch"], row["kind"], row["first_seq"], row["last_seq"], row["lost"]) for row in rows]

    told = [(1, "dropped", 8, 10, 3), (1, "refused", 13, 13, 1)]
    assert losses() == [(1, "missing", 4, 5, 2), *told]

    await write([started("two-1", producer=producer(2, 1, previous_epoch=1, previous_seq=22))])
    await write([started("two-9", producer=producer(2, 9)), beat(2, 6, 3)])
    assert losses() == [(1, "missing", 4, 5, 2), *told, (1, "missing", 21, 22, 2), (2, "missing", 2, 3, 2)]

    await write([started("late", producer=producer(1, 4)), started("later", producer=producer(1, 5))])
    await write([started(f"late-{n}", producer=producer(2, n)) for n in (2, 3)])
    await write([started(f"later-{n}", producer=producer(1, n)) for n in (21, 22)])
    assert losses() == told


@pytest.mark.integration
async def test_findings_with_their_evidence(write: Written, ask: Ask) -> None:
    proof = started("proof", **SESSION)
    reference = {
        "event_id": proof["event_id"],
        "event_name": "tool.call.started",
        "topic": "agenttrace.tool.call",
        "partition": 2,
        "offset": 41,
        "timestamp": proof["timestamp"],
    }
    await write([proof, finding("low", score=10.0), finding("high", score=90.0, evidence=(reference,))])
    rows = ask("What do the findings rest on?")
    assert [(row["score"], row["tool_name"], row["partition"], row["offset"], row["status"]) for row in rows] == [
        (90.0, "Bash", 2, 41, "open"),
        (10.0, "", 0, 7, "open"),
    ]


@pytest.mark.integration
async def test_coverage_by_runtime(write: Written, ask: Ask) -> None:
    mcp = {"mcp": {"server_name": "github"}, "tool_source": "mcp", "agent_version": "2.1"}
    link = {"event_id": derived_id("link"), "call_id": call_id("a", 1), "operation_id": "op-a", "version": 1}
    await write(
        [
            started("a", **mcp),
            started("b", **mcp),
            started("shell", agent_version="2.1"),
            rpc("mcp.rpc.request", "op-a", agent_version="2.1"),
            rpc("mcp.rpc.request", "op-x", agent_version="2.1"),
            rpc("mcp.rpc.request", "op-list", agent_version="2.1", method="tools/list"),
            event("trace.link.created", **link, method="traceparent", confidence=1.0),
        ]
    )
    assert ask("Which runtimes are covered from both sides?") == [
        {
            "agent_runtime": "claude_code",
            "agent_version": "2.1",
            "seen_by_hook": 2,
            "seen_by_both": 1,
            "seen_by_wire_only": 1,
        }
    ]


@pytest.mark.integration
async def test_tools_that_changed(write: Written, ask: Ask) -> None:
    for at, fingerprint in ((0, "a"), (1000, "b")):
        tools = ({"name": "search", "fingerprint": fingerprint}, {"name": "same", "fingerprint": "s"})
        await write([event("mcp.tools.listed", at, mcp_server="github", tools=tools, count=2)])
    rows = ask("Which tools changed their description or schema?")
    assert [(row["tool_name"], row["revision"], row["fingerprint"]) for row in rows] == [
        ("search", 1, "a"),
        ("search", 2, "b"),
    ]


@pytest.mark.integration
async def test_roles_and_providers_by_day(write: Written, ask: Ask) -> None:
    mcp = {"mcp": {"server_name": "prometheus", "tool_name": "query"}, "tool_source": "mcp", "agent_role": "nemotron"}
    await write([completed("a", **mcp, duration_ms=10.0), failed("b", **mcp, duration_ms=30.0)])
    rows = ask("What did each role do with each provider, by day?")
    assert [(row["agent_role"], row["tool_name"], row["calls"], row["failed"], row["slowest_ms"]) for row in rows] == [
        ("nemotron", "query", 2, 1, 30.0)
    ]


@pytest.mark.integration
async def test_what_was_refused(write: Written, ask: Ask) -> None:
    headers = (("at_by", b"collector"), ("at_why", b"too large"), ("at_from", b"agenttrace.tool.call/1/9"))
    letters = [record(DLQ, b'{"size_bytes": %d}' % n, offset=n, headers=headers) for n in (1, 2, 2)]
    await write.records(letters)
    [row] = ask("What was refused, and why?")
    assert (row["refused_by"], row["why"], row["records"]) == ("collector", "too large", 2)
    assert row["for_example"] == "agenttrace.tool.call/1/9"
