"""The server of tests.bench.mcp_raw as people write one: on the public Python SDK.

`python -m tests.bench.mcp_sdk stdio` serves standard input and output, `… http` a port of 127.0.0.1 that it prints.
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

from services.embedded.host import free_port

server = MCPServer("sdk", log_level="ERROR")


@server.tool(structured_output=False)
def blob(size: int) -> str:
    """A text of so many bytes."""
    return "x" * size


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(transport="stdio")
    else:
        port = free_port()
        print(port, flush=True)
        server.run(transport="streamable-http", host="127.0.0.1", port=port, json_response=True)
