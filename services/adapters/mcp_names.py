"""Server and tool behind a glued name `mcp__<server>__<tool>`, as Claude Code and Codex tell it.

The name alone is ambiguous as soon as server or tool hold `__`, so what the payload or earlier events prove comes first and a
plain split is marked as a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from schemas.events import Mcp

_PREFIX = "mcp__"
_SEPARATOR = "__"


def split(name: str, unsafe: re.Pattern[str], *, server: str | None = None, known: Iterable[str] = ()) -> Mcp | None:
    """The MCP side of a tool name; None for a name without the prefix.

    `unsafe` matches the characters of a server name that the runtime replaces by `_`. `server` is the real name that the payload
    itself gives, `known` are real names from elsewhere: the longest that fits wins. Neither: split at the first `__`, as a guess.
    """
    if not name.startswith(_PREFIX):
        return None
    rest = name.removeprefix(_PREFIX)
    if server is not None:
        safe = unsafe.sub("_", server)
        tool = _tool(rest, safe)
        if tool is not None:
            return Mcp(server_name=server, safe_server_name=safe, tool_name=tool)
        return Mcp(server_name=server, safe_server_name=safe, tool_name=_guess(rest)[1], name_guess=True)
    fitting = [(unsafe.sub("_", real), real) for real in known]
    fitting = [(safe, real) for safe, real in fitting if _tool(rest, safe) is not None]
    if fitting:
        safe, real = max(fitting, key=lambda pair: (len(pair[0]), pair[1]))
        return Mcp(server_name=real, safe_server_name=safe, tool_name=_tool(rest, safe))
    safe, tool = _guess(rest)
    return Mcp(server_name=safe or None, safe_server_name=safe or None, tool_name=tool, name_guess=True)


def _tool(rest: str, safe: str) -> str | None:
    head = safe + _SEPARATOR
    return rest[len(head) :] if safe and rest.startswith(head) and len(rest) > len(head) else None


def _guess(rest: str) -> tuple[str, str | None]:
    safe, _, tool = rest.partition(_SEPARATOR)
    return safe, tool or None
