"""A target for coverage-guided fuzzing with atheris (Apache-2.0, not a dependency): it finds its own way into the parsers.

pip install --target FOLDER atheris
PYTHONPATH=FOLDER python -m tests.services.mcp_proxy.observer.guided -max_total_time=300
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from services.mcp_proxy.tap import Kind, Side

_DRIVING = "tests.services.mcp_proxy.observer.driving"
_HEADS = (
    {"content-type": "application/json"},
    {"content-type": "text/event-stream"},
    {"content-type": "application/json", "content-encoding": "gzip"},
    {"content-type": "text/event-stream", "content-encoding": "deflate"},
)


def one(data: bytes) -> Any:
    """The first byte says what the rest is: lines of both sides in turns, or the answer to a request, cut at 0xFF bytes."""
    driving = importlib.import_module(_DRIVING)
    mode, pieces = data[:1], data[1:].split(b"\xff")
    if mode < b"\x80":
        stdio = driving.Stdio()
        for n, piece in enumerate(pieces):
            stdio.put(Kind.DATA, 1, Side(n % 2), piece)
        stdio.exit(code=0)
        return stdio
    http = driving.Http()
    channel = http.open({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}, session="s")
    http.put(Kind.HEAD, channel, Side.SERVER, {"status": 200, "headers": _HEADS[mode[0] % 4]})
    for piece in pieces:
        http.body(channel, piece)
    http.done(channel, "done" if mode[0] & 4 else "upstream")
    http.tick(100_000)
    return http


def main() -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["services.mcp_proxy.observer"]):
        importlib.import_module(_DRIVING)

    def target(data: bytes) -> None:
        assert one(data).observer.held == 0

    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
