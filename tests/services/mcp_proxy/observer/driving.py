"""Drives an Observer as a forwarder does: what each side sends becomes records of the tap, and events come out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson

from schemas.events import EVENT, EventBase, to_json
from services.capture.content import Capture, CaptureSettings
from services.mcp_proxy.observer import Observer, ObserverSettings
from services.mcp_proxy.tap import Kind, Record, Side

Json = dict[str, Any]
MS = 1_000_000
START_NS = 1_790_000_000_000 * MS
CAPTURE = Capture(CaptureSettings(hash_key=b"a key for tests only", key_id="00000001"))


def message(method: str | None = None, id: Any = ..., **fields: Any) -> Json:
    """A JSON-RPC message; `id` is left out by default."""
    made: Json = {"jsonrpc": "2.0"}
    if id is not ...:
        made["id"] = id
    if method is not None:
        made["method"] = method
    return made | fields


def request(id: Any, method: str = "tools/call", **params: Any) -> Json:
    if method == "tools/call":
        params = {"name": "search", "arguments": {"q": "x"}} | params
    return message(method, id, params=params)


def result(id: Any, **fields: Any) -> Json:
    return message(id=id, result={"content": [{"type": "text", "text": "ok"}]} | fields)


def error(id: Any, code: int = -32602, text: str = "no such thing") -> Json:
    return message(id=id, error={"code": code, "message": text})


class Drive:
    """An Observer with a clock. `events` are all that came, as JSON."""

    def __init__(self, capture: Capture = CAPTURE, **settings: Any) -> None:
        self.observer = Observer(capture, ObserverSettings(**settings))
        self.now_ns = START_NS
        self.events: list[Json] = []

    def sleep(self, ms: float) -> None:
        self.now_ns += int(ms * MS)

    def tick(self, ms: float = 0) -> list[Json]:
        """Let time pass, then tick."""
        self.sleep(ms)
        return self._keep(self.observer.tick(self.now_ns))

    def put(self, kind: Kind, channel: int, side: Side = Side.CLIENT, data: bytes | Json = b"") -> list[Json]:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        found = self._keep(self.observer.record(Record(kind, channel, side, self.now_ns, raw)))
        assert self.observer.faults == 0, found
        return found

    def _keep(self, events: Iterable[EventBase]) -> list[Json]:
        written = [orjson.dumps(to_json(event)) for event in events]
        for line in written:
            # Whatever the observer makes, the topic takes.
            EVENT.validate_json(line)
        made: list[Json] = [orjson.loads(line) for line in written]
        self.events += made
        return made

    def named(self, *names: str) -> list[Json]:
        return [event for event in self.events if event["event_name"] in names]

    def rpc(self, operation: str | None = None) -> list[Json]:
        return [
            event
            for event in self.events
            if event["event_name"].startswith("mcp.rpc.") and operation in (None, event.get("operation_id"))
        ]


class Stdio(Drive):
    """One stdio process on channel 1."""

    def __init__(self, server: str = "files", resumed: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        about: Json = {"server": server, "transport": "stdio", "command": ["files", 1], "pid": 7}
        self.put(Kind.OPEN, 1, data=about | ({"resumed": True} if resumed else {}))

    def client(self, *sent: Any) -> list[Json]:
        """The client sends these messages, a line each (bytes as they are)."""
        return self._send(Side.CLIENT, sent)

    def server(self, *sent: Any) -> list[Json]:
        return self._send(Side.SERVER, sent)

    def _send(self, side: Side, sent: Iterable[Any]) -> list[Json]:
        raw = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in sent)
        return self.put(Kind.DATA, 1, side, raw)

    def exit(self, **how: int) -> list[Json]:
        found = self.put(Kind.EXIT, 1, Side.SERVER, how)
        return found + self.put(Kind.CLOSE, 1, data={"reason": "upstream"})


class Http(Drive):
    """HTTP exchanges, each on a channel of its own."""

    def __init__(self, server: str = "github", **settings: Any) -> None:
        super().__init__(**settings)
        self.server_name = server
        self._channels = 0

    def open(
        self,
        sent: Any = None,
        *,
        method: str = "POST",
        headers: Json | None = None,
        session: str | None = None,
        stream: int | None = None,
    ) -> int:
        """A request; its channel. `sent` is a message, a batch or bytes."""
        self._channels += 1
        channel = self._channels
        head = {"accept": "application/json, text/event-stream", "content-type": "application/json"} | (headers or {})
        if session is not None:
            head["mcp-session-id"] = session
        about: Json = {"server": self.server_name, "transport": "streamable-http"}
        if stream is not None:
            about |= {"transport": "sse", "stream": stream}
        self.put(Kind.OPEN, channel, data=about | {"http": {"method": method, "target": "/mcp", "headers": head}})
        if sent is not None:
            raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
            self.put(Kind.DATA, channel, Side.CLIENT, raw)
        self.put(Kind.END, channel, Side.CLIENT)
        return channel

    def head(self, channel: int, status: int = 200, kind: str = "application/json", **headers: str) -> list[Json]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.put(Kind.HEAD, channel, Side.SERVER, {"status": status, "headers": {"content-type": kind} | named})

    def body(self, channel: int, data: bytes | Json | list[Any]) -> list[Json]:
        return self.put(Kind.DATA, channel, Side.SERVER, data if isinstance(data, bytes) else json.dumps(data).encode())

    def event(self, channel: int, data: Json, id: str | None = None) -> list[Json]:
        """One server-sent event."""
        named = f"id: {id}\n" if id is not None else ""
        return self.body(channel, f"{named}data: {json.dumps(data)}\n\n".encode())

    def done(self, channel: int, reason: str = "done") -> list[Json]:
        """The end of an exchange; whole if `done`."""
        found = self.put(Kind.END, channel, Side.SERVER) if reason == "done" else []
        return found + self.put(Kind.CLOSE, channel, data={"reason": reason})

    def json(self, sent: Any, answer: Any, *, status: int = 200, session: str | None = None, **headers: str) -> int:
        """A whole exchange with a JSON answer."""
        channel = self.open(sent, session=session)
        self.head(channel, status, **headers)
        if answer is not None:
            self.body(channel, answer)
        self.done(channel)
        return channel

    def stream(self, sent: Any = None, *, session: str | None = None, **more: Any) -> int:
        """An exchange whose answer is a stream, open."""
        channel = self.open(sent, session=session, **more)
        self.head(channel, kind="text/event-stream")
        return channel
