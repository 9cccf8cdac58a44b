"""What the records of the tap say that are JSON."""

from __future__ import annotations

import json
from typing import Any

from services.mcp_proxy.tap import Record


def about(record: Record) -> dict[str, Any]:
    """The object in a record; empty where there is none that can be read."""
    try:
        found = json.loads(record.data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: Any) -> int:
    """A count in such an object; 0 for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
