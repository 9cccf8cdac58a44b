"""Finds tool calls that never ended: what never ends makes no record, so somebody has to keep the time.

A call is timed out if no end of it has a log time ≤ its deadline (log time of its earliest start + TTL), and abandoned
instead if its session ended while it ran. An end that comes later changes nothing here: the view shows it, as late.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from pipelines.pending_calls.call import (
    ALLOWED,
    ASKED,
    COPIED,
    MAX_APPROVALS,
    NEVER,
    Call,
    Ends,
    Verdict,
    pack,
    rank,
    session_name,
)
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime.port import DUE_MS, LATENESS_MS, Event, Out, Record
from schemas.clock import to_rfc3339
from schemas.identity import derived_id
from schemas.topics import TOOL_CALL_DERIVED

KEEP_MS = LATENESS_MS + 60_000
"""How long (log time) what is settled is remembered, so that a repeated or misplaced record of it changes nothing."""
GRACE_MS = DUE_MS
"""Wait after a session's end before its open calls are called abandoned: their ends may be just behind."""
SKEW_MS = 60_000
"""Error of the progress that a worker before this one may have believed; what it then said too early is taken back."""
MAX_SETTLED = 50_000
"""Ended calls, and ends of sessions, remembered at most; beyond it the oldest go before KEEP_MS is over."""
MAX_SESSION_ENDS = 32
"""Ends kept per session, the latest: a resumed session can end often."""
MAX_YOUNG = 256
"""Starts held as they came: most calls end before so many others start, and packing costs more than all else."""
MAX_ALIKE = 8192
"""Texts remembered so that calls share them."""

SILENT_WHEN_BLOCKED = frozenset({"codex"})
"""Runtimes that give no event for a call that another hook or a person blocked."""
REFUSED = frozenset({"deny", "timeout", "cancelled"})

STATE_VERSION = 2


class _Ends:
    """When and why a session ended; `remembered` counts the ends that can matter for a start that is still to come."""

    __slots__ = ("ends", "remembered")

    def __init__(self) -> None:
        self.ends: Ends = ()
        self.remembered = 0


class PendingCalls:
    """State of the calls of one partition. An Operator (pipelines.runtime.port)."""

    name = "pending_calls"
    wants = frozenset(
        {
            "tool.call.started",
            "tool.call.approval_requested",
            "tool.call.approval_decided",
            "tool.call.blocked",
            "tool.call.completed",
            "tool.call.error",
            "session.ended",
        }
    )

    def __init__(self, ttls: Ttls | None = None) -> None:
        self._ttls = ttls or Ttls()
        self.configuration = self._ttls.text
        # A call that is still open may have had its end before its start.
        self.horizon_ms = self._ttls.longest_ms + KEEP_MS
        self._progress_ms = 0
        self._calls: dict[str, Call] = {}
        # By session: the id of the only call that its end can matter to, or its name and the ids of all of them.
        self._open: dict[str, str | tuple[str, set[str]]] = {}
        self._ends: dict[str, _Ends] = {}
        self._due: dict[int, list[str]] = {}
        self._seconds: list[int] = []
        self._closed: deque[str] = deque()
        self._ended: deque[tuple[int, str]] = deque()
        self._young: deque[Call] = deque()
        self._alike: dict[str, str] = {}
        self._counts = dict.fromkeys(
            ("timed_out", "abandoned", "retracted", "late_ends", "ends_without_start", "approvals_forgotten"), 0
        )

    @property
    def counters(self) -> Mapping[str, int]:
        """Emissions by kind, oddities, and how many calls are remembered (`calls`) and still run (`open_calls`)."""
        running = sum(not call.closed and call.said is None for call in self._calls.values())
        return {**self._counts, "calls": len(self._calls), "open_calls": running}

    def on_event(self, record: Record, out: Out) -> None:
        event = record.event
        name = event["event_name"]
        if name == "session.ended":
            self._on_session_ended(event, record.log_time_ms, out)
            return
        call_id = event["call_id"]
        if len(call_id) != 36:
            raise ValueError("call_id is no UUID")
        if name == "tool.call.started":
            self._on_start(record, call_id, out)
        elif name == "tool.call.approval_requested":
            self._on_approval(call_id, (record.log_time_ms, ASKED), out)
        elif name == "tool.call.approval_decided":
            decision = (event.get("approval") or {}).get("decision")
            if decision in REFUSED:
                self._on_end(call_id, record.log_time_ms, out)
            else:
                self._on_approval(call_id, (record.log_time_ms, ALLOWED), out)
        else:
            self._on_end(call_id, record.log_time_ms, out)

    def on_progress(self, t_ms: int, out: Out) -> None:
        self._progress_ms = t_ms
        calls = self._calls
        while self._seconds and self._seconds[0] * 1000 <= t_ms:
            due = self._due.pop(heapq.heappop(self._seconds))
            for call_id in due:
                call = calls.get(call_id)
                if call is not None and call.due is due:
                    self._wake(call_id, call, out)
        while self._ended and (self._ended[0][0] + KEEP_MS <= t_ms or len(self._ended) > MAX_SETTLED):
            session = self._ended.popleft()[1]
            self._ends[session].remembered -= 1
            self._forget_ends(session)

    # What the records say.

    def _on_start(self, record: Record, call_id: str, out: Out) -> None:
        event, at_ms = record.event, record.log_time_ms
        record.event_ms  # noqa: B018  (raises for a malformed timestamp, before any state is changed)
        if not isinstance(event["tool_name"], str):
            raise TypeError("tool_name is no text")
        session, ttl_ms = session_name(event), self._ttls.of(event)
        ended = session in self._ends
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = Call(at_ms, NEVER, ttl_ms, session, event)
            self._keep(call)
            if not ended:
                # What _settle would do, for nearly all calls.
                if session is not None:
                    self._enter(call_id, call, session)
                self._wake_at(call_id, call, at_ms + ttl_ms)
                return
        else:
            if at_ms > call.start_ms:
                return
            if at_ms == call.start_ms and call.own is not None and rank(event) >= rank(call.started()):
                return
            if call.said is not None:
                self._say(call_id, call, None, out)
            if call.session is not None:
                self._leave(call_id, call.session)
            call.session, call.start_ms, call.own, call.ttl_ms = session, at_ms, event, ttl_ms
            self._keep(call)
        self._settle(call_id, call, out)

    def _keep(self, call: Call) -> None:
        """Hold a start as it is, and pack the one that was held longest."""
        self._young.append(call)
        if len(self._young) > MAX_YOUNG:
            self._pack(self._young.popleft())

    def _pack(self, call: Call) -> None:
        if type(call.own) is dict:
            alike, call.own = pack(call.own)
            known = self._alike.get(alike)
            if known is None:
                if len(self._alike) >= MAX_ALIKE:
                    self._alike.clear()
                known = self._alike[alike] = alike
            call.alike = known

    def _on_approval(self, call_id: str, mark: tuple[int, int], out: Out) -> None:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = Call()
        marks = call.approvals = call.approvals or []
        if mark in marks:
            return
        marks.append(mark)
        marks.sort()
        if len(marks) > MAX_APPROVALS:
            marks.pop()
            self._counts["approvals_forgotten"] += 1
        self._settle(call_id, call, out)

    def _on_end(self, call_id: str, at_ms: int, out: Out) -> None:
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = Call()
        elif at_ms >= call.end_ms:
            return
        call.end_ms = at_ms
        self._settle(call_id, call, out)
        if not call.closed:
            self._counts["late_ends"] += 1

    def _on_session_ended(self, event: Event, at_ms: int, out: Out) -> None:
        session = session_name(event)
        if session is None:
            return
        known = self._ends.get(session)
        reason = event.get("reason")
        end = (at_ms, f"session.ended: {reason}" if reason else "session.ended")
        if known is None:
            known = self._ends[session] = _Ends()
        elif end in known.ends:
            return
        known.ends = tuple(sorted({*known.ends, end})[-MAX_SESSION_ENDS:])
        known.remembered += 1
        self._ended.append((at_ms, session))
        for call_id in self._open_of(session):
            self._settle(call_id, self._calls[call_id], out)

    # What follows.

    def _settle(self, call_id: str, call: Call, out: Out) -> None:
        """The call has changed: close or reopen it, amend what was said, see that it wakes in time."""
        if call.start_ms == NEVER:
            self._close(call_id, call)
            return
        if call.approvals is None:
            deadline, waiting = call.start_ms + call.ttl_ms, False
        else:
            deadline, waiting = call.deadline(self._ttls.approval_ms)
        if call.end_ms <= deadline:
            if call.said is not None or call.session in self._ends or _close_to(deadline, call):
                self._unsay(call_id, call, deadline, out)
            self._close(call_id, call)
            return
        call.closed = False
        if call.session is not None:
            self._enter(call_id, call, call.session)
        verdict, due_ms = self._verdict(call, deadline, waiting)
        if call.said is not None and call.said != verdict:
            self._say(call_id, call, verdict if due_ms <= self._progress_ms else None, out)
        self._wake_at(call_id, call, due_ms)

    def _verdict(self, call: Call, deadline: int, waiting: bool) -> tuple[Verdict, int]:
        """What is true of a call without an end in time, and from which log time on it may be said."""
        end = self._session_end(call, deadline)
        if end is not None:
            return ("abandoned", end[0], deadline, end[1]), end[0] + GRACE_MS
        return ("timed_out", deadline, deadline, "no decision on the approval" if waiting else None), deadline

    def _session_end(self, call: Call, deadline: int) -> tuple[int, str] | None:
        known = self._ends.get(call.session) if call.session is not None else None
        return None if known is None else call.session_end(known.ends, deadline)

    def _wake(self, call_id: str, call: Call, out: Out) -> None:
        if call.closed:
            forget_ms = call.last_ms() + KEEP_MS
        else:
            deadline, waiting = call.deadline(self._ttls.approval_ms)
            verdict, due_ms = self._verdict(call, deadline, waiting)
            if call.said != verdict:
                if due_ms > self._progress_ms:
                    self._wake_at(call_id, call, due_ms)
                    return
                self._say(call_id, call, verdict, out)
            forget_ms = max(deadline, due_ms) + KEEP_MS
        if forget_ms > self._progress_ms:
            self._wake_at(call_id, call, forget_ms)
        else:
            self._forget(call_id, call)

    def _wake_at(self, call_id: str, call: Call, at_ms: int) -> None:
        second = -(-at_ms // 1000)
        due = self._due.get(second)
        if due is None:
            due = self._due[second] = []
            heapq.heappush(self._seconds, second)
        elif call.due is due:
            return
        call.due = due
        due.append(call_id)

    def _close(self, call_id: str, call: Call) -> None:
        if self._may_be_said(call):
            self._enter(call_id, call, call.session or "")
        else:
            if call.session is not None:
                self._leave(call_id, call.session)
            if call.approvals is None:
                # Only an earlier start could reopen it, and that brings its own fields.
                call.own = call.alike = None
        if call.closed:
            return
        call.closed = True
        if call.due is None:
            self._wake_at(call_id, call, call.last_ms() + KEEP_MS)
        self._closed.append(call_id)
        while len(self._closed) > MAX_SETTLED:
            oldest = self._closed.popleft()
            known = self._calls.get(oldest)
            if known is not None and known.closed:
                self._forget(oldest, known)

    def _forget(self, call_id: str, call: Call) -> None:
        del self._calls[call_id]
        if call.start_ms == NEVER and call.end_ms != NEVER:
            self._counts["ends_without_start"] += 1
        if call.session is not None:
            self._leave(call_id, call.session)

    def _may_be_said(self, call: Call) -> bool:
        """True if a worker before may have called it abandoned by an end of its session that is not read here yet."""
        return call.end_ms > self._progress_ms + GRACE_MS and call.own is not None and call.session is not None

    # Which calls a session's end can matter to: those that are not closed, and those closed far ahead of the progress.

    def _enter(self, call_id: str, call: Call, session: str) -> None:
        known = self._open.get(session)
        if known is None:
            self._open[session] = call_id
        elif type(known) is str:
            if known != call_id:
                # All calls of a session share one copy of its name.
                call.session = self._calls[known].session or session
                self._open[session] = call.session, {known, call_id}
        else:
            call.session = known[0]
            known[1].add(call_id)  # type: ignore[union-attr]

    def _leave(self, call_id: str, session: str) -> None:
        known = self._open.get(session)
        if known is None:
            return
        if type(known) is str:
            if known != call_id:
                return
        else:
            ids: set[str] = known[1]  # type: ignore[assignment]
            ids.discard(call_id)
            if ids:
                return
        del self._open[session]
        self._forget_ends(session)

    def _open_of(self, session: str) -> list[str]:
        known = self._open.get(session)
        if known is None:
            return []
        return [known] if isinstance(known, str) else sorted(known[1])

    def _forget_ends(self, session: str) -> None:
        known = self._ends.get(session)
        if known is not None and not known.remembered and session not in self._open:
            del self._ends[session]

    # What is said.

    def _say(self, call_id: str, call: Call, verdict: Verdict | None, out: Out) -> None:
        said, call.said = call.said, verdict
        if said is not None and (verdict is None or verdict[0] != said[0]):
            out.retract(TOOL_CALL_DERIVED, *_derived(call_id, call, said))
            self._counts["retracted"] += 1
        if verdict is not None:
            out.put(TOOL_CALL_DERIVED, *_derived(call_id, call, verdict))
            self._counts[verdict[0]] += 1

    def _unsay(self, call_id: str, call: Call, deadline: int, out: Out) -> None:
        """Take back whatever this worker, or one before it that knew less, can have said of a call that did end."""
        if call.said is not None:
            self._say(call_id, call, None, out)
            return
        if call.own is None:
            return
        end = self._session_end(call, deadline)
        if end is not None and end[0] <= call.end_ms:
            out.retract(TOOL_CALL_DERIVED, *_derived(call_id, call, ("abandoned", end[0], deadline, end[1])))
        if _close_to(deadline, call):
            out.retract(TOOL_CALL_DERIVED, *_derived(call_id, call, ("timed_out", deadline, deadline, None)))

    # Checkpoints.

    def dump(self) -> bytes:
        """The state as JSON, calls column by column: a million of them take seconds otherwise."""
        while self._young:
            self._pack(self._young.popleft())
        calls = self._calls.values()
        alike: dict[str | None, int] = {}
        for call in calls:
            alike.setdefault(call.alike, len(alike))
        seconds = {id(due): second for second, due in self._due.items()}
        odd = [
            [place, call.end_ms, call.approvals, call.closed, call.said]
            for place, call in enumerate(calls)
            if call.end_ms != NEVER or call.approvals is not None or call.said is not None
        ]
        state = {
            "version": STATE_VERSION,
            "progress_ms": self._progress_ms,
            "ids": list(self._calls),
            "start_ms": [call.start_ms for call in calls],
            "ttl_ms": [call.ttl_ms for call in calls],
            "session": [call.session for call in calls],
            "alike": [alike[call.alike] for call in calls],
            "own": [call.own for call in calls],
            "due": [seconds.get(id(call.due), 0) for call in calls],
            "odd": odd,
            "texts": list(alike),
            "closed": list(self._closed),
            "ended": list(self._ended),
            "ends": [[session, known.ends, known.remembered] for session, known in self._ends.items()],
            "counts": self._counts,
        }
        return orjson.dumps(state)

    def load(self, state: bytes) -> None:
        try:
            data = orjson.loads(state)
            if data["version"] != STATE_VERSION:
                raise ValueError(f"state of version {data['version']}, not {STATE_VERSION}")
            self._load(data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of {self.name}: {error!r}") from error

    def _load(self, data: dict[str, Any]) -> None:
        self._progress_ms = data["progress_ms"]
        for session, ends, remembered in data["ends"]:
            known = self._ends[session] = _Ends()
            known.ends, known.remembered = tuple((at_ms, cause) for at_ms, cause in ends), remembered
        texts = data["texts"]
        self._alike = {text: text for text in texts[:MAX_ALIKE] if text is not None}
        columns = ("ids", "start_ms", "ttl_ms", "session", "alike", "own")
        for call_id, start_ms, ttl_ms, session, alike, own in zip(*map(data.__getitem__, columns), strict=True):
            call = self._calls[call_id] = Call(start_ms, NEVER, ttl_ms, session, own)
            call.alike = texts[alike]
        calls = list(self._calls.values())
        for place, end_ms, approvals, closed, said in data["odd"]:
            call = calls[place]
            call.end_ms, call.closed = end_ms, closed
            call.approvals = approvals and [(at_ms, kind) for at_ms, kind in approvals]
            call.said = said and tuple(said)
        for (call_id, call), second in zip(self._calls.items(), data["due"], strict=True):
            if call.session is not None and (not call.closed or self._may_be_said(call)):
                self._enter(call_id, call, call.session)
            if second:
                self._wake_at(call_id, call, second * 1000)
        self._closed.extend(data["closed"])
        self._ended.extend((at_ms, session) for at_ms, session in data["ended"])
        self._counts.update(data["counts"])


def _close_to(deadline: int, call: Call) -> bool:
    return call.end_ms > deadline - min(SKEW_MS, call.ttl_ms // 5)


def _derived(call_id: str, call: Call, verdict: Verdict) -> tuple[str, Event]:
    """Id and JSON form of the event (schemas.events.DerivedToolCall)."""
    kind, at_ms, deadline_ms, cause = verdict
    started = call.started()
    event_id = derived_id(kind, call_id)
    body: Event = {
        "event_id": event_id,
        "event_name": f"tool.call.{kind}",
        "event_version": "1.0",
        "timestamp": to_rfc3339(at_ms),
        **{name: value for name in COPIED if (value := started.get(name)) is not None},
        "source_adapter": "pipelines.pending_calls/1",
        "severity": "warning",
        "call_id": call_id,
        "started_at": started["timestamp"],
        "outcome": "timeout" if kind == "timed_out" else "unknown",
        "outcome_evidence": "inferred",
    }
    if kind == "timed_out":
        body["deadline"] = to_rfc3339(deadline_ms)
        body["ttl_ms"] = call.ttl_ms
    if started.get("agent_runtime") in SILENT_WHEN_BLOCKED:
        body["maybe_blocked"] = True
    if cause is not None:
        body["cause"] = cause
    return event_id, body
