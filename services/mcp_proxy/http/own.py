"""What the proxy itself says: to clients that ask for no route, and to upstreams in place of its own name."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Set
from typing import Any

from services.mcp_proxy.http.heads import Request, rewrite
from services.mcp_proxy.http.routes import Found, Route, Routes

_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    431: "Request Header Fields Too Large",
    502: "Bad Gateway",
}
_UPGRADE_FIELDS = (b"upgrade", b"http2-settings")


def upstream_head(head: bytes, request: Request, found: Found, own: Set[bytes]) -> bytes:
    """The head as the upstream is to get it; `own` are the names by which clients know the proxy.

    `Host` and `Origin` change only where they name the proxy: then the client took them from the URL it was given, and
    without the proxy they would name the upstream. A browser's `Origin` (it says `Sec-Fetch-…`) stays even then: a page
    which one upstream served through the proxy must not pass for a page of another one's. An offer to go on in HTTP/2
    is taken out, since what follows could not be told apart any more.
    """
    values: dict[bytes, bytes] = {}
    fields, route = request.fields, found.route
    if fields.get(b"host", b"").lower() in own:
        values[b"host"] = route.authority
    if b"origin" in fields and is_own_origin(fields[b"origin"], own) and b"sec-fetch-site" not in fields:
        values[b"origin"] = route.origin
    without = _UPGRADE_FIELDS if request.upgrades_to_h2() else ()
    end = head.index(b"\r\n")
    return rewrite(head, request.method + b" " + found.target + head[end - 9 : end], values, without)


def is_own_origin(origin: bytes, own: Set[bytes]) -> bool:
    """Whether it is the proxy's."""
    scheme, _, authority = origin.lower().partition(b"://")
    return scheme == b"http" and authority in own


def own_answer(request: Request, target: bytes, own: Set[bytes], routes: Routes) -> bytes:
    """To a request for no route. Nothing for pages of other sites, whatever name they found the proxy by."""
    host, origin = request.fields.get(b"host"), request.fields.get(b"origin")
    if (host is not None and host.lower() not in own) or (origin is not None and not is_own_origin(origin, own)):
        return answer(403, {"error": "this Host or Origin is not the proxy's own"}, request.method)
    if target == b"/" and request.method in {b"GET", b"HEAD"}:
        listed = {name: {"path": f"/mcp/{name}", "trouble": route.trouble} for name, route in routes.by_name.items()}
        return answer(200, {"routes": listed}, request.method)
    known = ", ".join(f"/mcp/{name}" for name in routes.by_name)
    return answer(404, {"error": f"no route has this path; routes: {known}"}, request.method)


def answer(status: int, about: dict[str, Any], method: bytes = b"") -> bytes:
    """A whole answer, the last one on its connection."""
    body = json.dumps(about).encode() + b"\n"
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + (b"" if method == b"HEAD" else body)


def trouble(route: Route, error: OSError) -> str:
    """Why an upstream cannot be reached, in one line that says what to do."""
    where = f"route '{route.name}': {route.authority.decode()}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{where} has a certificate that does not hold ({error.verify_message}); --ca FILE adds an authority"
    if isinstance(error, ssl.SSLError):
        return f"{where} does not speak TLS as expected ({error.reason or 'handshake failed'}); is it https?"
    if isinstance(error, socket.gaierror):
        return f"{where} is not a name that resolves ({error.strerror}); check --route {route.name}=URL"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refuses connections; is the server running there?"
    return f"{where} cannot be reached ({error.strerror or error}); is the server running there?"
