"""Checkpoints on a real Kafka: what is read is what was written, whole and fitting, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from pipelines.pending_calls.operator import PendingCalls
from pipelines.pending_calls.ttl import Ttls
from pipelines.runtime import checkpoint
from pipelines.runtime.checkpoint import NONE, Manifest, Saved, State, code_of, read, take, write
from pipelines.runtime.group import Group
from pipelines.runtime.port import Operator
from pipelines.runtime.sender import Message, Sender
from pipelines.runtime.settings import WorkerSettings
from schemas.topics import CHECKPOINT, INPUT_TOPICS, TOOL_CALL
from tests.pipelines.helpers import T0, Pairs, Raw, call_event
from tests.pipelines.runtime.harness import Broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def pending(ttl_ms: int = 300_000) -> PendingCalls:
    return PendingCalls(Ttls(ttl_ms))


OPERATORS = (lambda _: pending(), Pairs)


def group(calls: int) -> Group:
    made = Group(1, OPERATORS)
    producer = {"id": "c", "epoch": 1}
    bodies = [call_event("tool.call.started", n, n, producer={**producer, "seq": n + 1}) for n in range(calls)]
    made.feed(TOOL_CALL, [Raw(n, T0 + n, b"k", orjson.dumps(body)) for n, body in enumerate(bodies)])
    made.progress(T0 + calls)
    made.take()
    return made


@pytest.fixture
async def settings(broker: Broker) -> AsyncIterator[WorkerSettings]:
    await broker.create()
    yield WorkerSettings(kafka=broker.kafka, operators=OPERATORS, topic_prefix=broker.prefix)


@pytest.fixture
async def sender(settings: WorkerSettings) -> AsyncIterator[Sender]:
    made = Sender(settings)
    yield made
    await made.stop()


def always(_: Manifest) -> bool:
    return True


async def test_a_state_is_read_as_it_was_written_also_the_one_before_and_in_pieces(
    settings: WorkerSettings, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 1000)
    saved = Saved(0.0)
    pointers, states = [], []
    for calls in (5, 60, 61):
        states.append(await take(group(calls), create_time=True))
        await write(sender, 1, states[-1], saved)
        pointers.append(saved.pointer)
    assert (saved.slot, saved.version) == (0, 61)
    for pointer, state, slot in zip(pointers, states, (0, 1, 0), strict=True):
        found = await read(settings, 1, pointer, always)
        assert found is not None
        manifest, parts = found
        assert parts == state.parts
        assert (manifest.offsets, manifest.slot, manifest.create_time) == (state.offsets, slot, True)
        assert max(len(part.pieces) for part in manifest.parts) > 2 or slot == 0
        loaded = Group(1, OPERATORS)
        loaded.load(parts)
        assert dict(loaded.dump()) == parts
    # What it has seen it knows: a producer's repeated record is one.
    body = call_event("tool.call.started", 3, 3, producer={"id": "c", "epoch": 1, "seq": 4})
    loaded.feed(TOOL_CALL, [Raw(61, T0 + 61, b"k", orjson.dumps(body))])
    assert loaded.duplicates == 1


async def test_pieces_that_a_smaller_state_does_not_need_are_deleted(
    broker: Broker, settings: WorkerSettings, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 1000)
    saved = Saved(0.0)
    for calls in (60, 1, 2):
        await write(sender, 1, await take(group(calls), create_time=False), saved)
    last: dict[bytes, bytes | None] = {record.key: record.value for record in await broker.read(CHECKPOINT)}  # type: ignore[attr-defined]
    slot0 = {key: value for key, value in last.items() if key.split(b"|")[2] == b"0"}
    found = await read(settings, 1, saved.pointer, always)
    assert found is not None
    assert sum(value is not None for value in slot0.values()) == 1 + sum(len(part.pieces) for part in found[0].parts)
    assert None in slot0.values()


async def test_what_is_torn_gone_or_foreign_is_not_used(settings: WorkerSettings, sender: Sender) -> None:
    saved = Saved(0.0)
    await write(sender, 1, await take(group(5), create_time=False), saved)
    assert await read(settings, 1, saved.pointer, lambda _: False) is None
    # A piece is no manifest, and there is nothing behind the end, nor in another partition.
    for partition, pointer in ((1, 0), (1, saved.pointer + 1), (0, saved.pointer)):
        assert await read(settings, partition, pointer, always) is None
    found = await read(settings, 1, saved.pointer, always)
    assert found is not None
    whole = found[0]
    (gone,) = await sender.send([Message(CHECKPOINT, b"gone", None, [], 1)])
    damaged = replace(whole.parts[0], sha256=whole.parts[1].sha256)
    torn = replace(whole.parts[0], pieces=(gone,))
    for value in (
        replace(whole, parts=(damaged, *whole.parts[1:])).dump(),
        replace(whole, parts=(*whole.parts[1:], torn)).dump(),
        b'{"format": 0}',
    ):
        (pointer,) = await sender.send([Message(CHECKPOINT, b"manifest", value, [], 1)])
        assert await read(settings, 1, pointer, always) is None


@pytest.mark.unit
def test_a_state_of_other_code_or_configuration_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def code(*operators: Operator) -> str:
        return code_of(operators)

    assert code(pending(), Pairs(0)) == code(pending(), Pairs(1))
    assert len({code(pending(), Pairs(0)), code(pending(), pending()), code(pending(1)), code(pending())}) == 4
    before = code(pending())
    changed = checkpoint._source("pipelines.pending_calls.operator") + b"x"
    monkeypatch.setattr(checkpoint, "_source", lambda _module: changed)
    assert code(pending()) != before


@pytest.mark.unit
def test_it_fits_only_if_the_log_and_what_was_said_cover_the_rest() -> None:
    offsets = dict.fromkeys(INPUT_TOPICS, 10)
    manifest = Manifest("c", offsets, 1000, False, 0, (), ({}, {}))
    assert Manifest.load(manifest.dump()) == manifest
    begin = dict.fromkeys(INPUT_TOPICS, 0)

    def fits(code: str = "c", said_ms: int = 1000, **places: dict[str, int]) -> bool:
        known = {"begin": begin, "upto": offsets, "settled": offsets, **places}
        return manifest.fits(code, known["begin"], known["upto"], known["settled"], said_ms)

    assert fits()
    assert not fits(code="other")
    assert not fits(said_ms=999)
    for wrong in ({"begin": 11}, {"upto": 9}, {"settled": 9}):
        ((name, offset),) = wrong.items()
        assert not fits(**{name: {**offsets, TOOL_CALL: offset}})
    with pytest.raises(ValueError):
        Manifest.load(b"[]")


@pytest.mark.unit
def test_a_group_refuses_a_state_that_is_not_its_own() -> None:
    parts = dict(group(3).dump())
    for wrong in (
        {},
        {**parts, "group": b"{}"},
        {**parts, "group": b"x"},
        {name: part for name, part in parts.items() if name == "group"},
        {**parts, "0-pending_calls": b"{}"},
    ):
        with pytest.raises(ValueError):
            Group(1, OPERATORS).load(wrong)


@pytest.mark.unit
def test_it_is_due_after_a_time_or_many_records_but_never_for_nothing_and_never_too_often() -> None:
    some = group(5)
    saved = Saved(100.0)
    assert not saved.due(some, 30, 129)
    assert saved.due(some, 30, 130)
    assert saved.age(140) == 11
    some.consumed = checkpoint.EVERY_RECORDS
    assert saved.due(some, 30, 101)
    saved.seconds = 2.0
    assert not saved.due(some, 30, 139)
    assert saved.due(some, 30, 140)
    saved.version = 5
    assert not saved.due(some, 30, 1000)
    assert (saved.age(1000), Saved.of(None, 7.0).pointer) == (0.0, NONE)
    manifest = Manifest("c", dict.fromkeys(INPUT_TOPICS, 10), 0, False, 1, (), ({}, {"a": 2}))
    assert Saved.of((9, manifest), 7.0) == Saved(7.0, 9, 1, ({}, {"a": 2}), 40)


@pytest.mark.unit
def test_the_size_of_a_state_is_that_of_its_parts() -> None:
    assert State("c", False, {}, 0, 0, {"a": b"xx", "b": b"y"}).size == 3
