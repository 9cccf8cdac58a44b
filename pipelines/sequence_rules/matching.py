"""Which of the kept events support a finding: pure functions over sorted lists, symmetric in the order of arrival."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from pipelines.sequence_rules.evidence import Kept


def chains(steps: Sequence[list[Kept]], withins: Sequence[int]) -> list[list[Kept]]:
    """Per step, the events that are part of a whole chain; all lists are empty if there is none.

    A chain is one event of each step, each after the one before it by 0 … `within` ms and not the same event.
    """
    alive = list(steps)
    for place in range(len(alive) - 2, -1, -1):
        later, times = alive[place + 1], [event.ms for event in alive[place + 1]]
        within = withins[place]
        alive[place] = [e for e in alive[place] if _has_other(later, times, e, e.ms, e.ms + within)]
    for place in range(1, len(alive)):
        earlier, times = alive[place - 1], [event.ms for event in alive[place - 1]]
        within = withins[place - 1]
        alive[place] = [e for e in alive[place] if _has_other(earlier, times, e, e.ms - within, e.ms)]
    return alive


def _has_other(events: list[Kept], times: list[int], event: Kept, first_ms: int, last_ms: int) -> bool:
    """Whether an event other than this one lies in the time, both ends included."""
    first, end = bisect_left(times, first_ms), bisect_right(times, last_ms)
    return end - first > 1 or (end - first == 1 and events[first].event_id != event.event_id)


def runs(events: list[Kept], more_than: int, within: int, first_ms: int) -> list[Kept]:
    """The events that are part of a run of more than so many within a time; the run ends at or after first_ms."""
    found: list[Kept] = []
    next_place = 0
    for last in range(more_than, len(events)):
        first = last - more_than
        if events[last].ms >= first_ms and events[last].ms - events[first].ms <= within:
            found += events[max(first, next_place) : last + 1]
            next_place = last + 1
    return found


def value_flow(steps: Sequence[list[Kept]]) -> list[str]:
    """Fingerprints of secret-like values that an event of the last step has and one of an earlier step had before."""
    seen: dict[str, int] = {}
    for events in steps[:-1]:
        for event in events:
            for fingerprint in event.about.fingerprints:
                seen[fingerprint] = min(event.ms, seen.get(fingerprint, event.ms))
    return sorted(
        {
            fingerprint
            for event in steps[-1]
            for fingerprint in event.about.fingerprints
            if seen.get(fingerprint, event.ms + 1) <= event.ms
        }
    )
