"""A consumer group: who is a member, of which generation, with which partitions, and whose commits count."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from aiokafka.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from aiokafka.structs import OffsetAndMetadata

from tests.simulation.kafka import Kafka

CHECK_S = 0.5


class Joined(NamedTuple):
    """The answer to a join: who one is, since when, and which partition numbers one has."""

    member: str
    generation: int
    partitions: frozenset[int]


class Coordinator:
    """The broker's side of the group. Its methods are effects of requests: they run at once."""

    def __init__(self, kafka: Kafka, session_timeout_s: float, rebalance_timeout_s: float) -> None:
        self._kafka = kafka
        self._session_timeout_s = session_timeout_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self.generation = 0
        self._members: dict[str, float] = {}
        """Until when (loop time) each is believed alive."""
        self._joining: dict[str, asyncio.Future[Joined]] = {}
        self._partitions: dict[str, frozenset[int]] = {}
        self._stable = True
        self._close_at = 0.0
        self._named = 0
        kafka.loop.call_later(CHECK_S, self._check)

    def join(self, member: str) -> asyncio.Future[Joined]:
        """Takes part in the next generation; the answer comes once all have joined."""
        if not member:
            self._named += 1
            member = f"m{self._named}"
        elif member not in self._members:
            raise UnknownMemberIdError
        self._members[member] = self._kafka.loop.time() + self._rebalance_timeout_s
        self._begin()
        known = self._joining.get(member)
        if known is None or known.done():
            known = self._joining[member] = self._kafka.loop.create_future()
        self._kafka.loop.call_later(0.05, self._complete)
        return known

    def heartbeat(self, member: str, generation: int) -> bool:
        """False while a rebalance waits for this member."""
        self._known(member, generation)
        self._members[member] = self._kafka.loop.time() + self._session_timeout_s
        return self._stable

    def commit(self, member: str, generation: int, offsets: Mapping[tuple[str, int], OffsetAndMetadata]) -> None:
        """As Kafka does: also while a rebalance waits for the members of this generation."""
        self._known(member, generation)
        if not self._stable and member in self._joining:
            raise RebalanceInProgressError
        self._kafka.committed.update(offsets)

    def leave(self, member: str) -> None:
        """Its partitions go to the others."""
        if self._members.pop(member, None) is not None:
            self._joining.pop(member, None)
            self._begin()
            self._complete()

    def owners(self) -> dict[str, frozenset[int]]:
        """Partition numbers by member, of this generation."""
        return dict(self._partitions) if self._stable else {}

    def _known(self, member: str, generation: int) -> None:
        if member not in self._members:
            raise UnknownMemberIdError
        if generation != self.generation:
            raise IllegalGenerationError

    def _begin(self) -> None:
        if self._stable:
            self._stable = False
            self._close_at = self._kafka.loop.time() + self._rebalance_timeout_s

    def _check(self) -> None:
        kafka = self._kafka
        now = kafka.loop.time()
        if not kafka.weather.down:
            for member, until in [*self._members.items()]:
                if until < now and member not in self._joining:
                    kafka.say(f"{member} has timed out")
                    self.leave(member)
            if not self._stable and now > self._close_at:
                for member in self._members.keys() - self._joining.keys():
                    del self._members[member]
                self._complete()
        else:
            # A coordinator that comes back gives everybody a session to be heard of.
            self._members = {
                member: max(until, now + self._session_timeout_s) for member, until in self._members.items()
            }
            self._close_at = max(self._close_at, now + self._session_timeout_s)
        kafka.loop.call_later(CHECK_S, self._check)

    def _complete(self) -> None:
        if self._stable or self._members.keys() - self._joining.keys():
            return
        kafka = self._kafka
        self.generation += 1
        self._stable = True
        members = sorted(self._members)
        kafka.rng.shuffle(members)
        self._partitions = {
            member: frozenset(range(number, kafka.partitions, len(members))) for number, member in enumerate(members)
        }
        kafka.say(f"generation {self.generation}: { {m: sorted(p) for m, p in self._partitions.items()} }")
        joining, self._joining = self._joining, {}
        for member, answer in joining.items():
            self._members[member] = kafka.loop.time() + self._session_timeout_s
            if not answer.done():
                answer.set_result(Joined(member, self.generation, self._partitions[member]))
