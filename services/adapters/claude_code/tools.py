"""What Claude Code's tools are: where they come from, and the MCP side of their names."""

from __future__ import annotations

import re

from schemas.events import Mcp, ToolSource
from services.adapters import mcp_names
from services.adapters.context import Context, Tool

UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
"""Characters of a server name that become `_` in a tool name."""

LAUNCHERS = frozenset({"Agent", "Task"})
"""Tools that start a sub-agent; `Task` is the older name."""

_SOURCES: dict[str, ToolSource] = {
    **dict.fromkeys(("Bash", "BashOutput", "KillShell"), "shell"),
    **dict.fromkeys(("Read", "Write", "Edit", "MultiEdit", "NotebookEdit", "Glob", "Grep", "LS"), "file"),
    **dict.fromkeys(("WebFetch", "WebSearch"), "web"),
    **dict.fromkeys((*LAUNCHERS, "AskUserQuestion", "Skill", "ToolSearch"), "core"),
    **dict.fromkeys(("TaskCreate", "TaskUpdate", "TodoWrite"), "core"),
}


def describe(ctx: Context, name: str, server: str | None) -> Tool:
    """The tool of a payload; `server` is its `mcp_server.name`, which older releases and batch entries lack."""
    if server is not None and ctx.ident(server) != server:
        # The name holds a secret; its form in tool names, with `_` for other characters, would not be recognised.
        return Tool(name, "mcp", mcp=Mcp(server_name=server, operation="tool", name_guess=True))
    mcp = mcp_names.split(name, UNSAFE, server=server, known=ctx.calls.servers(ctx.runtime))
    if mcp is not None:
        return Tool(name, "mcp", mcp=mcp)
    if server is not None:
        return Tool(name, "mcp", mcp=Mcp(server_name=server, operation="tool", name_guess=True))
    return Tool(name, _SOURCES.get(name, "unknown"))
