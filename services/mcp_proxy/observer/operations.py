"""Operations: what somebody wanted of the other side, be it one JSON-RPC request or several ids of one.

Several ids are one operation where a result asks for more input and the same call comes again with it (2026-07-28,
multi round-trip requests), and where a call gives a task and its result comes by `tasks/get` or `tasks/result`
(2025-11-25; extension io.modelcontextprotocol/tasks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from schemas.identity import span_id
from services.mcp_proxy.observer.making import NOWHERE, Origin
from services.mcp_proxy.observer.messages import Id
from services.mcp_proxy.tap import Side

MAX_WAITING = 1000
"""Operations of one connection that wait for input, and as many that are tasks; of more the oldest are forgotten: what
comes of them later is then an operation of its own.
"""

TASK_METHODS = frozenset({"tasks/get", "tasks/result"})


class Operation:
    """`id` is a UUIDv5. Time in which a person (or the client) was asked counts as human, the rest as the server's."""

    __slots__ = (
        "_human_ns",
        "_waits",
        "_waits_since",
        "arguments_hash",
        "at_ns",
        "by_person",
        "ended",
        "id",
        "method",
        "origin",
        "progress",
        "side",
        "span",
        "tool",
    )

    def __init__(self, id: str, method: str, side: Side, at_ns: int, origin: Origin = NOWHERE) -> None:
        self.id = id
        self.span = span_id(id)
        self.method = method
        self.side = side
        self.at_ns = at_ns
        self.origin = origin
        self.tool: str | None = None
        self.arguments_hash: str | None = None
        self.progress = 0
        self.ended = False
        self.by_person = method == "elicitation/create"
        """Whether the whole of it is a person's time."""
        self._waits: set[str] = set()
        self._waits_since = 0
        self._human_ns = 0

    def waits(self, what: str, at_ns: int) -> None:
        """From now on somebody is asked."""
        if not self._waits:
            self._waits_since = at_ns
        self._waits.add(what)

    def goes_on(self, what: str, at_ns: int) -> None:
        """What was asked is answered."""
        if what in self._waits:
            self._waits.discard(what)
            if not self._waits:
                self._human_ns += max(0, at_ns - self._waits_since)

    @property
    def waiting(self) -> bool:
        """Whether somebody is asked now."""
        return bool(self._waits)

    def durations(self, at_ns: int) -> dict[str, float]:
        """Milliseconds from its first request until now: all, the server's, the people's."""
        whole = max(0, at_ns - self.at_ns)
        human = self._human_ns + (max(0, at_ns - self._waits_since) if self._waits else 0)
        human = whole if self.by_person else min(whole, human)
        if self.side is Side.SERVER:
            told = {"duration_ms": whole / 1e6}
            return told | {"duration_human_ms": human / 1e6} if self.by_person else told
        return {
            "duration_ms": whole / 1e6,
            "duration_server_ms": (whole - human) / 1e6,
            "duration_human_ms": human / 1e6,
        }


class Pending:
    """One request whose answer has not come. `after`: a later one with the same id, sent while this one was open."""

    __slots__ = (
        "after",
        "at_ns",
        "carried",
        "gap",
        "id",
        "key",
        "lasting",
        "like",
        "method",
        "operation",
        "params",
        "parent",
        "poll",
        "shape",
        "side",
        "token",
        "why",
    )

    def __init__(self, key: str, id: Id, method: str, operation: Operation, at_ns: int) -> None:
        self.key = key
        self.id = id
        self.method = method
        self.operation = operation
        self.side = operation.side
        self.at_ns = at_ns
        self.poll = method in TASK_METHODS and operation.method != method
        """Whether it asks for a task that is an operation already."""
        self.carried: dict[str, Pending] = {}
        """Where what carries it has it."""
        self.params: dict[str, Any] = {}
        """The little that its answer is understood by; never arguments."""
        self.lasting = method == "subscriptions/listen"
        """It is to stay open."""
        self.gap = False
        """Its answer may be among bytes that were not copied."""
        self.parent: Operation | None = None
        self.shape = ""
        self.token: str | None = None
        self.like: str | None = None
        self.after: Pending | None = None
        self.why = ""
        """Why it counts as ended although no answer came."""


class Asked:
    """Operations that wait for input, by what links the next request to them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, tuple[Operation, str | None, str]] = OrderedDict()

    def add(self, operation: Operation, state: Any, shape: str) -> None:
        """`state` is the result's requestState, `shape` that of the request that was answered with it."""
        self._waiting[operation.id] = (operation, digest(state) if isinstance(state, str) else None, shape)
        self._waiting.move_to_end(operation.id)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    def take(self, method: str, params: Mapping[str, Any]) -> Operation | None:
        """The operation that a request goes on with: by its requestState, exactly; without one, by its shape. Of several
        that could be meant it is none.
        """
        state = params.get("requestState")
        if not self._waiting or (state is None and "inputResponses" not in params):
            return None
        shape = shape_of(method, params)
        wanted = digest(state) if isinstance(state, str) else None
        found = [entry for entry in self._waiting.values() if entry[1] == wanted]
        if wanted is None or len(found) > 1:
            found = [entry for entry in found if entry[2] == shape]
        if len(found) != 1:
            return None
        operation = found[0][0]
        del self._waiting[operation.id]
        return operation


class Tasks:
    """Operations that are tasks, by their task id."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, Operation] = OrderedDict()

    def add(self, task: str, operation: Operation) -> None:
        """The server named a task."""
        self._tasks[digest(task)] = operation
        while len(self._tasks) > MAX_WAITING:
            self._tasks.popitem(last=False)

    def open(self) -> list[Operation]:
        """Those that have not ended."""
        return [operation for operation in self._tasks.values() if not operation.ended]

    def get(self, task: Any) -> Operation | None:
        """The operation of a task id."""
        return self._tasks.get(digest(task)) if isinstance(task, str) else None


def shape_of(method: str, params: Mapping[str, Any]) -> str:
    """Method, name (or uri) and the names of the arguments of a request."""
    arguments, name = params.get("arguments"), params.get("name", params.get("uri"))
    names = sorted(arguments) if isinstance(arguments, dict) else ()
    return digest("\0".join([method, name if isinstance(name, str) else "", *names]))


def digest(text: str) -> str:
    """A short name for a text of any length."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def task_of(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """Task id and status of a result that gives a task instead of an answer (`resultType: "task"`, or `task` in 2025-11-25)."""
    flat = result.get("resultType") == "task"
    task = result if flat else result.get("task")
    if not isinstance(task, dict) or not isinstance(task.get("taskId"), str):
        return None
    if not flat and not isinstance(task.get("status"), str):
        return None
    return task["taskId"], str(task.get("status") or "working")
