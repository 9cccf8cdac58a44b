"""The SSE events that a server keeps for a client that comes back with Last-Event-ID."""

from __future__ import annotations

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.types import JSONRPCMessage


class MemoryEvents(EventStore):
    """All events of one run of the server, in order; the id of an event is its number."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """The id of the event that is now kept; an event without a message only opens a stream."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Sends what followed in the same stream, and gives the stream's id; None for an id that was never given."""
        if not last_event_id.isdigit() or not 0 < int(last_event_id) <= len(self._events):
            return None
        last = int(last_event_id)
        stream = self._events[last - 1][0]
        for number, (stream_id, message) in enumerate(self._events[last:], start=last + 1):
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
