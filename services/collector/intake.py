"""Accept → normalise → facts → redact → journal: everything between a hook's payload and its answer."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from schemas.clock import to_rfc3339
from schemas.events import EVENT, Dropped, Event, EventBase, Runtime, SeqRange, to_json
from schemas.identity import event_id, is_delivery_id, new_delivery_id, uuid7_ms
from schemas.topics import TOPIC_OF_EVENT
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS
from services.capture.content import Capture
from services.collector.fit import fit
from services.collector.journal import Journal
from services.collector.metrics import Metrics
from services.collector.state import Seen, delivery_key

log = logging.getLogger(__name__)

_MAX_AGE_MS = 90 * 86_400_000
_MAX_AHEAD_MS = 86_400_000
OWN_ADAPTER = "collector/1"
RANGES_PER_RECEIPT = 1000


@dataclass(slots=True)
class Identity:
    """Who stamps: producer id, epoch, last seq given, and where the epoch before ended."""

    id: str
    epoch: int
    seq: int = 0
    previous_epoch: int | None = None
    previous_seq: int | None = None

    def follows(self, epoch: int, seq: int) -> None:
        """Some file says that this seq was given before; the last one counts."""
        if epoch and (epoch, seq) > (self.previous_epoch or 0, self.previous_seq or 0):
            self.previous_epoch, self.previous_seq = epoch, seq


@dataclass(slots=True)
class Intake:
    """The single writer of the journal. All methods run on one thread; `now_ms` is the collector's clock.

    `problem` says why the last append failed; it is None again after one that worked.
    """

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
    problem: str | None = None
    _drops: dict[str, _Drop] = field(default_factory=dict)
    _owed: tuple[str, list[dict[str, Any]]] | None = None

    def context(self, runtime: Runtime, delivery_id: str | None, now_ms: int) -> Context:
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
            capture=self.capture,
            calls=self.calls,
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            labels=self.labels,
        )

    @property
    def refusal(self) -> str | None:
        """Why no delivery can be taken now (disk or bound), as the reason of a drop receipt; None when one can."""
        return self.problem or ("journal_full" if self.journal_bytes > self.max_bytes else None)

    def take(self, context: Context, make: Callable[[Context], list[Event]]) -> bool:
        """Let `make` turn a delivery into events and journal them, unless the journal has the delivery already.

        False where it is not in the journal. Asked before `make` runs, so that the call table knows only of what the
        journal has or will have: should the append itself fail, the events wait in memory and go first when there is
        room again.
        """
        key = context.delivery_id[:-4]
        if key in self.seen:
            self.metrics.duplicates.inc()
            return True
        if self.refusal:
            return False
        events = make(context)
        self._count(context.runtime, events)
        ready = [to_json(event) for event in events]
        if not self._write(ready):
            self._owed = key, ready
            return False
        self.seen.add(key)
        return True

    def events(self, batch: list[Any], now_ms: int) -> list[str | None]:
        """Journal already normalised events (JSON forms). One entry each: None for taken (or a repeat), else why it
        was refused.

        Raises JournalError with none of them taken where the journal takes nothing now.
        """
        answers: list[str | None] = []
        taken: dict[str, dict[str, Any]] = {}
        for item in batch:
            problem, event = self._own_or_refuse(item, now_ms)
            answers.append(problem)
            if event is not None:
                taken.setdefault(event["event_id"], event)
        written = list(taken.values())
        if written:
            if self.refusal or not self._write(written):
                raise JournalError(self.refusal or "")
            for event in written:
                self.seen.add(event["event_id"])
                self.calls.apply_json(event)
        self.metrics.events_refused.inc(sum(answer is not None for answer in answers))
        return answers

    def own(self, model: type[EventBase], event_name: str, now_ms: int, **fields: Any) -> bool:
        """Journal an event of the collector itself, such as a heartbeat or a drop receipt; False where there is no
        room for it.
        """
        # The base has no event_name: each model narrows it to its own names.
        made = model(
            event_name=event_name,  # type: ignore[call-arg]
            event_id=event_id(new_delivery_id(now_ms), 0),
            timestamp=to_rfc3339(now_ms),
            observed_at=to_rfc3339(now_ms),
            source_adapter=OWN_ADAPTER,
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            **fields,
        )
        return self.journal_bytes <= self.max_bytes and self._write([to_json(made)])

    def dropped(self, reason: str, count: int, size_bytes: int, by_class: Mapping[str, int] | None = None) -> None:
        """Remember a loss until its receipt can be journalled."""
        self.metrics.dropped.labels(reason).inc(count)
        drop = self._drops.setdefault(reason, _Drop())
        drop.count += count
        drop.size_bytes += size_bytes
        drop.by_class.update(by_class or {})

    def fault(self, runtime: str, size_bytes: int, error: Exception) -> None:
        """A delivery met a fault of the collector itself: say where (never what was in it) and remember the loss."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
        log.error("a %s payload of %d bytes was lost: %s at %s", runtime, size_bytes, type(error).__name__, where)
        self.metrics.failures.labels("delivery").inc()
        self.dropped("collector_fault", 1, size_bytes, {runtime: 1})

    def lost(self, reason: str, ranges: list[SeqRange]) -> None:
        """Remember sequence numbers that the journal had given and cannot be read again, until their receipt is
        journalled.
        """
        self.dropped(reason, sum(given.last - given.first + 1 for given in ranges), 0)
        self._drops[reason].ranges += ranges

    def unaccounted(self) -> list[SeqRange]:
        """Lost sequence numbers that no receipt in the journal names yet."""
        return [given for drop in self._drops.values() for given in drop.ranges]

    def settle(self, now_ms: int) -> None:
        """Journal a receipt for each reason something was dropped for; kept for later while there is no room."""
        for reason, drop in list(self._drops.items()):
            ranges = drop.ranges[:RANGES_PER_RECEIPT]
            named = sum(given.last - given.first + 1 for given in ranges)
            more = len(drop.ranges) > len(ranges)
            if self.own(
                Dropped,
                "producer.dropped",
                now_ms,
                reason=reason,
                count=named if more else drop.count,
                size_bytes=0 if more else drop.size_bytes,
                by_class={} if more else dict(drop.by_class),
                ranges=tuple(ranges),
                severity="critical",
            ):
                if more:
                    drop.count -= named
                    drop.ranges = drop.ranges[RANGES_PER_RECEIPT:]
                else:
                    del self._drops[reason]

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
        if self._owed:
            (key, owed), self._owed = self._owed, None
            if not self._write(owed):
                self._owed = key, owed
                return False
            self.seen.add(key)
        identity = self.identity
        seq = identity.seq
        for event in events:
            event, changed = self.capture.scrub(event)
            seq += 1
            producer: dict[str, Any] = {"id": identity.id, "epoch": identity.epoch, "seq": seq}
            if seq == 1 and identity.previous_epoch is not None:
                producer |= {"previous_epoch": identity.previous_epoch, "previous_seq": identity.previous_seq}
            event["producer"] = producer
            events[seq - identity.seq - 1] = fit(event, self.capture.raw_hash)
            self.metrics.scrubbed.inc(changed)
        try:
            written = self.journal.append(events, identity.epoch, identity.seq + 1)
        except OSError as error:
            self.problem = f"journal_{(error.strerror or 'error').lower().replace(' ', '_')}"
            return False
        self.problem = None
        self.journal_bytes += written
        identity.seq = seq
        for event in events:
            self.metrics.events.labels(TOPIC_OF_EVENT[event["event_name"]]).inc()
        return True

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
    ranges: list[SeqRange] = field(default_factory=list)


class JournalError(Exception):
    """The journal takes nothing now; its text is the reason."""


_TAKEN = frozenset(
    name
    for name, topic in TOPIC_OF_EVENT.items()
    if topic
    in {"agenttrace.tool.call", "agenttrace.mcp.rpc", "agenttrace.agent.activity", "agenttrace.policy.decision"}
) - {"producer.heartbeat"}


def replay_into(calls: CallTable, seen: Seen, identity: Identity, events: list[dict[str, Any]]) -> None:
    """Fold one journal line into the state, as it was folded when it was written."""
    for event in events:
        calls.apply_json(event)
        # A line does not say whether a hook or a batch of events brought it, so both kinds of key are remembered.
        seen.add(delivery_key(event))
        seen.add(event["event_id"])
        producer = event["producer"]
        identity.follows(producer["epoch"], producer["seq"])
