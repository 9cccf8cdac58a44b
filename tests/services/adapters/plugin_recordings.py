"""Recordings of the runtimes whose plugins wrap each hook call (OpenClaw, Hermes): payloads and several sessions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import orjson

from services.adapters import recordings
from tests.services.adapters.recorded_hooks import FIXTURES, SESSIONS, Entry, Json, Player

BUNDLES = ("payloads", "payloads-from-source")


@cache
def names(runtime: str) -> tuple[str, ...]:
    """All recorded files of a runtime, bundles and sessions, without suffix."""
    folders = (FIXTURES / runtime, SESSIONS / runtime)
    return tuple(sorted(path.stem for folder in folders for path in folder.glob("*.jsonl")))


@cache
def entries(runtime: str, name: str) -> tuple[Entry, ...]:
    """A bundle's payloads or a session's hook calls, as they reach the collector."""
    folder = SESSIONS if name.startswith("session") else FIXTURES
    path = folder / runtime / f"{name}.jsonl"
    if name not in BUNDLES:
        return tuple(Entry(str(row.line), row.body, row.ts_ms or 0) for row in recordings.read(path))
    rows = map(orjson.loads, path.read_bytes().splitlines())
    return tuple(Entry(row["file"], row["payload"].get("stdin") or row["payload"]) for row in rows)


def payload(runtime: str, file: str) -> Json:
    """A copy of one recorded payload, to be changed at will."""
    found = [entry for name in BUNDLES for entry in entries(runtime, name) if entry.name == f"{file}.json"]
    copy: Json = orjson.loads(orjson.dumps(found[0].payload))
    return copy


def played(runtime: str, name: str) -> Iterator[tuple[Entry, list[Json]]]:
    """Each hook call of a file with its events; a bundle's payloads meet an empty call table each."""
    one = Player(runtime)
    for entry in entries(runtime, name):
        one = Player(runtime) if name in BUNDLES else one
        yield entry, one.play(entry.payload, f"{name}:{entry.name}", entry.at_ms)


def golden(runtime: str, name: str) -> list[bytes]:
    """The lines of a golden file."""
    return [
        orjson.dumps({"from": entry.name, "events": events}, option=orjson.OPT_SORT_KEYS) + b"\n"
        for entry, events in played(runtime, name)
    ]
