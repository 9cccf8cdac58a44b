"""A real MCP client over standard input and output that goes through the scenarios: `… client.py sdk|fastmcp PLAN.json`.

The plan says which command to start and what to call (`tests.conformance.stdio.servers.Plan`); how each scenario ended is
printed as JSON. Imports nothing of this repository: it also runs outside of `.venv`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

CONCURRENT = 16
_LEAVE_AFTER_S = 0.5


class Sdk:
    """The client of the public Python SDK."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        from mcp import StdioServerParameters
        from mcp.client.client import Client

        self.client = Client(StdioServerParameters(command=command[0], args=command[1:], env=environment))

    async def call(self, name: str, arguments: dict[str, Any], progress: Any = None) -> Any:
        """A tool's result, also where it is an error."""
        return await self.client.call_tool(name, arguments, progress_callback=progress)


class FastMcp:
    """The client of fastmcp."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport

        self.client = Client(StdioTransport(command[0], command[1:], env=environment, keep_alive=False))

    async def call(self, name: str, arguments: dict[str, Any], progress: Any = None) -> Any:
        """A tool's result, also where it is an error."""
        return await self.client.call_tool_mcp(name, arguments, progress_handler=progress)


async def ended(call: Any) -> str:
    """`ok`, `error` (as a result or as a JSON-RPC error)."""
    try:
        result = await call
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "error"
    return "error" if result.is_error else "ok"


async def run(plan: dict[str, Any], kind: type[Sdk] | type[FastMcp]) -> dict[str, str]:
    """How each scenario ended."""
    found: dict[str, str] = {}
    using = kind(plan["command"], plan["environment"])
    async with using.client as client:
        found["initialize"] = "ok"
        found["list"] = "ok" if await client.list_tools() else "error"
        found["call"] = await ended(using.call(*plan["call"]))
        found["failing"] = await ended(using.call(*plan["failing"]))
        found["unknown"] = await ended(using.call("no_such_tool", {}))
        if plan["big"]:
            found["big"] = await ended(using.call(*plan["big"]))
        if plan["steps"]:
            seen: list[float] = []

            async def progress(done: float, total: float | None, message: str | None) -> None:
                seen.append(done)

            how = await ended(using.call(*plan["steps"], progress))
            found["steps"] = how if seen else "no progress"
        calls = [ended(using.call(*plan["call"])) for _ in range(CONCURRENT)]
        found["concurrent"] = "ok" if set(await asyncio.gather(*calls)) == {"ok"} else "error"
        if plan["slow"]:
            task = asyncio.create_task(using.call(*plan["slow"]))
            await asyncio.wait({task}, timeout=_LEAVE_AFTER_S)
            task.cancel()
            await asyncio.wait({task})
            found["cancel"] = "cancelled" if task.cancelled() else "finished"
            found["after"] = await ended(using.call(*plan["call"]))
    return found


def main() -> None:
    """Prints what `run` found."""
    plan = json.loads(Path(sys.argv[2]).read_text())
    kind = {"sdk": Sdk, "fastmcp": FastMcp}[sys.argv[1]]
    print(json.dumps(asyncio.run(run(plan, kind))))


if __name__ == "__main__":
    main()
