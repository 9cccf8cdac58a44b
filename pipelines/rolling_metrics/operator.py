"""Rolling metrics, first stage: what each key did per window, seen from one partition.

Counted by the event time of a call's end; a call counts once, whichever of its ends come and however often. A call
through an MCP proxy is two rows, never to be summed: the hook's under its tool name, the wire's as
`rpc:<method>[:<tool>]`.

- `count`, `outcomes`: calls that ended, timed out or were abandoned; wrappers not, since the call they make is counted.
- `error_rate`: (error + timeout) / (ok + error + timeout); blocked, cancelled and unknown calls prove nothing.
- `sketch`, percentiles: durations of calls that ran (ok, error, unknown): the event's own, else end − start.
- `timeouts`: calls whose only end is the inferred timeout.
- `in_flight`: calls open when the window ends, at most MAX_OPEN_MS each.

Windows are said when progress passes their end, provisionally before, and anew when late records change them; changes
are said at the first progress of each SAY_EVERY_MS. Per window and tenant the TOP_K keys with the most calls are said,
the rest as `_other`: a function of the records, since all keys of a window are held until it cannot change any more.
Memory is bounded by the calls of the last half hour (MAX_CALLS of them), not by TOP_K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any, get_args

import orjson

from pipelines.rolling_metrics.calls import (
    MAX_OPEN_MS,
    MINUTE_MS,
    Call,
    Flight,
    duration_ms,
    near,
    size_bytes,
    sketched,
)
from pipelines.rolling_metrics.cells import Cell, Key
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
_DUMP_VERSION = 1


class _Window:
    """What must be said of a window, with the log time of its last change, and under which ids what was said."""

    __slots__ = ("closed", "dirty", "said", "times")

    def __init__(self, start_ms: int, length_ms: int) -> None:
        self.dirty: dict[Key, int] = {}
        self.said: dict[Key, str] = {}
        self.closed = False
        self.times = (to_rfc3339(start_ms), to_rfc3339(start_ms + length_ms))


class _Minute:
    """The cells of a minute and the windows it lies in."""

    __slots__ = ("cells", "windows")

    def __init__(self, windows: tuple[_Window, ...]) -> None:
        self.cells: dict[Key, Cell] = {}
        self.windows = windows


class _Flights:
    """Calls of a key that opened less those that closed, by minute; `carry` sums the minutes that are forgotten."""

    __slots__ = ("carry", "deltas")

    def __init__(self) -> None:
        self.carry = 0
        self.deltas: dict[int, int] = {}


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
        self._calls: dict[str, Call] = {}
        self._expiry: dict[int, list[str]] = {}
        self._keys: dict[tuple[Any, ...], Key] = {}
        self._minutes: dict[int, _Minute] = {}
        self._flights: dict[Key, _Flights] = {}
        self._windows: dict[tuple[int, int], _Window] = {}
        self._floor = 0
        self._last_minute = 0
        self._tick = 0
        self._log_ms = 0

    # records

    def on_event(self, record: Record, out: Out) -> None:
        """Fold one record."""
        event = record.event
        ms = record.event_ms
        if type(event["event_id"]) is not str:
            raise TypeError("event_id is not text")
        self._log_ms = record.log_time_ms
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
        call = self._calls.get(ref)
        if call is None:
            call = self._new_call(ref)
            call.start = start
            self._move(None, call.flight())
        elif call.start is None or start[:2] < call.start[:2]:
            if call.start is not None and call.start[0] // MINUTE_MS >= self._floor:
                self._cell(call.start[0] // MINUTE_MS, call.start[2]).starts -= 1
            changed = call.copy()
            changed.start = start
            self._replace(ref, call, changed)
        else:
            if call.start[1] == start[1]:
                self._counts["duplicates"] += 1
            else:
                self._cell(ms // MINUTE_MS, key)
            return
        self._cell(ms // MINUTE_MS, key).starts += 1
        self._expire(ref, ms + MAX_OPEN_MS + LATENESS_MS)

    def _end(self, event: Event, ms: int, outcome: str, inferred: bool) -> None:
        ref, event_id = call_ref(event), event["event_id"]
        call = self._calls.get(ref)
        if event.get("retracted"):
            if call is not None:
                changed = call.copy()
                if remove_end(changed.ends, event_id):
                    self._replace(ref, call, changed)
            self._cell(ms // MINUTE_MS, self._key(event))
            return
        duration = None if inferred else duration_ms(event)
        input_bytes = size_bytes(event.get("input") or event.get("request"))
        output_bytes = size_bytes(event.get("output") or event.get("response")) or 0
        end = End(inferred, ms, event_id, (self._key(event), outcome, duration, input_bytes, output_bytes))
        if call is None:
            call = self._new_call(ref)
        if call.ends:
            changed = call.copy()
            if not add_end(changed.ends, end):
                self._counts["duplicates"] += 1
                return
            self._replace(ref, call, changed)
            # Where the end does not count its window is said or taken back all the same: a worker before, which had not
            # seen the stronger end, may have counted it.
            self._cell(ms // MINUTE_MS, end.payload[0])
        else:
            self._first_end(call, end)
        self._expire(ref, ms + SAME_CALL_MS + LATENESS_MS)

    def _first_end(self, call: Call, end: End) -> None:
        """What `_replace` would do for the only end of a call, without making what is not needed: nearly all ends."""
        call.ends.append(end)
        key, outcome, duration, input_bytes, output_bytes = end.payload
        minute, start = end.ms // MINUTE_MS, call.start
        if start is not None and near(start[0], end.ms):
            if input_bytes is None:
                input_bytes = start[3]
            if duration is None and end.ms >= start[0]:
                duration = end.ms - start[0]
            opened = start[0] // MINUTE_MS
            self._shift(start[2], (start[0] + MAX_OPEN_MS) // MINUTE_MS, 1)
            self._shift(start[2], max(opened, minute), -1)
        index, zero = sketched(outcome, duration)
        self._cell(minute, key).add((outcome, end.inferred, zero, index, input_bytes or 0, output_bytes))

    def _new_call(self, ref: str) -> Call:
        if len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
            self._counts["calls_forgotten"] += 1
        call = self._calls[ref] = Call()
        return call

    def _key(self, event: Event) -> Key:
        get = event.get
        mcp = get("mcp")
        said = (
            event["event_name"][:8] == "mcp.rpc.",
            get("tenant_id"),
            get("agent_runtime"),
            get("tool_source"),
            mcp.get("server_name") if type(mcp) is dict else get("mcp_server"),
            get("tool_name"),
            get("method"),
        )
        try:
            key = self._keys.get(said)
        except TypeError:
            return _key(said)
        if key is None:
            key = self._keys[said] = _key(said)
        return key

    # what a call adds

    def _replace(self, ref: str, call: Call, changed: Call) -> None:
        """Put a changed call in the place of a call, and what it adds in the place of what that added."""
        before, after = call.counted(), changed.counted()
        if before != after:
            for counted in before:
                if counted.minute >= self._floor:
                    self._cell(counted.minute, counted.key).take_back(counted.adds)
            for counted in after:
                if counted.minute >= self._floor:
                    self._cell(counted.minute, counted.key).add(counted.adds)
        if changed.start is not None:
            self._move(call.flight(), changed.flight())
        self._calls[ref] = changed

    def _move(self, before: Flight | None, after: Flight | None) -> None:
        """Count calls in flight anew: one left `before`, one came to `after`."""
        if before == after:
            return
        if before is not None and after is not None and before[:2] == after[:2]:
            self._shift(before.key, before.closed, 1)
            self._shift(after.key, after.closed, -1)
            return
        for flight, by in ((before, -1), (after, 1)):
            if flight is not None:
                self._shift(flight.key, flight.opened, by)
                self._shift(flight.key, flight.closed, -by)

    def _shift(self, key: Key, minute: int, by: int) -> None:
        flights = self._flights.get(key)
        if flights is None:
            flights = self._flights[key] = _Flights()
        if minute < self._floor:
            flights.carry += by
            return
        deltas = flights.deltas
        deltas[minute] = deltas.get(minute, 0) + by
        if minute <= self._last_minute:
            # The number in flight changes at the end of this minute and of those after it.
            for later in range(minute, self._last_minute + 1):
                place = self._minutes.get(later)
                if place is not None:
                    for window in place.windows:
                        window.dirty[key] = self._log_ms

    def _cell(self, minute: int, key: Key) -> Cell:
        place = self._minutes.get(minute)
        if place is None:
            place = self._minutes[minute] = self._new_minute(minute)
        cell = place.cells.get(key)
        if cell is None:
            cell = place.cells[key] = Cell()
        for window in place.windows:
            window.dirty[key] = self._log_ms
        return cell

    def _new_minute(self, minute: int) -> _Minute:
        self._last_minute = max(self._last_minute, minute)
        return _Minute(tuple([self._window(size, minute - minute % size) for size in WINDOWS]))

    def _window(self, size: int, start: int) -> _Window:
        window = self._windows.get((size, start))
        if window is None:
            window = self._windows[size, start] = _Window(start * MINUTE_MS, size * MINUTE_MS)
        return window

    def _expire(self, ref: str, ms: int) -> None:
        minute = ms // MINUTE_MS
        refs = self._expiry.get(minute)
        if refs is None:
            refs = self._expiry[minute] = []
        refs.append(ref)

    # progress

    def on_progress(self, t_ms: int, out: Out) -> None:
        """Say what changed since the last tick and what closed; forget what no later record can change."""
        tick = t_ms // SAY_EVERY_MS
        if tick <= self._tick:
            return
        self._tick = tick
        for place in sorted(self._windows):
            window = self._windows[place]
            closes = (place[0] + place[1]) * MINUTE_MS <= t_ms
            if window.dirty or (closes and not window.closed):
                self._say(place, window, t_ms, out)
        self._forget(t_ms)

    def _say(self, place: tuple[int, int], window: _Window, t_ms: int, out: Out) -> None:
        size, start = place
        closes = (start + size) * MINUTE_MS <= t_ms
        minutes = [found.cells for m in range(start, start + size) if (found := self._minutes.get(m))]
        keys = set(chain(*minutes))
        wanted = set(window.dirty)
        if closes and not window.closed:
            wanted = keys
            window.closed = True
        # A host that re-reads the log takes what is due by a progress as said, and no more: what a record after this
        # progress changed is said again then.
        later = {key: log_ms for key, log_ms in window.dirty.items() if log_ms > t_ms}
        if len(keys) > self._top_k:
            said = self._fold(place, minutes, keys)
            moved = window.said.keys() ^ said.keys()
            wanted = (wanted & said.keys()) | moved | {key for key in said if key.tool == OTHER}
            if later:
                later = dict.fromkeys(wanted, max(later.values()))
        else:
            wanted &= keys
            said = {key: (_merge(minutes, key), self._in_flight(key, start + size)) for key in wanted}
        for key in sorted(wanted):
            cell, in_flight = said.get(key, (_EMPTY, 0))
            record_id = window.said.get(key) or self._record_id(place, key)
            body = self._body(key, size, window, record_id)
            body.update(cell.fields())
            body["in_flight"] = max(0, in_flight)
            if not closes:
                body["provisional"] = True
            if not cell.empty:
                out.put(TOOL_METRIC, record_id, body)
                window.said[key] = record_id
            else:
                out.retract(TOOL_METRIC, record_id, body)
                if key not in later:
                    window.said.pop(key, None)
        window.dirty = later

    def _fold(
        self, place: tuple[int, int], minutes: list[dict[Key, Cell]], keys: set[Key]
    ) -> dict[Key, tuple[Cell, int]]:
        """What a window with many keys says: each tenant's TOP_K by count, ties by name, the others as one."""
        end = place[0] + place[1]
        ranked: dict[str, list[tuple[int, Key, Cell]]] = {}
        for key in keys:
            cell = _merge(minutes, key)
            if not cell.empty:
                ranked.setdefault(key.tenant, []).append((-cell.count, key, cell))
        said: dict[Key, tuple[Cell, int]] = {}
        for tenant, cells in ranked.items():
            cells.sort(key=lambda entry: entry[:2])
            for _, key, cell in cells[: self._top_k]:
                said[key] = (cell, self._in_flight(key, end))
            others: dict[str, list[tuple[int, Key, Cell]]] = {}
            for entry in cells[self._top_k :]:
                others.setdefault(entry[1].runtime, []).append(entry)
            for runtime, entries in others.items():
                merged = Cell.merged(entry[2] for entry in entries)
                flying = sum(self._in_flight(entry[1], end) for entry in entries)
                said[Key(tenant, runtime, "unknown", "", OTHER)] = (merged, flying)
        return said

    def _in_flight(self, key: Key, end_minute: int) -> int:
        flight = self._flights.get(key)
        if flight is None:
            return 0
        return flight.carry + sum(by for minute, by in flight.deltas.items() if minute < end_minute)

    def _record_id(self, place: tuple[int, int], key: Key) -> str:
        return derived_id("metric", WINDOWS[place[0]], place[1] * MINUTE_MS, *key, self._partition)

    def _body(self, key: Key, size: int, window: _Window, record_id: str) -> dict[str, Any]:
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
                if call is not None and call.expires_ms() < (minute + 1) * MINUTE_MS:
                    del self._calls[ref]
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
        for key, flight in list(self._flights.items()):
            for minute, by in list(flight.deltas.items()):
                if minute < floor:
                    flight.carry += by
                if minute < floor or not by:
                    del flight.deltas[minute]
            if not flight.carry and not flight.deltas:
                del self._flights[key]

    # checkpoint

    def dump(self) -> bytes:
        """The state as JSON."""
        keys: dict[Key, int] = {}

        def number(key: Key) -> int:
            return keys.setdefault(key, len(keys))

        calls = [
            [
                ref,
                call.start and [call.start[0], call.start[1], number(call.start[2]), call.start[3]],
                [[end.inferred, end.ms, end.event_id, number(end.payload[0]), *end.payload[1:]] for end in call.ends],
            ]
            for ref, call in self._calls.items()
        ]
        minutes = [
            [minute, [[number(key), cell.dump()] for key, cell in cells.items()]]
            for minute, cells in ((minute, place.cells) for minute, place in self._minutes.items())
        ]
        flights = [[number(key), flight.carry, list(flight.deltas.items())] for key, flight in self._flights.items()]
        windows = [
            [
                *place,
                window.closed,
                [[number(key), log_ms] for key, log_ms in window.dirty.items()],
                [number(key) for key in window.said],
            ]
            for place, window in self._windows.items()
        ]
        return orjson.dumps(
            {
                "version": _DUMP_VERSION,
                "calls": calls,
                "minutes": minutes,
                "flights": flights,
                "windows": windows,
                "floor": self._floor,
                "tick": self._tick,
                "keys": [list(key) for key in keys],
            }
        )

    def load(self, state: bytes) -> None:
        """Take over a dumped state. Raises ValueError if it is something else."""
        data = orjson.loads(state)
        if not isinstance(data, dict) or data.get("version") != _DUMP_VERSION:
            raise ValueError("not a state of rolling_metrics of this version")
        keys = [Key(*key) for key in data["keys"]]
        self._calls, self._expiry, self._keys = {}, {}, {}
        for ref, start, ends in data["calls"]:
            call = self._calls[ref] = Call()
            if start:
                call.start = (start[0], start[1], keys[start[2]], start[3])
            call.ends = [End(end[0], end[1], end[2], (keys[end[3]], *end[4:])) for end in ends]
            self._expire(ref, call.expires_ms())
        self._flights = {}
        for key, carry, deltas in data["flights"]:
            flights = self._flights[keys[key]] = _Flights()
            flights.carry, flights.deltas = carry, dict(deltas)
        self._windows = {}
        for size, first, closed, dirty, said in data["windows"]:
            window = self._window(size, first)
            window.closed = closed
            window.dirty = {keys[key]: log_ms for key, log_ms in dirty}
            window.said = {keys[key]: self._record_id((size, first), keys[key]) for key in said}
        self._last_minute = 0
        self._minutes = {}
        for minute, cells in data["minutes"]:
            place = self._minutes[minute] = self._new_minute(minute)
            place.cells = {keys[key]: Cell.load(cell) for key, cell in cells}
        self._floor, self._tick = data["floor"], data["tick"]


_EMPTY = Cell()


def _merge(minutes: list[dict[Key, Cell]], key: Key) -> Cell:
    cells = [cell for minute in minutes if (cell := minute.get(key))]
    return cells[0] if len(cells) == 1 else Cell.merged(cells)


def _key(said: tuple[Any, ...]) -> Key:
    rpc, tenant, runtime, source, server, tool, method = said
    runtime = runtime if runtime in _RUNTIMES else "other"
    tool = _name(tool)
    if rpc:
        source = "mcp"
        tool = f"rpc:{_name(method) or 'unknown'}" + (f":{tool}" if tool else "")
    elif source not in _SOURCES:
        source = "unknown"
    return Key(_name(tenant), runtime, source, _name(server), tool or "unknown")


def _name(value: Any) -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""
