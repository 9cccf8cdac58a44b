"""The judge of every storm: what was answered against Kafka, a fresh replay, and ClickHouse. Messages hold ids and counts,
never content.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clickhouse_connect
import orjson

from pipelines.operators import build_operators
from pipelines.replay import canonical_of_topics, diff, replay
from pipelines.runtime.port import CanonicalSet
from schemas.topics import INPUT_TOPICS, RISK_FINDING, TOOL_CALL_DERIVED, TOOL_METRIC
from services.collector.journal import Journal
from services.collector.state import delivery_key
from tests.chaos.load import Fate
from tests.chaos.log import DERIVED_TOPICS, SINK_GROUP, WORKER_GROUP, InputLog, behind, ends
from tests.chaos.stand import Failure, Stand, wait_for

SETTLE_S = 240.0
EQUAL_S = 90.0
SLACKS_MS = (4000, 3000, 5000, 3500)
"""How far behind the clock a worker's progress is where nothing comes: 2 s by design, the rest by polling."""
_SHOWN = 5
_UNSAID = ("version", "state", "retracted")


@dataclass(slots=True)
class Verdict:
    """What is wrong (nothing, if all is well), and the figures."""

    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def say(self, what: str, found: Iterable[str]) -> None:
        """Note a problem with its first examples, if there are any."""
        listed = list(found)
        if listed:
            more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
            self.problems.append(f"{what}: {len(listed)}: {'; '.join(listed[:_SHOWN])}{more}")


def judge(stand: Stand, fates: list[Fate], journal: bool = True) -> Verdict:
    """Wait until the stack is at rest, then hold everything against everything.

    `journal`: whether the journal still holds all of the storm.
    """
    verdict = Verdict()
    began = time.monotonic()
    log = InputLog(stand.kafka)
    try:
        at_rest(stand, fates, log)
        verdict.figures["settle_s"] = round(time.monotonic() - began, 1)
        accepted(stand, fates, log, verdict, journal)
        # So that the calls that never end are over for both sides.
        over = time.monotonic() + stand.ttl_ms / 1000 - (time.monotonic() - began) + 2 * max(SLACKS_MS) / 1000
        wait_for(lambda: time.monotonic() > over, "calls without an end are over", stand.ttl_ms)
        if live := equal_to_replay(stand, verdict):
            equal_in_clickhouse(stand, log, live, verdict)
    except Failure as failure:
        verdict.problems.append(str(failure))
        verdict.figures.setdefault("deliveries_in_kafka", len(log.deliveries))
    return verdict


def at_rest(stand: Stand, fates: list[Fate], log: InputLog) -> None:
    """All that was taken is in Kafka, and worker and sink have committed all of it. Raises Failure."""
    named = {fate.id[:-4] for fate in fates if fate.named and fate.end != "lost"}

    def arrived() -> bool:
        log.read()
        return named <= log.deliveries.keys() and not _spooled(stand.home)

    try:
        wait_for(arrived, "every answered or spooled delivery is in Kafka", SETTLE_S, every_s=1)
    except Failure as failure:
        raise Failure(
            f"{failure} ({len(named - log.deliveries.keys())} missing, {_spooled(stand.home)} in spool)"
        ) from None
    wait_for(lambda: stand.metric("agenttrace_collector_unpublished_bytes") < 4096, "the journal is published", 60, 1)
    log.read()
    inputs = ends(stand.kafka, INPUT_TOPICS)
    wait_for(lambda: not behind(stand.kafka, WORKER_GROUP, inputs), "the worker has read all", SETTLE_S, 0.5)
    # The worker commits only what it has said, so all that follows from those inputs is there now.
    upto = inputs | ends(stand.kafka, DERIVED_TOPICS)
    wait_for(lambda: not behind(stand.kafka, SINK_GROUP, upto), "the sink has read all", SETTLE_S, 0.5)


def accepted(stand: Stand, fates: list[Fate], log: InputLog, verdict: Verdict, journal: bool) -> None:
    """Every delivery with its events once in journal, Kafka and ClickHouse; every seq there or receipted."""
    named = {fate.id[:-4] for fate in fates if fate.named}
    anonymous = sum(not fate.named and fate.end == "answered" for fate in fates)
    strangers = log.deliveries.keys() - named
    verdict.figures |= {
        "hooks": len(fates),
        "answered": sum(fate.end == "answered" for fate in fates),
        "spooled": sum(fate.end == "spooled" for fate in fates),
        "events": len(log.places_of),
        "repeats_in_kafka": log.records - len(log.ids_of),
        "epochs": len({(producer, epoch) for producer, epoch, _ in log.ids_of}),
        "dead_letters": log.dead_letters,
    }
    verdict.say("deliveries not in Kafka", sorted(named - log.deliveries.keys()))
    if len(strangers) + sum(receipt.count for receipt in log.receipts.values()) != anonymous:
        verdict.problems.append(f"{anonymous} hooks without an id were answered, {len(strangers)} are in Kafka")
    verdict.say("events under two seqs", (i for i, places in log.places_of.items() if len(places) > 1))
    verdict.say("seqs with two events", (f"{p[1]}/{p[2]}" for p, ids in log.ids_of.items() if len(ids) > 1))
    verdict.say("unreceipted gaps", log.gaps())
    if log.dead_letters:
        verdict.problems.append(f"{log.dead_letters} dead letters")
    if journal:
        written: Counter[str] = Counter()
        deliveries: set[str] = set()
        for line in Journal(stand.home / "collector" / "journal").lines():
            written.update(event["event_id"] for event in line.events or ())
            deliveries.update(delivery_key(event) for event in line.events or ())
        verdict.say("deliveries not in the journal", sorted(named - deliveries))
        verdict.say("events twice in the journal", (i for i, count in written.items() if count > 1))
        verdict.say("events in Kafka but not in the journal", log.places_of.keys() - written.keys())
        # Those behind the last read are on their way.
        missing = written.keys() - log.places_of.keys()
        if missing:
            log.read()
        verdict.say("events in the journal but not in Kafka", missing - log.places_of.keys())
    with clickhouse_connect.get_client(dsn=stand.engine.dsn) as client:
        rows = client.query(
            "select event_id, count() from events where producer_id != '' group by event_id"
        ).result_rows
        rows = {row[0]: row[1] for row in rows}
        lost = client.query("select count() from producer_losses where kind = 'missing'").result_rows[0][0]
    verdict.say("events not in ClickHouse", log.places_of.keys() - rows.keys())
    verdict.say("events twice in ClickHouse's view", (i for i, count in rows.items() if count > 1))
    if rows.keys() - log.places_of.keys():
        log.read()
    verdict.say("rows in ClickHouse without an event", rows.keys() - log.places_of.keys())
    if lost:
        verdict.problems.append(f"the view producer_losses names {lost} runs as missing")


def equal_to_replay(stand: Stand, verdict: Verdict) -> CanonicalSet | None:
    """The derived topics as a set, once that equals what a fresh single worker says of the same log; None if it never does.

    A worker at rest says something whenever a window closes or a call's time is over, so the two are compared until they
    meet: a defect of the set stays, a difference of a second does not.
    """
    operators = build_operators(stand.config)
    began = time.monotonic()
    tries = 0
    while True:
        live = asyncio.run(canonical_of_topics(stand.kafka))
        until_ms = time.time_ns() // 1_000_000 - SLACKS_MS[tries % len(SLACKS_MS)]
        again = asyncio.run(replay(stand.kafka, operators, until_ms=until_ms))
        found = diff(live, again.said)
        tries += 1
        if not found:
            break
        if time.monotonic() - began > EQUAL_S:
            verdict.say("live and replay differ", found)
            return None
    topics = Counter(topic.rpartition("agenttrace.")[2] for topic in DERIVED_TOPICS for _ in live.bodies(topic))
    verdict.figures["derived"] = dict(topics)
    verdict.figures["compared"] = tries
    if again.refusals:
        verdict.problems.append(f"the replay refused {len(again.refusals)} records")
    return live


def equal_in_clickhouse(stand: Stand, log: InputLog, live: CanonicalSet, verdict: Verdict) -> None:
    """The views of findings, calls, timeouts and metrics, once they equal the derived topics."""
    began = time.monotonic()
    with clickhouse_connect.get_client(dsn=stand.engine.dsn) as client:
        while True:
            found = [*_findings(client, live), *_metrics(client, live), *_calls(client, log, live)]
            if not found or time.monotonic() - began > EQUAL_S:
                break
            time.sleep(1)
            live = asyncio.run(canonical_of_topics(stand.kafka))
    verdict.say("ClickHouse's views and the derived topics differ", found)


def _findings(client: Any, live: CanonicalSet) -> list[str]:
    rows = client.query("select finding_id, payload from risk_findings").result_rows
    return _differences(
        "risk_findings", [(i, _said(orjson.loads(body))) for i, body in rows], live.bodies(RISK_FINDING), _said
    )


def _metrics(client: Any, live: CanonicalSet) -> list[str]:
    names = ("count", "timeouts", "in_flight", "zero_count", "input_bytes", "output_bytes", "provisional")
    asked = f"select event_id, {', '.join(names)}, outcomes, sketch from tool_metrics_raw final where not retracted"
    rows = [(row[0], [*row[1:8], _nonzero(row[8]), _nonzero(row[9])]) for row in client.query(asked).result_rows]
    bodies = live.bodies(TOOL_METRIC)

    def wanted(body: Mapping[str, Any]) -> list[Any]:
        return [*(body.get(name) or 0 for name in names), _nonzero(body.get("outcomes")), _nonzero(body.get("sketch"))]

    found = _differences("tool_metrics", rows, bodies, wanted)
    total = client.query("select sum(count) from tool_metrics").result_rows[0][0]
    counted = sum(body["count"] for body in bodies.values())
    return found if total == counted else [*found, f"the view tool_metrics counts {total}, the topic {counted}"]


def _calls(client: Any, log: InputLog, live: CanonicalSet) -> list[str]:
    given_up = {body["call_id"]: body["event_name"].rpartition(".")[2] for body in _by_weight(live)}
    rows = client.query("select call_id, status, late, ended_at is not null from tool_calls").result_rows
    found = [f"tool_calls: {count} rows of {i}" for i, count in Counter(row[0] for row in rows).items() if count > 1]
    found += [f"tool_calls: no row of {i}" for i in log.calls.keys() - {row[0] for row in rows}]
    for call_id, status, late, ended in rows:
        if call_id not in log.calls:
            found.append(f"tool_calls: {call_id} is in no topic")
        elif ended != log.calls[call_id] or bool(late) != (ended and call_id in given_up):
            found.append(f"tool_calls: {call_id} ended={ended} late={late}")
        elif not ended and status != given_up.get(call_id, "started"):
            found.append(f"tool_calls: {call_id} is {status}, not {given_up.get(call_id, 'started')}")
    return found


def _by_weight(live: CanonicalSet) -> list[dict[str, Any]]:
    # Of a call that is both, abandoned stands.
    return sorted(live.bodies(TOOL_CALL_DERIVED).values(), key=lambda body: body["event_name"], reverse=True)


def _differences(name: str, rows: list[tuple[str, Any]], bodies: Mapping[str, Any], wanted: Any) -> list[str]:
    known = dict(rows)
    found = [f"{name}: {len(rows) - len(known)} doubles"] if len(rows) != len(known) else []
    found += [f"{name}: no row of {i}" for i in bodies.keys() - known.keys()]
    found += [f"{name}: {i} is in no topic" for i in known.keys() - bodies.keys()]
    found += [f"{name}: {i} differs" for i in known.keys() & bodies.keys() if known[i] != wanted(bodies[i])]
    return found


def _said(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _UNSAID}


def _nonzero(counts: Mapping[Any, int] | None) -> dict[str, int]:
    return {str(name): count for name, count in (counts or {}).items() if count}


def _spooled(home: Path) -> int:
    return sum(not path.name.startswith(".") for path in (home / "spool").glob("*/*"))
