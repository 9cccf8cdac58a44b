"""What the observer costs: CPU µs for a call (request and result of about 1 KiB each), `python -m tests.services.mcp_proxy.observer.cost`.

Rounds of all kinds take turns, and the least of each counts, so that other load on the machine tells least. `one event` is the
building of one bare event, to compare machines by.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from schemas.events import McpRpc, to_json
from services.capture.content import Capture, CaptureLevel, CaptureSettings
from services.mcp_proxy.observer import Observer, ObserverSettings
from services.mcp_proxy.tap import Kind, Record, Side
from tests.services.mcp_proxy.observer.driving import MS, START_NS

_TEXT = (
    "the quick function returns a value if there is no other result which could be read from the config file before the "
    "server starts and then writes an update to the database where the account has a name and a limit of its own"
)
PAIRS = 100


def pairs(first: int) -> list[Record]:
    """Calls whose texts differ, as records of a stdio channel."""
    made: list[Record] = []
    words = _TEXT.split()
    for n in range(first, first + PAIRS):
        text = " ".join(words[(n * 7 + k * 13 + n * k) % len(words)] for k in range(170))
        params = {"name": "search", "arguments": {"query": text[:790], "path": f"/srv/data/{n}.txt"}}
        asked = {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params | {"_meta": {"progressToken": n}}}
        result = {"content": [{"type": "text", "text": text[::-1][:900]}], "isError": False}
        answered = {"jsonrpc": "2.0", "id": n, "result": result}
        for side, sent in ((Side.CLIENT, asked), (Side.SERVER, answered)):
            made.append(Record(Kind.DATA, 1, side, START_NS + n * MS, json.dumps(sent).encode() + b"\n"))
    return made


def observer(*, metadata_only: bool = False, level: CaptureLevel = CaptureLevel.SUMMARY) -> Observer:
    settings = CaptureSettings(b"a key for tests only", "00000001", level, level)
    made = Observer(Capture(settings), ObserverSettings())
    made.metadata_only = metadata_only
    made.record(Record(Kind.OPEN, 1, Side.CLIENT, START_NS, b'{"server":"files","transport":"stdio"}'))
    return made


def main() -> None:
    observers = {
        "full": observer(),
        "level off": observer(level=CaptureLevel.OFF),
        "metadata only": observer(metadata_only=True),
    }
    first = observers["full"].record(pairs(0)[0])[0]
    bare = {name: value for name, value in to_json(first).items() if isinstance(value, str)}

    def one_event(_: list[Record]) -> None:
        for _ in range(PAIRS):
            McpRpc(**bare)

    def observed(by: Observer) -> Callable[[list[Record]], None]:
        return lambda records: [by.record(record) for record in records] and None

    kinds = {name: observed(by) for name, by in observers.items()} | {"one event": one_event}
    best = dict.fromkeys(kinds, float("inf"))
    for n in range(60):
        records = pairs(1000 + n * PAIRS)
        for name, work in kinds.items():
            began = time.process_time()
            work(records)
            best[name] = min(best[name], (time.process_time() - began) / PAIRS * 1e6)
    print(", ".join(f"{name} {cost:.1f} µs" for name, cost in best.items()))


if __name__ == "__main__":
    main()
