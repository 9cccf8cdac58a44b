"""How a server is doing, from what is seen of it, without flapping."""

from __future__ import annotations

from collections import deque
from typing import Literal

State = Literal["connecting", "up", "degraded", "down", "backoff"]
Trouble = Literal["error", "timeout", "invalid_frame", "aborted", "throttled", "http", "refused"]

WINDOW = 20
"""How many answers (or their absence) are looked at."""
BAD = 5
"""So many bad ones among them are trouble …"""
GOOD_AGAIN = 1
"""… which is over when so many or fewer are left."""
REFUSED = 3
"""So many connections refused one after the other are a server that is down."""


class Health:
    """`connecting` → `up` with the first good answer; `degraded` (or `backoff`, where most of the trouble is the server
    asking for fewer requests: HTTP 429 and 503) with BAD of the last WINDOW answers bad, until GOOD_AGAIN are left;
    `down` when the process ended or REFUSED connections in a row failed (one, of a server never seen up). Between
    `degraded` and `backoff` there is no way but over `up` or `down`.

    Every method returns the new state and its reason where the state changed.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        self._recent: deque[Trouble | None] = deque(maxlen=WINDOW)
        self._refused = 0
        self._bad = 0

    def connecting(self) -> tuple[State, str] | None:
        """A first connection is tried."""
        return self._to("connecting", "started") if self.state is None else None

    def good(self, reason: str = "answered") -> tuple[State, str] | None:
        """The server answered, be it with an error that the client caused."""
        self._refused = 0
        if self.state == "up" and not self._bad and len(self._recent) == WINDOW:
            return None
        if self.state == "down":
            self._forget()
        self._add(None)
        if self.state in ("degraded", "backoff") and self._bad > GOOD_AGAIN:
            return None
        return None if self.state == "up" else self._to("up", reason)

    def bad(self, trouble: Trouble) -> tuple[State, str] | None:
        """The server failed to answer well."""
        self._add(trouble)
        if self.state in ("down", "degraded", "backoff") or self._bad < BAD:
            return None
        throttled = sum(kind == "throttled" for kind in self._recent)
        state: State = "backoff" if throttled * 2 > self._bad else "degraded"
        return self._to(state, f"{trouble}: {self._bad} of {len(self._recent)}")

    def refused(self, reason: str) -> tuple[State, str] | None:
        """No connection to the server was made."""
        self._refused += 1
        if self.state != "down" and (self.state in (None, "connecting") or self._refused >= REFUSED):
            return self._to("down", reason)
        return self.bad("refused")

    def ended(self, reason: str) -> tuple[State, str] | None:
        """The process is gone."""
        return None if self.state == "down" else self._to("down", reason)

    def _to(self, state: State, reason: str) -> tuple[State, str]:
        self.state = state
        return state, reason

    def _add(self, what: Trouble | None) -> None:
        recent = self._recent
        if len(recent) == WINDOW and recent[0] is not None:
            self._bad -= 1
        recent.append(what)
        self._bad += what is not None

    def _forget(self) -> None:
        self._recent.clear()
        self._bad = 0
