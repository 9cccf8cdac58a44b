"""The operators of one partition number, fed in process. Worker, replay and tests run this same code.

It decodes, drops duplicates, routes by event name, chains what one operator derives to those after it, stamps
versions, and collects outputs and refusals. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from pipelines.runtime.port import (
    DUE_MS,
    NO_OFFSET,
    STAMPED_WITH_STATE,
    Event,
    Operator,
    OperatorFactory,
    Output,
    Record,
    timestamp_ms,
)
from schemas import topics
from schemas.topics import BY_NAME, INPUT_TOPICS, TOPIC_OF_EVENT, record_key

MAX_PRODUCERS = 50_000
"""Producers (id, epoch) remembered per topic for dropping duplicates; beyond it the first seen are forgotten."""
MAX_REPEATED = 50_000
"""Outputs remembered after a take-over to be said once more."""
WAIT_BITS = 15
"""Low bits of a version: how long after the last record (s) it was said, up to 4.5 hours before or after (docs/adr/0013)."""

Handler = tuple[Callable[[Record, Any], None], "_Out"]


class Raw(Protocol):
    """A record as a Kafka client gives it; `timestamp` is the log time in ms."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class Refusal(NamedTuple):
    """A record that could not be processed: where it lies, by which operator (or `decode`) it was refused, and why."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    by: str
    why: str


class Told(NamedTuple):
    """What goes with a commit, for the worker that takes over.

    All that was due by `by_ms` (log time) is said and acknowledged. What follows from records before the offsets
    `settled`, and from progress up to `settled_ms`, has the highest version of all workers; None: all of it has.
    `checkpoint` is where a state of it lies (pipelines.runtime.checkpoint), -1: nowhere.
    """

    by_ms: int
    settled: dict[str, int] | None
    settled_ms: int
    checkpoint: int = -1


class _Out:
    """The Out of one operator: what it puts goes to the operators after it."""

    __slots__ = ("_group", "later", "name")

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self.name = name
        self.later: dict[str, tuple[Handler, ...]] = {}

    def put(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        self._group.emit(self, topic, record_id, body, key)

    def retract(self, topic: str, record_id: str, body: Event, key: str | None = None) -> None:
        self._group.emit(self, topic, record_id, {**body, "retracted": True}, key)


class Group:
    """State of all operators for one partition number of the input topics.

    `next_offsets` and `log_times` say, by topic, up to where the state is folded. The version of what is emitted grows
    with the sum of the former and, of equal sums, with the progress since the last record: of two workers who know the
    same records, the one who was told less loses. While `muted`, outputs and refusals are dropped (a rebuild repeats
    what was said before).
    """

    def __init__(
        self, partition: int, factories: Iterable[OperatorFactory], inputs: Sequence[str] = INPUT_TOPICS
    ) -> None:
        self.partition = partition
        self.operators: list[Operator] = [factory(partition) for factory in factories]
        self.next_offsets: dict[str, int] = dict.fromkeys(inputs, 0)
        self.log_times: dict[str, int] = {}
        self.progress_ms = 0
        self.muted = False
        self.partial_until_ms = 0
        self.consumed = 0
        self.duplicates = 0
        self.errors: dict[str, int] = {}
        self.last_error: str | None = None
        self._settled: Mapping[str, int] = {}
        self._settled_ms = 0
        self._next_offset = 0
        self._cause_ms = 0
        self._feeding: tuple[str, int] | None = None
        self._outputs: dict[tuple[str, str], Output] = {}
        self._refusals: list[Refusal] = []
        self._repeat: dict[tuple[str, str], Output] | None = None
        self._producers: dict[str, dict[tuple[str, int], int]] = {topic: {} for topic in inputs}
        self._outs = [_Out(self, operator.name) for operator in self.operators]
        self._routes = self._routes_after(-1)
        for index, out in enumerate(self._outs):
            out.later = self._routes_after(index)

    def _routes_after(self, index: int) -> dict[str, tuple[Handler, ...]]:
        routes: dict[str, tuple[Handler, ...]] = {}
        for operator, out in zip(self.operators[index + 1 :], self._outs[index + 1 :], strict=True):
            for name in operator.wants:
                routes[name] = (*routes.get(name, ()), (operator.on_event, out))
        return routes

    @property
    def horizon_ms(self) -> int:
        """How much of the log a rebuild reads: for who wants derived events, also what those are derived from."""
        reach = 0
        for operator in self.operators:
            derived = any(BY_NAME[TOPIC_OF_EVENT[name]].kind == "derived" for name in operator.wants)
            reach = max(reach, operator.horizon_ms + (reach if derived else 0))
        return reach

    @property
    def partial(self) -> bool:
        """True until the log time has passed everything that a rebuild could not read."""
        return self.progress_ms < self.partial_until_ms

    def feed(self, topic: str, records: Iterable[Raw]) -> None:
        """Fold records of one input topic, in offset order, each at or after `next_offsets[topic]`."""
        routes = self._routes
        producers = self._producers[topic]
        partition = self.partition
        loads = orjson.loads
        others = sum(self.next_offsets.values()) - self.next_offsets[topic]
        self._feeding = topic, others
        offset = self.next_offsets[topic] - 1
        log_time = self.log_times.get(topic, 0)
        for raw in records:
            offset = raw.offset
            self._next_offset = offset + 1
            self._cause_ms = raw.timestamp
            self.consumed += 1
            log_time = max(log_time, raw.timestamp)
            try:
                event = loads(raw.value)  # type: ignore[arg-type]
                handlers = routes.get(event["event_name"], ())
                producer = event.get("producer")
                if producer is not None:
                    source = (producer["id"], producer["epoch"])
                    seq = producer["seq"]
                    if seq <= producers.get(source, 0):
                        self.duplicates += 1
                        continue
                    producers[source] = seq
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self._refuse(Refusal(topic, offset, raw.key, raw.value, "decode", where(error)))
                continue
            if not handlers:
                continue
            record = Record(topic, partition, offset, raw.timestamp, event)
            for handle, out in handlers:
                try:
                    handle(record, out)
                except Exception as error:
                    self._refuse(Refusal(topic, offset, raw.key, raw.value, out.name, where(error)))
        self.next_offsets[topic] = offset + 1
        self.log_times[topic] = log_time
        if len(producers) > MAX_PRODUCERS:
            # A dict keeps the order of first sight, so the oldest epochs go first.
            for source in list(producers)[: MAX_PRODUCERS // 2]:
                del producers[source]

    def progress(self, t_ms: int) -> None:
        """Tell the operators that all records with a log time ≤ t were seen; a smaller t than before is ignored."""
        if t_ms <= self.progress_ms:
            return
        if self.muted and self.progress_ms < self._settled_ms < t_ms:
            self.progress(self._settled_ms)
        self.progress_ms = t_ms
        self._feeding = None
        for operator, out in zip(self.operators, self._outs, strict=True):
            try:
                operator.on_progress(t_ms, out)
            except Exception as error:
                self.errors[out.name] = self.errors.get(out.name, 0) + 1
                self.last_error = f"{out.name}: {where(error)}"

    def seen_until(self, read_to_end: Mapping[str, int]) -> int:
        """Progress that is safe to tell: the least, over the topics, of the last log time consumed.

        `read_to_end` has, for topics with nothing left to read, a time (ms) before which nothing more can be appended.
        0 while a topic has neither.
        """
        return min(max(self.log_times.get(topic, 0), read_to_end.get(topic, 0)) for topic in self.next_offsets)

    def begin_rebuild(self, start: Mapping[str, int], settled: Mapping[str, int], settled_ms: int) -> None:
        """Fold from these offsets on, muted: up to those of `end_rebuild`, a worker before has said what follows.

        Of that, what is not settled (see Told) is remembered for `repeat_outputs`.
        """
        self.next_offsets = dict(start)
        self.muted = True
        self._settled, self._settled_ms = settled, settled_ms
        self._repeat = {}

    def end_rebuild(self, upto: Mapping[str, int], told_ms: int) -> None:
        """The state is folded up to these offsets, and a worker before has said all that was due by `told_ms`.

        From now on speak, and remember what is said for `repeat_outputs`.
        """
        self.next_offsets = dict(upto)
        self.progress(told_ms)
        self.muted = False

    def dump(self) -> Iterator[tuple[str, bytes]]:
        """The state by part: its own, then each operator's. Only of a group that speaks and has nothing to take.

        What it still has to say once more (`repeat_outputs`) is not in it.
        """
        own = {
            "next_offsets": self.next_offsets,
            "log_times": self.log_times,
            "progress_ms": self.progress_ms,
            "partial_until_ms": self.partial_until_ms,
            "producers": {
                topic: [(*source, seq) for source, seq in producers.items()]
                for topic, producers in self._producers.items()
            },
        }
        yield "group", orjson.dumps(own)
        for name, operator in self._by_name().items():
            yield name, operator.dump()

    def load(self, parts: Mapping[str, bytes]) -> None:
        """Take over what `dump` gave, as a new group with the same operators. Raises ValueError for all else."""
        operators = self._by_name()
        if parts.keys() != {"group", *operators}:
            raise ValueError(f"a state of {', '.join(sorted(parts))}")
        try:
            own = orjson.loads(parts["group"])
            self.next_offsets, self.log_times = own["next_offsets"], own["log_times"]
            self.progress_ms, self.partial_until_ms = own["progress_ms"], own["partial_until_ms"]
            self._producers = {
                topic: {(name, epoch): seq for name, epoch, seq in producers}
                for topic, producers in own["producers"].items()
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"no state of a group: {error!r}") from error
        for name, operator in operators.items():
            operator.load(parts[name])

    def _by_name(self) -> dict[str, Operator]:
        return {f"{number}-{operator.name}": operator for number, operator in enumerate(self.operators)}

    def take(self) -> tuple[list[Output], list[Refusal]]:
        """What is to be sent since the last call: of each id the last, and the refused records."""
        outputs, refusals = list(self._outputs.values()), self._refusals
        if self._repeat is not None:
            for place, output in self._outputs.items():
                self._remember(self._repeat, place, output)
        self._outputs, self._refusals = {}, []
        return outputs, refusals

    def repeat_outputs(self) -> None:
        """Say once more, with the version of now, what is not settled; only the first call after a rebuild does it.

        The worker before may have read the topics in another interleaving and said less about an id under a higher
        version. Once this state is past all that it can have read, the version is past its versions too.
        """
        if self._repeat is None:
            return
        said, self._repeat = self._repeat, None
        self._feeding = None
        version = self._version()
        # What is not sent yet counts too: its version is that of its own record.
        said.update(self._outputs)
        for place, output in said.items():
            if "version" in output.body:
                output.body = {**output.body, "version": version}
                self._outputs[place] = output

    def emit(self, out: _Out, topic: str, record_id: str, body: Event, key: str | None) -> None:
        """Stamp, collect and chain one output of the operator behind `out`."""
        if topic != topics.RISK_FINDING_OCSF:
            body["version"] = self._version()
            if topic in STAMPED_WITH_STATE and self.progress_ms < self.partial_until_ms:
                body["state"] = "partial"
        repeat = self._repeat if self.muted else None
        # Of what is remembered the last counts, whatever it follows from.
        if repeat is not None and not self._is_unsettled() and (topic, record_id) not in repeat:
            repeat = None
        if not self.muted or repeat is not None:
            if key is not None:
                place = key.encode()
            elif topic in BY_NAME and BY_NAME[topic].kind == "derived" and "event_name" in body:
                place = record_key(body)
            else:
                place = record_id.encode()
            output = Output(topic, record_id, place, body)
            if repeat is None:
                self._outputs[topic, record_id] = output
            else:
                self._remember(repeat, (topic, record_id), output)
        handlers = out.later.get(body.get("event_name", ""))
        if handlers:
            at_ms = timestamp_ms(body["timestamp"])
            cause_ms = at_ms + DUE_MS if self._feeding is None else self._cause_ms
            record = Record(topic, self.partition, NO_OFFSET, at_ms, body, cause_ms=cause_ms)
            for handle, later_out in handlers:
                try:
                    handle(record, later_out)
                except Exception as error:
                    value = orjson.dumps(body)
                    self._refuse(Refusal(topic, NO_OFFSET, record_id.encode(), value, later_out.name, where(error)))

    def _version(self) -> int:
        if self._feeding is not None:
            return (self._feeding[1] + self._next_offset) << WAIT_BITS
        # Progress may also be behind the last record. By whole seconds of the clock: windows end and calls wake on them.
        wait_s = self.progress_ms // 1000 - max(self.log_times.values(), default=0) // 1000 + (1 << WAIT_BITS - 1)
        wait_s = min(max(wait_s, 0), (1 << WAIT_BITS) - 1)
        return sum(self.next_offsets.values()) << WAIT_BITS | wait_s

    def _is_unsettled(self) -> bool:
        if self._feeding is None:
            return self.progress_ms > self._settled_ms
        return self._next_offset > self._settled[self._feeding[0]]

    def _remember(self, repeat: dict[tuple[str, str], Output], place: tuple[str, str], output: Output) -> None:
        repeat[place] = output
        if len(repeat) > MAX_REPEATED:
            del repeat[next(iter(repeat))]

    def _refuse(self, refusal: Refusal) -> None:
        self.errors[refusal.by] = self.errors.get(refusal.by, 0) + 1
        if not self.muted:
            self._refusals.append(refusal)


def where(error: Exception) -> str:
    """`KeyError at operator.py:41`. The message is left out: it may hold a piece of the payload."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"
