"""The event loop of what sits beside an agent: uvloop where the platform has it, for it takes a third less from a short
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Factory = Callable[[], asyncio.AbstractEventLoop]

new_event_loop: Factory = asyncio.new_event_loop
try:
    import uvloop
except ImportError:
    pass
else:
    new_event_loop = uvloop.new_event_loop
