"""These tests run on the event loop that a collector runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.loops import new_event_loop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop for all."""
    return {"collector": new_event_loop}
