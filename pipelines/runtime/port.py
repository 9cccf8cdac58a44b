"""What an operator and its host agree on: records in, outputs out, progress; and the set by which two runs compare.

Nothing here does I/O. An operator is written against this module alone, so that worker, replay and property test run
the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import orjson

from schemas import topics
from schemas.clock import from_rfc3339

LATENESS_MS = 15 * 60_000
"""A record whose log time is further than this behind its timestamp is too late for rules."""

DUE_MS = 5_000
"""What follows from time alone falls due at most so long after the timestamp of the derived record that says it."""

NO_OFFSET = -1
"""Offset of a record that an earlier operator of the group derived: it is in no input topic."""

Event: TypeAlias = dict[str, Any]

_minutes: dict[str, int] = {}
_seconds: dict[str, int] = {}


def timestamp_ms(text: str) -> int:
    """Milliseconds since the Unix epoch of an event's timestamp (RFC 3339, UTC, at least milliseconds).

    Raises ValueError for anything else. Most of the cost is the date, so minutes and seconds are remembered.
    """
    if len(text) < 24 or text[19] != "." or text[-1] != "Z":
        return from_rfc3339(text)
    second = _seconds.get(text[:19])
    if second is not None:
        return second + int(text[20:23])
    minute = _minutes.get(text[:16])
    if minute is None:
        minute = from_rfc3339(text[:16] + ":00Z")
        if len(_minutes) >= 4096:
            _minutes.clear()
        _minutes[text[:16]] = minute
    if len(_seconds) >= 4096:
        _seconds.clear()
    second = _seconds[text[:19]] = minute + int(text[17:19]) * 1000
    return second + int(text[20:23])


class Record:
    """One event with its place in the log. `event` is plain JSON data and must not be changed.

    `log_time_ms` is the broker's append time; of a derived record it is the event's own timestamp, and its offset is
    NO_OFFSET. `cause_ms` is the log time of the record that a derived record follows from, or DUE_MS after its timestamp if
    it follows from time alone: the same for every host, whatever progress it was told.
    """

    __slots__ = ("_event_ms", "cause_ms", "event", "log_time_ms", "offset", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offset: int, log_time_ms: int, event: Event, *, cause_ms: int | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_time_ms = log_time_ms
        self.event = event
        self.cause_ms = log_time_ms if cause_ms is None else cause_ms
        self._event_ms: int | None = None

    @property
    def event_ms(self) -> int:
        """The event's timestamp in ms. Raises KeyError, TypeError or ValueError if it is missing or malformed."""
        ms = self._event_ms
        if ms is None:
            ms = self._event_ms = timestamp_ms(self.event["timestamp"])
        return ms


class Out(Protocol):
    """Where an operator puts what it derives. The host stamps `version` and `state`, keys, headers, and chains.

    `body` is the event's JSON form without `version`, `state` and `retracted`; the host takes it over (do not change it
    afterwards). Every field of it must be a function of the set of records: no clock, no counter of emissions, no
    "created or updated" that depends on how often it was said. `record_id` is the id by which later versions replace
    earlier ones: `event_id` or `finding_id` of the body. `key` is needed for internal topics only.
    """

    def put(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        """Say something, or say it anew: the last version of an id stands."""

    def retract(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        """Take back what was said under this id (`body` as it was said); harmless if it never was."""


class Operator(Protocol):
    """One operator's state and behaviour in one partition group. Pure: no I/O, no clock, no ids of its own.

    An exception on a record sends that record to the DLQ and is counted; the operator lives on, so it should raise
    before it changes its state.
    """

    name: str
    wants: frozenset[str]
    """Names of the events it gets, of input topics and of topics that earlier operators of the group derive."""
    horizon_ms: int
    """How far back in log time its state may reach: a rebuild reads this much of the log."""

    @property
    def configuration(self) -> str:
        """What its outputs depend on besides its code and the records: operators where it is equal may swap states."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What it counted since it was made, by snake_case name (`late_ends`); the host exports them as metrics."""

    def on_event(self, record: Record, out: Out) -> None:
        """Fold one record. Records of one topic come in offset order, topics in any interleaving."""

    def on_progress(self, t_ms: int, out: Out) -> None:
        """All records with a log time ≤ t were seen, as far as anyone can know. Never falls.

        Whatever became due by t is said here; what a rate limit held back must be said by a later call.
        """

    def dump(self) -> bytes:
        """The state, for a checkpoint."""

    def load(self, state: bytes) -> None:
        """Take over what `dump` of the same code version gave, as a new operator. Raises ValueError for all else."""


OperatorFactory: TypeAlias = Callable[[int], Operator]
"""Makes an operator with empty state for the partition of that number."""


class Output:
    """A derived record on its way out: its topic, id, Kafka key, and JSON form."""

    __slots__ = ("body", "key", "record_id", "topic")

    def __init__(self, topic: str, record_id: str, key: bytes, body: Event) -> None:
        self.topic = topic
        self.record_id = record_id
        self.key = key
        self.body = body


def record_id_of(event: Mapping[str, Any]) -> str:
    """The id by which versions of a derived event replace each other: its own, not the emission's."""
    return str(event.get("finding_id") or event.get("alert_id") or event["event_id"])


class CanonicalSet:
    """Folds outputs, in the order of their topic, to what they amount to.

    Of each (topic, id) the highest version stands, of equal ones the last; retracted ones go. `lines()` leaves out
    what may differ between two correct runs: version and state.

    >>> said = CanonicalSet()
    >>> said.add("t", "1", {"event_id": "1", "version": 7, "n": 1})
    >>> said.add("t", "1", {"event_id": "1", "version": 9, "n": 2})
    >>> said.add("t", "1", {"event_id": "1", "version": 8, "n": 3})
    >>> list(said.lines())
    [b'{"body":{"event_id":"1","n":2},"id":"1","topic":"t"}']
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Event] = {}

    def add(self, topic: str, record_id: str, body: Event) -> None:
        """Fold one output; a body without a version counts as version 0."""
        place = (topic, record_id)
        known = self._last.get(place)
        if known is None or body.get("version", 0) >= known.get("version", 0):
            self._last[place] = body

    def add_value(self, topic: str, value: bytes) -> None:
        """Fold a record's value as read from a derived topic."""
        body = orjson.loads(value)
        self.add(topic, record_id_of(body), body)

    def bodies(self, topic: str | None = None) -> dict[str, Event]:
        """What stands, by id, of one topic or of all."""
        return {
            place[1]: body
            for place, body in self._last.items()
            if (topic is None or place[0] == topic) and not body.get("retracted")
        }

    def lines(self) -> Iterator[bytes]:
        """Sorted JSON lines (no newline), one per record that stands."""
        for (topic, record_id), body in sorted(self._last.items(), key=lambda item: item[0]):
            if not body.get("retracted"):
                kept = {name: field for name, field in body.items() if name not in _NOT_CANONICAL}
                yield orjson.dumps({"topic": topic, "id": record_id, "body": kept}, option=orjson.OPT_SORT_KEYS)

    def counts(self) -> dict[str, int]:
        """Records that stand, by topic."""
        found = Counter(topic for (topic, _), body in self._last.items() if not body.get("retracted"))
        return dict(sorted(found.items()))

    def __len__(self) -> int:
        return sum(self.counts().values())


_NOT_CANONICAL = frozenset({"version", "state", "retracted"})

STAMPED_WITH_STATE = frozenset({topics.TOOL_CALL_DERIVED, topics.RISK_FINDING, topics.TOOL_METRIC})
"""Derived topics whose events have a field `state`."""
