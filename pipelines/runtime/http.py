"""The worker's loopback page for probes and Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from schemas.errors import UserError

HOST = "127.0.0.1"

Check = Callable[[], str | None]
"""None when all is well, else what is not."""


async def serve(port: int, registry: CollectorRegistry, healthy: Check, ready: Check) -> tuple[web.AppRunner, int]:
    """Serve /metrics, /healthz and /readyz; returns the server and its port. Raises UserError if the port is taken."""

    def probe(check: Check) -> Callable[[web.Request], object]:
        async def answer(_request: web.Request) -> web.Response:
            problem = check()
            return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

        return answer

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", probe(healthy))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UserError(
            f"port {port} on {HOST} cannot be used ({error.strerror}): set pipelines.port to a free one",
            exit_code=os.EX_UNAVAILABLE,
        ) from None
    bound: int = runner.addresses[0][1]
    return runner, bound
