"""What an OpenClaw tool name says: where the tool comes from, and which MCP server it hides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from schemas.events import Mcp, ToolSource
from services.adapters.context import Context, Tool
from services.adapters.values import mapping, text

BRIDGE = frozenset({"tool_search", "tool_describe", "tool_call"})
WRAPPER = "tool_call"
SPAWN = "sessions_spawn"
SHELL = frozenset({"exec", "bash"})

_SOURCES: dict[str, ToolSource] = {
    **dict.fromkeys((*SHELL, "process"), "shell"),
    **dict.fromkeys(("read", "write", "edit", "apply_patch"), "file"),
    **dict.fromkeys(("web_search", "web_fetch"), "web"),
    "browser": "browser",
    **dict.fromkeys((*BRIDGE, "agents_list", "canvas", "cron", "gateway", "image", "memory_get"), "core"),
    **dict.fromkeys(("memory_search", "message", "nodes", "session_status", "sessions_history"), "core"),
    **dict.fromkeys(("sessions_list", "sessions_send", SPAWN, "subagents", "tts", "update_plan"), "core"),
}
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_INNER = re.compile(r"tool_search_code:(.+):[^:]+:\d+", re.DOTALL)
_MAX_SERVER = 30


def safe_server(name: str) -> str:
    """Server part of a tool name as OpenClaw 2026.9 makes it, before a collision adds `-2`."""
    safe = _UNSAFE.sub("-", name)
    return (safe if safe[:1].isalpha() else f"mcp-{safe}")[:_MAX_SERVER]


def outer_id(tool_call_id: str) -> str | None:
    """Id of the bridge call inside which a call was made, from `tool_search_code:OUTER:NAME:N`."""
    found = _INNER.fullmatch(tool_call_id)
    return found[1] if found else None


def describe(
    name: str,
    context: Context,
    *,
    kind: str | None = None,
    details: Mapping[str, Any] | None = None,
    server: str | None = None,
) -> Tool:
    """The tool behind a name.

    A result's `details`, or the configuration by way of `server`, prove the MCP server; else the split is looked up
    among servers known from results, else guessed.
    """
    details = details or {}
    server, tool = text(details.get("mcpServer")) or server, text(details.get("mcpTool"))
    left, cut, right = name.partition("__")
    if server:
        mcp = Mcp(
            server_name=server,
            safe_server_name=left if cut else None,
            tool_name=tool or right or name,
            operation="tool",
        )
        return Tool(name, "mcp", kind, mcp)
    if name in _SOURCES:
        source: ToolSource = "core" if kind == "code_mode_exec" else _SOURCES[name]
        return Tool(name, source, kind or ("bridge" if name in BRIDGE else None))
    if cut and left and right:
        return Tool(name, "mcp", kind, _by_name(left, right, context))
    return Tool(name, "unknown", kind)


def wraps(name: str, arguments: Any) -> bool:
    """True for the bridge call that makes another, real call."""
    return name == WRAPPER and text(mapping(arguments).get("id")) is not None


def _by_name(left: str, right: str, context: Context) -> Mcp:
    same = [server for server in context.calls.servers(context.runtime) if safe_server(server) == left]
    # Two servers with one safe name differ by a suffix that follows the configuration's order: nothing proves which.
    known = same[0] if len(same) == 1 else None
    return Mcp(
        server_name=known or left,
        safe_server_name=left,
        tool_name=right,
        operation="tool",
        name_guess=known is None,
    )
