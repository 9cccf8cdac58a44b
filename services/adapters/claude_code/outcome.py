"""What a PostToolUse or PostToolUseFailure of Claude Code proves of a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.events import Evidence, Outcome
from services.adapters.claude_code import tools
from services.adapters.context import Tool
from services.adapters.values import mapping

_EXIT_CODE = re.compile(r"Exit code (\d{1,10})(?:\n|$)")
_SHELL_TIMEOUT = re.compile(r"Exit code \d{1,10}\nCommand timed out after ")
_MCP_ERROR = re.compile(r"MCP error (-?\d{1,10}):")
_OVERSIZED = re.compile(r"Error: result \((\d[\d,]{0,20}) characters")


@dataclass(frozen=True, slots=True)
class Reading:
    """An outcome and what proves it. `native` is what of the response is worth a field; `background`: work goes on."""

    outcome: Outcome
    evidence: Evidence
    exit_code: int | None = None
    error_type: str | None = None
    error_code: int | None = None
    background: bool = False
    output: Any = None
    native: Mapping[str, Any] = field(default_factory=dict)


def of_response(tool: Tool, response: Any) -> Reading:
    """PostToolUse: it comes only for calls that did not fail, but also where work was merely launched or cut off."""
    outcome, evidence, background = _of_response(tool, mapping(response))
    native, output = _parts(tool, response)
    return Reading(outcome, evidence, background=background, output=output, native=native)


def _of_response(tool: Tool, said: Mapping[str, Any]) -> tuple[Outcome, Evidence, bool]:
    if said.get("backgroundTaskId"):
        return "unknown", "none", True
    if said.get("interrupted") is True:
        return "cancelled", "hook", False
    if tool.name in tools.LAUNCHERS and said.get("status", "completed") != "completed":
        return "unknown", "none", said.get("status") == "async_launched" or said.get("isAsync") is True
    if tool.name == "Skill" and said.get("success") is False:
        return "error", "hook", False
    return "ok", "hook", False


def _parts(tool: Tool, response: Any) -> tuple[dict[str, Any], Any]:
    """What of the response goes into `native`, and the response as output."""
    if isinstance(response, str) and tool.source == "mcp":
        # The server answered; the client keeps the answer in a file, since it is too large for the model.
        oversized = _OVERSIZED.match(response)
        return {"result_characters": int(oversized[1].replace(",", ""))} if oversized else {}, response
    if not isinstance(response, dict):
        return {}, response
    native = {
        "background_task_id": response.get("backgroundTaskId"),
        "child_agent_id": response.get("agentId") if tool.name in tools.LAUNCHERS else None,
    }
    original = response.get("originalFile")
    if tool.source == "file" and isinstance(original, str):
        # The whole file as it was before: the model does not get it, so it is no output.
        native["original_file_characters"] = len(original)
        response = {name: value for name, value in response.items() if name != "originalFile"}
    return native, response


def of_failure(tool: Tool, said: str, *, interrupted: bool) -> Reading:
    """PostToolUseFailure with the text `said`."""
    found = _EXIT_CODE.match(said) if tool.source == "shell" else None
    exit_code = int(found[1]) if found else None
    if interrupted:
        return Reading("cancelled", "hook", exit_code, "interrupt")
    if exit_code is not None:
        timed_out = _SHELL_TIMEOUT.match(said) is not None
        return Reading(
            "timeout" if timed_out else "error",
            "exit_status",
            exit_code,
            "timeout" if timed_out else "exit_status",
        )
    named = _MCP_ERROR.match(said) if tool.source == "mcp" else None
    # Servers put this text into results with isError too: the code is told, but no JSON-RPC error is proven.
    return Reading("error", "hook", error_code=int(named[1]) if named else None)
