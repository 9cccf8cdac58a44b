"""Replay on a real Kafka: it says what live workers say, the same each time, whatever the batches, and it says its gaps."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from pipelines.replay import canonical_of_topics, diff, replay, sha256
from pipelines.runtime.port import CanonicalSet, Event
from schemas.identity import derived_id
from schemas.topics import INPUT_TOPICS, RISK_FINDING, RISK_FINDING_OCSF, TOOL_CALL, TOOL_CALL_DERIVED, TOOL_METRIC
from tests.part_process import ROOT
from tests.pipelines.helpers import T0, call_event, event
from tests.pipelines.runtime.conftest import broker, start
from tests.pipelines.runtime.harness import Broker, Process, until
from tests.pipelines.runtime.worker_process import factories
from tests.pipelines.test_operators import history

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

__all__ = ["broker", "start"]

TTL_MS = 120_000
Operators = factories(TTL_MS, "all")
History = list[tuple[int, Event]]


@pytest.fixture
async def past(broker: Broker) -> AsyncIterator[Broker]:
    """Topics where the producer sets the log times, so that everything in them fell due long ago."""
    await make(broker)
    yield broker


async def make(broker: Broker) -> None:
    await broker.create(leave_out=INPUT_TOPICS)
    for topic in INPUT_TOPICS:
        await broker.create_topic(topic, 2, {"message.timestamp.type": "CreateTime", "retention.ms": "-1"})


async def publish(broker: Broker, made: History, partition: int = 0, batch: int = 100) -> None:
    for at in range(0, len(made), batch):
        some = made[at : at + batch]
        await broker.publish([body for _, body in some], partition, [T0 + at_ms for at_ms, _ in some])


def of_its_own(made: History, number: int) -> History:
    """With sessions and calls that no other history has, as what is in one partition is in no other."""
    names = {"session_id", "root_session_id", "call_id"}
    own = lambda name, value: derived_id("own", value, number) if name in names else value  # noqa: E731
    return [(at_ms, {name: own(name, value) for name, value in body.items()}) for at_ms, body in made]


def lines(said: CanonicalSet) -> list[bytes]:
    return list(said.lines())


async def test_live_and_replay_say_the_same_byte_for_byte_whatever_the_batches(
    past: Broker, start: Callable[..., Process]
) -> None:
    made = [of_its_own(history(Random(seed), 200), seed) for seed in (1, 2)]
    await publish(past, made[0], 0)
    await publish(past, made[1], 1)
    await past.publish([(TOOL_CALL, b"no JSON")], 1, [T0 + 960_000])
    done = await replay(past.kafka, Operators, prefix=past.prefix)
    assert {topic for topic, count in done.said.counts().items() if count} == {
        TOOL_CALL_DERIVED,
        TOOL_METRIC,
        RISK_FINDING,
    }

    worker = start(TTL_MS, operators="all")

    async def same() -> bool:
        return not diff(await canonical_of_topics(past.kafka, past.prefix), done.said)

    await until(same, "what the worker says is what the replay says")
    assert lines(await canonical_of_topics(past.kafka, past.prefix)) == lines(done.said)
    assert worker.terminate() < 10
    now_ms = time.time_ns() // 1_000_000
    again = await replay(past.kafka, Operators, prefix=past.prefix, until_ms=now_ms)
    assert sha256(again.said) == sha256(done.said)
    assert sum(done.records.values()) == sum(map(len, made)) + 1
    assert [(refused.topic, refused.partition, refused.by) for refused in done.refusals] == [(TOOL_CALL, 1, "decode")]
    assert (done.partial, done.failures, done.warmed) == ([], [], 0)
    # The same records in batches of one, where the log begins anew.
    copy = Broker(past.bootstrap, past.prefix + "copy.")
    try:
        await make(copy)
        for number in (0, 1):
            await publish(copy, made[number], number, batch=1)
        other = await replay(copy.kafka, Operators, prefix=copy.prefix)
        assert lines(other.said) == lines(done.said)
    finally:
        await copy.close()


async def test_a_range_says_what_follows_from_its_records_with_the_state_of_those_before(past: Broker) -> None:
    made = history(Random(3), 200)
    await publish(past, made)
    whole = await replay(past.kafka, Operators, prefix=past.prefix)
    middle_ms = T0 + 450_000
    first = await replay(past.kafka, Operators, prefix=past.prefix, until_ms=middle_ms)
    second = await replay(past.kafka, Operators, prefix=past.prefix, start=middle_ms + 1)
    assert sum(first.records.values()) + sum(second.records.values()) == len(made)
    assert second.warmed == sum(first.records.values())
    assert 0 < len(second.said) < len(whole.said)
    # What the second says replaces what the first said.
    both = CanonicalSet()
    for part in (first, second):
        for row in map(orjson.loads, part.said.lines()):
            both.add(row["topic"], row["id"], row["body"])
    assert not {line for line in diff(both, whole.said) if not line.startswith("only in the first")}
    # By offsets it is the same range.
    starts = {place: bounds[0] for place, bounds in second.ranges.items()}
    ends = {place: bounds[1] for place, bounds in second.ranges.items()}
    again = await replay(past.kafka, Operators, prefix=past.prefix, start=starts, end=ends)
    assert again.ranges == second.ranges
    assert again.warmed == second.warmed


async def test_deleted_records_make_it_partial(past: Broker) -> None:
    made = history(Random(4), 100)
    await publish(past, made)
    whole = await replay(past.kafka, Operators, prefix=past.prefix)
    await past.delete_before(TOOL_CALL, 0, 20)
    done = await replay(past.kafka, Operators, prefix=past.prefix)
    assert done.partial == [(TOOL_CALL, 0)]
    assert done.ranges[TOOL_CALL, 0][0] == 20
    assert diff(done.said, whole.said)


async def test_what_falls_due_later_than_until_is_not_said(past: Broker) -> None:
    await publish(past, [(0, call_event("tool.call.started", 0)), (500_000, event("session.started", 500_000))])
    early = await replay(past.kafka, Operators, prefix=past.prefix, until_ms=T0 + TTL_MS - 1)
    assert not early.said.bodies(TOOL_CALL_DERIVED)
    assert sum(early.records.values()) == 1
    due = await replay(past.kafka, Operators, prefix=past.prefix, until_ms=T0 + TTL_MS)
    assert len(due.said.bodies(TOOL_CALL_DERIVED)) == 1


async def test_derived_topics_are_folded_by_id_and_version(broker: Broker) -> None:
    await broker.create()
    finding = {"event_id": "e", "finding_id": "f", "version": 2, "n": 1}
    rows: list[tuple[str, Event]] = [
        (RISK_FINDING, finding),
        (RISK_FINDING, {**finding, "version": 1, "n": 2}),
        (TOOL_METRIC, {"event_id": "m", "version": 1}),
        (TOOL_METRIC, {"event_id": "m", "version": 2, "retracted": True}),
        (RISK_FINDING_OCSF, {"class_uid": 2004}),
    ]
    await broker.publish([(topic, orjson.dumps(body)) for topic, body in rows])
    said = await canonical_of_topics(broker.kafka, broker.prefix)
    assert lines(said) == [
        b'{"body":{"event_id":"e","finding_id":"f","n":1},"id":"f","topic":"agenttrace.risk.finding"}',
        b'{"body":{"class_uid":2004},"id":"k","topic":"agenttrace.risk.finding.ocsf"}',
    ]


@pytest.mark.unit
def test_a_difference_is_told_by_id_and_field_without_content() -> None:
    a, b = CanonicalSet(), CanonicalSet()
    for said, number in ((a, 1), (b, 2)):
        said.add("t", "same", {"x": 1, "version": number})
        said.add("t", "other", {"x": "secret", "n": number})
        said.add("t", f"only{number}", {})
    assert diff(a, a) == []
    assert diff(a, b) == ["only in the first: t only1", "only in the second: t only2", "different: t other: n"]


def agenttrace(bootstrap: str, home: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AGENTTRACE_")}
    env |= {"AGENTTRACE_HOME": str(home), "AGENTTRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap}
    command = [sys.executable, "-m", "services.cli.main", "replay", *words]
    return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False, cwd=ROOT)


async def test_the_command_writes_records_and_a_summary_that_names_the_range(past: Broker, tmp_path: Path) -> None:
    await publish(past, history(Random(5), 30))

    def run(*words: str) -> Any:
        return agenttrace(past.bootstrap, tmp_path, "--prefix", past.prefix, *words)

    out, copy = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    done = run("--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    summary = orjson.loads(done.stdout)
    rows = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    assert rows
    assert [(row["topic"], row["id"]) for row in rows] == sorted((row["topic"], row["id"]) for row in rows)
    assert sum(summary["outputs"].values()) == len(rows)
    assert (summary["state"], summary["refused"], summary["bytes"]) == ("complete", {}, out.stat().st_size)
    # Later records are no part of the range that the summary names.
    await publish(past, [(1_000_000, call_event("tool.call.started", 1_000_000, "late"))])
    (tmp_path / "range.json").write_bytes(done.stdout)
    again = run("--range", str(tmp_path / "range.json"), "--out", str(copy))
    assert again.returncode == 0, again.stderr
    assert copy.read_bytes() == out.read_bytes()
    assert summary["sha256"].encode() in again.stdout
    more = run()
    assert more.stdout != out.read_bytes()
    assert b"records of agenttrace.tool.call" in more.stderr


def test_mistakes_are_told_in_one_line(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    prefix = ("--prefix", topic_prefix)
    for words, told, code in [
        (prefix, b"lacks input topics", 69),
        (("--since", "yesterday"), b"'yesterday' is no time", 2),
        (("--range", str(tmp_path / "x.json")), b"no summary of a replay", 65),
        (("--range", str(tmp_path / "x.json"), "--since", "2h"), b"--range says the whole range", 2),
        ((*prefix, "--out", str(tmp_path / "no" / "a")), b"cannot be written", 73),
    ]:
        done = agenttrace(kafka_bootstrap, tmp_path, *words)
        assert (done.returncode, told in done.stderr) == (code, True), done.stderr
        assert b"Traceback" not in done.stderr
