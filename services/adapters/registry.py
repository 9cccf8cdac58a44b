"""The adapters by runtime, and the one door through which a payload becomes events."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from schemas.events import Event, Quarantined, Runtime
from schemas.identity import event_id
from services.adapters import claude_code, codex, hermes, openclaw
from services.adapters.context import Context, Scope

MAX_DEPTH = 256
"""Deeper payloads are quarantined: no runtime nests its own fields further, and every later step may recurse."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One runtime's adapter. `versions` are the runtime releases its payloads were recorded on.

    `normalise(payload, context)` is pure: no I/O, no clock; events are made by the context. Raises only for shapes it
    does not know.
    """

    runtime: Runtime
    contract: str
    versions: tuple[str, ...]
    normalise: Callable[[Mapping[str, Any], Context], list[Event]]


ADAPTERS: dict[str, Adapter] = {
    module.RUNTIME: Adapter(module.RUNTIME, module.CONTRACT, module.VERSIONS, module.normalise)
    for module in (claude_code, codex, openclaw, hermes)
}

NEUTRAL_ANSWER = b"{}"
"""Answer to a hook that only observes: an object without a decision, in all four runtimes' HTTP and plugin forms.

Command hooks print nothing for it.
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body read as JSON. `payload` is None where it cannot be used; `reason` and `detail` then say why."""

    body: bytes
    payload: dict[str, Any] | None
    reason: str = ""
    detail: str | None = None
    oversized: tuple[int, str] | None = None


def parse(body: bytes) -> Parsed:
    """The body as a payload. A forwarder's marker in place of an oversized payload is recognised here."""
    try:
        payload = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError) as error:
        return Parsed(body, None, "invalid_json", str(error))
    if not isinstance(payload, dict):
        return Parsed(body, None, "not_an_object", type(payload).__name__)
    if _depth_over(payload, MAX_DEPTH):
        return Parsed(body, None, "too_deep", f"nested deeper than {MAX_DEPTH}")
    marker = payload.get("agenttrace_oversized")
    if len(payload) == 1 and isinstance(marker, dict):
        size, digest = marker.get("size_bytes"), marker.get("sha256")
        known = isinstance(digest, str) and _SHA256.fullmatch(digest)
        if type(size) is int and size >= 0 and (known or digest is None):
            return Parsed(body, None, "oversized", oversized=(size, f"sha256:{digest or 'unknown'}"))
    return Parsed(body, payload)


def normalise(body: bytes, context: Context) -> list[Event]:
    """Events of one hook payload; whatever the payload is, there is at least one event and never an exception.

    A body that is no JSON object, or one that an adapter cannot read, becomes agent.payload.quarantined with size and
    keyed hash.
    """
    return normalise_parsed(parse(body), context)


def normalise_parsed(parsed: Parsed, context: Context) -> list[Event]:
    """As `normalise`, for a body that is parsed already."""
    if parsed.payload is None:
        size, digest = parsed.oversized or (None, None)
        return quarantine(context, parsed.body, parsed.reason, parsed.detail, size_bytes=size, digest=digest)
    try:
        ADAPTERS[context.runtime].normalise(parsed.payload, context)
    except Exception as error:
        # An adapter must never cost an agent its answer: what it made so far stands, the payload is told by
        # size and hash.
        return quarantine(context, parsed.body, "unreadable_shape", type(error).__name__)
    if not context.events:
        context.observed("unknown", parsed.payload, Scope(), "no_event")
    return context.events


def quarantine(
    context: Context,
    body: bytes,
    reason: str,
    detail: str | None = None,
    *,
    size_bytes: int | None = None,
    digest: str | None = None,
) -> list[Event]:
    """agent.payload.quarantined for a body that cannot be read; only its size and hash are kept."""
    # A context of its own, numbered on: this one may have reached the bound on the events of one delivery.
    beside = replace(context, delivery_id=event_id(context.delivery_id, len(context.events)), events=[], ready=[])
    beside.event(
        Quarantined,
        "agent.payload.quarantined",
        Scope(),
        size_bytes=len(body) if size_bytes is None else size_bytes,
        hash=digest or context.capture.raw_hash(body),
        reason=reason,
        detail=context.text(detail),
        severity="warning",
    )
    context.events += beside.events
    context.ready += beside.ready
    return context.events


def _depth_over(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True
