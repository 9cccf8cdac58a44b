"""The requests of one client connection: from the head that came to the exchange and the head that its upstream gets."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.mcp_proxy.http import own
from services.mcp_proxy.http.bodies import Body, Length
from services.mcp_proxy.http.endpoint import Endpoint
from services.mcp_proxy.http.exchange import Exchange, tell
from services.mcp_proxy.http.heads import Request, read_request
from services.mcp_proxy.http.repeats import Repeats, cut
from services.mcp_proxy.http.routes import Found

if TYPE_CHECKING:
    from services.mcp_proxy.http.hub import Hub


@dataclass(slots=True)
class _Known:
    """A request that can be repeated: all but its length."""

    found: Found
    method: bytes
    keep: bool
    told: dict[str, Any]
    before: bytes
    after: bytes


class Intake:
    """`names` are the authorities by which clients know the proxy."""

    __slots__ = ("_hub", "_names", "_repeats")

    def __init__(self, hub: Hub, names: Set[bytes]) -> None:
        self._hub = hub
        self._names = names
        self._repeats: Repeats[_Known] = Repeats()

    def read(self, head: bytes) -> tuple[Exchange, bytes] | bytes:
        """The exchange that this head begins and the head for its upstream; or the proxy's own answer. Raises BadHead."""
        repeated = self._repeats.find(head)
        if repeated is not None:
            known, digits = repeated
            body = Length(int(digits))
            exchange = self._exchange(known.found, known.method, body, keep=known.keep, told=known.told)
            return exchange, known.before + digits + known.after
        request = read_request(head)
        target = request.target
        if target.lower().startswith(b"http://"):
            authority, slash, path = target[7:].partition(b"/")
            if authority.lower() in self._names:
                target = slash + path
        found = self._hub.routes.find(target)
        if found is None:
            return own.own_answer(request, target, self._names, self._hub.routes)
        told = tell(found, request)
        exchange = self._exchange(found, request.method, request.body, keep=request.keep, told=told)
        changed = own.upstream_head(head, request, found, self._names)
        parts = cut(changed)
        if parts is not None and found.stream is None:
            before, _, after = parts
            self._repeats.keep(head, _Known(found, request.method, request.keep, told, before, after))
        if request.method == b"GET" and b"mcp-session-id" not in request.fields:
            exchange.endpoint = self._endpoint(request, target, exchange)
        return exchange, changed

    def _exchange(self, found: Found, method: bytes, body: Body, *, keep: bool, told: dict[str, Any]) -> Exchange:
        return Exchange(self._hub.tap, next(self._hub.channels), found, method, body, keep=keep, told=told)

    def _endpoint(self, request: Request, asked: bytes, exchange: Exchange) -> Endpoint:
        proxy = b"http://" + (request.fields.get(b"host") or min(self._names))

        def learn(endpoint: bytes) -> bytes | None:
            learned = self._hub.routes.learn(exchange.found, asked, endpoint, exchange.channel, proxy)
            if learned is None:
                return None
            exchange.learned = learned[0]
            return learned[1]

        return Endpoint(learn)
