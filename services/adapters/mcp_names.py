"""Server and tool behind a glued name `mcp__<server>__<tool>`, as Claude Code and Codex tell it.

The name alone is ambiguous as soon as server or tool hold `__`, so what the payload or earlier events prove comes
first, and a plain split is marked as a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from schemas.events import Mcp

_PREFIX = "mcp__"
_SEPARATOR = "__"


def split(name: str, unsafe: re.Pattern[str], *, server: str | None = None, known: Iterable[str] = ()) -> Mcp | None:
    """The MCP side of a tool name; None for a name without the prefix.

    `unsafe` matches the characters of a server name that the runtime replaces by `_`. `server` is the real name where
    the payload gives it, `known` are real names from elsewhere: the longest that fits wins. Neither: split at the
    first `__`.
    """
    if not name.startswith(_PREFIX):
        return None
    rest = name.removeprefix(_PREFIX)
    if server is not None:
        safe = unsafe.sub("_", server)
        tool = _tool(rest, safe)
        if tool is not None:
            return _mcp(server, safe, tool)
        return _mcp(server, safe, _guess(rest)[1], guess=True)
    fitting = [(unsafe.sub("_", real), real) for real in known]
    fitting = [(safe, real) for safe, real in fitting if _tool(rest, safe) is not None]
    if fitting:
        safe, real = max(fitting, key=lambda pair: (len(pair[0]), pair[1]))
        return _mcp(real, safe, _tool(rest, safe))
    safe, tool = _guess(rest)
    return _mcp(safe or None, safe or None, tool, guess=True)


def _mcp(server: str | None, safe: str | None, tool: str | None, *, guess: bool = False) -> Mcp:
    return Mcp(server_name=server, safe_server_name=safe, tool_name=tool, operation="tool", name_guess=guess)


def _tool(rest: str, safe: str) -> str | None:
    head = safe + _SEPARATOR
    return rest[len(head) :] if safe and rest.startswith(head) and len(rest) > len(head) else None


def _guess(rest: str) -> tuple[str, str | None]:
    safe, _, tool = rest.partition(_SEPARATOR)
    return safe, tool or None
