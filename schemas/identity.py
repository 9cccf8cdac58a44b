"""Ids of AgentTrace: how each is made, so that every process and every replay makes the same one.

UUIDv7 and UUIDv5 follow RFC 9562; trace and span ids have the W3C Trace Context sizes. Published test vectors:
schemas/registry/test-vectors.json.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import uuid

import orjson

NAMESPACE = uuid.UUID("6d1c4a0e-57b5-5b0f-9a70-3f2f1f0b8c11")
"""Namespace of every UUIDv5 that AgentTrace derives."""

MAX_EVENTS_PER_DELIVERY = 1 << 16

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NOT_ALNUM = re.compile(r"[^a-z0-9]+")


def new_delivery_id(now_ms: int | None = None) -> str:
    """A UUIDv7 whose low 16 bits are zero: the events made from one delivery are numbered there."""
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    value = (ms & (1 << 48) - 1) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62
    value |= secrets.randbits(46) << 16
    return str(uuid.UUID(int=value))


def is_delivery_id(text: str) -> bool:
    """True for a lower-case UUIDv7, the only delivery ids that are accepted from outside."""
    return bool(_UUID.fullmatch(text)) and text[14] == "7" and text[19] in "89ab"


def event_id(delivery_id: str, n: int) -> str:
    """Id of the n-th event of a delivery: the delivery's UUIDv7 with n added in its low 16 bits.

    Raises ValueError for n outside 0 … 65535.
    """
    if not 0 <= n < MAX_EVENTS_PER_DELIVERY:
        raise ValueError(f"event number {n} of one delivery is outside 0 … {MAX_EVENTS_PER_DELIVERY - 1}")
    low = (int(delivery_id[-4:], 16) + n) & 0xFFFF
    return f"{delivery_id[:-4]}{low:04x}"


def uuid7_ms(text: str) -> int:
    """Milliseconds since the Unix epoch that a UUIDv7 carries in its first 48 bits."""
    return int(text[:8] + text[9:13], 16)


def derived_id(kind: str, *parts: str | int) -> str:
    """UUIDv5 over a kind and its parts (a JSON array, so that no two part lists collide)."""
    # As uuid.uuid5 does it, at a third of its cost.
    name = bytearray(hashlib.sha1(NAMESPACE.bytes + orjson.dumps([kind, *parts]), usedforsecurity=False).digest()[:16])
    name[6] = name[6] & 0x0F | 0x50
    name[8] = name[8] & 0x3F | 0x80
    text = name.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def join_key(*parts: str) -> str:
    """Parts joined by `|`; a `|` or `%` inside a part is percent-encoded, so the result is unambiguous."""
    return "|".join(p.replace("%", "%25").replace("|", "%7C") for p in parts)


def call_id(call_key: str, occurrence: int) -> str:
    """Id of one tool call: the runtime's own key plus how often that key was used before (from 1)."""
    return derived_id("call", call_key, occurrence)


def trace_id(runtime: str, root_session_id: str, run_or_turn: str) -> str:
    """32 hex characters for runtimes that give no W3C trace id of their own."""
    return hashlib.sha256(orjson.dumps(["trace", runtime, root_session_id, run_or_turn])).hexdigest()[:32]


def span_id(name: str) -> str:
    """16 hex characters derived from a stable name (a call_id, a run id, a model call id)."""
    return hashlib.sha256(orjson.dumps(["span", name])).hexdigest()[:16]


def finding_id(rule_id: str, rule_version: int, tenant: str, group: str, bucket: int) -> str:
    """Id of a finding; `bucket` is the cooldown bucket aligned to the epoch, so later evidence updates it."""
    return derived_id("finding", rule_id, rule_version, tenant, group, bucket)


def canonical_name(name: str) -> str:
    """Server or tool name that hooks and wire agree on: lower case, each run of non-alphanumerics to `_`.

    >>> canonical_name("odd.srv 2"), canonical_name("get-sum")
    ('odd_srv_2', 'get_sum')
    """
    return _NOT_ALNUM.sub("_", name.lower())
