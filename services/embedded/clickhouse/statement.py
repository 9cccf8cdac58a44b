"""One statement to the embedded server and its answer, for the launcher and the server program themselves."""

from __future__ import annotations

import urllib.request

from services.embedded.host import LOOPBACK

USER = "agenttrace"


def request(port: int, password: str, statement: str, *, timeout_s: float) -> bytes:
    """The answer of the server on this port to one statement. OSError if it gives none, or refuses the password."""
    ask = urllib.request.Request(f"http://{LOOPBACK}:{port}/?database=system", statement.encode())
    ask.add_header("X-ClickHouse-User", USER)
    ask.add_header("X-ClickHouse-Key", password)
    # No proxy that the environment names: this never leaves the machine.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ask, timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body
