"""One Hermes hook call, from a plugin in the process or a shell hook outside it, under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.adapters.calls import Call
from services.adapters.context import Context, Scope
from services.adapters.values import mapping, text

SHELL = "shell:"
PLACED = (
    "api_request_id",
    "middleware_trace",
    "session_id",
    "session_key",
    "task_id",
    "telemetry_schema_version",
    "turn_id",
)
"""Fields that every event has a place for, or that say nothing."""


@dataclass(frozen=True, slots=True)
class Payload:
    """`name` is the hook as Hermes calls it, `hook` with the prefix `shell:` where a shell hook told it."""

    name: str
    kwargs: Mapping[str, Any]
    thread: str
    shell: bool
    cwd: str | None
    toolset: str | None
    context: Context

    @property
    def hook(self) -> str:
        """Name of the hook and the form in which it came."""
        return f"{SHELL}{self.name}" if self.shell else self.name

    def text(self, name: str) -> str | None:
        """A text field."""
        return text(self.kwargs.get(name))

    @property
    def session_id(self) -> str | None:
        """The session; where it is left out, as turn ids (`SESSION:TASK:hex`) begin with it."""
        return self.text("session_id") or session_of_turn(self.text("turn_id"))

    def scope(self, call: Call | None = None) -> Scope:
        """Whose event this is; what the payload leaves out comes from the call."""
        task = self.text("task_id")
        return Scope(
            session_id=self.session_id or (call.session_id if call else None),
            session_key=self.text("session_key"),
            agent_id=task if task and task.startswith("sa-") else call.agent_id if call else None,
            turn_id=self.text("turn_id") or (call.turn_id if call else None),
            model_call_id=self.text("api_request_id"),
            trace_id=call.trace_id if call else None,
        )


def read(payload: Mapping[str, Any], context: Context) -> Payload | None:
    """A plugin's `{"hook", "kwargs", "thread"[, "toolset"]}` or the stdin of a shell hook; None for anything else."""
    command = text(payload.get("hook_event_name"))
    if command:
        extra = mapping(payload.get("extra"))
        kwargs = {**extra, "session_id": payload.get("session_id")}
        if payload.get("tool_name") is not None:
            kwargs |= {"tool_name": payload["tool_name"], "args": payload.get("tool_input")}
        return Payload(command, kwargs, "", True, text(payload.get("cwd")), None, context)
    hook, given = text(payload.get("hook")), payload.get("kwargs")
    if hook is None or not isinstance(given, dict):
        return None
    thread = text(payload.get("thread")) or ""
    return Payload(hook, given, thread, False, None, text(payload.get("toolset")), context)


def session_of_turn(turn_id: str | None) -> str | None:
    """`20261130_184222_ca2921` of `20261130_184222_ca2921:TASK:hex`."""
    parts = (turn_id or "").rsplit(":", 2)
    return parts[0] or None if len(parts) == 3 else None


def task_of_turn(turn_id: str | None) -> str | None:
    """The task id in the middle of a turn id."""
    parts = (turn_id or "").rsplit(":", 2)
    return parts[1] or None if len(parts) == 3 else None
