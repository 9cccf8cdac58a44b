"""The loopback page of a worker or a sink: what is wrong with it, for probes and people, and its metrics."""

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
    port: int, setting: str, registry: CollectorRegistry, unhealthy: Reasons, unready: Reasons
) -> tuple[web.AppRunner, int]:
    """Serve /metrics, /healthz (503: start this process again) and /readyz (503: it does no work, or not all of it).

    Both say why as JSON. Returns the server and its port. Raises UserError, naming `setting`, if the port is taken.
    """

    async def healthz(_request: web.Request) -> web.Response:
        reasons = unhealthy()
        body = {"status": "stuck" if reasons else "ok", "reasons": reasons}
        return web.json_response(body, status=503 if reasons else 200)

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
            f"port {port} on {HOST} cannot be used ({error.strerror}): set {setting} to a free one (0 takes any)",
            exit_code=os.EX_UNAVAILABLE,
        ) from None
    bound: int = runner.addresses[0][1]
    return runner, bound
