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
    MAX_APPROVALS,
    MAX_SESSION_ENDS,
    NEVER,
    Call,
    Session,
    Verdict,
    pack,
    unpack,
)
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime.port import LATENESS_MS, Event, Out, Record
from schemas.clock import to_rfc3339
from schemas.identity import derived_id
from schemas.topics import TOOL_CALL_DERIVED

KEEP_MS = LATENESS_MS + 60_000
"""How long (log time) what is settled is remembered, so that a repeated or misplaced record of it changes nothing."""
GRACE_MS = 5_000
"""Wait after a session's end before its open calls are called abandoned: their ends may be just behind."""
SKEW_MS = 60_000
"""Error of the progress that a worker before this one may have believed; what it then said too early is taken back."""
MAX_SETTLED = 50_000
"""Ended calls, and ends of sessions, remembered at most; beyond it the oldest go before KEEP_MS is over."""

SILENT_WHEN_BLOCKED = frozenset({"codex"})
"""Runtimes that give no event for a call that another hook or a person blocked."""
REFUSED = frozenset({"deny", "timeout", "cancelled"})

STATE_VERSION = 1


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
        # A call that is still open may have had its end before its start.
        self.horizon_ms = self._ttls.longest_ms + KEEP_MS
        self._progress_ms = 0
        self._calls: dict[str, Call] = {}
        self._sessions: dict[str, Session] = {}
        self._due: dict[int, list[str]] = {}
        self._seconds: list[int] = []
        self._closed: deque[str] = deque()
        self._ended: deque[tuple[int, str]] = deque()
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
        at_ms = record.log_time_ms
        if name == "tool.call.started":
            self._on_start(record, call_id, out)
        elif name == "tool.call.approval_requested":
            self._on_approval(call_id, (at_ms, ASKED), out)
        elif name == "tool.call.approval_decided":
            decision = (event.get("approval") or {}).get("decision")
            if decision in REFUSED:
                self._on_end(call_id, at_ms, out)
            else:
                self._on_approval(call_id, (at_ms, ALLOWED), out)
        else:
            self._on_end(call_id, at_ms, out)

    def on_progress(self, t_ms: int, out: Out) -> None:
        self._progress_ms = t_ms
        while self._seconds and self._seconds[0] * 1000 <= t_ms:
            second = heapq.heappop(self._seconds)
            for call_id in self._due.pop(second):
                call = self._calls.get(call_id)
                if call is not None and call.wake_s == second:
                    self._wake(call_id, call, out)
        while self._ended and (self._ended[0][0] + KEEP_MS <= t_ms or len(self._ended) > MAX_SETTLED):
            session = self._sessions[self._ended.popleft()[1]]
            session.remembered -= 1
            self._forget_session(session)

    # What the records say.

    def _on_start(self, record: Record, call_id: str, out: Out) -> None:
        event, at_ms = record.event, record.log_time_ms
        record.event_ms  # noqa: B018  (raises for a malformed timestamp, before any state is changed)
        if not isinstance(event["tool_name"], str):
            raise TypeError("tool_name is no text")
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = Call()
        elif at_ms > call.start_ms:
            return
        packed = pack(event)
        if at_ms == call.start_ms and call.packed is not None and packed >= call.packed:
            return
        if call.said is not None:
            self._say(call_id, call, None, out)
        if call.session is not None:
            self._leave(call_id, call.session)
        name = event.get("session_id")
        call.session = self._session(event.get("tenant_id"), name) if name else None
        call.start_ms, call.packed, call.ttl_ms = at_ms, packed, self._ttls.of(event)
        self._settle(call_id, call, out)

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
        name = event.get("session_id")
        if not name:
            return
        session = self._session(event.get("tenant_id"), name)
        reason = event.get("reason")
        end = (at_ms, f"session.ended: {reason}" if reason else "session.ended")
        if end in session.ends:
            return
        session.ends = tuple(sorted({*session.ends, end})[-MAX_SESSION_ENDS:])
        session.remembered += 1
        self._ended.append((at_ms, session.name))
        for call_id in session.ids():
            self._settle(call_id, self._calls[call_id], out)

    # What follows.

    def _settle(self, call_id: str, call: Call, out: Out) -> None:
        """The call has changed: close or reopen it, amend what was said, see that it wakes in time."""
        if call.start_ms == NEVER:
            self._close(call_id, call)
            return
        if call.session is not None:
            # While all its calls were closed the session may have been forgotten, and come anew.
            call.session = self._sessions.setdefault(call.session.name, call.session)
        deadline, waiting = call.deadline(self._ttls.approval_ms)
        if call.end_ms <= deadline:
            ended = call.session is not None and call.session.ends
            if call.said is not None or ended or _close_to(deadline, call):
                self._unsay(call_id, call, deadline, out)
            self._close(call_id, call)
            return
        call.closed = False
        if call.session is not None:
            call.session.add(call_id)
        verdict, due_ms = self._verdict(call, deadline, waiting)
        if call.said is not None and call.said != verdict:
            self._say(call_id, call, verdict if due_ms <= self._progress_ms else None, out)
        self._wake_at(call_id, call, due_ms)

    def _verdict(self, call: Call, deadline: int, waiting: bool) -> tuple[Verdict, int]:
        """What is true of a call without an end in time, and from which log time on it may be said."""
        end = call.session_end(deadline)
        if end is not None:
            return ("abandoned", end[0], deadline, end[1]), end[0] + GRACE_MS
        return ("timed_out", deadline, deadline, "no decision on the approval" if waiting else None), deadline

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
        if call.wake_s == second:
            return
        call.wake_s = second
        due = self._due.get(second)
        if due is None:
            self._due[second] = [call_id]
            heapq.heappush(self._seconds, second)
        else:
            due.append(call_id)

    def _close(self, call_id: str, call: Call) -> None:
        if call.session is not None:
            self._leave(call_id, call.session)
        if call.approvals is None:
            # Only an earlier start could reopen it, and that brings its own fields.
            call.packed = None
        if call.closed:
            return
        call.closed = True
        if call.wake_s == 0:
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

    def _leave(self, call_id: str, session: Session) -> None:
        session.discard(call_id)
        self._forget_session(session)

    def _session(self, tenant: str | None, name: str) -> Session:
        place = f"{tenant}\n{name}" if tenant else name
        session = self._sessions.get(place)
        if session is None:
            session = self._sessions[place] = Session(place)
        return session

    def _forget_session(self, session: Session) -> None:
        if session.calls is None and not session.remembered and self._sessions.get(session.name) is session:
            del self._sessions[session.name]

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
        if call.packed is None:
            return
        end = call.session_end(deadline)
        if end is not None and end[0] <= call.end_ms:
            out.retract(TOOL_CALL_DERIVED, *_derived(call_id, call, ("abandoned", end[0], deadline, end[1])))
        if _close_to(deadline, call):
            out.retract(TOOL_CALL_DERIVED, *_derived(call_id, call, ("timed_out", deadline, deadline, None)))

    # Checkpoints.

    def dump(self) -> bytes:
        calls = [
            [
                call_id,
                call.start_ms,
                call.end_ms,
                call.ttl_ms,
                call.packed and orjson.Fragment(call.packed),
                call.session and call.session.name,
                call.approvals,
                call.closed,
                call.said,
                call.wake_s,
            ]
            for call_id, call in self._calls.items()
        ]
        state = {
            "version": STATE_VERSION,
            "progress_ms": self._progress_ms,
            "calls": calls,
            "closed": list(self._closed),
            "ended": list(self._ended),
            "sessions": [[session.name, session.ends, session.remembered] for session in self._sessions.values()],
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
        for name, ends, remembered in data["sessions"]:
            session = self._sessions[name] = Session(name)
            session.ends, session.remembered = tuple((at_ms, cause) for at_ms, cause in ends), remembered
        for call_id, start_ms, end_ms, ttl_ms, packed, name, approvals, closed, said, wake_s in data["calls"]:
            call = self._calls[call_id] = Call()
            call.start_ms, call.end_ms, call.ttl_ms, call.closed = start_ms, end_ms, ttl_ms, closed
            call.packed = None if packed is None else orjson.dumps(packed)
            call.approvals = approvals and [(at_ms, kind) for at_ms, kind in approvals]
            call.said = said and tuple(said)
            if name is not None:
                # A closed call may outlive its session here.
                call.session = self._sessions.get(name) or Session(name)
                if not closed:
                    call.session.add(call_id)
            self._wake_at(call_id, call, wake_s * 1000)
        self._closed.extend(data["closed"])
        self._ended.extend((at_ms, name) for at_ms, name in data["ended"])
        self._counts.update(data["counts"])


def _close_to(deadline: int, call: Call) -> bool:
    return call.end_ms > deadline - min(SKEW_MS, call.ttl_ms // 5)


def _derived(call_id: str, call: Call, verdict: Verdict) -> tuple[str, Event]:
    """Id and JSON form of the event (schemas.events.DerivedToolCall)."""
    kind, at_ms, deadline_ms, cause = verdict
    assert call.packed is not None
    started_at, fields = unpack(call.packed)
    event_id = derived_id(kind, call_id)
    body: Event = {
        "event_id": event_id,
        "event_name": f"tool.call.{kind}",
        "event_version": "1.0",
        "timestamp": to_rfc3339(at_ms),
        **fields,
        "source_adapter": "pipelines.pending_calls/1",
        "severity": "warning",
        "call_id": call_id,
        "started_at": started_at,
        "outcome": "timeout" if kind == "timed_out" else "unknown",
        "outcome_evidence": "inferred",
    }
    if kind == "timed_out":
        body["deadline"] = to_rfc3339(deadline_ms)
        body["ttl_ms"] = call.ttl_ms
    if fields.get("agent_runtime") in SILENT_WHEN_BLOCKED:
        body["maybe_blocked"] = True
    if cause is not None:
        body["cause"] = cause
    return event_id, body
