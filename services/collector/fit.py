"""Keeps every event within the size a record may have, so that no broker ever refuses one of ours for its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from schemas.events import Quarantined, to_json
from schemas.topics import MAX_VALUE_BYTES

_SIDES = ("input", "output", "content", "request", "response")
_MAX_TEXT = 2048
_MAX_ITEMS = 200
_KEPT = ("event_id", "timestamp", "observed_at", "agent_runtime", "source_adapter", "producer")
_NAMES = ("tenant_id", "workspace_id", "session_id", "root_session_id", "connection_id", "source_event_name")


def fit(event: dict[str, Any], raw_hash: Callable[[bytes], str]) -> tuple[dict[str, Any], bytes]:
    """The event within MAX_VALUE_BYTES, and its JSON: native fields go first, then summaries, labels, then the ends of
    all long texts and lists.

    `native.agenttrace_cut` says so. What is too large even then becomes agent.payload.quarantined under the same
    event_id, with the size and the hash (`raw_hash` of its JSON) of what it stands for.
    """
    whole = orjson.dumps(event)
    if len(whole) <= MAX_VALUE_BYTES:
        return event, whole
    event = {**event, "native": {"agenttrace_cut": True}}
    for cut in (_without_summaries, _without_labels, _shortened):
        if len(less := orjson.dumps(event)) <= MAX_VALUE_BYTES:
            return event, less
        event = cut(event)
    if len(less := orjson.dumps(event)) <= MAX_VALUE_BYTES:
        return event, less
    names = {
        name: event[name] for name in _NAMES if isinstance(event.get(name), str) and name in Quarantined.model_fields
    }
    made = Quarantined.model_validate(
        {
            **{name: event[name] for name in _KEPT if name in event},
            **names,
            "event_name": "agent.payload.quarantined",
            "size_bytes": len(whole),
            "hash": raw_hash(whole),
            "reason": "event_too_large",
            "detail": event["event_name"],
            "severity": "warning",
        }
    )
    receipt = to_json(made)
    return receipt, orjson.dumps(receipt)


def _without_summaries(event: dict[str, Any]) -> dict[str, Any]:
    sides = {side: event[side] for side in _SIDES if isinstance(event.get(side), dict)}
    return event | {side: {k: v for k, v in given.items() if k != "summary"} for side, given in sides.items()}


def _without_labels(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"labels": {}}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"
    if isinstance(value, dict):
        return {_shortened(key): _shortened(item) for key, item in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, (list, tuple)):
        return [_shortened(item) for item in value[:_MAX_ITEMS]]
    return value
