"""The `endpoint` event of the older HTTP+SSE transport (MCP 2024-11-05): where a client is to send its messages.

A path is passed as it came, and remembered, so that messages to it find their upstream. What would lead the client
elsewhere is replaced: an absolute URL of the upstream gets the proxy's origin (it would lead past the proxy, and the
clients' libraries refuse another origin), a path that leads to another upstream already gets one of its own.
**This is the only place where the proxy changes a body.**
"""

from __future__ import annotations

import re
from collections.abc import Callable

from services.mcp_proxy.http.bodies import Body, Chunked, Length

_MAX_EVENT = 16 << 10
_EOL = rb"(?>\r\n|\r|\n)"
# Comments and blank lines may come first.
_START = rb"(?:\xef\xbb\xbf)?(?::[^\r\n]*+" + _EOL + rb"|" + _EOL + rb")*+"
_EVENT = re.compile(
    _START + rb"event: ?endpoint" + _EOL + rb"(?:(?:id|retry|):[^\r\n]*+" + _EOL + rb")*+data: ?([^\r\n]*+)" + _EOL
)
_LEADING = re.compile(_START)
_BLANK = re.compile(_EOL + rb"{2}")


class Endpoint:
    """Looks at the first event of a stream. Only an event that may be this one is held until it is whole."""

    def __init__(self, learn: Callable[[bytes], bytes | None]) -> None:
        """`learn` takes the endpoint that is named and says what to name in its place, None to leave it."""
        self._learn = learn
        self._framed = self._content = b""
        self.done = False

    def feed(self, framed: bytes, content: bytes, body: Body) -> bytes:
        """The next bytes of the body, as they came and without framing: what to pass on now."""
        self._framed += framed
        self._content += content
        start = self._content[_LEADING.match(self._content).end() :]  # type: ignore[union-attr]
        # Framing of our own can only take over where a chunk's head has not been passed.
        cut = body.cut if isinstance(body, Chunked) else 0
        if body.done or body.fault or not _may_be_endpoint(start):
            self.done = True
        elif not start:
            if cut != 0:
                return b""
        else:
            found = _EVENT.match(self._content)
            if found is None or cut is None:
                return b""
            self._framed = self._rewritten(found, body, cut)
            self.done = True
        passed, self._framed, self._content = self._framed, b"", b""
        return passed

    def rest(self) -> bytes:
        """What is still held when no more comes."""
        return self._framed

    def _rewritten(self, found: re.Match[bytes], body: Body, cut: int) -> bytes:
        instead = self._learn(found[1])
        if instead is None or isinstance(body, Length):
            return self._framed
        content = self._content[: found.start(1)] + instead + self._content[found.end(1) :]
        if not isinstance(body, Chunked):
            return content
        return b"%x\r\n%b\r\n" % (len(content), content) + (b"%x\r\n" % cut if cut else b"")


def _may_be_endpoint(start: bytes) -> bool:
    """Whether these first bytes, after comments, are of the event looked for and the event is not yet over."""
    if len(start) > _MAX_EVENT:
        return False
    if start.startswith(b":"):
        # A comment that is not whole: what comes after it may be.
        return True
    for event in (b"event: endpoint", b"event:endpoint"):
        begun = start[: len(event)]
        if begun == event[: len(begun)] and (len(start) <= len(event) or start[len(event)] in b"\r\n"):
            return _EVENT.match(start) is not None or _BLANK.search(start) is None
    return False
