"""The runtime over seeded schedules of faults, and the simulation itself: it repeats, and it finds what is broken."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pipelines.runtime.group import Group, Told
from pipelines.runtime.host import Host
from pipelines.runtime.rebuild import LogReader
from pipelines.runtime.sender import Message, Sender
from schemas.topics import DLQ
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.schedule import FAULTS, run

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]

SCHEDULES, AT_ONCE = 500, 100
ENOUGH = 60
"""Schedules within which a planted defect must be found."""


@pytest.mark.parametrize("first_seed", range(0, SCHEDULES, AT_ONCE))
def test_any_schedule_of_faults_comes_to_what_one_calm_worker_says(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + AT_ONCE):
        problems = run(seed).problems
        assert not problems, f"python -m tests.simulation.run --seed {seed}\n" + "\n".join(problems[:10])


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        # An error rate held by a timeout, as long as nobody had read the call's own end; the next worker read both.
        (90012, "freeze poison repeats"),
        # Progress leapt over minutes or hours, with ends that nobody had said.
        (22410, "poison repeats"),
        (23292, "amid freeze kill repeats"),
        (31356, "leave repeats"),
        (3742, "freeze outage poison repeats"),
        # The same, and a state that knows but the last hours of the log.
        (31862, ""),
        # A topic's last commit was older than the note that all is settled, and said the contrary.
        (2547, ""),
        # Another history of failing calls.
        (70225, "repeats"),
    ],
)
def test_schedules_that_came_to_something_else_once(seed: int, faults: str) -> None:
    for some in (frozenset(faults.split()), FAULTS):
        assert not run(seed, some).problems


def test_schedules_contain_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(ENOUGH):
        verdict = run(seed)
        seen["outputs"] += verdict.outputs
        for _, _, what in verdict.trace:
            for word in (
                "killed before",
                "killed after",
                "freeze",
                "outage",
                "failing",
                "slow",
                "clock",
                "leave",
                "has timed out",
                ": lost",
                ": late",
                "answer lost",
                "UnknownMemberIdError",
                "to dlq",
                "to tool.call.derived",
                "to risk.finding",
                "to tool.metric",
            ):
                seen[word] += word in what
    assert min(seen.values()) > 0, seen
    assert seen["outputs"] > 1000


def test_a_seed_repeats_every_step_also_in_another_process() -> None:
    seed = 7
    first, again = run(seed), run(seed)
    assert first.digest == again.digest
    assert first.digest != run(seed + 1).digest
    said = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert first.digest in said


def found_by(first_seed: int = 0) -> int | None:
    """The first seed that fails."""
    return next((seed for seed in range(first_seed, first_seed + ENOUGH) if run(seed).problems), None)


def test_a_host_that_acknowledges_before_it_has_sent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Host._flush

    async def later(self: Host, owned: Any) -> None:
        try:
            await flush(self, owned)
        except Exception:
            pass

    async def at_once(self: Host, owned: Any) -> None:
        self.__dict__.setdefault("unawaited", []).append(asyncio.ensure_future(later(self, owned)))
        group = owned.group
        self._inputs.told(group.partition, Told(group.progress_ms, owned.settled, owned.settled_ms))

    monkeypatch.setattr(Host, "_flush", at_once)
    # A crash must fall between the two, which is one schedule in a hundred.
    assert found_by(300) is not None


def test_outputs_whose_versions_do_not_grow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a zombie that speaks late shows it, which is one schedule in a thousand or so.
    monkeypatch.setattr(Group, "_version", lambda _: 0)
    assert found_by(1590) is not None


def test_a_take_over_that_repeats_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "repeat_outputs", lambda self: self.__dict__.update(_repeat=None))
    assert found_by() is not None


def test_a_gap_that_is_not_read_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> AsyncIterator[None]:
        return
        yield

    monkeypatch.setattr(LogReader, "fill", nothing)
    assert found_by() is not None


def test_a_refused_record_without_a_receipt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Sender.send

    async def but_no_receipts(self: Sender, messages: Iterable[Message]) -> Any:
        return await send(self, [message for message in messages if message.topic != DLQ])

    monkeypatch.setattr(Sender, "send", but_no_receipts)
    assert found_by() is not None


def test_a_frozen_process_does_nothing_until_it_wakes_and_a_killed_one_nothing_any_more() -> None:
    loop = VirtualLoop()
    at: list[tuple[str, float]] = []

    async def count(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            at.append((name, loop.time()))

    async def story() -> None:
        one, two = Process(loop, "one"), Process(loop, "two")
        one.spawn(count("one"), "count")
        two.spawn(count("two"), "count")
        await asyncio.sleep(1.5)
        one.freeze()
        two.kill()
        await asyncio.sleep(3600)
        one.wake()
        await asyncio.sleep(10)

    loop.run_until_complete(story())
    loop.close()
    assert at == [("one", 1.0), ("two", 1.0), ("one", 3601.5), ("one", 3602.5)]
