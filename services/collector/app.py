"""The collector's HTTP doors: hooks, events, health and metrics, on a Unix socket and on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from schemas.events import Runtime
from services.adapters.registry import ADAPTERS, NEUTRAL_ANSWER, quarantine
from services.collector.heavy import take
from services.collector.intake import Intake, JournalError
from services.forwarder.protocol import HEADER_DELIVERY, MAX_BODY_BYTES

MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_EVENTS = 1000
"""Bounds of one POST /api/v1/events; a larger one is refused as a whole (413)."""
_CHUNK = 50
_JSON = "application/json"
_PEER = struct.Struct("3i")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Peer = socket.socket | None
"""The socket of a connection, as far as the event loop gives it."""


@dataclass(slots=True)
class Doors:
    """The request handlers around one intake.

    `written` is called when something was journalled, and what it gives is awaited before the answer; `ready` says why
    the collector is not ready; `token` is what callers by TCP must show, None where they need none.
    """

    intake: Intake
    written: Callable[[], Awaitable[None] | None]
    ready: Callable[[], list[str]]
    token: str | None = None

    def app(self) -> web.Application:
        """The aiohttp application, the same on both doors."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._admitted])
        app.router.add_post("/hooks/{runtime}", self.hook)
        app.router.add_post("/api/v1/events", self.events)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def hook(self, request: web.Request) -> web.Response:
        """POST /hooks/{runtime}: the neutral answer once the events are in the journal.

        Where the journal takes nothing: 503 to callers that sent a delivery id, since they spool; the neutral answer to
        others, and a receipt of the loss later. A payload that breaks the collector itself costs only itself.
        """
        began = time.perf_counter()
        name = request.match_info["runtime"]
        if name not in ADAPTERS:
            return _error(404, f"no adapter for '{name}'; there are {', '.join(sorted(ADAPTERS))}")
        intake = self.intake
        delivery = request.headers.get(HEADER_DELIVERY)
        length = request.content_length
        body = await request.read() if length is not None and length <= MAX_BATCH_BYTES else await _read(request)
        size = body.size if isinstance(body, _Oversized) else len(body)
        try:
            taken = await self._take(ADAPTERS[name].runtime, delivery, body)
        except Exception as error:
            intake.fault(name, size, error)
            taken = True
        refused = self.settle(_socket(request), name, delivery, size, taken)
        if refused is not None:
            return _error(503, refused)
        if taken:
            await self._written()
        intake.metrics.handler.observe(time.perf_counter() - began)
        return web.Response(body=NEUTRAL_ANSWER, content_type=_JSON)

    def settle(self, connection: Peer, name: str, delivery: str | None, size: int, taken: bool) -> str | None:
        """Count a hook. Why it is refused, None where it is answered: taken, or its loss remembered for a receipt."""
        intake = self.intake
        intake.metrics.hooks_of(name, "socket" if is_local(connection) else "http").inc()
        if taken:
            return None
        if delivery is not None:
            return f"{intake.refusal}: the journal takes nothing now, spool this delivery"
        intake.dropped(intake.refusal or "journal", 1, size, {name: 1})
        return None

    async def _written(self) -> None:
        waiting = self.written()
        if waiting is not None:
            await waiting

    async def _take(self, runtime: Runtime, delivery: str | None, body: bytes | _Oversized) -> bool:
        now_ms = time.time_ns() // 1_000_000
        if isinstance(body, bytes):
            return await take(self.intake, runtime, delivery, body, now_ms)
        digest = f"sha256:{body.sha256}"
        context = self.intake.context(runtime, delivery, now_ms)
        return self.intake.take(context, lambda c: quarantine(c, b"", "oversized", size_bytes=body.size, digest=digest))

    async def events(self, request: web.Request) -> web.Response:
        """POST /api/v1/events: one event or a list of up to 1,000 in 1 MiB; each is taken or refused by itself.

        200 with what was refused, 422 where nothing was taken, 413 over the bounds, 503 while the journal takes nothing
        (what was taken until then is dropped as a repeat when it comes again).
        """
        body = await _read(request, MAX_BATCH_BYTES)
        if isinstance(body, _Oversized):
            return _error(413, f"{body.size} bytes in one request; at most {MAX_BATCH_BYTES}: send smaller batches")
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            return _error(400, f"not JSON: {error}")
        batch: list[Any] = data if isinstance(data, list) else [data]
        if len(batch) > MAX_BATCH_EVENTS:
            return _error(413, f"{len(batch)} events in one request; at most {MAX_BATCH_EVENTS}: send smaller batches")
        answers: list[str | None] = []
        try:
            for first in range(0, len(batch), _CHUNK):
                answers += self.intake.events(batch[first : first + _CHUNK], time.time_ns() // 1_000_000)
                # Hooks of agents go between two chunks.
                await asyncio.sleep(0)
        except JournalError as error:
            return _error(503, f"{error}: the journal takes nothing now, send the batch again later")
        finally:
            await self._written()
        refused = [{"index": index, "error": answer} for index, answer in enumerate(answers) if answer is not None]
        accepted = len(batch) - len(refused)
        return _json({"accepted": accepted, "refused": refused}, 200 if accepted or not refused else 422)

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the process answers."""
        return _json({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 when events are journalled and published, else 503 with the reasons."""
        reasons = self.ready()
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: Prometheus text."""
        self.intake.metrics.open_calls.set(len(self.intake.calls))
        self.intake.metrics.forgotten_calls.set(self.intake.calls.forgotten)
        dump = partial(generate_latest, self.intake.metrics.registry)
        return web.Response(body=await asyncio.to_thread(dump), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def admits(self, connection: Peer, host: str) -> bool:
        """Whether a POST without Origin and Authorization may come from there; `_admitted` says why not."""
        if is_local(connection):
            return _peer_uid(connection) in (None, os.getuid(), 0)
        return not self.token and _is_loopback(host)

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may call: by the socket this user and root; by TCP programs on this machine, with the token where one is
        asked for.

        A web page is refused by what it cannot help sending: another Host (DNS rebinding) or an Origin.
        """
        connection = _socket(request)
        if is_local(connection):
            uid = _peer_uid(connection)
            if uid not in (None, os.getuid(), 0):
                return _error(403, f"the socket is for the user with id {os.getuid()}, not {uid}")
        elif not _is_loopback(request.host) or "Origin" in request.headers:
            return _error(403, "only programs on this machine may call the collector")
        elif self.token and request.method == "POST" and not _shows(request, self.token):
            return _error(401, "this collector asks for its token: Authorization: Bearer <content of collector.token>")
        return await handler(request)


@dataclass(frozen=True, slots=True)
class _Oversized:
    size: int
    sha256: str


async def _read(request: web.Request, limit: int = MAX_BODY_BYTES) -> bytes | _Oversized:
    """The body, or its size and SHA-256 where it is over the limit; never more than the limit in memory."""
    digest, size = hashlib.sha256(), 0
    chunks: list[bytes] = []
    async for chunk in request.content.iter_chunked(1 << 16):
        size += len(chunk)
        digest.update(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
    return b"".join(chunks) if size <= limit else _Oversized(size, digest.hexdigest())


def _json(data: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type=_JSON)


def _error(status: int, text: str) -> web.Response:
    return _json({"error": text}, status)


def _socket(request: web.Request) -> Peer:
    found: Peer = request.get_extra_info("socket")
    return found


def is_local(connection: Peer) -> bool:
    """Whether a connection came by the Unix socket."""
    return connection is not None and connection.family == socket.AF_UNIX


def _peer_uid(connection: Peer) -> int | None:
    """Who is at the other end of the Unix socket; None where the system does not tell (the file's mode guards it
    then).
    """
    if connection is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    uid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    return uid


def _shows(request: web.Request, token: str) -> bool:
    given = request.headers.get("Authorization", "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {token}".encode())


def _is_loopback(host: str) -> bool:
    name = host.rsplit(":", 1)[0].strip("[]") if not host.startswith("[") else host[1:].split("]", maxsplit=1)[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
