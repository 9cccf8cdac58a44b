"""An event loop with virtual time, and processes in it that can be frozen and killed. No clock, socket or thread.

Time jumps to the next timer when nothing is left to run, so minutes take milliseconds and a seed repeats every step.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from random import Random
from typing import Any

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process that runs now; None in what is outside of all processes, as the broker and the storyteller are."""

MAX_STEPS = 3_000_000
"""Callbacks of one loop; more means that something runs in circles."""


class Process:
    """Tasks that share a fate: SIGSTOP parks whatever of them would run, a kill ends them without a last word."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.clock_ahead_ms = 0
        self.fuse: int | None = None
        """Calls to the broker until it is killed amid one; only those that begin with `fuse_of` count."""
        self.fuse_of = ""
        self.lost_in_flight = False
        """Requests that had not reached the broker when it was killed never will."""
        self._loop = loop
        self._tasks: list[asyncio.Task[Any]] = []
        self._parked: list[asyncio.Handle] = []

    def spawn(self, doing: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run it as part of this process."""
        context = copy_context()
        context.run(PROCESS.set, self)
        task = self._loop.create_task(doing, name=f"{self.name}.{name}", context=context)
        self._tasks.append(task)
        return task

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def wake(self) -> None:
        """SIGCONT: what became ready meanwhile runs now, with whatever the process believed before."""
        self.frozen = False
        for handle in self._parked:
            self._loop.add_ready(handle)
        self._parked.clear()

    def kill(self) -> None:
        """SIGKILL. Its tasks end; from now on no call of it has an effect."""
        self.dead = True
        self.wake()
        for task in asyncio.all_tasks(self._loop):
            if task.get_coro() is not None and self._loop.process_of(task) is self:
                task.cancel()

    def park(self, handle: asyncio.Handle) -> None:
        """Keep for after the SIGCONT."""
        self._parked.append(handle)

    @property
    def failures(self) -> list[BaseException]:
        """Exceptions that ended tasks."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. With `shuffle`, what is ready at one moment runs in an order drawn from it."""

    def __init__(self, shuffle: Random | None = None) -> None:
        super().__init__()
        self.steps = 0
        self.errors: list[str] = []
        self._now = 0.0
        self._shuffle = shuffle
        self._contexts: dict[asyncio.Task[Any], Process | None] = {}
        self.set_exception_handler(lambda _, context: self.errors.append(_describe(context)))
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def process_of(self, task: asyncio.Task[Any]) -> Process | None:
        """The process that started it."""
        return self._contexts.get(task)

    def add_ready(self, handle: asyncio.Handle) -> None:
        """Run it in the next round."""
        self._ready.append(handle)  # type: ignore[attr-defined]

    def _make_task(self, loop: Any, coro: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            self._contexts[task] = process
            task.add_done_callback(self._contexts.pop)
        return task

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise RuntimeError("everything waits for something that never comes")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        batch = list(ready)
        ready.clear()
        if self._shuffle is not None and len(batch) > 1:
            self._shuffle.shuffle(batch)
        self.steps += len(batch)
        if self.steps > MAX_STEPS:
            raise RuntimeError(f"{MAX_STEPS} steps and no end")
        for handle in batch:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.frozen:
                process.park(handle)
            else:
                handle._run()

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""


def _describe(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {type(error).__name__}: {error}" if error is not None else str(context)
