"""Runs the stream processors: one Faust app, its host, and its page for probes, until a signal or a failure."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Collection, Iterable
from typing import Any

from aiokafka import TopicPartition
from faust.types import TP

from pipelines.runtime import kafka, logs
from pipelines.runtime.group import Told
from pipelines.runtime.host import STALLED_S, Host
from pipelines.runtime.settings import WorkerSettings
from pipelines.runtime.transport import make_app
from schemas.errors import UserError
from schemas.topics import INPUT_TOPICS
from services import probes

log = logging.getLogger(__name__)

TICK_S = 1.0
STOP_S = 6.0


def run(settings: WorkerSettings) -> None:
    """Run a worker in this process until SIGTERM or SIGINT; then it stops within 10 s.

    Raises UserError when Kafka cannot be reached at the start or refuses the login, when topics are missing or the port
    is taken, and when the consumer fails for good (a supervisor should start the worker again).
    """
    collect_garbage_seldom()
    asyncio.run(_run(settings))


def collect_garbage_seldom() -> None:
    """Let Python's cycle collector run by the 20,000 objects: operators keep many and make hardly a cycle.

    By the default of 700 it takes a fifth of the time (measured with all operators).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class FaustInputs:
    """What the consumer inside Faust knows of its partitions (pipelines.runtime.host.Inputs)."""

    def __init__(self, app: Any, settings: WorkerSettings) -> None:
        self._app = app
        self._prefix = settings.topic_prefix
        self._clock = settings.clock
        self._session_timeout_s = settings.session_timeout_s
        self._answers: dict[tuple[str, int], tuple[int, int]] = {}
        self._assigned_at = time.monotonic()

    def joined(self) -> bool:
        """True once this worker is a member of the consumer group."""
        consumer = self._consumer()
        return consumer is not None and consumer._coordinator.generation > 0

    def member(self) -> str:
        """This worker's id in the consumer group; it has another one once it was thrown out."""
        consumer = self._consumer()
        return str(consumer._coordinator.member_id) if consumer is not None else ""

    def fenced(self) -> bool:
        """True while the group may have given this worker's partitions to another: it heard nothing for too long."""
        alive_at: float = self._app._consumer._thread.alive_at
        return time.monotonic() - alive_at > self._session_timeout_s

    def assigned_now(self) -> None:
        """The group has just answered."""
        self._app._consumer._thread.alive_at = self._assigned_at = time.monotonic()

    def unanswered(self) -> tuple[list[str], float]:
        """Assigned partitions, as topic/partition, of whose log nothing was ever heard, and for how many seconds."""
        silent = [
            f"{topic}/{partition}"
            for partition in self.assigned()
            for topic in INPUT_TOPICS
            if self.end(topic, partition) is None
        ]
        return silent, time.monotonic() - self._assigned_at if silent else 0.0

    def rebalancing(self) -> bool:
        """True while partitions change hands."""
        return bool(self._app.rebalancing)

    def assigned(self) -> Collection[int]:
        """Partition numbers of which this worker has all input topics."""
        consumer = self._consumer()
        if consumer is None:
            return ()
        places = consumer.assignment()
        of_topic = {name: {place.partition for place in places if place.topic == name} for name in self._names()}
        return set.intersection(*of_topic.values())

    def end(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Offset after the last record, and a time at which that was so.

        That time is when the answer before the last one came: the broker was asked again only after it. The last
        answer's own time would be wrong if this process, or the network, stood still in between.
        """
        state = self._state(topic, partition)
        if state is None or state.highwater is None or not state.timestamp:
            return None
        before, last = self._answers.get((topic, partition), (0, 0))
        if state.timestamp != last:
            before, last = self._answers[topic, partition] = last, int(state.timestamp)
        age_ms = time.time_ns() // 1_000_000 - before
        return int(state.highwater), self._clock() - max(age_ms, 0)

    def told(self, partition: int, told: Told) -> None:
        """To go with the next commit."""
        settled = told.settled and {self._prefix + topic: offset for topic, offset in told.settled.items()}
        self._app.told[partition] = told._replace(settled=settled)

    def committed(self, topic: str, partition: int) -> int:
        """Offset from which the next worker would be delivered, as far as Faust knows; 0 if nothing was committed."""
        return self._app.consumer._committed_offset.get(TP(self._prefix + topic, partition)) or 0

    async def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Deliver from this offset on."""
        await self._app.consumer.seek_wait({TP(self._prefix + topic, partition): offset})

    def _names(self) -> list[str]:
        return [self._prefix + topic for topic in INPUT_TOPICS]

    def _state(self, topic: str, partition: int) -> Any:
        """aiokafka's record of an assigned partition (position, highwater, time of the last answer), or None."""
        consumer = self._consumer()
        subscription = consumer and consumer._subscription.subscription
        assignment = subscription and subscription.assignment
        return assignment and assignment.state_value(TopicPartition(self._prefix + topic, partition))

    def _consumer(self) -> Any:
        """aiokafka's consumer once it is started, else None."""
        consumer = self._app._consumer and self._app._consumer._thread._consumer
        return consumer if consumer is not None and consumer._coordinator is not None else None


async def _run(settings: WorkerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    partitions = await _unless(stop, kafka.check(settings))
    if partitions is None:
        return
    # Only now: what goes wrong at the start is one line of ours, without the client's.
    logs.damp()
    app, channel = make_app(settings)
    inputs = FaustInputs(app, settings)
    host = Host(settings, inputs)
    prefix = len(settings.topic_prefix)

    async def on_assigned(_app: Any, assigned: Iterable[TP], **_: Any) -> None:
        inputs.assigned_now()
        host.keep({tp.partition for tp in assigned})

    app.on_partitions_assigned.connect(on_assigned, weak=False)

    @app.agent(channel, concurrency=1, name="pipelines")  # type: ignore[untyped-decorator]
    async def process(stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            if await host.on_batch(message.topic[prefix:], message.partition, event.value.records):
                event.ack()

    server, port = await probes.serve(
        settings.http_port,
        "pipelines.port",
        host.metrics.registry,
        lambda: _unhealthy(inputs, host),
        lambda: _unready(inputs, host),
    )
    log.info("worker of group %s: http://127.0.0.1:%d/readyz", settings.group_id, port)
    running = asyncio.create_task(app.start())
    try:
        await _watch(app, host, stop, running)
    finally:
        host.stopping = True
        await _stop(app, host, running)
        await server.cleanup()


def _unready(inputs: FaustInputs, host: Host) -> list[str]:
    if inputs.joined() and inputs.fenced():
        return ["Kafka: nothing heard of the consumer group for longer than the session timeout"]
    reason = host.not_ready()
    return [] if reason is None else [reason]


def _unhealthy(inputs: FaustInputs, host: Host) -> list[str]:
    reason = host.not_healthy()
    reasons = [] if reason is None else [reason]
    silent, seconds = inputs.unanswered()
    if seconds > STALLED_S:
        reasons.append(f"nothing heard of {silent[0]} and {len(silent) - 1} more for {seconds:.0f} s")
    return reasons


async def _watch(app: Any, host: Host, stop: asyncio.Event, running: asyncio.Task[None]) -> None:
    while not stop.is_set():
        if app.crash_reason is not None or (running.done() and running.exception() is not None):
            reason = app.crash_reason or running.exception()
            raise UserError(f"the consumer failed: {type(reason).__name__}: {reason}", exit_code=os.EX_TEMPFAIL)
        if running.done():
            # In an outage a tick takes as long as a request's timeout, and a stop does not wait for it.
            await _unless(stop, host.tick())
        try:
            await asyncio.wait_for(stop.wait(), TICK_S)
        except TimeoutError:
            pass


async def _stop(app: Any, host: Host, running: asyncio.Task[None]) -> None:
    started = time.monotonic()
    try:
        await asyncio.wait_for(app.stop(), STOP_S)
    except TimeoutError:
        log.warning("the consumer did not stop in %.0f s; its partitions move when the session times out", STOP_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await host.stop()
    log.info("stopped in %.1f s", time.monotonic() - started)


async def _unless(stop: asyncio.Event, doing: Any) -> Any:
    """The result of `doing`, or None if the stop comes first."""
    task, stopped = asyncio.ensure_future(doing), asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return await task
    task.cancel()
    return None
