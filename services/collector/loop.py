"""The event loop of a collector: uvloop where the platform has it, for it takes a third less from a short connection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Factory = Callable[[], asyncio.AbstractEventLoop]

new_event_loop: Factory = asyncio.new_event_loop
try:
    import uvloop
except ImportError:
    pass
else:
    new_event_loop = uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on that loop. What was imported is there to stay, so the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
