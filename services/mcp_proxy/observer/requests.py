"""Requests of one connection that are open, and those that ended without an answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from services.mcp_proxy.observer.messages import Id
from services.mcp_proxy.observer.operations import Pending, digest
from services.mcp_proxy.tap import Side

MAX_OPEN = 10_000
"""Open requests of one direction; of more the oldest are given up (status `timeout`, reason `too_many_open`)."""
MAX_GONE = 1000
"""Requests that ended without an answer, remembered for one that comes late."""
MAX_CHAIN = 100
"""Open requests with one and the same id: they are answered in the order in which they were sent."""


class Requests:
    """By who asked and by id. `scope` sets the ids of one HTTP exchange apart where a connection has no session."""

    def __init__(self) -> None:
        self.open: tuple[dict[str, Pending], dict[str, Pending]] = ({}, {})
        """By Side."""
        self._gone: OrderedDict[tuple[Side, str], Pending] = OrderedDict()
        self._like: dict[tuple[Side, str], str] = {}
        self._tokens: dict[tuple[Side, str], Pending] = {}

    def add(self, pending: Pending, scope: str) -> bool:
        """A request was sent. False if one with its id is open already."""
        opened = self.open[pending.side]
        if pending.id.like is not None:
            pending.like = scope + pending.id.like
            self._like[pending.side, pending.like] = pending.key
        first = opened.get(pending.key)
        if first is None:
            opened[pending.key] = pending
            return True
        length = 1
        while first.after is not None and length < MAX_CHAIN:
            first, length = first.after, length + 1
        if first.after is None:
            first.after = pending
        return False

    def one_too_many(self, side: Side) -> Pending | None:
        """The oldest, if there is no room for one more."""
        opened = self.open[side]
        return next(iter(opened.values())) if len(opened) >= MAX_OPEN else None

    def find(self, id: Id, asker: Side, scope: str) -> Pending | None:
        """The open request that an id names; also where the number was written as another program writes it."""
        opened = self.open[asker]
        found = opened.get(scope + id.key)
        if found is None and id.type in ("integer", "number"):
            near = scope + (id.like or id.key)
            found = opened.get(near) or opened.get(self._like.get((asker, near), ""))
        return found

    def by_value(self, value: Any, asker: Side, scope: str) -> Pending | None:
        """As `find`, of an id that stands inside a message. Without a session (a scope) the cancellation is an exchange of
        its own: then an id that only one request has is meant.
        """
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        key = f"s{value}" if isinstance(value, str) else f"n{value}"
        opened = self.open[asker]
        found = opened.get(scope + key) or opened.get(self._like.get((asker, scope + key), ""))
        if found is None and scope:
            ends = [pending for pending in opened.values() if pending.id.key == key]
            found = ends[0] if len(ends) == 1 else None
        return found

    def gone(self, id: Id, asker: Side, scope: str) -> Pending | None:
        """The request that an answer comes too late for; once."""
        return self._gone.pop((asker, scope + id.key), None)

    def give_up(self, pending: Pending, why: str) -> None:
        """It ends without an answer."""
        self.forget(pending)
        pending.why = why
        self._gone[pending.side, pending.key] = pending
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)

    def forget(self, pending: Pending) -> None:
        """It is open no more."""
        opened = self.open[pending.side]
        first = opened.get(pending.key)
        if first is pending:
            del opened[pending.key]
            if pending.after is not None:
                opened[pending.key] = pending.after
        else:
            while first is not None and first.after is not pending:
                first = first.after
            if first is not None:
                first.after = pending.after
        if pending.carried.get(pending.key) is pending:
            del pending.carried[pending.key]
        if pending.token is not None:
            self._tokens.pop((pending.side, pending.token), None)
        if pending.like is not None:
            self._like.pop((pending.side, pending.like), None)

    def is_open(self, pending: Pending) -> bool:
        """Whether nothing has ended it yet."""
        return any(one is pending for one in _chain(self.open[pending.side].get(pending.key)))

    def all(self, side: Side) -> Iterator[Pending]:
        """All that are open, those with the same id too."""
        for first in self.open[side].values():
            yield from _chain(first)

    def follow(self, pending: Pending, token: Any) -> None:
        """Progress that names this token belongs to this request."""
        name = _token(token)
        if name is not None:
            pending.token = name
            self._tokens[pending.side, name] = pending

    def by_token(self, token: Any, asker: Side) -> Pending | None:
        """The request to which a progress token belongs."""
        name = _token(token)
        return None if name is None else self._tokens.get((asker, name))


def _chain(pending: Pending | None) -> Iterator[Pending]:
    while pending is not None:
        yield pending
        pending = pending.after


def _token(token: Any) -> str | None:
    """Tokens 1 and "1" are two."""
    if not isinstance(token, (str, int, float)):
        return None
    text = str(token)
    return f"{type(token).__name__}:{text if len(text) <= 64 else digest(text)}"
