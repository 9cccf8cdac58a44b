"""Large bodies off the event loop: the costly parts are computed in a thread, the ordered part stays on the loop.

The adapter runs twice over the same parsed objects: first in the thread on an empty call table, where every hash, summary and fact is
computed and remembered by object; then on the loop, where it finds them ready and decides with the real table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import Parsed, normalise_parsed, parse
from services.capture.content import Capture

_REMEMBERED = frozenset({"content", "text", "native", "facts", "output_facts", "raw_hash"})


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


def _key(value: Any) -> Any:
    return ("id", id(value)) if isinstance(value, (dict, list, bytes)) or _long(value) else value


def _long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 256


def prepare(body: bytes, context: Context) -> tuple[Parsed, Capture]:
    """Run in a thread: parse the body and compute what is costly. Returns what `normalise_parsed` needs on the loop."""
    capture = cast(Capture, Remembering(context.capture))
    parsed = parse(body)
    rehearsal = replace(context, capture=capture, calls=CallTable(), events=[])
    normalise_parsed(parsed, rehearsal)
    return parsed, capture
