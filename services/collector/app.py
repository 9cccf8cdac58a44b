"""The collector's HTTP doors: hooks, events, health and metrics, on a Unix socket and on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from schemas.events import Runtime
from services.adapters.registry import ADAPTERS, NEUTRAL_ANSWER, normalise_parsed, quarantine
from services.collector.heavy import prepare
from services.collector.intake import Intake
from services.forwarder.protocol import HEADER_DELIVERY, MAX_BODY_BYTES

HEAVY_BYTES = 1 << 20
MAX_BATCH_BYTES = 16 << 20
_JSON = "application/json"


@dataclass(slots=True)
class Doors:
    """The request handlers around one intake. `wake` tells the publishers, `ready` says why the collector is not ready."""

    intake: Intake
    wake: Callable[[], None]
    ready: Callable[[], list[str]]

    def app(self) -> web.Application:
        """The aiohttp application, the same on both doors."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_local_only])
        app.router.add_post("/hooks/{runtime}", self.hook)
        app.router.add_post("/api/v1/events", self.events)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def hook(self, request: web.Request) -> web.Response:
        """POST /hooks/{runtime}: the neutral answer, always, once the events are in the journal."""
        began = time.perf_counter()
        runtime = request.match_info["runtime"]
        if runtime not in ADAPTERS:
            return web.json_response(
                {"error": f"no adapter for '{runtime}'; there are {', '.join(sorted(ADAPTERS))}"}, status=404
            )
        delivery = request.headers.get(HEADER_DELIVERY)
        if not self.intake.is_repeat(delivery):
            await self._take(request, ADAPTERS[runtime].runtime, delivery)
            self.wake()
        metrics = self.intake.metrics
        metrics.hooks.labels(runtime, "http" if request.remote else "socket").inc()
        metrics.handler.observe(time.perf_counter() - began)
        return web.Response(body=NEUTRAL_ANSWER, content_type=_JSON)

    async def _take(self, request: web.Request, runtime: Runtime, delivery: str | None) -> None:
        intake = self.intake
        length = request.content_length
        body = await request.read() if length is not None and length <= HEAVY_BYTES else await _read(request)
        context = intake.context(runtime, delivery, time.time_ns() // 1_000_000)
        if isinstance(body, _Oversized):
            intake.commit(
                context, quarantine(context, b"", "oversized", size_bytes=body.size, digest=f"sha256:{body.sha256}")
            )
        elif len(body) > HEAVY_BYTES:
            parsed, capture = await asyncio.to_thread(prepare, body, context)
            if intake.is_repeat(delivery):
                return
            context.capture = capture
            intake.commit(context, normalise_parsed(parsed, context))
        else:
            intake.hook(body, context)

    async def events(self, request: web.Request) -> web.Response:
        """POST /api/v1/events: one event or a list of them; each is taken or refused by itself."""
        try:
            data = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            return web.json_response({"error": f"not JSON: {error}"}, status=400)
        batch = data if isinstance(data, list) else [data]
        answers = self.intake.events(batch, time.time_ns() // 1_000_000)
        self.wake()
        refused = [{"index": index, "error": answer} for index, answer in enumerate(answers) if answer is not None]
        body = {"accepted": len(batch) - len(refused), "refused": refused}
        return web.json_response(body, status=200 if not refused or body["accepted"] else 422)

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the process answers."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: 200 when events are journalled and published, else 503 with the reasons."""
        reasons = self.ready()
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: Prometheus text."""
        self.intake.metrics.open_calls.set(len(self.intake.calls))
        dump = partial(generate_latest, self.intake.metrics.registry)
        return web.Response(body=await asyncio.to_thread(dump), headers={"Content-Type": CONTENT_TYPE_LATEST})


@dataclass(frozen=True, slots=True)
class _Oversized:
    size: int
    sha256: str


async def _read(request: web.Request) -> bytes | _Oversized:
    """The body, or its size and SHA-256 where it is over the limit; never more than the limit in memory."""
    digest, size = hashlib.sha256(), 0
    chunks: list[bytes] = []
    async for chunk in request.content.iter_chunked(1 << 16):
        size += len(chunk)
        digest.update(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
        else:
            chunks.clear()
    return b"".join(chunks) if size <= MAX_BODY_BYTES else _Oversized(size, digest.hexdigest())


@web.middleware
async def _local_only(request: web.Request, handler: Callable[[web.Request], web.StreamResponse]) -> web.StreamResponse:
    """Refuse what a web page could send: another Host (DNS rebinding) or any Origin. Callers on this machine have neither."""
    if request.remote and (not _is_loopback(request.host) or "Origin" in request.headers):
        return web.json_response({"error": "only programs on this machine may call the collector"}, status=403)
    return await handler(request)  # type: ignore[misc]


def _is_loopback(host: str) -> bool:
    name = host.rsplit(":", 1)[0].strip("[]") if not host.startswith("[") else host[1:].split("]")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
