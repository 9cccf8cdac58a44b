"""A real MCP client (the public Python SDK) that calls a real server (mcp-server-time) through `agenttrace proxy stdio`.

Run as a process of its own, `python -m services.demo.mcp_session`; prints as JSON how each of its calls ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client

SERVER = "time"
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("get_current_time", {"timezone": "Europe/Paris"}),
    *(
        ("convert_time", {"source_timezone": "Asia/Tokyo", "time": f"{hour:02d}:30", "target_timezone": "UTC"})
        for hour in range(4)
    ),
    ("get_current_time", {"timezone": "Mars/Olympus_Mons"}),
    ("set_time", {"time": "12:00"}),
)
"""The last but one is an error result, the last a JSON-RPC error: there is no such tool."""


async def _call(session: ClientSession, tool: str, arguments: dict[str, Any]) -> str:
    try:
        result = await session.call_tool(tool, arguments)
    except MCPError:
        return "error"
    return "error" if result.is_error else "ok"


async def _main() -> list[tuple[str, str]]:
    server = StdioServerParameters(
        command=sys.executable,
        args=[
            *("-m", "services.cli.main", "proxy", "stdio", "--server", SERVER, "--"),
            *(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"),
        ],
        # The SDK hands on only a few variables of its own choice.
        env={name: value for name, value in os.environ.items() if name.startswith("AGENTTRACE_")},
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        await session.list_tools()
        return [(tool, await _call(session, tool, arguments)) for tool, arguments in _CALLS]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main())))
