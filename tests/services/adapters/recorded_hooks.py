"""Recorded hook payloads, and a collector in small that plays them; ids and times follow from the recording."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from schemas.events import EVENT, to_json
from services.adapters.calls import CallTable
from services.adapters.context import Context
from services.adapters.registry import ADAPTERS
from services.capture.content import Capture, CaptureSettings

FIXTURES = Path(__file__).parents[2] / "fixtures"
SESSIONS = Path(__file__).parents[3] / "services" / "demo" / "sessions"
"""Recorded sessions are part of the product: the demo sends them."""
BUNDLES = ("payloads", "payloads-from-docs")
T0 = 1_796_064_689_000
CALL_EVENTS = "tool.call."

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One recorded hook call: the file or line it comes from, and when it was recorded (ms since the epoch)."""

    name: str
    payload: Json
    at_ms: int = T0

    @property
    def hook(self) -> str:
        return str(self.payload.get("hook_event_name"))


@cache
def bundle(runtime: str, name: str) -> tuple[Entry, ...]:
    """The payloads that were recorded one by one. Of a recorded http request the body is the payload."""
    rows = map(orjson.loads, (FIXTURES / runtime / f"{name}.jsonl").read_bytes().splitlines())
    return tuple(Entry(row["file"], _body(row["payload"])) for row in rows)


@cache
def session(runtime: str) -> tuple[Entry, ...]:
    """A whole session in the order in which it was recorded."""
    rows = map(orjson.loads, (SESSIONS / runtime / "session.jsonl").read_bytes().splitlines())
    return tuple(Entry(f"{n}", row["payload"], int(row["ts"] * 1000)) for n, row in enumerate(rows, start=1))


def recorded(runtime: str) -> Iterator[Entry]:
    """All recorded payloads of a runtime."""
    for name in BUNDLES:
        yield from bundle(runtime, name)
    yield from session(runtime)


def payload(runtime: str, file: str) -> Json:
    """The payload of one recorded file, to be changed at will."""
    found = [entry for name in BUNDLES for entry in bundle(runtime, name) if entry.name == file]
    return dict(found[0].payload)


@cache
def capture(*, hash_input: bool = True) -> Capture:
    """Redaction, facts and hashes under a key that never changes; one for all, since its rules take long to compile."""
    return Capture(CaptureSettings(hash_key=b"a key for tests only", key_id="test", hash_input=hash_input))


@dataclass
class Player:
    """Plays payloads of one runtime into one call table. Every event is checked against the contract of events."""

    runtime: str
    calls: CallTable = field(default_factory=CallTable)
    capture: Capture = field(default_factory=capture)
    sent: int = 0

    def context(self, name: str, at_ms: int) -> Context:
        """What the collector would give the adapter for this delivery."""
        adapter = ADAPTERS[self.runtime]
        digest = hashlib.sha256(name.encode()).hexdigest()
        stamp = f"{at_ms:012x}"
        delivery = f"{stamp[:8]}-{stamp[8:]}-7{digest[:3]}-8{digest[3:6]}-{digest[6:14]}0000"
        return Context(adapter.runtime, adapter.contract, delivery, at_ms, at_ms, self.capture, self.calls)

    def play(self, payload: Mapping[str, Any], name: str | None = None, at_ms: int | None = None) -> list[Json]:
        """Events of one payload, as JSON; without a time each payload comes 10 ms after the one before."""
        self.sent += 1
        context = self.context(name or f"sent {self.sent}", T0 + 10 * self.sent if at_ms is None else at_ms)
        # The adapter itself, not the registry: what it raises must fail the test.
        ADAPTERS[self.runtime].normalise(payload, context)
        return [checked(event) for event in context.events]

    def play_all(self, entries: Iterable[Entry]) -> list[Json]:
        """Events of several recorded payloads, in order."""
        return [event for entry in entries for event in self.play(entry.payload, entry.name, entry.at_ms)]


def checked(event: Any) -> Json:
    """The JSON form of an event, once it is known to be valid in exactly that form."""
    value = orjson.dumps(to_json(event))
    EVENT.validate_json(value)
    found: Json = orjson.loads(value)
    return found


def golden(runtime: str, name: str) -> Iterator[bytes]:
    """One line for each payload of a bundle (each with a table of its own) or of the session (one table for all)."""
    entries = session(runtime) if name == "session" else bundle(runtime, name)
    player = Player(runtime)
    for entry in entries:
        if name != "session":
            player = Player(runtime, capture=player.capture)
        events = player.play(entry.payload, f"{name}:{entry.name}", entry.at_ms)
        yield orjson.dumps({"from": entry.name, "events": events}, option=orjson.OPT_SORT_KEYS) + b"\n"


def outcomes(events: Iterable[Json]) -> dict[str, tuple[str, str]]:
    """Outcome and evidence of each call, by native id: of its last end, where one was told at all."""
    found: dict[str, tuple[str, str]] = {}
    for event in events:
        if event["event_name"].startswith(CALL_EVENTS) and "tool_call_id" in event:
            found.setdefault(event["tool_call_id"], ("open", ""))
            if "outcome" in event:
                found[event["tool_call_id"]] = (event["outcome"], event["outcome_evidence"])
    return found


def poisoned(value: Any, secret: str, field: str = "") -> Any:
    """The value with a secret at the end of every text but the hook's name."""
    if isinstance(value, dict):
        return {name: poisoned(inner, secret, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, secret, field) for inner in value]
    return f"{value} {secret} " if isinstance(value, str) and field != "hook_event_name" else value


def of(events: Iterable[Json], *names: str) -> list[Json]:
    """The events of these names."""
    return [event for event in events if event["event_name"] in names]


def _body(payload: Json) -> Json:
    body: Json = orjson.loads(payload["body"]) if "http_version" in payload else payload
    return body


_ORDER = (
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "PermissionDenied",
    "PostToolBatch",
)


def apart(runtime: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """File and final (outcome, evidence) of the calls that were recorded outside the whole session.

    Of those sessions only distinct payloads were kept, so each is played in the order that the hooks have for one call.
    A call is named by the first file that names it.
    """
    whole = {entry.payload["session_id"] for entry in session(runtime)}
    sessions: dict[str, list[Entry]] = {}
    for entry in bundle(runtime, "payloads"):
        if entry.hook in _ORDER and entry.payload["session_id"] not in whole:
            sessions.setdefault(entry.payload["session_id"], []).append(entry)
    for entries in sessions.values():
        entries.sort(key=lambda entry: _ORDER.index(entry.hook))
        found = outcomes(Player(runtime).play_all(entries))
        for call_id, outcome in found.items():
            first = next(entry for entry in entries if call_id in orjson.dumps(entry.payload).decode())
            yield first.name.removesuffix(".json"), outcome
