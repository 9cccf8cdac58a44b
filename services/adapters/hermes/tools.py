"""What a Hermes tool name says: where the tool comes from, and which MCP server it hides."""

from __future__ import annotations

import re

from schemas.events import ToolSource
from services.adapters import mcp_names
from services.adapters.context import Context, Tool

TERMINAL = "terminal"
EXECUTE_CODE = "execute_code"
DELEGATE = "delegate_task"
BRIDGE = frozenset({"tool_search", "tool_describe"})

_SOURCES: dict[str, ToolSource] = {
    **dict.fromkeys((TERMINAL, "process"), "shell"),
    **dict.fromkeys(("patch", "read_file", "search_files", "write_file"), "file"),
    **dict.fromkeys(("web_crawl", "web_extract", "web_search"), "web"),
    **dict.fromkeys((*BRIDGE, DELEGATE, EXECUTE_CODE, "clarify", "cronjob", "image_generate", "memory"), "core"),
    **dict.fromkeys(("mixture_of_agents", "send_message", "session_search", "skill_manage", "skill_view"), "core"),
    **dict.fromkeys(("skills_list", "text_to_speech", "todo", "vision_analyze"), "core"),
}
_TOOLSET = "mcp-"
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def describe(name: str, toolset: str | None, context: Context) -> Tool:
    """The tool behind a name. The process's own `toolset` (`mcp-SERVER`) proves the MCP server; else it is guessed."""
    if name in _SOURCES:
        return Tool(name, _SOURCES[name], "bridge" if name in BRIDGE else None)
    if name.startswith("browser_"):
        return Tool(name, "browser")
    server = toolset.removeprefix(_TOOLSET) if toolset and toolset.startswith(_TOOLSET) else None
    mcp = mcp_names.split(name, _UNSAFE, server=server or None, known=context.calls.servers(context.runtime))
    return Tool(name, "mcp" if mcp else "unknown", None, mcp)
