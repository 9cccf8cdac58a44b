"""The events that met a selection, kept as long as they can matter and no more of them than are needed."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple

from pipelines.runtime.port import Record
from pipelines.sequence_rules.fields import LISTS
from schemas.facts import MAX_ITEMS


class About(NamedTuple):
    """What a finding needs of an event that many events of a session have alike."""

    event_name: str
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
    tool_name: str | None
    tool_source: str | None
    mcp_server: str | None
    pack_hash: str
    decision: str | None
    fingerprints: tuple[str, ...]
    secret_kinds: tuple[str, ...]


_READ = About._fields[: About._fields.index("mcp_server")]
_shared: dict[tuple[Any, ...], About] = {}
MAX_SHARED = 8192


class Kept(NamedTuple):
    """An event that met a selection: its time in ms and its place in the log (the partition is the operator's)."""

    ms: int
    event_id: str
    topic: str
    offset: int
    call_id: str | None
    about: About

    def dump(self) -> list[Any]:
        """The event as JSON data."""
        return [*self[:-1], tuple(self.about)]

    @classmethod
    def load(cls, data: list[Any]) -> Kept:
        """An event from `dump`."""
        *fields, (*said, fingerprints, secret_kinds) = data
        return cls._make([*fields, _about((*said, tuple(fingerprints), tuple(secret_kinds)))])


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
    get = event.get
    mcp, policy, facts, call_id = get("mcp"), get("policy"), get("facts"), get("call_id")
    said = (
        *map(get, _READ),
        mcp.get("server_name") if type(mcp) is dict else get("mcp_server"),
        pack_hash,
        policy.get("decision") if type(policy) is dict else None,
        _texts(facts, "fingerprints") if facts else (),
        _texts(facts, "secret_kinds") if facts else (),
    )
    if type(call_id) is not str:
        call_id = None
    # Not through Kept's own constructor, which takes longer than all the rest of the tuple.
    return _make(Kept, (record.event_ms, event["event_id"], record.topic, record.offset, call_id, _about(said)))


_make = tuple.__new__


def _about(said: tuple[Any, ...]) -> About:
    """One copy for all events alike; what is no text is left out."""
    try:
        about = _shared.get(said)
    except TypeError:
        about = None
    if about is None:
        *texts, fingerprints, secret_kinds = said
        about = About._make([*(text if type(text) is str else None for text in texts), fingerprints, secret_kinds])
        if about.decision == "none":
            about = about._replace(decision=None)
        if len(_shared) >= MAX_SHARED:
            _shared.clear()
        _shared[about] = about
    return about


def _texts(facts: Any, name: str) -> tuple[str, ...]:
    values = facts.get(name) if type(facts) is dict else None
    if not values or not isinstance(values, LISTS):
        return ()
    return tuple([value for value in values[:MAX_ITEMS] if type(value) is str])


class Slots:
    """Events of one selection of one group by slot, sorted by (time, id): of each slot the first and the last `each`.

    Both ends are kept because whether a partner lies within a time depends only on them, as a slot is no longer than
    the shortest `within`. What is kept is a function of the events, in whatever order they came.
    """

    __slots__ = ("by_slot", "cut")

    def __init__(self) -> None:
        self.by_slot: dict[int, list[Kept]] = {}
        self.cut: set[int] | None = None

    def add(self, slot: int, event: Kept, each: int) -> bool:
        """Keep an event. False if nothing changed: a duplicate, or one from the middle of a full slot."""
        events = self.by_slot.get(slot)
        if events is None:
            self.by_slot[slot] = [event]
            return True
        place = bisect_left(events, event[:2], key=_order)
        if place < len(events) and events[place][:2] == event[:2]:
            if event[2:4] < events[place][2:4]:
                events[place] = event
                return True
            return False
        events.insert(place, event)
        if len(events) > 2 * each:
            self.cut = self.cut or set()
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

    def forget(self, before_ms: int) -> int:
        """Drop the slots that begin before; the number of events dropped."""
        dropped = 0
        for slot in [slot for slot in self.by_slot if slot < before_ms]:
            dropped += len(self.by_slot.pop(slot))
        if self.cut:
            self.cut = {slot for slot in self.cut if slot >= before_ms}
        return dropped

    def dump(self) -> list[Any]:
        """The slots as JSON data."""
        slots = [
            [slot, [[*event[:-1], tuple(event.about)] for event in events]] for slot, events in self.by_slot.items()
        ]
        return [list(self.cut or ()), slots]

    @classmethod
    def load(cls, data: list[Any]) -> Slots:
        """Slots from `dump`."""
        slots = cls()
        cut, by_slot = data
        slots.cut = set(cut) or None
        slots.by_slot = {slot: [Kept.load(event) for event in events] for slot, events in by_slot}
        return slots

    def __len__(self) -> int:
        return sum(map(len, self.by_slot.values()))


def _order(event: Kept) -> tuple[Any, ...]:
    return event[:2]
