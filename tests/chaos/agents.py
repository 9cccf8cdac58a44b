"""What the agents of a storm send: the recorded sessions of the four runtimes and synthetic ones, each time under new ids."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from services.cli.demo import sessions

_ID = re.compile(r"(?i)^(session|root|child|parent|run|turn|task|prompt|tool|call|request|approval).*(id|key)$")
_MIN_ID = 8


@dataclass(frozen=True, slots=True)
class Hook:
    """One payload as a runtime posts it."""

    runtime: str
    session: str
    name: str
    body: bytes


class Agents:
    """Endless sessions of agents; the same seed and number give the same payloads."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[str, re.Pattern[bytes] | None, list[tuple[str, bytes]]]]] = {}
        for session in sessions():
            payloads = [(hook, orjson.dumps(payload)) for hook, payload in session.payloads]
            found = sorted({text for _, payload in session.payloads for text in _ids(payload)}, key=len, reverse=True)
            ids = re.compile(b"|".join(re.escape(text.encode()) for text in found)) if found else None
            self._told.setdefault(session.runtime, []).append((session.name, ids, payloads))

    def hooks(self, seed: int, number: int) -> Iterator[Hook]:
        """The hooks of one connection, session after session, without end. A session of a synthetic story reads a
        secret, sends it away, loops, and leaves a call open.
        """
        chance = random.Random(f"{seed}-{number}")
        runtimes = sorted(self._told)
        for count in range(1 << 30):
            runtime = runtimes[(number + count) % len(runtimes)]
            name, ids, payloads = chance.choice(self._told[runtime])
            tag = f"-{seed:x}x{number}x{count}".encode()
            for hook, body in payloads:
                fresh = body if ids is None else ids.sub(lambda match, tag=tag: match[0] + tag, body)
                yield Hook(runtime, f"{name}{tag.decode()}", hook, fresh)


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and len(item) >= _MIN_ID and _ID.match(key) and re.fullmatch(r"[\w:.-]+", item):
                yield item
            else:
                yield from _ids(item)
    elif isinstance(value, list):
        for item in value:
            yield from _ids(item)
