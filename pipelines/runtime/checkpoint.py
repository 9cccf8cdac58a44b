"""A group's state in the checkpoint topic, so that a take-over reads again only what came after it.

A state is written in pieces and then a manifest, which alone counts: it names the pieces by their offsets. Commits carry
the manifest's offset, so the consumer group decides whose checkpoint is used: a worker that lost its partition can write
one, but cannot commit it. Nothing is searched for in the topic. Compaction keeps two generations of each partition.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from pipelines.runtime.group import Group
from pipelines.runtime.kafka import POLL_MS, STALLED_POLLS
from pipelines.runtime.port import Operator
from pipelines.runtime.sender import Message, Sender
from pipelines.runtime.settings import WorkerSettings
from schemas.topics import CHECKPOINT, HEADER_KIND, MAX_VALUE_BYTES

log = logging.getLogger(__name__)

EVERY_RECORDS = 100_000
"""Records after which a state is written, even before `checkpoint_s` is over."""
SHARE = 20
"""A state that took a second to write is not written again for so many: at most 5 % of the time goes into it."""
PIECE_BYTES = MAX_VALUE_BYTES
PIECES_AT_ONCE = 4
SLOTS = 2
NONE = -1
"""In place of a manifest's offset: there is none."""
FORMAT = 1
KIND = b"checkpoint"


@dataclass(frozen=True, slots=True)
class Part:
    """A named piece of state: the offsets where its pieces lie, in order, and the SHA-256 of the whole."""

    name: str
    pieces: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is a state of.

    `code` stands for the code and configuration of the operators (`code_of`). The state has folded the records before
    `offsets` and was told `progress_ms`; all that follows was said and acknowledged, under a version higher than any
    that a worker before gave it. `counts` are the pieces that each slot had at most, by part.
    """

    code: str
    offsets: Mapping[str, int]
    progress_ms: int
    create_time: bool
    slot: int
    parts: tuple[Part, ...]
    counts: tuple[Mapping[str, int], ...]

    def fits(
        self,
        code: str,
        begin: Mapping[str, int],
        upto: Mapping[str, int],
        settled: Mapping[str, int],
        said_ms: int,
    ) -> bool:
        """Whether a worker may go on from it that has to know the records before `upto`, by this same code.

        The log begins at `begin`. What follows from records from `settled` on, or from progress after `said_ms`, must
        come of the fold (see Told): it is to be said once more, or was never said.
        """
        return (
            self.code == code
            and self.progress_ms <= said_ms
            and self.offsets.keys() == upto.keys()
            and all(begin[at] <= offset <= min(upto[at], settled[at]) for at, offset in self.offsets.items())
        )

    def dump(self) -> bytes:
        """As JSON."""
        return orjson.dumps({"format": FORMAT, **{name: getattr(self, name) for name in _FIELDS}})

    @staticmethod
    def load(value: bytes) -> Manifest:
        """Of JSON. Raises ValueError for anything else."""
        try:
            data = orjson.loads(value)
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}")
            parts = tuple(Part(part["name"], tuple(part["pieces"]), part["sha256"]) for part in data["parts"])
            return Manifest(
                **{**{name: data[name] for name in _FIELDS}, "parts": parts, "counts": tuple(data["counts"])}
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no manifest: {error!r}") from error


_FIELDS = tuple(Manifest.__slots__)


@dataclass(slots=True)
class Saved:
    """What a host remembers of a group's checkpoints. Times are seconds of the event loop's clock."""

    at: float
    """When the last one was begun, or since when the state is there."""
    pointer: int = NONE
    slot: int = SLOTS - 1
    counts: tuple[Mapping[str, int], ...] = ({}, {})
    version: int = 0
    consumed: int = 0
    seconds: float = 0.0
    behind_since: float | None = field(default=None)
    """When the first record came that the last one lacks."""

    @classmethod
    def of(cls, found: tuple[int, Manifest] | None, now: float) -> Saved:
        """Of a state that was made from the checkpoint at this offset, or from the log alone."""
        if found is None:
            return cls(now)
        pointer, manifest = found
        version = sum(manifest.offsets.values())
        return cls(now, pointer, manifest.slot, manifest.counts, version)

    def age(self, now: float) -> float:
        """Seconds since the first record came that the last one lacks."""
        return 0.0 if self.behind_since is None else now - self.behind_since

    def due(self, group: Group, every_s: float, now: float) -> bool:
        """Whether the group's state is to be written."""
        if sum(group.next_offsets.values()) <= self.version:
            self.behind_since = None
            return False
        if self.behind_since is None:
            self.behind_since = now
        many = group.consumed - self.consumed >= EVERY_RECORDS
        return now - self.at >= max(0.0 if many else every_s, SHARE * self.seconds)


@dataclass(frozen=True, slots=True)
class State:
    """A group's state at one moment (see Manifest)."""

    code: str
    create_time: bool
    offsets: Mapping[str, int]
    progress_ms: int
    consumed: int
    parts: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Bytes, not compressed."""
        return sum(map(len, self.parts.values()))


async def take(group: Group, create_time: bool) -> State:
    """The state of a group that stands still and has nothing to send. The event loop gets a turn after each operator."""
    parts = {}
    for name, part in group.dump():
        parts[name] = part
        await asyncio.sleep(0)
    code = code_of(group.operators)
    return State(code, create_time, dict(group.next_offsets), group.progress_ms, group.consumed, parts)


async def write(sender: Sender, partition: int, state: State, saved: Saved) -> None:
    """Write a state into the slot that the last one is not in, and note it in `saved`.

    Raises KafkaError, OSError or TimeoutError; then the last one still stands.
    """
    slot = (saved.slot + 1) % SLOTS
    parts, counts = [], {}
    for name, value in state.parts.items():
        digest, pieces = hashlib.sha256(), []
        view = memoryview(value)
        cut = [bytes(view[at : at + PIECE_BYTES]) for at in range(0, max(len(value), 1), PIECE_BYTES)]
        for at in range(0, len(cut), PIECES_AT_ONCE):
            some = cut[at : at + PIECES_AT_ONCE]
            for piece in some:
                digest.update(piece)
            messages = [_message(name, partition, slot, at + n, piece) for n, piece in enumerate(some)]
            pieces += await sender.send(messages)
        parts.append(Part(name, tuple(pieces), digest.hexdigest()))
        counts[name] = len(cut)
    before = saved.counts[slot]
    known = tuple(counts if number == slot else saved.counts[number] for number in range(SLOTS))
    manifest = Manifest(state.code, state.offsets, state.progress_ms, state.create_time, slot, tuple(parts), known)
    (saved.pointer,) = await sender.send([_message("manifest", partition, slot, 0, manifest.dump())])
    saved.slot, saved.counts, saved.behind_since = slot, known, None
    saved.version, saved.consumed = sum(state.offsets.values()), state.consumed
    # What a larger state left in this slot goes.
    gone = [(name, number) for name in before for number in range(counts.get(name, 0), before[name])]
    await sender.send([_message(name, partition, slot, number, None) for name, number in gone])


async def read(
    settings: WorkerSettings, partition: int, offset: int, fits: Callable[[Manifest], bool]
) -> tuple[Manifest, dict[str, bytes]] | None:
    """The checkpoint whose manifest lies at this offset, and its parts; None if it does not fit or is not whole.

    A broker that fails is a checkpoint that cannot be had: the log says the same.
    """
    place = TopicPartition(settings.topic_prefix + CHECKPOINT, partition)
    consumer = settings.consumer(
        enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=200, **settings.kafka
    )
    try:
        await consumer.start()
        consumer.assign([place])
        manifest = Manifest.load((await _records(consumer, place, [offset]))[offset])
        if not fits(manifest):
            log.info("partition %d: the checkpoint of %s does not fit", partition, manifest.offsets)
            return None
        values = await _records(consumer, place, sorted(at for part in manifest.parts for at in part.pieces))
        parts = {}
        for part in manifest.parts:
            parts[part.name] = b"".join([values.pop(at) for at in part.pieces])
            if hashlib.sha256(parts[part.name]).hexdigest() != part.sha256:
                raise ValueError(f"{part.name} is damaged")
        return manifest, parts
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        log.warning("partition %d: checkpoint %d is not used: %s: %s", partition, offset, type(error).__name__, error)
        return None
    finally:
        await consumer.stop()


async def _records(consumer: Any, place: TopicPartition, offsets: Iterable[int]) -> dict[int, bytes]:
    """The values at these offsets, which grow. Raises ValueError if one is gone."""
    left = deque(offsets)
    values: dict[int, bytes] = {}
    if left and left[-1] >= (await consumer.end_offsets([place]))[place]:
        raise ValueError("it lies behind the end of the topic")
    consumer.seek(place, left[0] if left else 0)
    stalled = 0
    while left:
        records = (await consumer.getmany(place, timeout_ms=POLL_MS)).get(place, [])
        stalled = 0 if records else stalled + 1
        if stalled > STALLED_POLLS:
            raise TimeoutError(f"no records of {place.topic}/{place.partition} for {STALLED_POLLS * POLL_MS // 1000} s")
        for record in records:
            if left and record.offset >= left[0]:
                if record.offset > left[0] or record.value is None:
                    raise ValueError("a piece is gone")
                values[left.popleft()] = record.value
    return values


def code_of(operators: Iterable[Operator]) -> str:
    """Stands for all that a state depends on besides the records: the code, and the operators' configuration."""
    digest = hashlib.sha256()
    for module in ("schemas.topics", "pipelines.runtime.group", *(type(operator).__module__ for operator in operators)):
        digest.update(_source(module))
    for operator in operators:
        digest.update(f"\n{operator.name} {operator.configuration}".encode())
    return digest.hexdigest()


@cache
def _source(module: str) -> bytes:
    """Hash of the files in a module's folder."""
    folder = Path(str(importlib.import_module(module).__file__)).parent
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _message(name: str, partition: int, slot: int, number: int, value: bytes | None) -> Message:
    key = f"{name}|{partition}|{slot}|{number}".encode()
    return Message(CHECKPOINT, key, value, [(HEADER_KIND, KIND)], partition)
