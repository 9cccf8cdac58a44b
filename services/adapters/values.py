"""Reading JSON that may hold anything: each function gives a value of the asked type or nothing, and never raises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CODE = 1 << 53


def text(value: Any) -> str | None:
    """A non-empty text; an integer in the place of an id is read as its digits."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """An object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> Sequence[Any]:
    """A list, else an empty one."""
    return value if isinstance(value, list) else ()


def number(value: Any) -> float | None:
    """A finite number that is not negative, such as a duration."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return value
    return None


def integer(value: Any) -> int | None:
    """An integer of plausible size, such as an exit code."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_CODE else None


def size(value: Any) -> int | None:
    """A count: an integer that is not negative."""
    found = integer(value)
    return found if found is not None and found >= 0 else None


def rest(fields: Mapping[str, Any], *taken: str) -> dict[str, Any]:
    """Fields that nothing took and that say something."""
    return {name: value for name, value in fields.items() if name not in taken and value not in (None, "", [], {})}
