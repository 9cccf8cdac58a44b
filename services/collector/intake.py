"""Accept → normalise → facts → redact → journal: everything between a hook's payload and its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from schemas.clock import to_rfc3339
from schemas.events import EVENT, Dropped, EventBase, Runtime, to_json
from schemas.identity import event_id, is_delivery_id, new_delivery_id, uuid7_ms
from schemas.topics import MAX_VALUE_BYTES, TOPIC_OF_EVENT
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS, normalise
from services.capture.content import Capture
from services.collector.journal import Journal
from services.collector.metrics import Metrics
from services.collector.state import Seen, delivery_key

_MAX_AGE_MS = 90 * 86_400_000
_MAX_AHEAD_MS = 86_400_000
OWN_ADAPTER = "collector/1"


@dataclass(slots=True)
class Identity:
    """Who stamps: producer id, epoch, last seq given, and where the epoch before ended."""

    id: str
    epoch: int
    seq: int = 0
    previous_epoch: int | None = None
    previous_seq: int | None = None


@dataclass(slots=True)
class Intake:
    """The single writer of the journal. All methods run on one thread; `now_ms` is the collector's clock."""

    journal: Journal
    calls: CallTable
    seen: Seen
    identity: Identity
    capture: Capture
    metrics: Metrics
    tenant_id: str | None = None
    workspace_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = 1 << 30
    journal_bytes: int = 0
    _drops: dict[str, _Drop] = field(default_factory=dict)

    def context(
        self, runtime: Runtime, delivery_id: str | None, now_ms: int, capture: Capture | None = None
    ) -> Context:
        """What the adapter gets for one delivery. An implausible or missing delivery id is replaced."""
        happened = now_ms
        if delivery_id is None or not is_delivery_id(delivery_id):
            delivery_id = new_delivery_id(now_ms)
        else:
            said = uuid7_ms(delivery_id)
            if now_ms - _MAX_AGE_MS <= said <= now_ms + _MAX_AHEAD_MS:
                happened = said
        return Context(
            runtime=runtime,
            adapter=ADAPTERS[runtime].contract,
            delivery_id=delivery_id,
            happened_ms=happened,
            observed_ms=now_ms,
            capture=capture or self.capture,
            calls=self.calls,
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            labels=self.labels,
        )

    def is_repeat(self, delivery_id: str | None) -> bool:
        """True for a delivery that is in the journal already; counted."""
        if delivery_id is not None and delivery_id[:-4] in self.seen:
            self.metrics.duplicates.inc()
            return True
        return False

    def hook(self, body: bytes, context: Context) -> None:
        """Normalise one payload and journal its events."""
        self.commit(context, normalise(body, context))

    def commit(self, context: Context, events: list[Any]) -> None:
        """Journal what a delivery's context made."""
        self._count(context.runtime, events)
        if self._write([to_json(event) for event in events]):
            self.seen.add(context.delivery_id[:-4])

    def events(self, batch: list[Any], now_ms: int) -> list[str | None]:
        """Journal already normalised events (JSON forms). One entry each: None for taken (or a repeat), else why it was refused."""
        answers: list[str | None] = []
        taken: dict[str, dict[str, Any]] = {}
        for item in batch:
            problem, event = self._own_or_refuse(item, now_ms)
            answers.append(problem)
            if event is not None:
                taken.setdefault(event["event_id"], event)
        written = list(taken.values())
        if written and self._write(written):
            for event in written:
                self.seen.add(event["event_id"])
                self.calls.apply_json(event)
        self.metrics.events_refused.inc(sum(answer is not None for answer in answers))
        return answers

    def own(self, model: type[EventBase], event_name: str, now_ms: int, **fields: Any) -> bool:
        """Journal an event of the collector itself, such as a heartbeat or a drop receipt."""
        made = model(
            event_name=event_name,
            event_id=event_id(new_delivery_id(now_ms), 0),
            timestamp=to_rfc3339(now_ms),
            observed_at=to_rfc3339(now_ms),
            source_adapter=OWN_ADAPTER,
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            **fields,
        )
        return self._write([to_json(made)])

    def dropped(self, reason: str, count: int, size_bytes: int, by_class: Mapping[str, int] | None = None) -> None:
        """Remember a loss until its receipt can be journalled."""
        self.metrics.dropped.labels(reason).inc(count)
        drop = self._drops.setdefault(reason, _Drop())
        drop.count += count
        drop.size_bytes += size_bytes
        drop.by_class.update(by_class or {})

    def settle_drops(self, now_ms: int) -> None:
        """Journal a receipt for each reason something was dropped for; kept for later while the disk is full."""
        for reason, drop in list(self._drops.items()):
            if self.own(
                Dropped,
                "producer.dropped",
                now_ms,
                reason=reason,
                count=drop.count,
                size_bytes=drop.size_bytes,
                by_class=dict(drop.by_class),
                severity="critical",
            ):
                self._drops.pop(reason, None)

    # parts

    def _own_or_refuse(self, item: Any, now_ms: int) -> tuple[str | None, dict[str, Any] | None]:
        try:
            event = to_json(EVENT.validate_json(orjson.dumps(item)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}", None
        except (TypeError, RecursionError):
            return "not a JSON object", None
        if event["event_name"] not in _TAKEN:
            return f"event_name: {event['event_name']} is not taken from outside", None
        if event["event_id"] in self.seen:
            self.metrics.duplicates.inc()
            return None, None
        event["observed_at"] = to_rfc3339(now_ms)
        return None, event

    def _write(self, events: list[dict[str, Any]]) -> bool:
        identity = self.identity
        seq = identity.seq
        for event in events:
            event, changed = self.capture.scrub(event)
            seq += 1
            producer: dict[str, Any] = {"id": identity.id, "epoch": identity.epoch, "seq": seq}
            if seq == 1 and identity.previous_epoch is not None:
                producer |= {"previous_epoch": identity.previous_epoch, "previous_seq": identity.previous_seq}
            event["producer"] = producer
            events[seq - identity.seq - 1] = fit(event)
            self.metrics.scrubbed.inc(changed)
        if self.journal_bytes > self.max_bytes:
            return self._lost("journal_full", events)
        try:
            written = self.journal.append(events, identity.epoch, identity.seq + 1)
        except OSError as error:
            return self._lost(f"journal_{(error.strerror or 'error').lower().replace(' ', '_')}", events)
        self.journal_bytes += written
        identity.seq = seq
        for event in events:
            self.metrics.events.labels(TOPIC_OF_EVENT[event["event_name"]]).inc()
        return True

    def _lost(self, reason: str, events: list[dict[str, Any]]) -> bool:
        if all(event["event_name"] in _RECEIPTS for event in events):
            return False
        classes = Counter(event["event_name"] for event in events)
        self.dropped(reason, len(events), sum(len(orjson.dumps(event)) for event in events), classes)
        return False

    def _count(self, runtime: str, events: list[Any]) -> None:
        for event in events:
            if event.event_name == "agent.payload.quarantined":
                self.metrics.quarantined.labels(runtime, event.reason).inc()
            elif event.event_name == "agent.event.observed":
                self.metrics.observed.labels(runtime, event.reason).inc()


@dataclass(slots=True)
class _Drop:
    count: int = 0
    size_bytes: int = 0
    by_class: Counter[str] = field(default_factory=Counter)


_RECEIPTS = frozenset({"producer.dropped", "producer.heartbeat"})
_TAKEN = frozenset(
    name
    for name, topic in TOPIC_OF_EVENT.items()
    if topic
    in {"agenttrace.tool.call", "agenttrace.mcp.rpc", "agenttrace.agent.activity", "agenttrace.policy.decision"}
) - {"producer.heartbeat"}


def fit(event: dict[str, Any]) -> dict[str, Any]:
    """The event within MAX_VALUE_BYTES: native fields go first, then summaries, then labels; what is cut is said."""
    if len(orjson.dumps(event)) <= MAX_VALUE_BYTES:
        return event
    event = {**event, "native": {"agenttrace_cut": True}}
    if len(orjson.dumps(event)) <= MAX_VALUE_BYTES:
        return event
    for side in ("input", "output", "content", "request", "response"):
        if isinstance(event.get(side), dict):
            event[side] = {key: value for key, value in event[side].items() if key != "summary"}
    if len(orjson.dumps(event)) > MAX_VALUE_BYTES:
        event["labels"] = {}
    return event


def replay_into(calls: CallTable, seen: Seen, identity: Identity, events: list[dict[str, Any]]) -> None:
    """Fold one journal line into the state, as it was folded when it was written."""
    for event in events:
        calls.apply_json(event)
        # A line does not say whether a hook or a batch of events brought it, so both kinds of key are remembered.
        seen.add(delivery_key(event))
        seen.add(event["event_id"])
        producer = event["producer"]
        identity.previous_epoch, identity.previous_seq = producer["epoch"], producer["seq"]
