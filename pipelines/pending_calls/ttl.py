"""How long a tool call may take before it counts as timed out: a default, and overrides by runtime, server and tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.config import TtlOverride
from schemas.identity import canonical_name

DEFAULT_TTL_MS = 300_000
DEFAULT_APPROVAL_TTL_MS = 3_600_000

MAX_REMEMBERED = 10_000


class Ttls:
    """The TTLs in force, in ms. The first override whose given fields all match a call decides.

    `approval_ms` runs instead, from the request, while a call waits for a person's decision.
    """

    def __init__(
        self,
        default_ms: int = DEFAULT_TTL_MS,
        approval_ms: int = DEFAULT_APPROVAL_TTL_MS,
        overrides: Sequence[TtlOverride] = (),
    ) -> None:
        self.default_ms = default_ms
        self.approval_ms = approval_ms
        self._overrides = [
            (rule.runtime, _canonical(rule.mcp_server), _canonical(rule.tool), rule.ttl_ms) for rule in overrides
        ]
        self._known: dict[tuple[Any, Any, Any], int] = {}

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.default_ms} {self.approval_ms} {self._overrides}"

    @property
    def longest_ms(self) -> int:
        """The longest time from a call's start to its deadline, a wait for one approval included."""
        return self.approval_ms + max([self.default_ms, *(ttl for *_, ttl in self._overrides)])

    def of(self, started: Mapping[str, Any]) -> int:
        """TTL of the call that this `tool.call.started` began. Server and tool are compared by canonical name."""
        if not self._overrides:
            return self.default_ms
        mcp = started.get("mcp") or {}
        place = (started.get("agent_runtime"), mcp.get("server_name"), mcp.get("tool_name") or started["tool_name"])
        ttl = self._known.get(place)
        if ttl is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            ttl = self._known[place] = self._find(place[0], _canonical(place[1]), _canonical(place[2]))
        return ttl

    def _find(self, runtime: str | None, server: str | None, tool: str | None) -> int:
        for of_runtime, of_server, of_tool, ttl in self._overrides:
            if of_runtime in (None, runtime) and of_server in (None, server) and of_tool in (None, tool):
                return ttl
        return self.default_ms


def _canonical(name: str | None) -> str | None:
    return None if name is None else canonical_name(name)
