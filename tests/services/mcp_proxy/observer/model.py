"""Sessions whose truth is known: operations of every kind, run at once, sent over stdio or HTTP as their parties would."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.services.mcp_proxy.observer.driving import MS, Drive, Http, Json, Stdio, error, message

Transport = Literal["stdio", "session", "stateless"]
TIMEOUT_MS = 60_000
Step = tuple[float, Callable[[], None]]


@dataclass
class Truth:
    """What an operation was. `ids` in the order of their requests; `statuses` of its answers."""

    ids: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    is_error: bool | None = None
    duration_ms: float = 0
    human_ms: float = 0
    progress: int = 0


class Session:
    """Plays `count` operations. `truth` is by tool name, each operation has a tool of its own."""

    def __init__(self, seed: int, transport: Transport, count: int = 12) -> None:
        self.random = random.Random(seed)
        self.transport = transport
        self.drive: Drive = Stdio(timeout_ms=TIMEOUT_MS) if transport == "stdio" else Http(timeout_ms=TIMEOUT_MS)
        self.truth: dict[str, Truth] = {}
        self._numbers = itertools.count(1)
        self._free = list(range(1, 5))
        self._channels: dict[str, int] = {}
        self._open: set[str] = set()
        self._ids: dict[str, Any] = {}
        kinds = [self.plain, self.plain, self.cancelled, self.slow, self.rounds, self.rounds, self.task, self.old_task]
        if transport != "stateless":
            kinds.append(self.asks)
        queue: list[tuple[float, int, Iterator[Step]]] = []
        order = itertools.count()
        for n in range(count):
            tool = f"tool-{n}"
            self.truth[tool] = Truth()
            heapq.heappush(queue, (self.random.uniform(0, 2000), next(order), self.random.choice(kinds)(tool)))
        last = 0.0
        while queue:
            at_ms, _, steps = heapq.heappop(queue)
            while last + 1000 < at_ms:
                self.drive.tick(1000)
                last += 1000
            self.drive.sleep(at_ms - last)
            last = at_ms
            step = next(steps, None)
            if step is not None:
                step[1]()
                heapq.heappush(queue, (at_ms + step[0], next(order), steps))

    @property
    def now_ms(self) -> float:
        return self.drive.now_ns / MS

    # what the parties send

    def ask(self, tool: str, method: str = "tools/call", **params: Any) -> None:
        """The client asks; the answer is open."""
        if self.transport == "stateless":
            id: Any = 1
        elif self._free and self.random.random() < 0.6:
            id = self._free.pop(self.random.randrange(len(self._free)))
        else:
            id = self.random.choice([next(self._numbers) + 100, f"r-{next(self._numbers)}"])
        if method == "tools/call":
            params = {"name": tool, "arguments": {"x": tool}, "_meta": {"progressToken": f"p-{tool}"}} | params
        self._ids[tool] = id
        self.truth[tool].ids.append(str(id))
        self._open.add(tool)
        self._send(tool, message(method, id, params=params))

    def answer(self, tool: str, status: str, sent: Json, *, reuse: bool = True) -> None:
        """The server answers."""
        truth, id = self.truth[tool], self._ids[tool]
        truth.statuses.append(status)
        self._reply(tool, sent | {"id": id})
        self._open.discard(tool)
        if isinstance(id, int) and id < 100 and reuse and self.transport != "stateless":
            self._free.append(id)
        if isinstance(self.drive, Http):
            self.drive.done(self._channels[tool])

    def tell(self, tool: str, sent: Json) -> None:
        """The client sends what is no request of its own: a notification, an answer."""
        if isinstance(self.drive, Stdio):
            self.drive.client(sent)
        elif isinstance(self.drive, Http):
            self.drive.json(sent, None, status=202, session=self._session)

    @property
    def _session(self) -> str | None:
        return "s" if self.transport == "session" else None

    def _send(self, tool: str, sent: Json) -> None:
        if isinstance(self.drive, Stdio):
            self.drive.client(sent)
        elif isinstance(self.drive, Http):
            self._channels[tool] = self.drive.stream(sent, session=self._session)

    def _reply(self, tool: str, sent: Json) -> None:
        if isinstance(self.drive, Stdio):
            self.drive.server(sent)
        elif isinstance(self.drive, Http):
            self.drive.event(self._channels[tool], sent)

    # kinds of operations: each yields how long it waits after a step

    def plain(self, tool: str) -> Iterator[Step]:
        truth, wait = self.truth[tool], self.random.uniform(1, 3000)
        yield wait, lambda: self.ask(tool)
        for _ in range(self.random.choice([0, 0, 3])):
            truth.progress += 1
            more = self.random.uniform(1, 500)
            wait += more
            yield (
                more,
                lambda: self._reply(tool, message("notifications/progress", params={"progressToken": f"p-{tool}"})),
            )
        truth.duration_ms = wait
        failed = self.random.random()
        if failed < 0.2:
            yield 0, lambda: self.answer(tool, "error", error(0))
        else:
            truth.is_error = failed < 0.4
            yield (
                0,
                lambda: self.answer(
                    tool, "completed", message(id=0, result={"content": [], "isError": truth.is_error})
                ),
            )

    def cancelled(self, tool: str) -> Iterator[Step]:
        truth, wait = self.truth[tool], self.random.uniform(1, 3000)
        yield wait, lambda: self.ask(tool)
        truth.duration_ms = wait
        truth.statuses.append("cancelled")
        late = self.random.random() < 0.5
        if self.transport == "stateless":
            # A client takes a request back by closing its stream.
            self.drive.observer  # noqa: B018
            yield 0, lambda: self._close(tool)
            return
        yield 500, lambda: self.tell(tool, message("notifications/cancelled", params={"requestId": self._ids[tool]}))
        self._open.discard(tool)
        if late:
            truth.duration_ms += 500
            truth.is_error = False
            yield 0, lambda: self.answer(tool, "late", message(id=0, result={}), reuse=False)

    def _close(self, tool: str) -> None:
        assert isinstance(self.drive, Http)
        self._open.discard(tool)
        # Only the stateless revision gives a closed stream this meaning.
        self.truth[tool].statuses[-1] = "stream_aborted"
        self.drive.done(self._channels[tool], "client")

    def slow(self, tool: str) -> Iterator[Step]:
        truth = self.truth[tool]
        wait = TIMEOUT_MS + self.random.uniform(3000, 9000)
        truth.statuses.append("timeout")
        truth.duration_ms, truth.is_error = wait, False
        yield wait, lambda: self.ask(tool)
        yield 0, lambda: self.answer(tool, "late", message(id=0, result={}), reuse=False)

    def rounds(self, tool: str) -> Iterator[Step]:
        truth, by_state = self.truth[tool], self.random.random() < 0.5
        more: Json = {}
        for n in range(self.random.randint(1, 3)):
            server, human = self.random.uniform(1, 2000), self.random.uniform(1, 90_000)
            yield server, lambda more=more: self.ask(tool, **more)  # type: ignore[misc]
            result: Json = {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}
            more = {"inputResponses": {"a": {}}}
            if by_state:
                result["requestState"] = more["requestState"] = f"{tool}-{n}"
            truth.duration_ms += server + human
            truth.human_ms += human
            yield human, lambda result=result: self.answer(tool, "input_required", message(id=0, result=result))  # type: ignore[misc]
        wait = self.random.uniform(1, 2000)
        truth.duration_ms += wait
        truth.is_error = False
        yield wait, lambda more=more: self.ask(tool, **more)  # type: ignore[misc]
        yield 0, lambda: self.answer(tool, "completed", message(id=0, result={"content": []}))

    def task(self, tool: str) -> Iterator[Step]:
        """The extension of 2026-07-28: polled, with input by tasks/update."""
        truth = self.truth[tool]
        state: Json = {"taskId": f"task {tool}"}

        def waits(low: float, high: float) -> float:
            truth.duration_ms += (wait := self.random.uniform(low, high))
            return wait

        def handle() -> None:
            self.answer(tool, "task_pending", message(id=0, result={"resultType": "task", "status": "working"} | state))

        yield waits(1, 100), lambda: self.ask(tool)
        yield waits(1, 2000), handle
        for status in self.random.choices(["working", "working", "input_required"], k=self.random.randint(0, 4)):
            yield waits(1, 50), lambda: self.ask(tool, "tasks/get", **state)
            told = "input_required" if status == "input_required" else "task_pending"
            wait = waits(1, 5000)
            sent = message(id=0, result=state | {"status": status})
            yield wait, lambda told=told, sent=sent: self.answer(tool, told, sent)  # type: ignore[misc]
            if status == "input_required":
                truth.human_ms += wait
                update = message("tasks/update", f"u-{next(self._numbers)}", params=state)
                yield waits(1, 50), lambda update=update: self._aside(tool, update)  # type: ignore[misc]
        yield waits(1, 50), lambda: self.ask(tool, "tasks/get", **state)
        last = self.random.choice(["completed", "failed", "cancelled"])
        more: Json = {"result": {"content": []}} if last == "completed" else {}
        truth.is_error = False if last == "completed" else None
        ends = {"completed": "completed", "failed": "error", "cancelled": "cancelled"}[last]
        yield 0, lambda: self.answer(tool, ends, message(id=0, result=state | more | {"status": last}))

    def _aside(self, tool: str, asked: Json) -> None:
        """A request that is an operation of its own, answered at once."""
        answer = message(id=asked["id"], result={})
        if isinstance(self.drive, Stdio):
            self.drive.client(asked)
            self.drive.server(answer)
        elif isinstance(self.drive, Http):
            self.drive.json(asked, answer, session=self._session)

    def old_task(self, tool: str) -> Iterator[Step]:
        """2025-11-25: the result by tasks/result."""
        truth = self.truth[tool]
        one, two = self.random.uniform(1, 100), self.random.uniform(1, 50_000)
        truth.duration_ms, truth.is_error = one + two + 1, True
        task = {"taskId": f"old task {tool}", "status": "working"}
        yield one, lambda: self.ask(tool, task={"ttl": 1})
        yield 1, lambda: self.answer(tool, "task_pending", message(id=0, result={"task": task}))
        yield two, lambda: self.ask(tool, "tasks/result", taskId=task["taskId"])
        yield 0, lambda: self.answer(tool, "completed", message(id=0, result={"content": [], "isError": True}))

    def asks(self, tool: str) -> Iterator[Step]:
        """A question to a person inside the call. On stdio it is this call's only if no other is open."""
        truth = self.truth[tool]
        before, human, after = (self.random.uniform(1, 5000) for _ in range(3))
        truth.duration_ms, truth.is_error = before + human + after, False
        id = f"e-{tool}"

        def question() -> None:
            if self.transport == "session" or self._open == {tool}:
                truth.human_ms = human
            self._reply(tool, message("elicitation/create", id, params={"message": "?"}))

        yield before, lambda: self.ask(tool)
        yield human, question
        yield after, lambda: self.tell(tool, message(id=id, result={"action": "accept"}))
        yield 0, lambda: self.answer(tool, "completed", message(id=0, result={"content": []}))

    # what was observed

    def observed(self) -> dict[str, Truth]:
        """The operations of the events, by tool."""
        found: dict[str, Truth] = {}
        operations: dict[str, str] = {}
        for event in self.drive.rpc():
            tool = event.get("tool_name")
            if tool is None or event["event_name"] == "mcp.rpc.notification":
                continue
            assert operations.setdefault(tool, event["operation_id"]) == event["operation_id"], "two operations of one"
            truth = found.setdefault(tool, Truth())
            if event["event_name"] == "mcp.rpc.request":
                truth.ids.append(event["jsonrpc_id"])
                continue
            truth.statuses.append(event["status"])
            if event.get("is_error_result") is not None:
                truth.is_error = event["is_error_result"]
            truth.progress = event.get("progress_count", truth.progress)
            if "duration_ms" in event:
                truth.duration_ms, truth.human_ms = event["duration_ms"], event["duration_human_ms"]
                assert abs(event["duration_ms"] - event["duration_human_ms"] - event["duration_server_ms"]) < 0.001
        return found
