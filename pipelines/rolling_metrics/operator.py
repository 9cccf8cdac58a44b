"""Rolling metrics, first stage: what each key did per window, seen from one partition.

Counted by the event time of a call's end; a call counts once, whichever of its ends come and however often. A call
through an MCP proxy is two rows, never to be summed: the hook's under its tool name, the wire's as
`rpc:<method>[:<tool>]`.

- `count`, `outcomes`: calls that ended, timed out or were abandoned; wrappers not, since the call they make is counted.
- `error_rate`: (error + timeout) / (ok + error + timeout); blocked, cancelled and unknown calls prove nothing.
- `sketch`, percentiles: durations of calls that ran (ok, error, unknown): the event's own, else end − start.
- `timeouts`: calls whose only end is the inferred timeout.
- `in_flight`: calls open when the window ends, at most MAX_OPEN_MS each.

Windows are said when progress passes their end, provisionally before (long ones once a minute), and anew when late
records change them; changes by records before a SAY_EVERY_MS are said at the first progress in it. Per window and
tenant the TOP_K keys with the most calls are said, the rest as `_other`: a function of the records, since all keys of a
window are held until it cannot change any more. Memory is bounded by the calls of the last half hour (MAX_CALLS of
them), not by TOP_K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, get_args
from weakref import WeakValueDictionary

import orjson

from pipelines.rolling_metrics.calls import (
    MAX_OPEN_MS,
    MINUTE_MS,
    Call,
    Flight,
    Start,
    counted,
    duration_ms,
    expires_ms,
    flight,
    near,
    size_bytes,
    sketched,
)
from pipelines.rolling_metrics.cells import Cell, Key, Names
from pipelines.rolling_metrics.ends import (
    INFERRED,
    RPC_ENDS,
    SAME_CALL_MS,
    TOOL_ENDS,
    End,
    add_end,
    call_ref,
    outcome_of,
    remove_end,
)
from pipelines.runtime.port import LATENESS_MS, Event, Out, Record
from schemas.clock import to_rfc3339
from schemas.events import Runtime, ToolSource
from schemas.identity import derived_id
from schemas.topics import TOOL_METRIC

WINDOWS: dict[int, str] = {1: "1m", 5: "5m"}
"""Window length in minutes to its name. Cells are minutes, so every length must divide the longest."""
LONGEST = max(WINDOWS)
SAY_EVERY_MS = 10_000
TOP_K = 500
OTHER = "_other"
MAX_CALLS = 500_000
"""Calls remembered per partition. Beyond it the oldest is forgotten (counted): a second end of it would count again."""
MAX_NAME = 200
"""Characters of a name kept in a key."""

_SOURCES: tuple[str, ...] = get_args(ToolSource)
_RUNTIMES: tuple[str, ...] = get_args(Runtime)
_STARTS = frozenset({"tool.call.started", "mcp.rpc.request"})
_DUMP_VERSION = 3


class _Window:
    """Under which ids what was said of a window, and what must be said again, by tick.

    `provisional` is the minute of the progress at which it was last said before its end, `waiting` what changed since.
    """

    __slots__ = ("again", "closed", "provisional", "said", "times", "waiting")

    def __init__(self, start_ms: int, length_ms: int) -> None:
        self.again: dict[int, set[Key]] = {}
        self.said: dict[Key, str] = {}
        self.closed = False
        self.provisional = 0
        self.waiting: set[Key] = set()
        self.times = (to_rfc3339(start_ms), to_rfc3339(start_ms + length_ms))


class _Minute:
    """The cells of a minute, and the keys of it that records of one tick of log time changed."""

    __slots__ = ("cells", "minute", "tick", "touched")

    def __init__(self, minute: int) -> None:
        self.minute = minute
        self.cells: dict[Key, Cell] = {}
        self.tick = -1
        self.touched: set[Key] = set()


_Sums = dict[Key, tuple[list[Cell], list[Key]]]
"""What is said of a window: by key the cells to be added up, and the keys whose calls may be in flight."""


class RollingMetrics:
    """The operator (see pipelines.runtime.port.Operator) for one partition."""

    name = "rolling_metrics"
    wants = TOOL_ENDS | RPC_ENDS | _STARTS
    horizon_ms = MAX_OPEN_MS + 2 * LATENESS_MS + LONGEST * MINUTE_MS

    def __init__(self, partition: int, *, top_k: int = TOP_K) -> None:
        self._counts: Counter[str] = Counter()
        self.counters: Mapping[str, int] = self._counts
        self._partition = partition
        self._top_k = top_k
        self.configuration = str(top_k)
        self._calls: dict[str, Call] = {}
        self._expiry: dict[int, list[str]] = {}
        self._keys: dict[tuple[Any, ...], Key] = {}
        self._all_keys: WeakValueDictionary[Names, Key] = WeakValueDictionary()
        self._flying: set[Key] = set()
        self._minutes: dict[int, _Minute] = {}
        self._windows: dict[tuple[int, int], _Window] = {}
        # By tick of log time and minute: what a tick's records changed is said at the first progress after the tick. A
        # host that re-reads the log takes what is due by a progress as said, whichever progress of a tick was the first.
        self._touched: dict[int, dict[int, set[Key]]] = {}
        self._floor = 0
        self._last_minute = 0
        self._tick = 0
        self._log_tick = 0
        self._again = 0

    # records

    def on_event(self, record: Record, out: Out) -> None:
        """Fold one record."""
        event = record.event
        ms = record.event_ms
        if type(event["event_id"]) is not str:
            raise TypeError("event_id is not text")
        self._log_tick = record.cause_ms // SAY_EVERY_MS
        self._again = 0
        ahead = ms - record.log_time_ms
        if ahead > LATENESS_MS or ahead < -LATENESS_MS or ms // MINUTE_MS < self._floor:
            self._counts["too_early" if ahead > 0 else "too_late"] += 1
            return
        name = event["event_name"]
        if name in _STARTS:
            if not event.get("wrapper"):
                self._start(event, ms)
            return
        outcome = outcome_of(event)
        if outcome is not None:
            self._end(event, ms, outcome, name in INFERRED)

    def _start(self, event: Event, ms: int) -> None:
        ref, key = call_ref(event), self._key(event)
        start = (ms, event["event_id"], key, size_bytes(event.get("input") or event.get("request")) or 0)
        call, minute = self._calls.get(ref), ms // MINUTE_MS
        if call is None and key.tick <= self._log_tick:
            key.tick = self._log_tick
        else:
            self._meet(key, call)
        if call is None:
            self._new_call(ref, (start, ()), ms - SAME_CALL_MS)
            self._flying.add(key)
            self._count_open(key, minute, minute + _MAX_OPEN, 1)
        else:
            known = call[0]
            if known is not None and start[:2] >= known[:2]:
                if known[1] == start[1]:
                    self._counts["duplicates"] += 1
                else:
                    self._cell(minute, key)
                return
            if known is not None and known[0] // MINUTE_MS >= self._floor:
                self._cell(known[0] // MINUTE_MS, known[2]).starts -= 1
            self._replace(ref, call, (start, call[1]))
            self._look_at(ref, ms - SAME_CALL_MS)
        self._cell(minute, key).starts += 1

    def _end(self, event: Event, ms: int, outcome: str, inferred: bool) -> None:
        ref, event_id = call_ref(event), event["event_id"]
        call, key, minute = self._calls.get(ref), self._key(event), ms // MINUTE_MS
        if key.tick <= self._log_tick and (call is None or (not call[1] and call[0][2] is key)):  # type: ignore[index]
            key.tick = self._log_tick
        else:
            self._meet(key, call)
        if event.get("retracted"):
            if call is not None:
                ends = list(call[1])
                if remove_end(ends, event_id):
                    self._replace(ref, call, (call[0], tuple(ends)))
            self._cell(minute, key)
            return
        duration = None if inferred else duration_ms(event)
        input_bytes = size_bytes(event.get("input") or event.get("request"))
        output_bytes = size_bytes(event.get("output") or event.get("response")) or 0
        end: End = _make_end(End, (inferred, ms, event_id, (key, outcome, duration, input_bytes, output_bytes)))
        if call is None:
            self._new_call(ref, (None, (end,)), ms)
            self._first_end(None, end)
        elif not call[1]:
            self._calls[ref] = (call[0], (end,))
            self._first_end(call[0], end)
        else:
            ends = list(call[1])
            if not add_end(ends, end):
                self._counts["duplicates"] += 1
                return
            self._replace(ref, call, (call[0], tuple(ends)))
            # Where the end does not count its window is said or taken back all the same: a worker before, which had not
            # seen the stronger end, may have counted it.
            self._cell(minute, key)
            self._look_at(ref, ms)

    def _meet(self, key: Key, call: Call | None) -> None:
        """A record of this key and call meets records of later ticks: what it changes is due again with the latest.

        A worker before that had not read that one yet has said something else.
        """
        keys = {key}
        if call is not None:
            keys.update(end.payload[0] for end in call[1])
            if call[0] is not None:
                keys.add(call[0][2])
        latest = max(self._log_tick, *[one.tick for one in keys])
        if latest > self._log_tick:
            self._again = latest
        for one in keys:
            one.tick = latest

    def _first_end(self, start: Start | None, end: End) -> None:
        """What `_replace` would do for the only end of a call, without making what is not needed: nearly all ends."""
        key, outcome, duration, input_bytes, output_bytes = end.payload
        end_ms = end[1]
        minute = end_ms // MINUTE_MS
        if start is not None and near(start[0], end_ms):
            start_ms = start[0]
            if input_bytes is None:
                input_bytes = start[3]
            if duration is None and end_ms >= start_ms:
                duration = end_ms - start_ms
            opened = start_ms // MINUTE_MS
            closed, closes_at_last = minute if minute > opened else opened, opened + _MAX_OPEN
            if start[2] is key and closed >= self._floor and closed != closes_at_last:
                self._count_open(key, closed, closes_at_last, -1)
            else:
                self._shift(start[2], closes_at_last, 1)
                self._shift(start[2], closed, -1)
        index, zero = sketched(outcome, duration)
        self._cell(minute, key).add((outcome, end[0], zero, index, input_bytes or 0, output_bytes))

    def _new_call(self, ref: str, call: Call, ms: int) -> None:
        if len(self._calls) >= MAX_CALLS:
            # Many at once: to find the first of a dict takes the longer, the more were deleted before it.
            oldest = list(islice(self._calls, max(1, MAX_CALLS // 100)))
            for forgotten in oldest:
                del self._calls[forgotten]
            self._counts["calls_forgotten"] += len(oldest)
        self._calls[ref] = call
        self._look_at(ref, ms)

    def _key(self, event: Event) -> Key:
        get = event.get
        mcp = get("mcp")
        said = (
            get("tenant_id"),
            get("agent_runtime"),
            get("tool_source"),
            mcp.get("server_name") if type(mcp) is dict else get("mcp_server"),
            get("tool_name"),
            get("method") if event["event_name"][:8] == "mcp.rpc." else _NO_RPC,
        )
        try:
            key = self._keys.get(said)
        except TypeError:
            return self._key_of(_names(said))
        if key is None:
            key = self._keys[said] = self._key_of(_names(said))
        return key

    def _key_of(self, names: Names) -> Key:
        key = self._all_keys.get(names)
        if key is None:
            key = self._all_keys[names] = Key(names)
        return key

    # what a call adds

    def _replace(self, ref: str, call: Call, changed: Call) -> None:
        """Put a changed call in the place of a call, and what it adds in the place of what that added."""
        before, after = counted(call), counted(changed)
        if before != after:
            for one in before:
                if one.minute >= self._floor:
                    self._cell(one.minute, one.key).take_back(one.adds)
            for one in after:
                if one.minute >= self._floor:
                    self._cell(one.minute, one.key).add(one.adds)
        if changed[0] is not None:
            self._move(flight(call), flight(changed))
        self._calls[ref] = changed

    def _move(self, before: Flight | None, after: Flight | None) -> None:
        """Count calls in flight anew: one left `before`, one came to `after`."""
        if before == after:
            return
        if before is not None and after is not None and before[:2] == after[:2]:
            self._shift(before.key, before.closed, 1)
            self._shift(after.key, after.closed, -1)
            return
        for one, by in ((before, -1), (after, 1)):
            if one is not None:
                self._shift(one.key, one.opened, by)
                self._shift(one.key, one.closed, -by)

    def _count_open(self, key: Key, first: int, last: int, by: int) -> None:
        """Two shifts at once, for a key whose cell of the first minute is changed too."""
        if last <= self._last_minute:
            self._shift(key, first, by)
            self._shift(key, last, -by)
            return
        deltas = key.deltas
        deltas[first] = deltas.get(first, 0) + by
        deltas[last] = deltas.get(last, 0) - by
        if first < self._last_minute:
            self._touch(key, first)

    def _shift(self, key: Key, minute: int, by: int) -> None:
        self._flying.add(key)
        if minute < self._floor:
            key.carry += by
            return
        deltas = key.deltas
        deltas[minute] = deltas.get(minute, 0) + by
        if minute <= self._last_minute:
            self._touch(key, minute)

    def _touch(self, key: Key, minute: int) -> None:
        """The number in flight changes at the end of this minute and of those after it."""
        for later in range(minute, self._last_minute + 1):
            place = self._minutes.get(later)
            if place is not None:
                if place.tick != self._log_tick:
                    self._turn(place)
                place.touched.add(key)
                if self._again:
                    self._touch_again(later, key)

    def _cell(self, minute: int, key: Key) -> Cell:
        place = self._minutes.get(minute)
        if place is None:
            place = self._new_minute(minute)
        cell = place.cells.get(key)
        if cell is None:
            cell = place.cells[key] = Cell()
        if place.tick != self._log_tick:
            self._turn(place)
        place.touched.add(key)
        if self._again:
            self._touch_again(minute, key)
        return cell

    def _touch_again(self, minute: int, key: Key) -> None:
        self._touched.setdefault(self._again, {}).setdefault(minute, set()).add(key)

    def _turn(self, place: _Minute) -> None:
        """Let a minute note what is changed by records of this tick of log time."""
        place.tick = self._log_tick
        place.touched = self._touched.setdefault(place.tick, {}).setdefault(place.minute, set())

    def _new_minute(self, minute: int) -> _Minute:
        self._last_minute = max(self._last_minute, minute)
        for size in WINDOWS:
            self._window(size, minute - minute % size)
        place = self._minutes[minute] = _Minute(minute)
        return place

    def _window(self, size: int, start: int) -> _Window:
        window = self._windows.get((size, start))
        if window is None:
            window = self._windows[size, start] = _Window(start * MINUTE_MS, size * MINUTE_MS)
        return window

    def _look_at(self, ref: str, ms: int) -> None:
        """See whether a call can be forgotten, when no record of this time (ms) can matter to it any more."""
        self._expire(ref, ms + SAME_CALL_MS + LATENESS_MS)

    def _expire(self, ref: str, ms: int) -> None:
        minute = ms // MINUTE_MS
        refs = self._expiry.get(minute)
        if refs is None:
            refs = self._expiry[minute] = []
        refs.append(ref)

    # progress

    def on_progress(self, t_ms: int, out: Out) -> None:
        """Say what changed before this tick and what closed; forget what no later record can change."""
        tick = t_ms // SAY_EVERY_MS
        if tick <= self._tick:
            return
        self._tick = tick
        due: dict[int, set[Key]] = {}
        for past in [one for one in self._touched if one < tick]:
            for minute, keys in self._touched.pop(past).items():
                due.setdefault(minute, set()).update(keys)
                if minute in self._minutes:
                    self._minutes[minute].tick = -1
        for place in sorted(self._windows):
            window = self._windows[place]
            size, start = place
            changed = {key for minute in range(start, start + size) for key in due.get(minute, ())}
            for past in [one for one in window.again if one < tick]:
                changed |= window.again.pop(past)
            closes = not window.closed and (start + size) * MINUTE_MS <= t_ms
            if size > 1 and not window.closed and not closes:
                # At its end all of it is said, so what waits needs no place in a checkpoint.
                window.waiting |= changed
                if not window.waiting or window.provisional == t_ms // MINUTE_MS:
                    continue
                window.provisional = t_ms // MINUTE_MS
                changed, window.waiting = window.waiting, set()
            if changed or closes:
                self._say(place, window, changed, t_ms, out)
        self._forget(t_ms)

    def _say(self, place: tuple[int, int], window: _Window, changed: set[Key], t_ms: int, out: Out) -> None:
        size, start = place
        closes = (start + size) * MINUTE_MS <= t_ms
        minutes = [found.cells for m in range(start, start + size) if (found := self._minutes.get(m))]
        keys = set(chain(*minutes))
        wanted = changed
        if closes and not window.closed:
            wanted = keys
            window.closed = True
        later = {
            tick: touched
            for tick, by_minute in self._touched.items()
            if (touched := {key for m in range(start, start + size) for key in by_minute.get(m, ())})
        }
        for tick, again in window.again.items():
            later[tick] = later.get(tick, set()) | again
        if len(keys) > self._top_k:
            said = self._fold(minutes, keys)
            moved = window.said.keys() ^ said.keys()
            others = {key for key in said if key.names.tool == OTHER}
            wanted = (wanted & said.keys()) | moved | others
            if later:
                # Later records had their say in who is on top.
                window.again.setdefault(max(later), set()).update(moved, others)
                later[max(later)] |= moved
        else:
            wanted = wanted & keys
            said = {key: ([cell for cells in minutes if (cell := cells.get(key))], [key]) for key in wanted}
        for key in sorted(wanted, key=_by_names):
            cells, flying = said.get(key, _NOTHING)
            cell = cells[0] if len(cells) == 1 else Cell.merged(cells)
            record_id = window.said.get(key) or self._record_id(place, key.names)
            body = self._body(key.names, size, window, record_id)
            body.update(cell.fields())
            body["in_flight"] = max(0, sum(one.in_flight(start + size) for one in flying))
            if not closes:
                body["provisional"] = True
            if not cell.empty:
                out.put(TOOL_METRIC, record_id, body)
                window.said[key] = record_id
            else:
                out.retract(TOOL_METRIC, record_id, body)
                if not any(key in touched for touched in later.values()):
                    window.said.pop(key, None)

    def _fold(self, minutes: list[dict[Key, Cell]], keys: set[Key]) -> _Sums:
        """What a window with many keys says: each tenant's TOP_K by count, ties by name, the others as one."""
        ranked: dict[str, list[tuple[int, Names, Key, list[Cell]]]] = {}
        for key in keys:
            cells = [cell for minute in minutes if (cell := minute.get(key)) and not cell.empty]
            if cells:
                count = sum(cell.count for cell in cells)
                ranked.setdefault(key.names.tenant, []).append((-count, key.names, key, cells))
        said: _Sums = {}
        for tenant, entries in ranked.items():
            entries.sort(key=lambda entry: entry[:2])
            for _, _, key, cells in entries[: self._top_k]:
                said[key] = (cells, [key])
            for _, names, key, cells in entries[self._top_k :]:
                other = self._key_of(Names(tenant, names.runtime, "unknown", "", OTHER))
                merged, flying = said.setdefault(other, ([], []))
                merged += cells
                flying.append(key)
        return said

    def _record_id(self, place: tuple[int, int], key: Names) -> str:
        return derived_id("metric", WINDOWS[place[0]], place[1] * MINUTE_MS, *key, self._partition)

    def _body(self, key: Names, size: int, window: _Window, record_id: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "event_name": "metric.window.closed",
            "event_id": record_id,
            "event_version": "1.0",
            "timestamp": window.times[1],
            "agent_runtime": key.runtime,
            "source_adapter": "rolling_metrics/1",
            "severity": "info",
            "window": WINDOWS[size],
            "window_start": window.times[0],
            "window_ms": size * MINUTE_MS,
            "source_partition": self._partition,
            "tool_source": key.source,
            "tool_name": key.tool,
        }
        if key.tenant:
            body["tenant_id"] = key.tenant
        if key.server:
            body["mcp_server"] = key.server
        return body

    def _forget(self, t_ms: int) -> None:
        for minute in [minute for minute in self._expiry if (minute + 1) * MINUTE_MS <= t_ms]:
            for ref in self._expiry.pop(minute):
                call = self._calls.get(ref)
                if call is not None:
                    over_ms = expires_ms(call)
                    if over_ms < (minute + 1) * MINUTE_MS:
                        del self._calls[ref]
                    else:
                        self._expire(ref, over_ms)
        floor = (t_ms - LATENESS_MS) // MINUTE_MS
        floor -= floor % LONGEST
        if floor <= self._floor:
            return
        self._floor = floor
        self._keys.clear()
        for place in [place for place in self._windows if place[1] < floor]:
            del self._windows[place]
        for minute in [minute for minute in self._minutes if minute < floor]:
            del self._minutes[minute]
        for key in list(self._flying):
            for minute, by in list(key.deltas.items()):
                if minute < floor:
                    key.carry += by
                if minute < floor or not by:
                    del key.deltas[minute]
            if not key.carry and not key.deltas:
                self._flying.discard(key)

    # checkpoint

    def dump(self) -> bytes:
        """The state as JSON, calls column by column: many thousands of them take long otherwise."""
        keys: dict[Key, int] = {}

        def number(key: Key) -> int:
            return keys.setdefault(key, len(keys))

        def numbers(some: Iterable[Key]) -> list[int]:
            return [number(key) for key in sorted(some, key=_by_names)]

        starts: list[Any] = []
        ends: list[Any] = []
        some_ends: list[Any] = []
        for place, (start, known) in enumerate(self._calls.values()):
            starts.append(start and (start[0], start[1], number(start[2]), start[3]))
            if len(known) == 1:
                inferred, ms, event_id, said = known[0]
                ends.append((inferred, ms, event_id, number(said[0]), *said[1:]))
            else:
                ends.append(None)
                if known:
                    some_ends.append([place, [[*end[:3], number(end.payload[0]), *end.payload[1:]] for end in known]])
        flying = sorted(self._flying, key=_by_names)
        windows = [
            [*place, window.closed, numbers(window.said), [[tick, numbers(one)] for tick, one in window.again.items()]]
            for place, window in self._windows.items()
        ]
        state = {
            "version": _DUMP_VERSION,
            "refs": list(self._calls),
            "starts": starts,
            "ends": ends,
            "some_ends": some_ends,
            "minutes": [
                [place.minute, [[number(key), cell.dump()] for key, cell in place.cells.items()]]
                for place in self._minutes.values()
            ],
            "flights": [[number(key), key.carry, list(key.deltas.items())] for key in flying],
            "windows": windows,
            "touched": [
                [tick, [[minute, numbers(some)] for minute, some in by_minute.items()]]
                for tick, by_minute in self._touched.items()
            ],
            "floor": self._floor,
            "tick": self._tick,
            "keys": [[*key.names, key.tick] for key in keys],
        }
        return orjson.dumps(state)

    def load(self, state: bytes) -> None:
        """Take over a dumped state, as a new operator. Raises ValueError if it is something else."""
        data = orjson.loads(state)
        if not isinstance(data, dict) or data.get("version") != _DUMP_VERSION:
            raise ValueError("not a state of rolling_metrics of this version")
        keys = []
        for *names, tick in data["keys"]:
            key = self._key_of(Names(*names))
            key.tick = tick
            keys.append(key)

        def end_of(dumped: list[Any]) -> End:
            inferred, ms, event_id, key, *said = dumped
            return End(inferred, ms, event_id, (keys[key], *said))

        for ref, start, end in zip(data["refs"], data["starts"], data["ends"], strict=True):
            self._calls[ref] = (
                None if start is None else (start[0], start[1], keys[start[2]], start[3]),
                () if end is None else (end_of(end),),
            )
        refs = data["refs"]
        for place, ends in data["some_ends"]:
            self._calls[refs[place]] = (self._calls[refs[place]][0], tuple(map(end_of, ends)))
        for ref, call in self._calls.items():
            self._expire(ref, expires_ms(call))
        for number, carry, deltas in data["flights"]:
            key = keys[number]
            self._flying.add(key)
            key.carry, key.deltas = carry, dict(deltas)
        for size, first, closed, said, again in data["windows"]:
            window = self._window(size, first)
            window.closed = closed
            window.said = {keys[key]: self._record_id((size, first), keys[key].names) for key in said}
            window.again = {tick: {keys[key] for key in some} for tick, some in again}
        for minute, cells in data["minutes"]:
            self._new_minute(minute).cells = {keys[key]: Cell.load(cell) for key, cell in cells}
        self._touched = {
            tick: {minute: {keys[key] for key in some} for minute, some in by_minute}
            for tick, by_minute in data["touched"]
        }
        self._floor, self._tick = data["floor"], data["tick"]


_MAX_OPEN = MAX_OPEN_MS // MINUTE_MS
_NO_RPC = object()
_make_end = tuple.__new__
_NOTHING: tuple[list[Cell], list[Key]] = ([], [])


def _by_names(key: Key) -> Names:
    return key.names


def _names(said: tuple[Any, ...]) -> Names:
    tenant, runtime, source, server, tool, method = said
    runtime = runtime if runtime in _RUNTIMES else "other"
    tool = _name(tool)
    if method is not _NO_RPC:
        source = "mcp"
        tool = f"rpc:{_name(method) or 'unknown'}" + (f":{tool}" if tool else "")
    elif source not in _SOURCES:
        source = "unknown"
    return Names(_name(tenant), runtime, source, _name(server), tool or "unknown")


def _name(value: Any) -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""
