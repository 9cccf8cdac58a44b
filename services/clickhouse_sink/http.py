"""The sink's loopback page for probes and Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from schemas.errors import UserError

HOST = "127.0.0.1"

Reasons = Callable[[], list[str]]
"""What is wrong; empty when all is well."""


async def serve(
    port: int, registry: CollectorRegistry, unhealthy: Reasons, unready: Reasons
) -> tuple[web.AppRunner, int]:
    """Serve /metrics, /healthz and /readyz; returns the server and its port. Raises UserError for a taken port."""

    async def healthz(_request: web.Request) -> web.Response:
        reasons = unhealthy()
        return web.json_response(
            {"status": "stuck" if reasons else "ok", "reasons": reasons}, status=503 if reasons else 200
        )

    async def readyz(_request: web.Request) -> web.Response:
        reasons = unready()
        return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UserError(
            f"port {port} on {HOST} cannot be used ({error.strerror}): set sink.port to a free one (0 takes any)",
            exit_code=os.EX_UNAVAILABLE,
        ) from None
    return runner, runner.addresses[0][1]
