"""What POST /hooks/{runtime} takes and answers, as models for the published JSON Schemas.

Adapters do not validate with these: a payload that fits none of them still becomes an event. Recorded shapes: Claude Code 2.1.332,
Codex 0.171.0, OpenClaw 2026.9.6, Hermes Agent 0.19.0.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class ClaudeCodeHook(_Open):
    """The JSON that Claude Code gives a command hook on stdin or posts to an http hook."""

    session_id: str
    hook_event_name: str
    transcript_path: str | None = None
    cwd: str | None = None
    prompt_id: str | None = None
    permission_mode: str | None = None
    agent_id: str | None = None
    agent_type: str | None = None
    tool_name: str | None = None
    tool_input: dict[str, Any] | None = None
    tool_use_id: str | None = None


class CodexHook(_Open):
    """The JSON that Codex gives a command hook on stdin."""

    session_id: str
    hook_event_name: str
    turn_id: str | None = None
    transcript_path: str | None = None
    cwd: str | None = None
    model: str | None = None
    agent_id: str | None = None
    tool_name: str | None = None
    tool_input: dict[str, Any] | None = None
    tool_use_id: str | None = None


class OpenClawHook(_Open):
    """What the OpenClaw plugin posts: a hook's name, event and chosen fields of its context.

    `metadata` comes with diagnostic events, `decision` and `toolCallId` with the answer to an approval of the plugin's own.
    """

    hook: str
    event: dict[str, Any] | None = None
    ctx: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    decision: str | None = None
    toolCallId: str | None = None
    ts: float | None = Field(default=None, description="when the hook fired, seconds since the epoch")


class HermesHook(_Open):  # type: ignore[no-redef]  # its field `kwargs` is the payload's own
    """What the Hermes plugin posts: a hook's name, its keyword arguments and the thread it ran on."""

    hook: str
    kwargs: dict[str, Any]
    thread: str | None = None
    ts: float | None = Field(default=None, description="when the hook fired, seconds since the epoch")


class HermesShellHook(_Open):
    """What Hermes gives a shell hook on stdin."""

    hook_event_name: str
    tool_name: str | None = None
    tool_input: dict[str, Any] | None = None
    session_id: str | None = None
    cwd: str | None = None
    extra: dict[str, Any] | None = None


class NeutralAnswer(BaseModel):
    """No decision: an empty object. Command hooks print nothing for it, plugins return nothing."""

    model_config = ConfigDict(extra="forbid")


ENVELOPES: dict[str, type[BaseModel]] = {
    "claude_code.payload": ClaudeCodeHook,
    "codex.payload": CodexHook,
    "openclaw.payload": OpenClawHook,
    "hermes.payload": HermesHook,
    "hermes.shell.payload": HermesShellHook,
    "claude_code.answer": NeutralAnswer,
    "codex.answer": NeutralAnswer,
    "openclaw.answer": NeutralAnswer,
    "hermes.answer": NeutralAnswer,
}
