"""An MCP server on the public SDK that takes no Host and no Origin but its own: `sdk_server.py PORT` serves /sse and /mcp."""

from __future__ import annotations

import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette


def main() -> None:
    """Serve until ended."""
    port = int(sys.argv[1])
    server = MCPServer("sdk")
    own = TransportSecuritySettings(allowed_hosts=[f"127.0.0.1:{port}"], allowed_origins=[f"http://127.0.0.1:{port}"])

    @server.tool()
    async def add(a: int, b: int, ctx: Context) -> str:
        """Adds, and says so."""
        await ctx.report_progress(1, 1, "added")
        return str(a + b)

    application: Starlette = server.streamable_http_app(transport_security=own)
    application.router.routes += server.sse_app(transport_security=own).routes
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
