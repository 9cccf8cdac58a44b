"""Which upstream a request is for, and what must be told to it instead of the proxy's own names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urljoin, urlsplit

from schemas.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TARGET = re.compile(rb"/mcp/([A-Za-z0-9._-]{1,64})((?:/[^?]*)?)((?:\?.*)?)", re.DOTALL)
_WELL_KNOWN = re.compile(
    rb"(/\.well-known/(?:oauth-protected-resource|oauth-authorization-server|openid-configuration))(/mcp/.*)", re.DOTALL
)
_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class Route:
    """One upstream. `path` and `query` are those of its URL; `trouble` is what the last connection failed of."""

    name: str
    url: str
    tls: bool
    host: str
    port: int
    authority: bytes
    path: bytes
    query: bytes
    trouble: str | None = field(default=None, compare=False)

    @property
    def origin(self) -> bytes:
        """As a browser writes it: scheme, host, and port unless it is the scheme's own."""
        return (b"https://" if self.tls else b"http://") + self.authority


@dataclass(slots=True, frozen=True)
class Found:
    """Where a request goes: the route, the target for the upstream, and for a message of the older transport the
    channel of the stream that carries its answer.
    """

    route: Route
    target: bytes
    stream: int | None = None


def parse_route(text: str) -> Route:
    """`NAME=URL`. Raises UserError, which names the route."""
    name, equals, url = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        shown = f" {name}" if _NAME.fullmatch(name) else ""
        raise UserError(f"--route{shown}: write NAME=URL, the name of letters, digits, '.', '_', '-'", exit_code=64)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UserError(f"--route {name}: the URL cannot be read ({error})", exit_code=64) from error
    host = parts.hostname or ""
    if parts.scheme not in _PORTS or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise UserError(f"--route {name}: give an http:// or https:// URL of ASCII letters, with a host", exit_code=64)
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"--route {name}: no user or password in the URL; let the client send its Authorization header",
            exit_code=64,
        )
    shown_host = f"[{host}]" if ":" in host else host
    authority = shown_host if port in (None, _PORTS[parts.scheme]) else f"{shown_host}:{port}"
    return Route(
        name,
        f"{parts.scheme}://{authority}{parts.path or '/'}",
        parts.scheme == "https",
        host,
        port if port is not None else _PORTS[parts.scheme],
        authority.encode(),
        parts.path.encode() or b"/",
        parts.query.encode(),
    )


class Routes:
    """All of them, and the paths that streams of the older HTTP+SSE transport (2024-11-05) told their clients."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.by_name = {route.name: route for route in routes}
        if len(self.by_name) < len(routes):
            names = [route.name for route in routes]
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"--route {twice}: this name is given twice", exit_code=64)
        self._known: dict[bytes, Found] = {}

    def find(self, target: bytes) -> Found | None:
        """The upstream of a request target in origin form (`/path?query`)."""
        known = self._known.get(target)
        return known if known is not None else self._find(target)

    def learn(
        self, found: Found, asked: bytes, endpoint: bytes, stream: int, proxy: bytes
    ) -> tuple[bytes, bytes | None] | None:
        """A stream, asked for by this target and found so, names the endpoint for messages; `proxy` is the proxy's
        origin as the client knows it. Returns the target that leads there from now on, and what is to be named in place
        of the endpoint where the client would not come to that target; None where it is not the upstream's own.

        A path that leads to another upstream already is not given away: nobody may draw another one's messages, and
        their tokens, to himself by naming its path.
        """
        upstream = urlsplit(found.route.origin.decode())
        try:
            named = urlsplit(endpoint.decode("ascii"))
            theirs = urlsplit(urljoin((found.route.origin + found.target).decode(), named.geturl()))
            port = theirs.port or _PORTS[theirs.scheme]
            # A client resolves a path against the URL it asked for; of a URL only the origin is replaced.
            ours = theirs if named.netloc else urlsplit(urljoin("http://proxy" + asked.decode(), named.geturl()))
        except (ValueError, KeyError):
            return None
        if (theirs.scheme, theirs.hostname, port) != (upstream.scheme, upstream.hostname, found.route.port):
            return None
        target = _target(ours)
        before = self.find(target)
        taken = before is not None and before.route is not found.route
        if taken:
            target = f"/mcp/{found.route.name}".encode() + target
        self._known[target] = Found(found.route, _target(theirs), stream)
        return target, proxy + target if named.netloc else target if taken else None

    def forget(self, target: bytes, stream: int) -> None:
        """The stream that named it is over."""
        known = self._known.get(target)
        if known is not None and known.stream == stream:
            del self._known[target]

    def _find(self, target: bytes) -> Found | None:
        prefix = b""
        if well_known := _WELL_KNOWN.fullmatch(target):
            # RFC 8414 and RFC 9728: the path of the resource comes after the well-known part.
            prefix, target = well_known.groups()
        found = _TARGET.fullmatch(target)
        route = self.by_name.get(found[1].decode()) if found else None
        if found is None or route is None:
            return None
        path = route.path.removesuffix(b"/") + found[2] if found[2] or prefix else route.path
        asked = found[3][1:]
        query = b"" if prefix else route.query
        query += b"&" + asked if query and asked else asked
        return Found(route, prefix + path + (b"?" + query if query else b""))


def own_authorities(address: str, port: int) -> frozenset[bytes]:
    """What a client may call the proxy in `Host` when it reached it at this local address, lower case."""
    hosts = {f"[{address}]" if ":" in address else address}
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        hosts |= {"localhost", "127.0.0.1", "[::1]"}
    names = {f"{host}:{port}" for host in hosts} | (hosts if port == 80 else set())
    return frozenset(name.encode() for name in names)


def _target(parts: SplitResult) -> bytes:
    path = parts.path or "/"
    return f"{path}?{parts.query}".encode() if parts.query else path.encode()
