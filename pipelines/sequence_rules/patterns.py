"""Sequence and count rules: the kept events of each group, and what of them supports a finding."""

from __future__ import annotations

from typing import Any

from pipelines.runtime.port import LATENESS_MS
from pipelines.sequence_rules.compiled import CompiledRule
from pipelines.sequence_rules.evidence import Kept, Slots, Support
from pipelines.sequence_rules.matching import chains, runs, value_flow
from pipelines.sequence_rules.rates import GroupKey

MAX_KEPT = 100_000
"""Events kept of one rule in one partition. Beyond it new ones are dropped: a bound that is no function of the set."""

_MINUTE_MS = 60_000


class Patterns:
    """The state of one sequence or count rule: per group, the slots of each step."""

    def __init__(self, rule: CompiledRule) -> None:
        self.rule = rule
        self._groups: dict[GroupKey, list[Slots]] = {}
        self._expiry: dict[int, set[GroupKey]] = {}
        self._kept = 0

    @property
    def full(self) -> bool:
        """Nothing more is kept."""
        return self._kept >= MAX_KEPT

    def add(self, key: GroupKey, step: int, event: Kept) -> set[int]:
        """Keep an event; the cooldown buckets to judge anew."""
        steps = self._groups.get(key)
        if steps is None:
            steps = self._groups[key] = [Slots() for _ in self.rule.selections]
        slots, slot = steps[step], self.rule.slot(event.ms)
        before = len(slots.by_slot.get(slot, ()))
        changed = slots.add(slot, event, self.rule.kept)
        self._kept += len(slots.by_slot[slot]) - before
        if not before:
            self._expire(key, slot)
        return self._touched(steps, step, slot) if changed else set()

    def remove(self, key: GroupKey, step: int, event: Kept) -> set[int]:
        """Forget an event that was taken back; the cooldown buckets to judge anew, even if it was not known."""
        steps, slot = self._groups.get(key), self.rule.slot(event.ms)
        own = {self.rule.bucket(event.ms)} if step == len(self.rule.selections) - 1 else set()
        if steps is None:
            return own
        self._kept -= steps[step].remove(slot, event.event_id)
        return own | self._touched(steps, step, slot)

    def _touched(self, steps: list[Slots], step: int, slot: int) -> set[int]:
        """Buckets with last events whose match can have an event of this slot."""
        rule = self.rule
        last = slot + rule.slot_ms + rule.reach_ms(step)
        return {rule.bucket(at) for at in steps[-1].by_slot if slot - rule.slot_ms < at <= last}

    def support(self, key: GroupKey, bucket: int) -> Support | None:
        """What supports a finding about a group in a cooldown bucket: matches whose last event lies in it."""
        rule, steps = self.rule, self._groups.get(key)
        if steps is None:
            return None
        first, end = bucket * rule.cooldown_ms, (bucket + 1) * rule.cooldown_ms
        begin = first - rule.span_ms
        if rule.more_than is not None:
            found = [runs(steps[0].between(begin, end), rule.more_than, rule.span_ms, first)]
            least = rule.more_than + 1
        else:
            last = steps[-1].between(first, end)
            if not last:
                return None
            found = chains([*(slots.between(begin, end) for slots in steps[:-1]), last], rule.withins)
            least = len(found)
        if not found[-1]:
            return None
        count = len({event.event_id for events in found for event in events})
        cut = any(slots.was_cut(begin, end, rule.slot_ms) for slots in steps)
        return Support(found, count, count <= least, cut, value_flow(found), [])

    def _expire(self, key: GroupKey, slot: int) -> None:
        due = (slot + self.rule.keep_ms + LATENESS_MS) // _MINUTE_MS
        self._expiry.setdefault(due, set()).add(key)

    def forget(self, t_ms: int) -> None:
        """Drop what no record within the lateness bound can change."""
        before = t_ms - self.rule.keep_ms - LATENESS_MS
        for minute in [minute for minute in self._expiry if (minute + 1) * _MINUTE_MS <= t_ms]:
            for key in self._expiry.pop(minute):
                steps = self._groups.get(key)
                if steps is None:
                    continue
                self._kept -= sum(slots.forget(before) for slots in steps)
                if not any(slots.by_slot for slots in steps):
                    del self._groups[key]

    def dump(self) -> list[Any]:
        """The state as JSON data."""
        return [[key, [slots.dump() for slots in steps]] for key, steps in self._groups.items()]

    def load(self, data: list[Any]) -> None:
        """Take over a dumped state."""
        for (tenant, group), dumped in data:
            steps = self._groups[tenant, group] = [Slots.load(slots) for slots in dumped]
            self._kept += sum(map(len, steps))
            for slots in steps:
                for slot in slots.by_slot:
                    self._expire((tenant, group), slot)
