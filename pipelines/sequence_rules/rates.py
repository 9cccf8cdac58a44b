"""Metric rules: counts and rates over the ended calls of a group in a sliding window of closed 10 s sub-windows.

A window is looked at when a sub-window in which a call of the group ended has closed, and again when late records
change it; so what is said depends on the calls alone, and a finding can be taken back: also one that only a worker before
this one can have said, which had seen an end that counts no more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from pipelines.rolling_metrics.ends import (
    FAILED,
    INFERRED,
    KNOWN,
    OUTCOMES,
    SAME_CALL_MS,
    End,
    add_end,
    call_ref,
    counting,
    outcome_of,
    remove_end,
)
from pipelines.runtime.port import LATENESS_MS, Record
from pipelines.sequence_rules.compiled import SUB_WINDOW_MS, CompiledRule
from pipelines.sequence_rules.evidence import Kept, Slots, Support, kept
from schemas.rules import DEFAULT_MIN_COUNT

GroupKey = tuple[str, str]
"""Tenant and group value."""

EACH_SIDE = 8
"""Events listed of one sub-window from each of its ends."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TOTAL, _KNOWN, _FAILED, _BLOCKED = range(4)
_COUNTED = {
    "agent_tool_call_total": _TOTAL,
    "agent_tool_call_error_total": _FAILED,
    "agent_tool_call_blocked_total": _BLOCKED,
    "agent_tool_call_error_rate": _FAILED,
}


_PLACES: dict[str, tuple[int, ...]] = {
    outcome: tuple(
        place
        for place, counts in (
            (_TOTAL, True),
            (_KNOWN, outcome in KNOWN),
            (_FAILED, outcome in FAILED),
            (_BLOCKED, outcome == "blocked"),
        )
        if counts
    )
    for outcome in OUTCOMES
}
"""Outcome to the sums that it counts in."""


class _Group:
    """Per sub-window: how many calls ended how, and the events that the metric counts.

    `void` are those that do not count: taken back, or weaker than another end of the call. By event id, with the record
    that made it so, since a retraction may come without what it takes back.
    """

    __slots__ = ("counts", "events", "void")

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}
        self.events = Slots()
        self.void: dict[int, dict[str, Kept]] = {}


class Rates:
    """The state of one metric rule."""

    def __init__(self, rule: CompiledRule) -> None:
        metric = rule.rule.when.metric
        assert metric is not None
        self.rule = rule
        self._name = metric.name
        self._is_rate = metric.name == "agent_tool_call_error_rate"
        self._min_count = metric.min_count or (DEFAULT_MIN_COUNT if self._is_rate else 1)
        self._compare, self._threshold = metric.threshold()
        self._holds = _COMPARE[self._compare]
        self._subs = metric.window // SUB_WINDOW_MS
        self._counted = _COUNTED[metric.name]
        self._calls: dict[str, list[End]] = {}
        self._expiry: dict[int, list[str]] = {}
        self._groups: dict[GroupKey, _Group] = {}
        self._open: dict[int, dict[GroupKey, int]] = {}

    def add(self, key: GroupKey, record: Record, pack_hash: str) -> None:
        """Count the end of a call."""
        event, ms = record.event, record.event_ms
        outcome = outcome_of(event)
        if outcome is None:
            return
        ref, event_id, sub = call_ref(event), event["event_id"], ms // SUB_WINDOW_MS
        end = End(event["event_name"] in INFERRED, ms, event_id, (key, outcome))
        known = self._calls.get(ref)
        ends = [] if known is None else list(known)
        if event.get("retracted"):
            self._group(key).events.remove(sub * SUB_WINDOW_MS, event_id)
            self._void([end], record, pack_hash)
            if not remove_end(ends, event_id):
                return
        else:
            if self._counted in _PLACES[outcome]:
                self._group(key).events.add(sub * SUB_WINDOW_MS, kept(record, pack_hash), EACH_SIDE)
            if not add_end(ends, end):
                return
            due = (ms + SAME_CALL_MS + LATENESS_MS) // SUB_WINDOW_MS
            refs = self._expiry.get(due)
            if refs is None:
                refs = self._expiry[due] = []
            refs.append(ref)
        self._calls[ref] = ends
        if not known:
            self._count(key, sub, outcome, 1, record.cause_ms)
            return
        count = counting(ends)
        self._void([one for one in (*known, end) if one not in count], record, pack_hash)
        for by, counted in ((-1, counting(known)), (1, count)):
            for one in counted:
                owner, said = one.payload
                self._count(owner, one.ms // SUB_WINDOW_MS, said, by, record.cause_ms)

    def _void(self, ends: list[End], record: Record, pack_hash: str) -> None:
        """Remember ends that do not count, and have the windows judged in which a worker before may have counted them."""
        for end in ends:
            key, outcome = end.payload
            group, sub = self._group(key), end.ms // SUB_WINDOW_MS
            group.counts.setdefault(sub, [0, 0, 0, 0])
            if self._counted in _PLACES[outcome]:
                group.void.setdefault(sub, {}).setdefault(end.event_id, kept(record, pack_hash))
            self._reopen(key, sub, record.cause_ms)

    def _group(self, key: GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        return group

    def _count(self, key: GroupKey, sub: int, outcome: str, by: int, log_ms: int) -> None:
        counts = self._group(key).counts
        sums = counts.get(sub)
        if sums is None:
            sums = counts[sub] = [0, 0, 0, 0]
        for place in _PLACES[outcome]:
            sums[place] += by
        self._reopen(key, sub, log_ms)

    def _reopen(self, key: GroupKey, sub: int, log_ms: int) -> None:
        opened = self._open.get(sub)
        if opened is None:
            opened = self._open[sub] = {}
        opened[key] = max(log_ms, opened.get(key, 0))

    def closed(self, t_ms: int, settled_ms: int) -> list[tuple[GroupKey, int, int]]:
        """Groups and cooldown buckets to judge, as a sub-window of theirs changed and is closed; and when it changed.

        What changed at or after `settled_ms` is given again later (see SequenceRules.on_progress).
        """
        now = t_ms // SUB_WINDOW_MS
        changed: dict[tuple[GroupKey, int], int] = {}
        for sub in [sub for sub in self._open if sub < now]:
            first, last = sub * SUB_WINDOW_MS, (sub + self._subs) * SUB_WINDOW_MS - 1
            buckets = range(self.rule.bucket(first), self.rule.bucket(last) + 1)
            keys = self._open.pop(sub)
            for key, log_ms in keys.items():
                for bucket in buckets:
                    changed[key, bucket] = max(log_ms, changed.get((key, bucket), 0))
            if later := {key: log_ms for key, log_ms in keys.items() if log_ms >= settled_ms}:
                self._open[sub] = later
        return sorted((key, bucket, log_ms) for (key, bucket), log_ms in changed.items())

    def support(self, key: GroupKey, bucket: int, t_ms: int) -> Support | None:
        """Where the condition held in a cooldown bucket, of what is closed by now."""
        group = self._groups.get(key)
        if group is None:
            return None
        counts, void = group.counts, group.void
        first = bucket * self.rule.cooldown_ms
        points = [sub for sub in sorted(counts) if first <= sub * SUB_WINDOW_MS < first + self.rule.cooldown_ms]
        covered: set[int] = set()
        near: set[int] = set()
        fired: list[tuple[float, int, int]] = []
        for point in points:
            if (point + 1) * SUB_WINDOW_MS > t_ms:
                break
            subs = range(point - self._subs + 1, point + 1)
            found = [counts[sub] for sub in subs if sub in counts]
            value, base = self._value(found)
            if counts[point][_TOTAL] and base >= self._min_count and self._holds(value, self._threshold):
                covered.update(subs)
                fired.append((value, -point, base))
                continue
            gone = sum(len(void[sub]) for sub in subs if sub in void)
            if self._may_have_held(sum(count[self._counted] for count in found), gone):
                near.update(subs)
        places = [sub * SUB_WINDOW_MS for sub in sorted(covered or near)]
        events = [event for place in places for event in group.events.by_slot.get(place, ())]
        if not fired:
            events = events or sorted((one for sub in near for one in void.get(sub, {}).values()), key=itemgetter(0, 1))
            return Support([events], len(events), False, False, [], [], holds=False) if events else None
        if not events:
            return None
        value, _, base = max(fired)
        cut = not (group.events.cut or set()).isdisjoint(places)
        count = sum(counts[sub][self._counted] for sub in covered if sub in counts)
        shown = f"{value:.3f} of {base} calls" if self._is_rate else f"{value:.0f}"
        note = f"{self._name} up to {shown}."
        return Support([events], max(count, len(events)), len(fired) == 1, cut, [], [note])

    def _value(self, counts: list[list[int]]) -> tuple[float, int]:
        """The metric over some sub-windows, and how many calls it rests on."""
        if self._is_rate:
            known = sum(count[_KNOWN] for count in counts)
            return (sum(count[_FAILED] for count in counts) / known if known else 0.0), known
        return float(sum(count[self._counted] for count in counts)), sum(count[_TOTAL] for count in counts)

    def _may_have_held(self, counted: int, gone: int) -> bool:
        """Whether the condition may have held over some of the calls of a window, `gone` of which count no more."""
        if self._compare in {"<", "<="}:
            return True
        if not self._is_rate:
            return gone > 0 and self._holds(counted + gone, self._threshold)
        return self._holds((counted + gone) / max(self._min_count, counted + gone), self._threshold)

    def forget(self, t_ms: int) -> None:
        """Drop what no record within the lateness bound can change."""
        now = t_ms // SUB_WINDOW_MS
        for due in [due for due in self._expiry if due < now]:
            for ref in self._expiry.pop(due):
                ends = self._calls.get(ref)
                if ends is not None and all(self._call_expires(end) < now for end in ends):
                    del self._calls[ref]
        # What is this old was said when it came, by any host: it is not judged again from what is left of its bucket.
        settled = (t_ms - SAME_CALL_MS - LATENESS_MS) // SUB_WINDOW_MS
        for sub in [sub for sub in self._open if sub < settled]:
            del self._open[sub]
        before = (t_ms - self.rule.keep_ms - SAME_CALL_MS - LATENESS_MS) // SUB_WINDOW_MS
        for key, group in list(self._groups.items()):
            for by_sub in (group.counts, group.void):
                for sub in [sub for sub in by_sub if sub < before]:
                    del by_sub[sub]
            group.events.forget(before * SUB_WINDOW_MS)
            if not group.counts and not group.void and not len(group.events):
                del self._groups[key]

    @staticmethod
    def _call_expires(end: End) -> int:
        return (end.ms + SAME_CALL_MS + LATENESS_MS) // SUB_WINDOW_MS

    def dump(self) -> dict[str, Any]:
        """The state as JSON data."""
        return {
            "calls": [[ref, [list(end) for end in ends]] for ref, ends in self._calls.items()],
            "groups": [
                [key, list(group.counts.items()), group.events.dump(), _dump_void(group)]
                for key, group in self._groups.items()
            ],
            "open": [[sub, list(keys.items())] for sub, keys in self._open.items()],
        }

    def load(self, data: dict[str, Any]) -> None:
        """Take over a dumped state."""
        for ref, ends in data["calls"]:
            self._calls[ref] = [End(end[0], end[1], end[2], (_key(end[3][0]), end[3][1])) for end in ends]
            due = max((self._call_expires(end) for end in self._calls[ref]), default=0)
            self._expiry.setdefault(due, []).append(ref)
        for key, counts, events, void in data["groups"]:
            group = self._group(_key(key))
            group.counts, group.events = dict(counts), Slots.load(events)
            for sub, event_id, event in void:
                group.void.setdefault(sub, {})[event_id] = Kept.load(event)
        self._open = {sub: {_key(key): log_ms for key, log_ms in keys} for sub, keys in data["open"]}


def _key(data: list[str]) -> GroupKey:
    tenant, group = data
    return tenant, group


def _dump_void(group: _Group) -> list[Any]:
    return [[sub, event_id, event.dump()] for sub, events in group.void.items() for event_id, event in events.items()]
