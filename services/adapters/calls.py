"""The open-call table: pairs starts and ends of tool calls whatever the runtime's ids do, and knows sessions and MCP
servers.

It is a fold over events: `apply_json` is called for each event in journal order, live and in recovery, so the state after a
restart is the snapshot plus the journal's rest. Nothing else changes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from schemas.events import ToolCall
from schemas.identity import canonical_name, join_key

MAX_OPEN = 20_000
"""Open calls kept; the one opened first goes when there are more, so that calls which never end cannot fill the
memory.
"""
MAX_CLOSED = 10_000
"""Ended calls kept so that a late or repeated end still finds its call; the oldest go first."""
MAX_SESSIONS = 20_000
MAX_MODEL_CALLS = 20_000

START = "tool.call.started"
ENDS = frozenset({"tool.call.completed", "tool.call.error", "tool.call.blocked"})
_SNAPSHOT_VERSION = 1

V = TypeVar("V")


@dataclass(slots=True)
class Call:
    """The latest call of one call_key. `started` and `ended` say which of its events were seen, in either order."""

    call_key: str
    occurrence: int
    call_id: str
    tool_name: str
    tool_source: str
    started: bool = False
    ended: bool = False
    tool_call_id: str | None = None
    tool_kind: str | None = None
    mcp: dict[str, Any] | None = None
    session_id: str | None = None
    root_session_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    trace_id: str | None = None
    parent_call_id: str | None = None
    input_hash: str | None = None
    timestamp: str = ""
    background: bool = False
    wrapper: bool = False
    approval_open: bool = False
    approval_decided: bool = False
    synthetic_start: bool = False
    start_hook: str | None = None
    end_hook: str | None = None
    outcome: str | None = None


@dataclass(slots=True)
class SessionState:
    """What events told of a session; `synthetic`: only inferred.

    `in_process`: a hook inside the runtime's process told of it, not only a command hook.
    """

    started: bool = False
    synthetic: bool = False
    ended: bool = False
    in_process: bool = False


class CallTable:
    """State that adapters read while they normalise. `forgotten` counts open calls that went because of MAX_OPEN."""

    def __init__(self) -> None:
        self.forgotten = 0
        self._open: OrderedDict[str, Call] = OrderedDict()
        self._closed: OrderedDict[str, Call] = OrderedDict()
        self._by_session: dict[str, dict[str, None]] = {}
        self._root: OrderedDict[str, str] = OrderedDict()
        self._servers: dict[str, dict[str, str]] = {}
        self._children: OrderedDict[str, str] = OrderedDict()
        self._sessions: OrderedDict[str, SessionState] = OrderedDict()
        self._session_of_key: OrderedDict[str, str] = OrderedDict()
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._by_native: dict[str, dict[str, None]] = {}
        # Each call's values, taken when the call changes: a snapshot of all of them then holds nobody up.
        self._rows: dict[str, tuple[Any, ...]] = {}

    # what adapters ask

    def latest(self, call_key: str) -> Call | None:
        """The newest call of a key, open or ended."""
        return self._open.get(call_key) or self._closed.get(call_key)

    def next_occurrence(self, call_key: str, event_name: str) -> int:
        """The occurrence that an event of this key belongs to.

        A start opens the next one, unless the call is known without its start (an end or an approval came first, or the
        start was only inferred); everything else belongs to the latest.
        """
        call = self.latest(call_key)
        if call is None:
            return 1
        if event_name == START and call.started and not call.synthetic_start:
            return call.occurrence + 1
        return call.occurrence

    def open_calls(self, session_id: str, *, agent_id: str | None = None, any_agent: bool = True) -> list[Call]:
        """Calls of a session that started and have not ended, oldest first; of one agent with `any_agent=False`."""
        keys = self._by_session.get(session_id, {})
        calls = [self._open[key] for key in keys]
        return [call for call in calls if call.started and (any_agent or call.agent_id == agent_id)]

    def ended_calls(self, session_id: str, limit: int = 256) -> list[Call]:
        """Calls of a session among the `limit` that ended last in any session, newest first."""
        newest = islice(reversed(self._closed.values()), limit)
        return [call for call in newest if call.ended and call.session_id == session_id]

    def open_by_tool(self, tool_name: str) -> list[Call]:
        """Open calls of a tool in any session, oldest first. Linear in the number of open calls."""
        return [call for call in self._open.values() if call.started and call.tool_name == tool_name]

    def find_native(self, runtime: str, tool_call_id: str, session_key: str | None = None) -> Call | None:
        """The newest call with the runtime's own id, for events that do not say in which run or turn it was made."""
        for key in reversed(self._by_native.get(tool_call_id, {})):
            call = self.latest(key)
            if call is None or key.split("|", 2)[1] != runtime:
                continue
            if session_key is None or call.session_key == session_key:
                return call
        return None

    def session(self, session_id: str) -> SessionState | None:
        """What is known of a session; None for one that no event named."""
        return self._sessions.get(session_id)

    def session_for_key(self, runtime: str, session_key: str) -> str | None:
        """The newest session id under a runtime's stable session key."""
        return self._session_of_key.get(join_key(runtime, session_key))

    def attempts(self, runtime: str, model_call_id: str) -> int:
        """How often a model call with this id was started."""
        return self._attempts.get(join_key(runtime, model_call_id), 0)

    def root_of(self, session_id: str) -> str | None:
        """The top agent's session, where some earlier event told; sticky for the life of the session."""
        return self._root.get(session_id)

    def parent_of(self, session_id: str) -> str | None:
        """The session that spawned this one, where a sub-agent event told."""
        return self._children.get(session_id)

    def servers(self, runtime: str) -> list[str]:
        """Real names of the MCP servers that earlier events of this runtime proved."""
        return list(self._servers.get(runtime, {}).values())

    def __len__(self) -> int:
        return len(self._open)

    # the fold

    def apply_json(self, event: Mapping[str, Any]) -> None:
        """Fold one event in its JSON form, as the journal holds it."""
        self._learn_session(event)
        name: str = event["event_name"]
        if "call_key" in event and "occurrence" in event:
            self._learn_call(name, event)

    def _learn_session(self, event: Mapping[str, Any]) -> None:
        session, root = event.get("session_id"), event.get("root_session_id")
        if session and root and session not in self._root:
            _remember(self._root, session, root)
        if session:
            self._learn_state(session, event)
        if event["event_name"] == "llm.call.started" and event.get("model_call_id"):
            key = join_key(event["agent_runtime"], event["model_call_id"])
            _remember(self._attempts, key, self._attempts.get(key, 0) + 1, MAX_MODEL_CALLS)
        child = event.get("child_session_id")
        if child and session:
            _remember(self._children, child, session)
            if child not in self._root:
                _remember(self._root, child, root or session)
        mcp = event.get("mcp")
        server = (mcp or {}).get("server_name") if mcp and not mcp.get("name_guess") else None
        if server:
            known = self._servers.setdefault(event.get("agent_runtime", "other"), {})
            if len(known) < MAX_SESSIONS:
                known.setdefault(canonical_name(server), server)

    def _learn_state(self, session: str, event: Mapping[str, Any]) -> None:
        name = event["event_name"]
        state = self._sessions.get(session)
        if state is None:
            state = SessionState()
            _remember(self._sessions, session, state)
        if name == "session.started":
            state.started, state.synthetic, state.ended = True, bool(event.get("synthetic")), False
        elif name == "session.ended":
            state.ended = True
        if not (event.get("source_event_name") or "").startswith("shell:"):
            state.in_process = True
        if event.get("session_key") and name != "session.ended":
            _remember(self._session_of_key, join_key(event["agent_runtime"], event["session_key"]), session)

    def _learn_call(self, name: str, event: Mapping[str, Any]) -> None:
        key: str = event["call_key"]
        call = self.latest(key)
        if call is None or event["occurrence"] > call.occurrence:
            if call is not None:
                self._forget(call)
            call = Call(
                call_key=key,
                occurrence=event["occurrence"],
                call_id=event["call_id"],
                tool_name=event["tool_name"],
                tool_source=event.get("tool_source", "unknown"),
            )
        elif event["occurrence"] < call.occurrence:
            return
        native, session = call.tool_call_id, call.session_id
        if name == START or not call.started:
            self._describe(call, event)
        elif event.get("mcp") and not event["mcp"].get("name_guess"):
            call.mcp = dict(event["mcp"])
        if call.tool_call_id != native:
            _discard(self._by_native, native, key)
        if call.session_id != session and key in self._open:
            _discard(self._by_session, session, key)
            # Both indexes keep one order, which is what makes a loaded table equal to this one.
            self._open.move_to_end(key)
        if name == START:
            call.started = True
            call.synthetic_start = bool(event.get("synthetic"))
            call.start_hook = event.get("source_event_name")
        elif name == "tool.call.approval_requested":
            call.approval_open, call.approval_decided = True, False
        elif name == "tool.call.approval_decided":
            call.approval_open = False
            call.approval_decided = True
        elif name in ENDS:
            call.ended = True
            call.approval_open = False
            call.end_hook = event.get("source_event_name")
            call.outcome = event.get("outcome")
        call.background = call.background or bool(event.get("background"))
        self._place(call)

    @staticmethod
    def _describe(call: Call, event: Mapping[str, Any]) -> None:
        for name in _COPIED:
            if event.get(name) is not None:
                setattr(call, name, event[name])
        mcp = event.get("mcp")
        call.mcp = dict(mcp) if mcp else call.mcp
        call.input_hash = (event.get("input") or {}).get("hash") or call.input_hash

    def _place(self, call: Call) -> None:
        key = call.call_key
        self._rows[key] = _values(call)
        if call.tool_call_id:
            self._by_native.setdefault(call.tool_call_id, {})[key] = None
        if call.ended or not call.started:
            # What never started is not open either: kept here, an approval nobody could match cannot pile up.
            if self._open.pop(key, None) is not None:
                _discard(self._by_session, call.session_id, key)
            self._closed[key] = call
            self._closed.move_to_end(key)
            if len(self._closed) > MAX_CLOSED:
                self._forget(next(iter(self._closed.values())))
        else:
            self._closed.pop(key, None)
            self._open[key] = call
            self._by_session.setdefault(call.session_id or "", {})[key] = None
            if len(self._open) > MAX_OPEN:
                self._forget(next(iter(self._open.values())))
                self.forgotten += 1

    def _forget(self, call: Call) -> None:
        key = call.call_key
        self._closed.pop(key, None)
        if self._open.pop(key, None) is not None:
            _discard(self._by_session, call.session_id, key)
        _discard(self._by_native, call.tool_call_id, key)
        self._rows.pop(key, None)

    # snapshot

    def freeze(self) -> Callable[[], bytes]:
        """The state as of now, at little cost; the result, called in any thread, gives it as JSON for `load`."""
        opened, closed = ([self._rows[key] for key in keys] for keys in (self._open, self._closed))
        state = {
            "version": _SNAPSHOT_VERSION,
            "forgotten": self.forgotten,
            # The calls tell the rest of this index; where one id names several, their order is known only here.
            "by_native": dict(sorted((name, list(keys)) for name, keys in self._by_native.items() if len(keys) > 1)),
            "root": dict(self._root),
            "children": dict(self._children),
            "sessions": orjson.Fragment(orjson.dumps(self._sessions)),
            "session_of_key": dict(self._session_of_key),
            "attempts": dict(self._attempts),
            "servers": {runtime: dict(known) for runtime, known in self._servers.items()},
        }
        return lambda: orjson.dumps(state | {"open": _array(opened), "closed": _array(closed)})

    def dump(self) -> bytes:
        """The whole state as JSON; `load` of it gives an equal table."""
        return self.freeze()()

    @classmethod
    def load(cls, state: bytes | Mapping[str, Any]) -> CallTable:
        """A table from `dump`, or from its JSON when parsed already. Raises ValueError for another version's state."""
        if isinstance(state, bytes):
            return cls.load(orjson.loads(state))
        if state.get("version") != _SNAPSHOT_VERSION:
            raise ValueError(
                f"call table snapshot version {state.get('version')!r}, this build reads {_SNAPSHOT_VERSION}"
            )
        table = cls()
        table.forgotten = state["forgotten"]
        table._by_native.update({native: dict.fromkeys(keys) for native, keys in state["by_native"].items()})
        for call in (*_calls(state["closed"]), *_calls(state["open"])):
            table._place(call)
        table._root.update(state["root"])
        table._children.update(state["children"])
        table._sessions.update({session: SessionState(**known) for session, known in state["sessions"].items()})
        table._session_of_key.update(state["session_of_key"])
        table._attempts.update(state["attempts"])
        table._servers.update({runtime: dict(known) for runtime, known in state["servers"].items()})
        return table


_FIELDS = tuple(field.name for field in fields(Call))
_values = attrgetter(*_FIELDS)
_COPIED = tuple(
    name
    for name in _FIELDS
    if name in ToolCall.model_fields and name not in {"call_key", "occurrence", "call_id", "mcp", "background"}
)


def _calls(rows: list[dict[str, Any]]) -> Iterator[Call]:
    known = set(_FIELDS)
    for row in rows:
        yield Call(**{name: value for name, value in row.items() if name in known})


def _discard(index: dict[str, dict[str, None]], name: str | None, key: str) -> None:
    keys = index.get(name or "")
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[name or ""]


def _array(rows: list[tuple[Any, ...]]) -> orjson.Fragment:
    return orjson.Fragment(b"[%b]" % b",".join(orjson.dumps(dict(zip(_FIELDS, row, strict=True))) for row in rows))


def _remember(mapping: OrderedDict[str, V], key: str, value: V, limit: int = MAX_SESSIONS) -> None:
    mapping[key] = value
    while len(mapping) > limit:
        mapping.popitem(last=False)
