"""Most heads on a connection repeat the one before but for their length. Such a head is known without being read again."""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\nContent-Length: ([0-9]{1,18})(?=\r\n)", re.IGNORECASE)


def cut(head: bytes) -> tuple[bytes, bytes, bytes] | None:
    """What is before and after the number in Content-Length, and its digits; None where there is none."""
    found = _LENGTH.search(head)
    return (head[: found.start(1)], found[1], head[found.end(1) :]) if found else None


class Repeats(Generic[T]):
    """Of one connection. Nothing outlives the connection: heads hold tokens."""

    __slots__ = ("_after", "_before", "_known")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._known: T | None = None

    def find(self, head: bytes) -> tuple[T, bytes] | None:
        """What was kept for a head like this one, and the digits of this one's length."""
        if self._known is None:
            return None
        parts = cut(head)
        if parts is None or parts[0] != self._before or parts[2] != self._after:
            return None
        return self._known, parts[1]

    def keep(self, head: bytes, known: T) -> None:
        """Keep it for heads like this one, which was read and is right, and whose body is as long as it says."""
        parts = cut(head)
        if parts is not None:
            self._before, _, self._after = parts
            self._known = known
