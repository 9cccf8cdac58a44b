"""Runs a collector's coroutine on the event loop that suits it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.loops import new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on that loop. What was imported is there to stay, so the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
