"""One request and its answer: where both end, and the copy of both that goes into the tap."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from services.mcp_proxy.http.bodies import Body
from services.mcp_proxy.http.endpoint import Endpoint
from services.mcp_proxy.http.heads import Answer, Request
from services.mcp_proxy.http.routes import Found
from services.mcp_proxy.tap import Kind, Side, Tap

_SEEN = frozenset(
    b"content-type accept last-event-id traceparent tracestate user-agent content-encoding origin".split()
)
_SEEN_KINDS = (b"mcp-", b"x-agenttrace-")


class Exchange:
    """From the head of a request to the last byte of its answer; a channel of the tap."""

    __slots__ = (
        "_channel",
        "_tap",
        "answer",
        "answered",
        "endpoint",
        "found",
        "keep",
        "learned",
        "method",
        "request",
        "streams",
    )

    def __init__(
        self, tap: Tap, channel: int, found: Found, method: bytes, body: Body, *, keep: bool, told: dict[str, Any]
    ) -> None:
        """`told` is what the tap says of it, see `tell`."""
        self._tap, self._channel = tap, channel
        self.found = found
        self.method = method
        self.keep = keep
        self.request = body
        self.answer: Answer | None = None
        self.answered = False
        """Whether anything of an answer was passed on."""
        self.endpoint: Endpoint | None = None
        self.learned: bytes | None = None
        """The target that this stream's endpoint event made known."""
        self.streams = False
        """Whether the answer is a stream of events."""
        tap.open(channel, told)
        if body.done:
            tap.say(Kind.END, channel, Side.CLIENT)

    @property
    def channel(self) -> int:
        """Its number in the tap."""
        return self._channel

    def asked(self, data: bytes, start: int) -> int:
        """Bytes of the request's body from `start` on. Returns where they end."""
        body = self.request
        end, content = body.feed(data, start)
        if content:
            self._tap.data(self._channel, Side.CLIENT, content)
        if body.done:
            self._tap.say(Kind.END, self._channel, Side.CLIENT)
        return end

    def head(self, answer: Answer) -> None:
        """The head of an answer; after one of 1xx another follows."""
        if answer.told is None:
            headers = _seen(answer.fields)
            challenge = answer.fields.get(b"www-authenticate")
            if challenge:
                headers["www-authenticate"] = challenge.partition(b" ")[0].decode("latin-1")
            answer.told = {"status": answer.status, "headers": headers}
        self._tap.say(Kind.HEAD, self._channel, Side.SERVER, answer.told)
        if not answer.interim:
            self.answer = answer
            self.streams = answer.fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
            if answer.body.done:
                self._tap.say(Kind.END, self._channel, Side.SERVER)

    def got(self, data: bytes, start: int) -> tuple[int, bytes | None]:
        """Bytes of the answer's body from `start` on: where they end, and what to pass on where it differs from them."""
        assert self.answer is not None
        body = self.answer.body
        if body.done:
            return start, None
        end, content = body.feed(data, start)
        if content:
            self._tap.data(self._channel, Side.SERVER, content)
        if body.done:
            self._tap.say(Kind.END, self._channel, Side.SERVER)
        if self.endpoint is None:
            return end, None
        changed = self.endpoint.feed(data[start:end], content, body)
        if self.endpoint.done:
            self.endpoint = None
        return end, changed

    def ended(self) -> bytes:
        """The upstream sends no more. What of its answer is still to be passed on."""
        if self.answer is not None and not self.answer.body.done:
            self.answer.body.end()
            if self.answer.body.done:
                self._tap.say(Kind.END, self._channel, Side.SERVER)
        endpoint, self.endpoint = self.endpoint, None
        return endpoint.rest() if endpoint else b""

    def close(self, reason: str) -> None:
        """It is over: `done`, or who broke it off."""
        self._tap.close(self._channel, reason)


def tell(found: Found, request: Request) -> dict[str, Any]:
    """What the tap says of a request: no value of its query, no header that may hold a credential."""
    http: dict[str, Any] = {
        "method": request.method.decode(),
        "target": request.target.partition(b"?")[0].decode(),
        "headers": _seen(request.fields),
    }
    told: dict[str, Any] = {"server": found.route.name, "transport": "streamable-http", "http": http}
    if found.stream is not None:
        told |= {"transport": "sse", "stream": found.stream}
    return told


def _seen(fields: dict[bytes, bytes]) -> dict[str, str]:
    """The headers that an observer may know: none that carries a credential."""
    return {seen: value.decode("latin-1") for name, value in fields.items() if (seen := _seen_name(name))}


@lru_cache(maxsize=1024)
def _seen_name(name: bytes) -> str | None:
    return name.decode() if name in _SEEN or name.startswith(_SEEN_KINDS) else None
