"""Sequence and count rules: the kept events of each group, and what of them supports a finding."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from pipelines.runtime.port import LATENESS_MS
from pipelines.sequence_rules.compiled import CompiledRule
from pipelines.sequence_rules.evidence import Kept, Slots, Support
from pipelines.sequence_rules.matching import chains, runs, value_flow
from pipelines.sequence_rules.rates import GroupKey

MAX_KEPT = 200_000
"""Events kept of one rule in one partition. Beyond it new ones are dropped: a bound that is no function of the set."""

_MINUTE_MS = 60_000
_NONE: frozenset[int] = frozenset()


class _Group:
    """The slots of each step, and the end of the last cooldown bucket with a finding."""

    __slots__ = ("matched_until_ms", "steps")

    def __init__(self, steps: list[Slots]) -> None:
        self.steps = steps
        self.matched_until_ms = 0


_Alone = tuple[int, Kept]
"""The only event of a group, and its step."""


class Patterns:
    """The state of one sequence or count rule."""

    def __init__(self, rule: CompiledRule) -> None:
        self.rule = rule
        # Most groups see one event and never another, so one alone is kept as it is.
        self._groups: dict[GroupKey, _Group | _Alone] = {}
        self._expiry: dict[int, list[GroupKey]] = {}
        self._kept = 0

    @property
    def full(self) -> bool:
        """Nothing more is kept."""
        return self._kept >= MAX_KEPT

    def add(self, key: GroupKey, step: int, event: Kept) -> AbstractSet[int]:
        """Keep an event; the cooldown buckets to judge anew."""
        known = self._groups.get(key)
        if known is None and self.rule.least > 1:
            self._groups[key] = (step, event)
            self._kept += 1
            self._expire(key, self.rule.slot(event.ms) + self.rule.loose_ms)
            return _NONE
        group = known if type(known) is _Group else self._group(key, known)
        slots, slot = group.steps[step], self.rule.slot(event.ms)
        events = slots.by_slot.get(slot)
        if events is None:
            slots.by_slot[slot] = [event]
            self._kept += 1
            self._expire(key, slot + self.rule.loose_ms)
        else:
            before = len(events)
            changed = slots.add(slot, event, self.rule.kept)
            self._kept += len(events) - before
            if not changed:
                return _NONE
        if sum(map(len, group.steps)) < self.rule.least:
            return _NONE
        return self._touched(group, step, slot)

    def _group(self, key: GroupKey, alone: _Alone | _Group | None) -> _Group:
        """The group with slots, made new or of its only event."""
        if isinstance(alone, _Group):
            return alone
        group = self._groups[key] = _Group([Slots() for _ in self.rule.selections])
        if alone is not None:
            step, event = alone
            group.steps[step].by_slot[self.rule.slot(event.ms)] = [event]
        return group

    def remove(self, key: GroupKey, step: int, event: Kept) -> set[int]:
        """Forget an event that was taken back; the cooldown buckets to judge anew, even if it was not known."""
        slot = self.rule.slot(event.ms)
        own = {self.rule.bucket(event.ms)} if step == len(self.rule.selections) - 1 else set()
        if key not in self._groups:
            return own
        group = self._group(key, self._groups[key])
        self._kept -= group.steps[step].remove(slot, event.event_id)
        return own | self._touched(group, step, slot)

    def _touched(self, group: _Group, step: int, slot: int) -> set[int]:
        """Buckets with last events whose match can have an event of this slot."""
        rule = self.rule
        last = slot + rule.slot_ms + rule.reach_ms(step)
        return {rule.bucket(at) for at in group.steps[-1].by_slot if slot - rule.slot_ms < at <= last}

    def support(self, key: GroupKey, bucket: int) -> Support | None:
        """What supports a finding about a group in a cooldown bucket: matches whose last event lies in it."""
        rule, group = self.rule, self._groups.get(key)
        if not isinstance(group, _Group):
            return None
        steps = group.steps
        first, end = bucket * rule.cooldown_ms, (bucket + 1) * rule.cooldown_ms
        begin = first - rule.span_ms
        if rule.more_than is not None:
            found = [runs(steps[0].between(begin, end), rule.more_than, rule.span_ms, first)]
        else:
            last = steps[-1].between(first, end)
            if not last:
                return None
            found = chains([*(slots.between(begin, end) for slots in steps[:-1]), last], rule.withins)
        if not found[-1]:
            return None
        group.matched_until_ms = max(group.matched_until_ms, end)
        count = len({event.event_id for events in found for event in events})
        cut = any(
            slots.cut and not slots.cut.isdisjoint(rule.slot(event.ms) for event in events)
            for slots, events in zip(steps, found, strict=True)
        )
        return Support(found, count, count <= rule.least, cut, value_flow(found), [])

    def _expire(self, key: GroupKey, ms: int) -> None:
        minute = (ms + LATENESS_MS) // _MINUTE_MS
        keys = self._expiry.get(minute)
        if keys is None:
            keys = self._expiry[minute] = []
        keys.append(key)

    def forget(self, t_ms: int) -> None:
        """Drop what no record within the lateness bound can change.

        Events that are in no match by then never will be; those of a match stay as long as its finding can change.
        """
        for minute in [minute for minute in self._expiry if (minute + 1) * _MINUTE_MS <= t_ms]:
            for key in set(self._expiry.pop(minute)):
                group = self._groups.get(key)
                if group is None:
                    continue
                if not isinstance(group, _Group):
                    if self.rule.slot(group[1].ms) < t_ms - self.rule.loose_ms - LATENESS_MS:
                        del self._groups[key]
                        self._kept -= 1
                    continue
                matched = group.matched_until_ms + LATENESS_MS > t_ms
                keep_ms = self.rule.keep_ms if matched else self.rule.loose_ms
                self._kept -= sum(slots.forget(t_ms - keep_ms - LATENESS_MS) for slots in group.steps)
                left = min((slot for slots in group.steps for slot in slots.by_slot), default=None)
                if left is None:
                    del self._groups[key]
                elif matched:
                    self._expire(key, max(left + keep_ms, t_ms - LATENESS_MS))

    def dump(self) -> dict[str, Any]:
        """The state as JSON data."""
        groups: list[Any] = []
        alone: list[Any] = []
        for key, group in self._groups.items():
            if isinstance(group, _Group):
                groups.append([key, group.matched_until_ms, [slots.dump() for slots in group.steps]])
            else:
                alone.append([key, group[0], group[1].dump()])
        return {"groups": groups, "alone": alone}

    def load(self, data: dict[str, Any]) -> None:
        """Take over a dumped state."""
        for (tenant, name), matched_until_ms, dumped in data["groups"]:
            key = (tenant, name)
            group = self._groups[key] = _Group([Slots.load(slots) for slots in dumped])
            group.matched_until_ms = matched_until_ms
            self._kept += sum(map(len, group.steps))
            for slots in group.steps:
                for slot in slots.by_slot:
                    self._expire(key, slot + self.rule.loose_ms)
        for (tenant, name), step, dumped in data["alone"]:
            event = Kept.load(dumped)
            self._groups[tenant, name] = (step, event)
            self._kept += 1
            self._expire((tenant, name), self.rule.slot(event.ms) + self.rule.loose_ms)
