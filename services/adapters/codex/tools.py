"""What Codex's tools are, and what their PostToolUse proves."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import orjson

from schemas.events import Evidence, Mcp, Outcome, ToolSource
from services.adapters import mcp_names
from services.adapters.context import Context, Tool
from services.adapters.values import mapping, text

UNSAFE = re.compile(r"[^A-Za-z0-9_]")
"""Characters of server and tool names that become `_` in a tool name."""

SHELL = "Bash"
"""Name that hooks give to every shell command, whatever the model called the tool."""

SPAWN = "spawn_agent"

_RESOURCES = {
    "list_mcp_resources": "resources_list",
    "list_mcp_resource_templates": "resources_list",
    "read_mcp_resource": "resources_read",
}
_SOURCES: dict[str, ToolSource] = {
    SHELL: "shell",
    **dict.fromkeys(("apply_patch", "view_image"), "file"),
    **dict.fromkeys((SPAWN, "create_goal", "get_goal", "request_user_input", "wait_agent"), "core"),
}
_NAMESPACED = re.compile(r"[a-z]+(?:_[a-z]+)*_v\d+(?P<name>[a-z]\w*)")
"""Built-ins of a namespace are glued to it without a separator: `multi_agent_v1wait_agent`."""

_POST_MEANS_SUCCESS = frozenset((*_RESOURCES, *_SOURCES)) - {SHELL, "apply_patch", SPAWN}
"""Built-ins that were seen to fire no PostToolUse when they fail, or seen only to succeed."""

_PATCH_EXIT_CODE = re.compile(r"Exit code: (\d{1,10})\n")


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of a PostToolUse and what proves it."""

    outcome: Outcome
    evidence: Evidence
    exit_code: int | None = None
    is_error_result: bool | None = None
    background: bool = False


def plain_name(name: str) -> str:
    """A built-in's own name without its namespace."""
    glued = _NAMESPACED.fullmatch(name)
    return glued["name"] if glued else name


def describe(ctx: Context, name: str, arguments: Any) -> Tool:
    """The tool of a payload, which never says the MCP server: names known from elsewhere decide, else a guess."""
    mcp = mcp_names.split(name, UNSAFE, known=ctx.calls.servers(ctx.runtime))
    if mcp is not None:
        return Tool(name, "mcp", mcp=mcp)
    operation = _RESOURCES.get(name)
    if operation is not None:
        # The model names the server here; whether there is one of that name is not proven.
        server = text(mapping(arguments).get("server"))
        side = Mcp.model_validate({"server_name": server, "operation": operation, "name_guess": server is not None})
        return Tool(name, "mcp", mcp=side)
    return Tool(name, _SOURCES.get(plain_name(name), "unknown"))


def read(tool: Tool, response: Any) -> Reading:
    """What PostToolUse proves. Of a shell command nothing: it comes for failed ones too and tells no exit code."""
    if tool.source == "mcp" and isinstance(mapping(response).get("content"), list):
        failed = mapping(response).get("isError") is True
        return Reading("error" if failed else "ok", "is_error", is_error_result=failed)
    if tool.name == "apply_patch" and isinstance(response, str):
        found = _PATCH_EXIT_CODE.match(response)
        if found:
            code = int(found[1])
            return Reading("ok" if code == 0 else "error", "exit_status", exit_code=code)
    if plain_name(tool.name) == SPAWN:
        return Reading("unknown", "none", background=True)
    if plain_name(tool.name) in _POST_MEANS_SUCCESS:
        return Reading("ok", "hook")
    return Reading("unknown", "none")


def proven(tool: Tool, reading: Reading) -> Tool:
    """The tool, with the server's name proven where the call to it succeeded."""
    if reading.outcome != "ok" or tool.mcp is None or tool.mcp.operation not in _RESOURCES.values():
        return tool
    return replace(tool, mcp=tool.mcp.model_copy(update={"name_guess": False}))


def child(tool: Tool, response: Any) -> str | None:
    """Id of the agent that a launch made; the response is JSON as text."""
    if plain_name(tool.name) != SPAWN or not isinstance(response, str):
        return None
    try:
        return text(mapping(orjson.loads(response)).get("agent_id"))
    except (orjson.JSONDecodeError, RecursionError):
        return None
