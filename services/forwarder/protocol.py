"""What the forwarder and the collector agree on: header names, spool layout, limits.

The commands themselves (agenttrace_hook.c, agenttrace-hook.sh) cannot import this, so a test holds them to it.
The prose is in the README beside this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

COMMAND: Final = "agenttrace-hook"
WIRE_VERSION: Final = 1

HOOK_PATH: Final = "/hooks/{runtime}"
HEADER_DELIVERY: Final = "X-AgentTrace-Delivery"
HEADER_PID: Final = "X-AgentTrace-Pid"
HEADER_OVERSIZED: Final = "X-AgentTrace-Oversized"

ENV_HOME: Final = "AGENTTRACE_HOME"
ENV_SOCKET: Final = "AGENTTRACE_SOCKET"
ENV_TIMEOUT_MS: Final = "AGENTTRACE_HOOK_TIMEOUT_MS"
ENV_SPOOL_MAX_BYTES: Final = "AGENTTRACE_SPOOL_MAX_BYTES"
ENV_SPOOL_MAX_FILES: Final = "AGENTTRACE_SPOOL_MAX_FILES"

DEFAULT_HOME: Final = "~/.agenttrace"
SOCKET_NAME: Final = "collector.sock"
SPOOL_FOLDER: Final = "spool"
SPOOL_EVENTS: Final = "events"
"""The folder of the spool that holds finished events (JSON lines) and not the payloads of a runtime."""

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Longest payload passed on; a longer one becomes a marker. The collector may answer with as much."""
TIMEOUT_MS: Final = 2_000
STDIN_IDLE_MS: Final = 5_000
"""How long the native command waits for the next byte of a payload whose end does not come."""
SPOOL_MAX_BYTES: Final = 256 * 1024 * 1024
SPOOL_MAX_FILES: Final = 10_000
SPOOL_BLOCK_BYTES: Final = 4_096
"""Spooled bytes are counted in blocks of this size, as a file system allots them."""

SPOOL_MAGIC: Final = "agenttrace-spool/1"
SPOOL_TEMPORARY_PREFIX: Final = ".tmp."
SPOOL_FILES_COUNTER: Final = ".files"
SPOOL_BLOCKS_COUNTER: Final = ".blocks"
SPOOL_FULL_MARK: Final = ".full"
SPOOL_FULL_TRUSTED_MS: Final = 1_000
"""How long a scan that found the spool full is believed before the next one."""

SPOOL_DROPPED: Final = ".dropped"
DROPPED_NAMED_BYTES: Final = 4 * 1024 * 1024
"""From this size on a drop adds only a `+`; from DROPPED_MAX_BYTES on it adds nothing."""
DROPPED_MAX_BYTES: Final = 8 * 1024 * 1024

OVERSIZED_KEY: Final = "agenttrace_oversized"
"""A marker's body is `{OVERSIZED_KEY: {"size_bytes": int, "sha256": 64 hex digits or null}}`."""

_RUNTIME = re.compile(r"[a-z0-9_-]{1,32}")
_DELIVERY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{8}0000")
_SPOOL_HEAD = re.compile(rb"agenttrace-spool/1 pid=([0-9]{1,10})(?: oversized=([0-9]{1,20}))?\n")
_DROP_RECORD = re.compile(rb"([0-9a-f-]{36}) ([0-9]{10})\n|\+")


@dataclass(frozen=True, slots=True)
class SpooledDelivery:
    """One spool file. `pid` is the hook's parent; `oversized_bytes` is set when `body` is a marker."""

    pid: int
    oversized_bytes: int | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Drops:
    """A `.dropped` file: `named` holds (delivery id, payload bytes), `unnamed` counts the rest.

    `at_least` is true when the file has reached its bound, so that later drops left no trace.
    """

    named: list[tuple[str, int]]
    unnamed: int
    at_least: bool


def is_runtime(name: str) -> bool:
    """Whether `name` can stand in HOOK_PATH and name a spool folder."""
    return _RUNTIME.fullmatch(name) is not None


def is_delivery_id(text: str) -> bool:
    """Whether `text` is a UUIDv7 (RFC 9562) in lower case whose low 16 bits are zero."""
    return _DELIVERY_ID.fullmatch(text) is not None


def parse_spool_file(content: bytes) -> SpooledDelivery:
    """Split a spool file into its head and the payload as it came on standard input.

    Raises ValueError when the head line is missing or cut, which only a power loss can cause.
    """
    head = _SPOOL_HEAD.match(content)
    if head is None:
        raise ValueError(f"not a spooled delivery: no {SPOOL_MAGIC} line in front ({len(content)} bytes)")
    oversized = int(head[2]) if head[2] is not None else None
    return SpooledDelivery(pid=int(head[1]), oversized_bytes=oversized, body=content[head.end() :])


def parse_dropped(content: bytes) -> Drops:
    """Read a `.dropped` file. Bytes that are no whole record (a write cut short) are passed over."""
    named: list[tuple[str, int]] = []
    unnamed = 0
    for record in _DROP_RECORD.finditer(content):
        if record[1] is None:
            unnamed += 1
        else:
            named.append((record[1].decode("ascii"), int(record[2])))
    return Drops(named=named, unnamed=unnamed, at_least=len(content) >= DROPPED_MAX_BYTES)
