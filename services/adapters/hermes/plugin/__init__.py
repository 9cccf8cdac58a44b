"""Hermes Agent plugin: hands each hook call to the AgentTrace collector.

It runs inside the agent, so it needs nothing but the standard library, never raises, always returns None, and does in
the agent's thread no more than copy the payload (as JSON) into a bounded queue.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from .sender import Sender

HOOKS = (
    "pre_tool_call",
    "post_tool_call",
    "pre_llm_call",
    "post_llm_call",
    "pre_api_request",
    "post_api_request",
    "api_request_error",
    "pre_verify",
    "on_session_start",
    "on_session_end",
    "on_session_finalize",
    "on_session_reset",
    "subagent_start",
    "subagent_stop",
    "pre_approval_request",
    "post_approval_response",
    "kanban_task_claimed",
    "kanban_task_completed",
    "kanban_task_blocked",
)
"""All hooks but those that only repeat a tool's result (`transform_*`) or hand over live gateway objects."""

_REPEATED = {
    "pre_api_request": ("conversation_history", "request", "request_messages", "user_message"),
    "post_api_request": ("assistant_message", "response"),
    "api_request_error": ("request",),
    "post_llm_call": ("conversation_history", "user_message"),
}
"""Histories, previews and objects that another hook of the same turn tells already."""


def register(ctx: Any) -> None:
    """Called by Hermes once per process."""
    sender = Sender("hermes")
    for name in HOOKS:
        ctx.register_hook(name, _callback(name, sender))


def _callback(name: str, sender: Sender) -> Callable[..., None]:
    repeated = frozenset(_REPEATED.get(name, ()))

    def callback(**kwargs: Any) -> None:
        try:
            now = time.time()
            payload: dict[str, Any] = {
                "hook": name,
                "kwargs": {key: value for key, value in kwargs.items() if key not in repeated},
                "thread": threading.current_thread().name,
                "ts": now,
            }
            if name in ("pre_tool_call", "post_tool_call"):
                payload["toolset"] = _toolset(kwargs.get("tool_name"))
            # The values are the agent's live objects: as text nobody can change them, and they keep nothing alive.
            sender.send(_to_json(payload), now)
        except KeyboardInterrupt:
            raise  # the user's Ctrl-C is for the agent, wherever it lands
        except BaseException:
            # Hermes catches no SystemExit and no GeneratorExit here: an observer's failure would end the agent.
            return

    callback.__name__ = f"agenttrace_{name}"
    return callback


def _toolset(tool_name: Any) -> str | None:
    """`mcp-SERVER` with the server's configured name, which the tool's own name does not keep."""
    if not isinstance(tool_name, str) or not tool_name.startswith("mcp_"):
        return None
    try:
        from tools.registry import registry  # type: ignore[import-not-found]  # Hermes's own, in its process only

        found = registry.get_toolset_for_tool(tool_name)
    except Exception:
        return None
    return found if isinstance(found, str) else None


def _to_json(payload: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(payload, default=_kind, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        # Keys that are no text, or a structure that holds itself: the fields that can be told are told.
        payload["kwargs"] = {str(key): _plain(value) for key, value in payload["kwargs"].items()}
        text = json.dumps(payload, default=_kind, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    try:
        json.dumps(value, default=_kind)
    except (TypeError, ValueError, RecursionError):
        return _kind(value)
    return value


def _kind(value: Any) -> dict[str, str]:
    """In the place of an object: its fields may hold clients, keys and half the process."""
    return {"__type__": type(value).__name__}
