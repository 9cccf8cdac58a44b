"""Whether a broker serves: an open port is not enough, it must also be a member of its own cluster again."""

from __future__ import annotations

import socket
import struct

_METADATA, _VERSION = 3, 5
_TIMEOUT_S = 2.0


def brokers_alive(host: str, port: int) -> set[int]:
    """Ids of the brokers that the one at this address knows to be alive; a broker that is fenced off is not among them.

    Raises OSError if none answers.

    One Metadata request, version 5, for no topic (Kafka protocol guide, "Metadata API (Key: 3)"). Done by
    hand because the client library is asynchronous, and the caller may or may not run in an event loop.
    """
    client = b"agenttrace"
    header = struct.pack(f">hhih{len(client)}s", _METADATA, _VERSION, 1, len(client), client)
    body = struct.pack(">i?", 0, False)
    with socket.create_connection((host, port), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        answer = connection.makefile("rb")
        size = answer.read(4)
        rest = answer.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    # correlation id, throttle time, and then the array of brokers: id, host, port, rack (may be null)
    try:
        (count,), at = struct.unpack_from(">8xi", rest), 12
        alive = set()
        for _ in range(count):
            node_id, length = struct.unpack_from(">ih", rest, at)
            alive.add(node_id)
            at += 6 + length + 4
            at += 2 + max(struct.unpack_from(">h", rest, at)[0], 0)
    except struct.error:
        raise ConnectionError("the connection was closed in the middle of an answer") from None
    return alive
