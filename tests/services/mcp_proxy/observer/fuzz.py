"""Streams of records, valid and broken, through the Observer: `python -m tests.services.mcp_proxy.observer.fuzz --streams N --seed S`.

Each stream is a session of the model, recorded, then damaged: bytes flipped, cut otherwise, doubled, left out, records of
any kind with any content in between. The observer must fail on none, every event must be one that the topic takes, no planted
secret may be in any, and at the end nothing may be held.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from schemas.events import EVENT, to_json
from services.mcp_proxy.observer import Observer, ObserverSettings
from services.mcp_proxy.tap import Kind, Record, Side
from tests.services.mcp_proxy.observer.driving import CAPTURE, MS, START_NS
from tests.services.mcp_proxy.observer.model import Session, Transport

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
_TRANSPORTS: tuple[Transport, ...] = ("stdio", "session", "stateless")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    1e308,
    "",
    "x" * 300,
    "\ud800",
    "\0",
    [],
    [[]],
    {},
    {"": {}},
    SECRET,
)
_FIELDS = (
    "id",
    "method",
    "params",
    "result",
    "error",
    "jsonrpc",
    "_meta",
    "taskId",
    "status",
    "requestState",
    "name",
    "arguments",
)
_SAID = ("server", "transport", "http", "bytes", "code", "signal", "records", "reason", "status", "headers", "stream")
_WORDS = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\n",
    b"\r",
    b"\xff",
    b"\xef\xbb\xbf",
    b"data:",
    b"id: 1\n",
    b"\n\n",
    b"null",
    b"1e999",
)


def recorded(seed: int) -> list[Record]:
    """The records of one session of the model."""
    records: list[Record] = []
    take = Observer.record

    def record(self: Observer, given: Record) -> Any:
        records.append(given)
        return take(self, given)

    Observer.record = record  # type: ignore[method-assign]
    try:
        Session(seed, _TRANSPORTS[seed % 3], count=4)
    finally:
        Observer.record = take  # type: ignore[method-assign]
    return records


def damaged(records: list[Record], rng: random.Random) -> Iterator[Record]:
    """The same, less well."""
    for record in records:
        chance = rng.random()
        if chance < 0.03:
            continue
        if chance < 0.06:
            yield record
        if chance > 0.95:
            yield _any(record, rng)
        data = record.data
        if record.kind is Kind.DATA:
            if rng.random() < 0.25:
                data = _spoiled(data, rng)
            at = rng.randrange(len(data) + 1)
            yield Record(record.kind, record.channel, record.side, record.at_ns, data[:at])
            data = data[at:]
        elif rng.random() < 0.05:
            data = _spoiled(data, rng)
        yield Record(record.kind, record.channel, record.side, record.at_ns, data)


def _any(near: Record, rng: random.Random) -> Record:
    kind, side = rng.choice(list(Kind)), rng.choice(list(Side))
    about = {name: rng.choice(_VALUES) for name in rng.sample(_SAID, 3)}
    data = rng.choice([b"", rng.randbytes(9), SECRET.encode(), _json(about), b"[]", b"7"])
    at_ns = near.at_ns + rng.choice([-(10**18), -1, 0, 0, 1, 10**12])
    return Record(kind, near.channel + rng.choice([0, 0, 1, 7]), side, max(0, at_ns), data)


def _spoiled(data: bytes, rng: random.Random) -> bytes:
    try:
        value = orjson.loads(data.removeprefix(b"data: "))
    except ValueError:
        value = None
    if isinstance(value, dict) and rng.random() < 0.7:
        _twist(value, rng)
        return (
            (b"data: " if data.startswith(b"data: ") else b"") + _json(value) + (b"\n" if data.endswith(b"\n") else b"")
        )
    at = rng.randrange(len(data) + 1)
    return (
        data[:at]
        + rng.choice([*_WORDS, rng.randbytes(3), f" {SECRET} ".encode()])
        + data[at + rng.choice([0, 0, 1, 9]) :]
    )


def _twist(value: dict[str, Any], rng: random.Random) -> None:
    inner = [value, *(one for one in value.values() if isinstance(one, dict))]
    for _ in range(rng.randint(1, 3)):
        rng.choice(inner)[rng.choice(_FIELDS)] = rng.choice(_VALUES)


def _json(value: Any) -> bytes:
    # orjson writes no lone surrogates.
    return json.dumps(value).encode()


def run(seed: int) -> int:
    """One stream; how many events it made. Raises AssertionError with the seed."""
    rng = random.Random(seed)
    observer = Observer(CAPTURE, ObserverSettings(timeout_ms=10_000))
    observer.metadata_only = rng.random() < 0.2
    made, now_ns, channels = 0, START_NS, set()
    for record in damaged(recorded(rng.randrange(1 << 30)), rng):
        channels.add(record.channel)
        now_ns = max(now_ns, record.at_ns)
        events = observer.record(record)
        if rng.random() < 0.02:
            events += observer.tick(now_ns + rng.choice([0, 1, 10**11]))
        made += _check(events, seed)
    for channel in channels:
        made += _check(observer.record(Record(Kind.CLOSE, channel, Side.CLIENT, now_ns, b'{"reason":"done"}')), seed)
    made += _check(observer.tick(now_ns + 7_200_000 * MS), seed)
    assert observer.faults == 0, f"seed {seed}: {observer.faults} faults"
    assert observer.held == 0, f"seed {seed}: {observer.held} bytes are still held"
    return made


def _check(events: list[Any], seed: int) -> int:
    for event in events:
        line = orjson.dumps(to_json(event))
        assert SECRET.encode() not in line, f"seed {seed}: a secret in {event.event_name}"
        EVENT.validate_json(line)
    return len(events)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    made = sum(run(seed) for seed in range(given.seed, given.seed + given.streams))
    print(f"{given.streams} streams, {made} events, 0 faults")
    return 0


if __name__ == "__main__":
    sys.exit(main())
