"""Policy files as models: first match decides. Loaded and checked here; decisions are services/capture/policy's."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from schemas.events import Decision, Runtime, ToolSource


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Part):
    """All given fields must hold. `*_regex` are RE2, unanchored; `*_in` and `*_not_in` are lists."""

    agent_runtime: Runtime | None = None
    agent_id_in: tuple[str, ...] | None = None
    agent_id_not_in: tuple[str, ...] | None = None
    agent_role_in: tuple[str, ...] | None = None
    agent_role_not_in: tuple[str, ...] | None = None
    tool_source: ToolSource | None = None
    tool_name: str | None = None
    tool_name_regex: str | None = None
    mcp_server: str | None = None
    mcp_tool: str | None = None
    mcp_tool_regex: str | None = None
    input_regex: str | None = None


class Policy(_Part):
    """One policy of a file's `policies:` list."""

    id: str
    enabled: bool = True
    description: str | None = None
    match: Match
    decision: Decision
    severity: Literal["low", "medium", "high", "critical"] = "high"
    reason: str | None = None


class PolicyFile(_Part):
    """A policy file."""

    policies: tuple[Policy, ...]
