"""Accept → normalise → facts → redact → journal: everything between a hook's payload and its answer."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from pydantic import ValidationError

from schemas.clock import to_rfc3339
from schemas.events import EVENT, Dropped, Event, EventBase, Runtime, to_json
from schemas.identity import event_id, is_delivery_id, new_delivery_id, uuid7_ms
from schemas.topics import LAST_CLASS, TOPIC_OF_EVENT, drop_class
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS
from services.capture.content import Capture
from services.collector.drops import Rewritten
from services.collector.fit import fit
from services.collector.journal import Journal, encode_written
from services.collector.losses import Losses
from services.collector.metrics import Metrics
from services.collector.reserve import Reserve
from services.collector.state import Seen, delivery_key

log = logging.getLogger(__name__)

_MAX_AGE_MS = 90 * 86_400_000
_MAX_AHEAD_MS = 86_400_000
OWN_ADAPTER = "collector/1"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class Identity:
    """Who stamps: producer id, epoch, last seq given, and where the epoch before ended."""

    id: str
    epoch: int
    seq: int = 0
    previous_epoch: int | None = None
    previous_seq: int | None = None

    @property
    def last(self) -> tuple[int, int]:
        """(epoch, seq) of the last event that was given a seq, by this process or one before."""
        return (self.epoch, self.seq) if self.seq else (self.previous_epoch or 0, self.previous_seq or 0)

    def follows(self, epoch: int, seq: int) -> None:
        """Some file says that this seq was given before; the last one counts."""
        if seq and (epoch, seq) > (self.previous_epoch or 0, self.previous_seq or 0):
            self.previous_epoch, self.previous_seq = epoch, seq


@dataclass(slots=True)
class Intake:
    """The single writer of the journal. All methods run on one thread; `now_ms` is the collector's clock.

    `problem` says why the last append failed; it is None again after one that worked. While `disk_full`, events of the
    last drop class go to the reserve, and all others are only counted: such a caller could not spool either. Where the
    spool is on another disk (`spool_helps`) it is told to spool instead.
    """

    journal: Journal
    calls: CallTable
    seen: Seen
    identity: Identity
    capture: Capture
    metrics: Metrics
    losses: Losses
    reserve: Reserve
    spool_helps: bool = False
    tenant_id: str | None = None
    workspace_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = 1 << 30
    journal_bytes: int = 0
    problem: str | None = None
    disk_full: bool = False
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
        if self.problem and (self.spool_helps or not self.disk_full):
            return self.problem
        return "journal_full" if self.journal_bytes > self.max_bytes else None

    def take(self, context: Context, make: Callable[[Context], list[Event]], *, kept: bool = False) -> bool:
        """Let `make` turn a delivery into events and journal them, unless the journal has the delivery already.

        False where it is not in the journal. Asked before `make` runs, so that the call table knows only of what the
        journal has or will have: should the append itself fail, the events wait in memory and go first when there is
        room again. A delivery that is `kept` elsewhere waits there while the disk is full.
        """
        key = context.delivery_id[:-4]
        if key in self.seen:
            self.metrics.duplicates.inc()
            return True
        kept = kept or self.spool_helps
        if self.refusal or (kept and self.disk_full):
            return False
        events = make(context)
        self._count(context.runtime, events)
        ready = [self._scrubbed(event, _EXAMINED) for event in context.ready]
        if not self._write(ready, last_resort=not kept):
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
            if self.disk_full or self.refusal or not self._write(written, last_resort=False):
                raise JournalError(self.refusal or self.problem or "")
            for event in written:
                self.seen.add(event["event_id"])
                self.calls.apply_json(event)
        self.metrics.events_refused.inc(sum(answer is not None for answer in answers))
        return answers

    def own(self, model: type[EventBase], event_name: str, now_ms: int, **fields: Any) -> bool:
        """Journal an event of the collector itself, such as a heartbeat or a drop receipt; False where there is no
        room for it.
        """
        return (
            not self.disk_full
            and self.journal_bytes <= self.max_bytes
            and self._write([self._own(model, event_name, now_ms, **fields)], last_resort=False)
        )

    def receipts(self, rewritten: Rewritten, now_ms: int) -> bool:
        """Journal the receipts of a segment written anew, in one line; they name the file that takes its place. False
        where they are not in the journal.
        """
        native = {"rewrite": rewritten.temporary.name}
        events = [
            self._own(
                Dropped,
                "producer.dropped",
                now_ms,
                reason="journal_full",
                count=loss.count,
                size_bytes=loss.size_bytes,
                by_class=dict(loss.by_class),
                ranges=tuple(loss.ranges),
                merkle_root=loss.tree.root(),
                native=native,
                severity="critical",
            )
            for loss in rewritten.losses
        ]
        if self.disk_full or not self._write(events, last_resort=False):
            return False
        self.metrics.dropped.labels("journal_full").inc(sum(loss.count for loss in rewritten.losses))
        return True

    def begin(self) -> None:
        """Once, before the first delivery: take what a process before this one left in the reserve."""
        if self.reserve.used:
            self.problem, self.disk_full = f"journal_{_said(os.strerror(errno.ENOSPC))}", True
            self.resume()
            if not self.disk_full:
                self.problem = None
        self.reserve.allocate()
        self.losses.page.allocate()

    def resume(self) -> None:
        """After a full disk: what the reserve kept goes into the journal, before anything else does. Then the next write
        is tried; all stays as it is while the reserve cannot be emptied.
        """
        with contextlib.suppress(OSError):
            self.reserve.drain(self._put_back)
            self.disk_full = False

    def close(self) -> None:
        """Close the files for a full disk."""
        self.reserve.close()
        self.losses.page.close()

    def dropped(self, reason: str, count: int, size_bytes: int, by_class: Mapping[str, int]) -> None:
        """Remember a loss until its receipt can be journalled, also through a crash."""
        self.losses.dropped(reason, count, size_bytes, by_class)

    def fault(self, runtime: str, size_bytes: int, error: Exception) -> None:
        """A delivery met a fault of the collector itself: say where (never what was in it) and remember the loss."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
        log.error("a %s payload of %d bytes was lost: %s at %s", runtime, size_bytes, type(error).__name__, where)
        self.metrics.failures.labels("delivery").inc()
        self.dropped("collector_fault", 1, size_bytes, {runtime: 1})

    def settle(self, now_ms: int) -> None:
        """Journal the receipts that are owed; they stay owed while there is no room."""
        self.losses.settle(partial(self.own, Dropped, "producer.dropped", now_ms, severity="critical"))

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
        return None, self._scrubbed(event)

    def _own(self, model: type[EventBase], event_name: str, now_ms: int, **fields: Any) -> dict[str, Any]:
        fields.setdefault("event_id", event_id(new_delivery_id(now_ms), 0))
        # The base has no event_name: each model narrows it to its own names.
        made = model(
            event_name=event_name,  # type: ignore[call-arg]
            timestamp=to_rfc3339(now_ms),
            observed_at=to_rfc3339(now_ms),
            source_adapter=OWN_ADAPTER,
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            **fields,
        )
        return self._scrubbed(to_json(made), _OWN_EXAMINED)

    def _write(self, events: list[dict[str, Any]], *, last_resort: bool = True) -> bool:
        if self._owed and not self.disk_full:
            (key, owed), self._owed = self._owed, None
            if self._write(owed, last_resort=False):
                self.seen.add(key)
            else:
                self._owed = key, owed
                if not self.disk_full:
                    return False
        if self.disk_full:
            return last_resort and self._keep_last(events)
        identity = self.identity
        seq, line = self._stamp(events)
        try:
            written = self.journal.put(line, identity.epoch, identity.seq + 1)
        except OSError as error:
            self.problem = f"journal_{_said(error.strerror or 'error')}"
            self.disk_full = error.errno in _FULL
            return self.disk_full and last_resort and self._keep_last(events)
        self.problem = None
        self.journal_bytes += written
        self._given(events, seq)
        return True

    def _stamp(self, events: list[dict[str, Any]]) -> tuple[int, bytes]:
        """Give the events the next seqs and keep each within its size; the last seq given and the journal line."""
        identity = self.identity
        seq, written = identity.seq, []
        for index, event in enumerate(events):
            seq += 1
            producer: dict[str, Any] = {"id": identity.id, "epoch": identity.epoch, "seq": seq}
            if seq == 1 and identity.previous_epoch is not None:
                producer |= {"previous_epoch": identity.previous_epoch, "previous_seq": identity.previous_seq}
            event["producer"] = producer
            events[index], json = fit(event, self.capture.raw_hash)
            written.append(json)
        return seq, encode_written(written)

    def _given(self, events: list[dict[str, Any]], seq: int) -> None:
        self.identity.seq = seq
        for event in events:
            self.metrics.events_of(TOPIC_OF_EVENT[event["event_name"]]).inc()

    def _keep_last(self, events: list[dict[str, Any]]) -> bool:
        """On a full disk: the last drop class into the reserve, the rest onto the counter page. Always True."""
        kept = [event for event in events if drop_class(event["event_name"]) == LAST_CLASS]
        gone = [event for event in events if drop_class(event["event_name"]) < LAST_CLASS]
        seq, line = self._stamp(kept)
        if len(line) > self.reserve.room:
            kept, gone = [], events
        if gone:
            # Before the reserve: a crash between the two tells of a loss that did not happen, never the reverse.
            size = sum(len(orjson.dumps(event)) for event in gone)
            by_class = Counter(str(drop_class(event["event_name"])) for event in gone)
            self.dropped(self.problem or "journal", len(gone), size, by_class)
        if kept:
            if self.reserve.append(line):
                self._given(kept, seq)
            else:
                by_class = Counter({str(LAST_CLASS): len(kept)})
                self.dropped(self.problem or "journal", len(kept), len(line), by_class)
        return True

    def _put_back(self, raw: bytes) -> None:
        self.journal_bytes += self.journal.put_back(raw)

    def _scrubbed(self, event: dict[str, Any], examined: frozenset[str] = frozenset()) -> dict[str, Any]:
        """The event with any secret masked that got past its maker; of `examined` fields none is looked at."""
        clean, found = self.capture.scrub({name: value for name, value in event.items() if name not in examined})
        if not found:
            return event
        self.metrics.scrubbed.inc(found)
        return event | clean

    def _count(self, runtime: str, events: list[Any]) -> None:
        for event in events:
            if event.event_name == "agent.payload.quarantined":
                self.metrics.quarantined.labels(runtime, event.reason).inc()
            elif event.event_name == "agent.event.observed":
                self.metrics.observed.labels(runtime, event.reason).inc()


def _said(text: str) -> str:
    return text.lower().replace(" ", "_")


class JournalError(Exception):
    """The journal takes nothing now; its text is the reason."""


_EXAMINED = frozenset(
    {
        "input",
        "output",
        "content",
        "facts",
        "native",
        "call_key",
        "tool_call_id",
        "event_id",
        "timestamp",
        "observed_at",
    }
    | {"call_id", "span_id", "occurrence", "duration_ms"}
)
"""What a Context lets only its Capture make, from values that it searched whole, and what is no text of a payload (ids
and times of its own, numbers); the last check is for all the rest, which is mostly the same from hook to hook.
"""
_OWN_EXAMINED = frozenset({"native", "ranges"})
"""What the collector itself fills with names of segments and numbers, some of which look like those of cards."""

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
