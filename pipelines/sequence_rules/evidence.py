"""The events that met a selection, kept as long as they can matter and no more of them than are needed."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipelines.runtime.port import Record
from pipelines.sequence_rules.fields import LISTS
from schemas.facts import MAX_ITEMS


class About(NamedTuple):
    """What a finding needs of an event beside its time and place; all text is the event's own."""

    event_name: str
    timestamp: str
    pack_hash: str
    tenant_id: str | None
    workspace_id: str | None
    user_id_hash: str | None
    agent_runtime: str | None
    agent_version: str | None
    agent_id: str | None
    agent_role: str | None
    session_id: str | None
    root_session_id: str | None
    parent_session_id: str | None
    session_key: str | None
    turn_id: str | None
    run_id: str | None
    trace_id: str | None
    call_id: str | None
    tool_name: str | None
    tool_source: str | None
    mcp_server: str | None
    decision: str | None
    fingerprints: tuple[str, ...]
    secret_kinds: tuple[str, ...]


_REPEATED = About._fields[About._fields.index("tenant_id") : About._fields.index("call_id")]
"""Fields whose values come again and again in a session, so that one copy of each is kept."""


class Kept(NamedTuple):
    """An event that met a selection. `place` is (topic, partition, offset)."""

    ms: int
    event_id: str
    place: tuple[str, int, int]
    about: About


class Support(NamedTuple):
    """What supports a finding: the events by step, and how many there are in `total`.

    `least`: it is as little as makes a finding. `cut`: some events were not kept. `moved`: fingerprints that went from
    an earlier step to the last. `notes`: sentences for the finding's description. Not `holds`: there is no finding, but
    a worker before, which had seen less, may have said one.
    """

    steps: list[list[Kept]]
    total: int
    least: bool
    cut: bool
    moved: list[str]
    notes: list[str]
    holds: bool = True


def kept(record: Record, pack_hash: str) -> Kept:
    """What is kept of a record. Raises KeyError, TypeError or ValueError for one without name, time or id."""
    event = record.event
    mcp, policy, facts = event.get("mcp"), event.get("policy"), event.get("facts")
    server = mcp.get("server_name") if type(mcp) is dict else event.get("mcp_server")
    decision = _text(policy.get("decision")) if type(policy) is dict else None
    about = About._make(
        [
            sys.intern(event["event_name"]),
            event["timestamp"],
            pack_hash,
            *[_shared(event.get(name)) for name in _REPEATED],
            _text(event.get("call_id")),
            _shared(event.get("tool_name")),
            _shared(event.get("tool_source")),
            _shared(server),
            None if decision == "none" else decision,
            _texts(facts, "fingerprints"),
            _texts(facts, "secret_kinds"),
        ]
    )
    return Kept(record.event_ms, event["event_id"], (record.topic, record.partition, record.offset), about)


def _text(value: Any) -> str | None:
    return value if type(value) is str else None


def _shared(value: Any) -> str | None:
    return sys.intern(value) if type(value) is str else None


def _texts(facts: Any, name: str) -> tuple[str, ...]:
    values = facts.get(name) if type(facts) is dict else None
    return tuple([value for value in values[:MAX_ITEMS] if type(value) is str]) if isinstance(values, LISTS) else ()


class Slots:
    """Events of one selection of one group by slot, sorted by (time, id): of each slot the first and the last `each`.

    Both ends are kept because whether a partner lies within a time depends only on them, as a slot is no longer than
    the shortest `within`. What is kept is a function of the events, in whatever order they came.
    """

    __slots__ = ("by_slot", "cut")

    def __init__(self) -> None:
        self.by_slot: dict[int, list[Kept]] = {}
        self.cut: set[int] = set()

    def add(self, slot: int, event: Kept, each: int) -> bool:
        """Keep an event. False if nothing changed: a duplicate, or one from the middle of a full slot."""
        events = self.by_slot.get(slot)
        if events is None:
            self.by_slot[slot] = [event]
            return True
        place = bisect_left(events, event[:2], key=_order)
        if place < len(events) and _order(events[place]) == event[:2]:
            if event.place < events[place].place:
                events[place] = event
                return True
            return False
        events.insert(place, event)
        if len(events) > 2 * each:
            self.cut.add(slot)
            return events.pop(each) is not event
        return True

    def remove(self, slot: int, event_id: str) -> bool:
        """Forget an event that was taken back."""
        events = self.by_slot.get(slot, [])
        for place, event in enumerate(events):
            if event.event_id == event_id:
                del events[place]
                return True
        return False

    def between(self, first_ms: int, end_ms: int) -> list[Kept]:
        """Events with first_ms ≤ time < end_ms, in order."""
        found: list[Kept] = []
        for slot in sorted(self.by_slot):
            if slot < end_ms:
                found += [event for event in self.by_slot[slot] if first_ms <= event.ms < end_ms]
        return found

    def was_cut(self, first_ms: int, end_ms: int, slot_ms: int) -> bool:
        """Whether events of this time are missing."""
        return any(first_ms - slot_ms < slot < end_ms for slot in self.cut)

    def forget(self, before_ms: int) -> int:
        """Drop the slots that begin before; the number of events dropped."""
        dropped = 0
        for slot in [slot for slot in self.by_slot if slot < before_ms]:
            dropped += len(self.by_slot.pop(slot))
        self.cut = {slot for slot in self.cut if slot >= before_ms}
        return dropped

    def dump(self) -> list[Any]:
        """The slots as JSON data."""
        return [list(self.cut), [[slot, [_dump(event) for event in events]] for slot, events in self.by_slot.items()]]

    @classmethod
    def load(cls, data: list[Any]) -> Slots:
        """Slots from `dump`."""
        slots = cls()
        cut, by_slot = data
        slots.cut = set(cut)
        slots.by_slot = {slot: [_load(event) for event in events] for slot, events in by_slot}
        return slots

    def __iter__(self) -> Iterator[int]:
        return iter(self.by_slot)

    def __len__(self) -> int:
        return sum(map(len, self.by_slot.values()))


def _order(event: Kept) -> tuple[Any, ...]:
    return event[:2]


def _dump(event: Kept) -> list[Any]:
    return [event.ms, event.event_id, event.place, tuple(event.about)]


def _load(data: list[Any]) -> Kept:
    ms, event_id, (topic, partition, offset), about = data
    *fields, fingerprints, secret_kinds = about
    about = About._make([*fields, tuple(fingerprints), tuple(secret_kinds)])
    return Kept(ms, event_id, (topic, partition, offset), about)
