"""What all connections of a relay share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl

from services.mcp_proxy.http.client import Client
from services.mcp_proxy.http.routes import Routes
from services.mcp_proxy.tap import Tap


class Hub:
    """The routes, the tap and the clients."""

    def __init__(self, routes: Routes, tap: Tap, tls: ssl.SSLContext | None) -> None:
        self.routes = routes
        self.tap = tap
        self.tls = tls
        self.channels = itertools.count(1)
        self.clients: set[Client] = set()
        self.empty = asyncio.Event()

    def __call__(self) -> Client:
        """The protocol of a new connection."""
        return Client(self)

    async def stop(self, within_s: float) -> None:
        """Let exchanges under way end for so long, then close all."""
        self.empty.clear()
        for client in list(self.clients):
            client.stop()
        if self.clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.empty.wait(), within_s)
        for client in list(self.clients):
            client.abort()
        await asyncio.sleep(0)
