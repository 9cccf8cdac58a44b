"""Large bodies off the event loop: the costly parts are computed in a thread, the ordered part stays on the loop.

The adapter runs twice over the same parsed objects: first in the thread on an empty call table, where every hash,
summary and fact is computed and remembered by object; then on the loop, where it finds them ready and decides with the
real table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, cast

from schemas.events import Runtime
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import Parsed, normalise, normalise_parsed, parse
from services.capture.content import Capture
from services.collector.intake import Intake

HEAVY_BYTES = 1 << 20
# One at a time: a body of 32 MiB takes several times that while it is worked on.
_WORKER = ThreadPoolExecutor(1, "heavy")
_REMEMBERED = frozenset({"content", "text", "native", "facts", "output_facts", "raw_hash", "hash"})

_SMALL = 256


class Remembering:
    """A Capture whose results are kept by the identity of their arguments, for as long as the payload lives."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._results: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._capture, name)
        return self._remember(name, method) if name in _REMEMBERED else method

    def _remember(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            key = (name, *(_key(arg) for arg in args), *((word, _key(arg)) for word, arg in sorted(kwargs.items())))
            if key not in self._results:
                # The arguments are kept too: an id is only good while its object lives.
                self._results[key] = (method(*args, **kwargs), args)
            return self._results[key][0]

        return call


def _key(value: Any, depth: int = 2) -> Any:
    """Texts and numbers by value, lists and objects by identity; new ones that adapters put together by what is in
    them.
    """
    if isinstance(value, dict):
        if depth and len(value) <= _SMALL:
            return "dict", tuple((name, _key(item, depth - 1)) for name, item in value.items())
        return "id", id(value)
    if isinstance(value, (list, tuple)):
        return "id", id(value)
    return type(value), value


def prepare(body: bytes, context: Context) -> tuple[Parsed, Capture]:
    """Run in a thread: parse the body and compute what is costly. Returns what `normalise_parsed` needs on the loop."""
    capture = cast(Capture, Remembering(context.capture))
    parsed = parse(body)
    rehearsal = replace(context, capture=capture, calls=CallTable(), events=[], ready=[])
    normalise_parsed(parsed, rehearsal)
    return parsed, capture


async def take(
    intake: Intake, runtime: Runtime, delivery_id: str | None, body: bytes, now_ms: int, *, kept: bool = False
) -> bool:
    """One delivery of any size into the journal; False where the journal does not take it now. `kept` as in
    `Intake.take`.
    """
    context = intake.context(runtime, delivery_id, now_ms)
    if len(body) <= HEAVY_BYTES:
        return intake.take(context, partial(normalise, body), kept=kept)
    parsed, context.capture = await asyncio.get_running_loop().run_in_executor(_WORKER, prepare, body, context)
    return intake.take(context, partial(normalise_parsed, parsed), kept=kept)
