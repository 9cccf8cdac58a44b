"""Whether a broker serves: an open port is not enough, it must also be a member of its own cluster again."""

from __future__ import annotations

import socket
import struct

_METADATA, _VERSION = 3, 5
_TIMEOUT_S = 2.0


def brokers_alive(host: str, port: int) -> int:
    """How many brokers the one at this address knows to be alive; 0 while it is fenced off. OSError if none answers.

    One Metadata request, version 5, for no topic (Kafka protocol guide, "Metadata API (Key: 3)"). Done by
    hand because the client library is asynchronous, and the caller may or may not run in an event loop.
    """
    client = b"agenttrace"
    header = struct.pack(f">hhih{len(client)}s", _METADATA, _VERSION, 1, len(client), client)
    body = struct.pack(">i?", 0, False)
    with socket.create_connection((host, port), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        answer = connection.makefile("rb")
        # size, correlation id, throttle time, and then the array of brokers with its length first
        head = answer.read(16)
        if len(head) < 16:
            raise ConnectionError("the connection was closed in the middle of an answer")
        brokers: int = struct.unpack(">iiii", head)[3]
        return max(brokers, 0)
