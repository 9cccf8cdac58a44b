"""The forwarder's process: listens, relays, and ends on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UserError
from services.loops import new_event_loop
from services.mcp_proxy.http.hub import Hub
from services.mcp_proxy.http.routes import Route, Routes
from services.mcp_proxy.observing import Observing

_BACKLOG = 1024
_END_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`listen` is HOST:PORT, port 0 for any; `observer` goes to the observing process."""

    listen: str
    routes: Sequence[Route]
    ca: Path | None = None
    allow_remote: bool = False
    observer: Sequence[str] = ()


def run(settings: HttpSettings, ready: Callable[[str], None]) -> None:
    """Relay until SIGTERM or SIGINT; `ready` gets the address that is listened on, `HOST:PORT`. Raises UserError."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, ready))


async def _serve(settings: HttpSettings, ready: Callable[[str], None]) -> None:
    routes = Routes(settings.routes)
    listener = _listen(settings.listen, allow_remote=settings.allow_remote)
    tls = _tls(settings.ca) if any(route.tls for route in settings.routes) else None
    _raise_file_limit()
    observing = Observing(settings.observer)
    hub = Hub(routes, observing.tap, tls)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(hub, sock=listener, backlog=_BACKLOG)
    await observing.start()
    host, port = listener.getsockname()[:2]
    ready(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    await stopped.wait()
    server.close()
    await hub.stop(_END_WITHIN_S)
    await observing.close()


def _listen(where: str, *, allow_remote: bool) -> socket.socket:
    host, colon, port = where.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"--listen {where}: write HOST:PORT, such as 127.0.0.1:8790", exit_code=64)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--listen {where}: {error.strerror}; use an address of this machine", exit_code=64) from error
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback and not allow_remote:
        raise UserError(
            f"--listen {where}: other machines could use the routes from here, and send their tokens in the clear; "
            "use 127.0.0.1, or add --allow-remote if that is wanted",
            exit_code=64,
        )
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"--listen {where}: {error.strerror}; end what listens there or choose another port", exit_code=69
        ) from error
    listener.setblocking(False)
    return listener


def _tls(ca: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # HTTP/2 is not relayed.
    context.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except OSError as error:
            why = "no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
            raise UserError(f"--ca {ca}: {why}; give a file of PEM certificates", exit_code=66) from error
    return context


def _raise_file_limit() -> None:
    """Each client takes two descriptors, and streams stay open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
